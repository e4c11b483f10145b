"""What a widget shows, as plain data: a frozen dataclass that raises ValueError for what it cannot show.

A state may have ``settle(fields, asked)``: how its other fields fall back when one of them is changed.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from operator import index

from flashlab.hardware import gpu


@dataclass(frozen=True)
class Fields:
    """Base of every state: before anything else, each field is made what its annotation says, or refused."""

    def __post_init__(self):
        for name, value in _typed(type(self), {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}).items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Stepped(Fields):
    """Base of a state one steps through: a subclass has ``steps``, and ``step`` runs from 0 to it."""

    step: int = 0

    @property
    def steps(self) -> int:
        raise NotImplementedError

    def check_step(self) -> None:
        require(0 <= self.step <= self.steps, "step", self.step, f"from 0 to {self.steps}")

    @classmethod
    def settle(cls, fields: dict, asked: set) -> dict:
        """A step past the new end falls back to the end, unless it was asked for."""
        if "step" in asked:
            return fields
        return fields | {"step": min(fields["step"], cls(**fields | {"step": 0}).steps)}


def require(condition: bool, name: str, value, allowed: str) -> None:
    """Raise ValueError naming the field, what it got and what is allowed."""
    if not condition:
        raise ValueError(f"{name} is {_brief(value)}: allowed is {allowed}")


def gpu_name(value: str, known: Iterable[str]) -> str:
    """One of the known GPUs by a loose name, or by "live" the one that is here. Raises ValueError for any other."""
    known = ", ".join(names := tuple(known))
    try:
        found = gpu(value).name
    except RuntimeError as error:  # "live" where there is none
        raise ValueError(f"gpu is {value!r}: {error}; allowed is {known}") from None
    require(found in names, "gpu", found, known)
    return found


def revise(state, **changes):
    """The state with some fields changed. The others fall back to what is still allowed, as the state's ``settle`` says."""
    known = [field.name for field in dataclasses.fields(state)]
    for name in changes:
        require(name in known, "field", name, ", ".join(known))
    values = {name: getattr(state, name) for name in known} | _typed(type(state), changes)
    settle = getattr(state, "settle", lambda fields, asked: fields)
    return type(state)(**settle(values, set(changes)))


def _typed(state, values: dict) -> dict:
    """The values as plain Python of their fields' sorts: a NumPy integer is a whole number, True is none."""
    sorts, made = {field.name: _SORTS[field.type] for field in dataclasses.fields(state)}, {}
    for name, value in values.items():
        words, plain = sorts[name]
        try:
            made[name] = plain(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError is a tensor's
            require(False, name, value, words)
    return made


def _only(sort):
    def plain(value):
        if not isinstance(value, sort):
            raise TypeError
        return value

    return plain


def _whole(value) -> int:
    if isinstance(value, bool):
        raise TypeError
    return index(value)


def _real(value) -> float:
    if isinstance(value, bool | str | bytes):
        raise TypeError
    return float(value)


def _row(value) -> tuple[float, ...]:
    if isinstance(value, str | bytes | Mapping | Set):
        raise TypeError
    return tuple(map(_real, value))


def _pairs(value) -> tuple[tuple[int, float], ...]:
    if isinstance(value, str | bytes | Mapping | Set):
        raise TypeError
    pairs = tuple((_whole(x), _real(y)) for x, y in value)
    if not all(x > 0 and 0 < y < float("inf") for x, y in pairs):
        raise ValueError
    return pairs


_SORTS = {
    int: ("a whole number", _whole),
    float: ("a number", _real),
    bool: ("True or False", _only(bool)),
    str: ("a string", _only(str)),
    tuple[float, ...]: ("a row of numbers", _row),
    tuple[tuple[int, float], ...]: ("pairs of a whole number and a number, both above 0", _pairs),
}


def _brief(value, most: int = 80) -> str:
    try:
        words = repr(value)
    except ValueError:  # an int of thousands of digits
        words = f"a very large {type(value).__name__}"
    return words if len(words) <= most else f"{words[: most - 3]}..."
