"""One way to refuse a number: name the argument, what it got and what is allowed."""

from math import isfinite
from numbers import Real
from operator import index


def whole(name: str, value: int, least: int = 1) -> int:
    """The value as an int of at least `least`. Raises TypeError for a non-integer and ValueError for one too small."""
    try:
        if isinstance(value, bool):
            raise TypeError
        value = index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value


def positive(name: str, value: float, most: float | None = None) -> float:
    """The value, above 0 and at most `most`. Raises TypeError for what is no number and ValueError for one out of range."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not (isfinite(value) and 0 < value and (most is None or value <= most)):
        raise ValueError(f"{name} must be above 0 and {'finite' if most is None else f'at most {most}'}, got {value}")
    return value


def heads(heads_q: int, heads_kv: int) -> int:
    """Query heads that share one kv head. Raises ValueError where heads_kv does not divide heads_q."""
    if whole("heads_q", heads_q) % whole("heads_kv", heads_kv):
        raise ValueError(f"heads_kv must divide heads_q {heads_q}, got {heads_kv}")
    return heads_q // heads_kv
