"""Where two results first differ, in words a reader can act on."""

import dataclasses
import numbers
from typing import Any, NamedTuple

import torch


class Difference(NamedTuple):
    where: str  # "row 2, column 0", "item 1 (lse)" or "" for the whole
    what: str  # "yours 1.2047, spec 0.8813"
    kind: str = "value"  # or what is wrong before any value is looked at: "type", "shape", "dtype", "keys"

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


def first_difference(yours: Any, spec: Any, tolerance: float) -> Difference | None:
    """The first place where ``yours`` is not ``spec``, or None.

    Tensors, numbers, strings, None, and tuples, lists, dicts and dataclasses of them. Two floats are equal when they are
    closer than ``tolerance * (1 + largest finite |spec|)``, when both are NaN, or when both are the same infinity.
    Integers and booleans must be equal. Types, shapes and dtypes must be the spec's.
    """
    if isinstance(spec, torch.Tensor):
        return _tensors(yours, spec, tolerance)
    if isinstance(spec, bool) or spec is None or isinstance(spec, str):
        if isinstance(spec, bool) and _is_scalar(yours, torch.bool):
            yours = yours.item()
        if type(yours) is not type(spec):
            return _kind(yours, spec)
        return None if yours == spec else Difference("", f"yours {yours!r}, spec {spec!r}")
    if isinstance(spec, numbers.Number):
        return _numbers(yours, spec, tolerance)
    if dataclasses.is_dataclass(spec):
        if type(yours) is not type(spec):
            return _kind(yours, spec)
        names = [field.name for field in dataclasses.fields(spec)]
        return _members([(f".{n}", getattr(yours, n), getattr(spec, n)) for n in names], tolerance)
    if isinstance(spec, dict):
        return _dicts(yours, spec, tolerance)
    if isinstance(spec, (tuple, list)):
        return _sequences(yours, spec, tolerance)
    if type(yours) is not type(spec):
        return _kind(yours, spec)
    if type(spec).__eq__ is object.__eq__:
        return _dicts(getattr(yours, "__dict__", {}), getattr(spec, "__dict__", {}), tolerance)
    return None if yours == spec else Difference("", f"yours {yours!r}, spec {spec!r}")


def describe(value: Any) -> str:
    """What a value is: ``a float64 tensor of shape (16, 3)``."""
    if value is None or value is ...:
        return repr(value)
    if isinstance(value, torch.Tensor):
        return f"a {_dtype(value)} tensor of shape {tuple(value.shape)}"
    if isinstance(value, (bool, numbers.Number)):
        return f"the {type(value).__name__} {value!r}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _kind(yours: Any, spec: Any) -> Difference:
    forgotten = " (is a return missing?)" if yours is None else ""
    return Difference("", f"yours is {describe(yours)}{forgotten}, spec {describe(spec)}", "type")


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _is_scalar(value: Any, *dtypes: torch.dtype) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0 and (not dtypes or value.dtype in dtypes)


def _numbers(yours: Any, spec: numbers.Number, tolerance: float) -> Difference | None:
    if _is_scalar(yours):
        yours = yours.item()
    if isinstance(yours, bool) or not isinstance(yours, numbers.Number):
        return _kind(yours, spec)
    if isinstance(spec, int):
        return None if yours == spec else Difference("", f"yours {yours!r}, spec {spec!r}")
    kind = torch.complex128 if isinstance(yours, complex) or isinstance(spec, complex) else torch.float64
    return _values(torch.tensor(yours, dtype=kind), torch.tensor(spec, dtype=kind), tolerance)


def _tensors(yours: Any, spec: torch.Tensor, tolerance: float) -> Difference | None:
    if not isinstance(yours, torch.Tensor):
        return _kind(yours, spec)
    if yours.shape != spec.shape:
        return Difference("", f"your result has shape {tuple(yours.shape)}, spec {tuple(spec.shape)}", "shape")
    if yours.dtype != spec.dtype:
        return Difference("", f"your result is {_dtype(yours)}, spec {_dtype(spec)}", "dtype")
    yours, spec = yours.detach().cpu(), spec.detach().cpu()
    exact = not (spec.is_floating_point() or spec.is_complex())
    wide = spec.dtype if exact else torch.complex128 if spec.is_complex() else torch.float64
    return _values(yours.to(wide), spec.to(wide), 0.0 if exact else tolerance)


def _values(yours: torch.Tensor, spec: torch.Tensor, tolerance: float) -> Difference | None:
    different = yours != spec
    if spec.is_floating_point() or spec.is_complex():
        finite = spec[spec.isfinite()].abs()
        allowed = tolerance * (1 + (finite.max().item() if finite.numel() else 0.0))
        close = spec.isfinite() & yours.isfinite() & ((yours - spec).abs() <= allowed)
        different &= ~close & ~(yours.isnan() & spec.isnan())
    if not different.any():
        return None
    index = tuple(different.nonzero()[0].tolist())
    return Difference(_place(index), "yours {}, spec {}".format(*_apart(yours[index].item(), spec[index].item())))


def _place(index: tuple[int, ...]) -> str:
    match index:
        case ():
            return ""
        case (i,):
            return f"entry {i}"
        case (i, j):
            return f"row {i}, column {j}"
    return f"index {index}"


def _apart(a, b) -> tuple[str, str]:
    """Both numbers with as few digits as tell them apart, at least five."""
    if isinstance(a, complex):
        if a.imag or b.imag:
            return repr(a), repr(b)
        a, b = a.real, b.real
    if not isinstance(a, float):
        return str(a), str(b)
    texts = ((f"{a:.{digits}g}", f"{b:.{digits}g}") for digits in range(5, 18))
    return next((pair for pair in texts if pair[0] != pair[1]), (repr(a), repr(b)))


def _sequences(yours: Any, spec: tuple | list, tolerance: float) -> Difference | None:
    if not isinstance(yours, (tuple, list)):
        return _kind(yours, spec)
    if len(yours) != len(spec):
        return Difference("", f"you return {len(yours)} items, spec {len(spec)}", "shape")
    names = getattr(spec, "_fields", None)
    labels = [f"item {i}" + (f" ({names[i]})" if names else "") for i in range(len(spec))]
    return _members(zip(labels, yours, spec, strict=True), tolerance)


def _dicts(yours: Any, spec: dict, tolerance: float) -> Difference | None:
    if not isinstance(yours, dict):
        return _kind(yours, spec)
    missing, extra = [k for k in spec if k not in yours], [k for k in yours if k not in spec]
    if missing or extra:
        said = [f"{word} {', '.join(map(repr, keys))}" for word, keys in (("no", missing), ("but", extra)) if keys]
        return Difference("", f"your dict has {', '.join(said)}", "keys")
    return _members([(f"[{key!r}]", yours[key], spec[key]) for key in spec], tolerance)


def _members(members, tolerance: float) -> Difference | None:
    for label, yours, spec in members:
        difference = first_difference(yours, spec, tolerance)
        if difference is not None:
            return difference._replace(where=", ".join(filter(None, (label, difference.where))))
    return None
