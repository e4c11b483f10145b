"""A number the reader commits to before a cell reveals it, scored once and answered with the reason."""

import math
import numbers
from typing import Any

from flashlab.course import lessons, state, units
from flashlab.course.report import say
from flashlab.course.spec import Prediction


def predict(id: str, *bare: Any, **said: Any) -> None:
    """Print the prediction ``id`` (``GB=...``), or commit to a number (``GB=0.27``), score it and say why.

    The first number is the one that counts. What the package computes is compared with it: within 10% a full point, within a
    factor of two half a point. The total is over every prediction committed to so far, in all lessons.
    """
    prediction = lessons.prediction(id)
    if not bare and list(said.values()) == [...] and units.factor(next(iter(said)), prediction.unit):
        say(f"{id}  {prediction.question}", later=2)
        say(f'Put a number for the dots and run the cell again: predict("{id}", {prediction.unit}=...)', 2)
        return
    value, problem = _in_unit(prediction, {} if bare else said)  # a bare number has no unit
    if problem:
        print(f"{id}  {problem}")
        return
    actual = float(prediction.answer())
    committed = state.update("predictions", id, lambda old: old or {"said": value, "points": points(value, actual)})
    unit = _unit(prediction)
    say(f"You said {_number(value)} {unit}. {prediction.source}: {_number(actual)} {unit}. {_off(value, actual)} "
        f"{prediction.explain(value, actual)}")
    say(f"({_first(prediction, committed, value)}Scored: within 10% full, within 2x half. {_total()})")


def points(said: float, actual: float) -> float:
    """1 within 10%, half within a factor of two, otherwise 0."""
    if abs(said - actual) <= 0.1 * abs(actual) * (1 + 1e-9):
        return 1.0
    return 0.5 if 0.5 * (1 - 1e-9) <= said / actual <= 2 * (1 + 1e-9) else 0.0


def number(value: Any) -> tuple[float | None, str]:
    """The value as a finite number, or None and one sentence that says what is wrong with it."""
    if not isinstance(value, (str, bytes, bool)) and hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None, f"A plain number is needed, such as 12 or 0.5: got {value!r}."
    value = float(value)
    return (value, "") if math.isfinite(value) else (None, f"A finite number is needed: got {value}.")


def _in_unit(prediction: Prediction, said: dict[str, Any]) -> tuple[float | None, str]:
    asked = f'predict("{prediction.id}", {prediction.unit}=...)'
    if len(said) != 1:
        return None, f"One number is needed, with its unit: {asked}."
    (unit, given), = said.items()
    scale = units.factor(unit, prediction.unit)
    if scale is None:
        others = units.relatives(prediction.unit)
        also = f" ({', '.join(others)} are understood as well)" if others else ""
        return None, f"The answer is asked for in {prediction.unit}{also}, not in {unit}: {asked}."
    value, problem = number(given)
    if problem:
        return None, problem
    if value <= 0:
        return None, f"The answer is larger than zero: got {given}."
    return value * scale, ""


def _unit(prediction: Prediction) -> str:
    return prediction.unit.replace("_per_", "/")


def _number(value: float) -> str:
    """Three digits that matter, without an exponent where one can do without."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if 1e-3 <= abs(value) < 1e6:
        digits = max(0, 2 - math.floor(math.log10(abs(value))))
        return f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"
    return f"{value:.3g}"


def _off(said: float, actual: float) -> str:
    earned = points(said, actual)
    ratio = max(said / actual, actual / said)
    if earned == 1.0:
        return "Exactly:" if math.isclose(said, actual, rel_tol=1e-6) else "Within 10%:"
    return f"Off by {_number(float(f'{ratio:.2g}'))}x:"


def _first(prediction: Prediction, committed: dict, value: float) -> str:
    if math.isclose(committed["said"], value):
        return ""
    return f"Your first answer counts: {_number(committed['said'])} {_unit(prediction)}, {committed['points']:g} of 1. "


def _total() -> str:
    kept = state.read()["predictions"].values()
    return f"You are at {sum(entry['points'] for entry in kept):g} of {len(kept)} so far."
