"""What a sub-check is made of: single trials that the reader's function and every known mistake can be put to."""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from flashlab.course.compare import Difference, describe, first_difference
from flashlab.course.sources import returned
from flashlab.course.spec import Case, Exercise, SubCheck
from flashlab.course.trial import LIMIT_S, Outcome, TookTooLong, attempt

NEARLY = 5e-6  # what float32 arithmetic leaves between two float64 results


class Complaint(NamedTuple):
    """What is wrong with an outcome."""

    text: str
    cause: str = ""  # equal for two complaints of one cause; empty where only a wrong value was seen


@dataclass
class CaseProbe:
    """One call, compared with the spec: the result, and what became of the arguments."""

    exercise: Exercise
    case: Case
    expected: Outcome = field(init=False)

    def __post_init__(self):
        self.expected = attempt(self.exercise.spec, self.case.args)
        if self.expected.error:
            raise RuntimeError(f"{self.exercise.id}: the spec fails on {self.case.label!r}: {self.expected.error}")

    def run(self, fn: Callable, seconds: float = LIMIT_S) -> Outcome:
        with self.exercise.within():
            return attempt(fn, self.case.args, seconds)

    def complaint(self, outcome: Outcome) -> Complaint | None:
        """What is wrong with this outcome, or None."""
        if outcome.error:
            return Complaint(f"{self.case.label}: {outcome.failure}", outcome.cause)
        difference = first_difference(outcome.value, self.expected.value, self.case.tolerance)
        changed = self._changed(outcome)
        if difference is None:
            said = f"{self.case.label}: the result is right, but {changed}"
            return Complaint(said, "changed") if changed else None
        where = ", ".join(filter(None, (self.case.label, self._named(difference.where))))
        if changed:
            return Complaint(f"{where}: {difference.what}; and {changed}", "changed")
        float32, cause = self._float32(outcome, difference), "" if difference.kind == "value" else difference.kind
        return Complaint(f"{where}: {difference.what}{float32}", "float32" if float32 else cause)

    def same(self, a: Outcome, b: Outcome) -> bool:
        """Whether two outcomes are the same one."""
        if a.error or b.error:
            return _sizes_in_order(a.error) == _sizes_in_order(b.error)
        tolerance = self.case.tolerance
        return not first_difference(a.value, b.value, tolerance) and not first_difference(
            a.arguments, b.arguments, tolerance
        )

    def _named(self, where: str) -> str:
        """``item 1, row 2`` as ``lse, row 2`` where the spec ends in ``return out, lse``."""
        item, comma, rest = where.partition(",")
        names = dict(enumerate(returned(self.exercise.spec)))
        index = item.removeprefix("item ")
        return names.get(int(index), item) + comma + rest if item != index and index.isdigit() else where

    def _float32(self, outcome: Outcome, difference: Difference) -> str:
        """Where float64 was asked for and float32 came in between: how that happens."""
        if not any(isinstance(arg, torch.Tensor) and arg.dtype == torch.float64 for arg in self.case.args):
            return ""
        makes = "torch.zeros and torch.full make float32, x.new_zeros and x.new_full the dtype of x"
        if difference.kind == "dtype" and "float32" in difference.what:
            return f" ({makes})"
        tight = difference.kind == "value" and self.case.tolerance < NEARLY
        if not tight or first_difference(outcome.value, self.expected.value, NEARLY):
            return ""
        return f". That is nearly right: was a number rounded to float32 on its way ({makes}), or a small one added?"

    def _changed(self, outcome: Outcome) -> str:
        names = list(inspect.signature(self.exercise.spec).parameters)
        for i, (left, expected) in enumerate(zip(outcome.arguments, self.expected.arguments, strict=True)):
            if first_difference(left, expected, 0.0):
                name = names[i] if i < len(names) else f"{i}"
                return f"your function changed its argument {name} in place: work on a copy"
        return ""


def _sizes_in_order(error: str) -> str:
    """The error with the two sizes that do not broadcast in order: a * b and b * a are one mistake."""
    found = re.fullmatch(r"(.*size of tensor a )\((\d+)\)(.* tensor b )\((\d+)\)(.*)", error)
    if not found:
        return error
    before, a, between, b, after = found.groups()
    small, large = sorted((int(a), int(b)))
    return f"{before}({small}){between}({large}){after}"


@dataclass
class PropertyProbe:
    """One property that is tested by calling the function, however often it takes."""

    exercise: Exercise
    test: Callable[[Callable], str | None]

    def run(self, fn: Callable, seconds: float = LIMIT_S) -> Outcome:
        calls: list[tuple[tuple, dict, Any]] = []

        @functools.wraps(fn)
        def watched(*args, **kwargs):
            result = fn(*args, **kwargs)
            calls.append((args, kwargs, result))
            return result

        with self.exercise.within():
            outcome = attempt(self.test, (watched,), seconds, reader=fn)
        if outcome.error and calls and not outcome.where and outcome.raised is not TookTooLong:
            unlike = self._unlike_spec(*calls[-1])
            if unlike:
                return Outcome(error=str(unlike), cause=unlike.kind)
        if not outcome.error and not calls:
            raise RuntimeError(f"{self.exercise.id}: a test that does not call the function cannot fail")
        if not outcome.error and not outcome.value and any(result is None for *_, result in calls):
            return Outcome(error="yours is None (is a return missing?)", cause="type")
        return outcome

    def complaint(self, outcome: Outcome) -> Complaint | None:
        said = outcome.failure or outcome.value
        return Complaint(said, outcome.cause) if said else None

    def same(self, a: Outcome, b: Outcome) -> bool:
        return (a.error, a.value) == (b.error, b.value)

    def _unlike_spec(self, args: tuple, kwargs: dict, result: Any) -> Difference | None:
        """The test itself stumbled over what the function returned: say what that was."""
        expected = attempt(lambda: self.exercise.spec(*args, **kwargs), ())
        if expected.error:
            return Difference("", f"the result cannot be tested, it is {describe(result)}")
        return first_difference(result, expected.value, float("inf"))


def probes(exercise: Exercise, sub: SubCheck) -> list[CaseProbe | PropertyProbe]:
    """The probes of one sub-check. A sub-check that would test nothing is an error."""
    if (sub.cases is None) == (sub.test is None):
        raise ValueError(f"{exercise.id}, {sub.name!r}: give cases or a test, and not both")
    if sub.test is not None:
        return [PropertyProbe(exercise, sub.test)]
    found = [CaseProbe(exercise, case) for case in sub.cases()]
    if not found:
        raise ValueError(f"{exercise.id}, {sub.name!r}: there is no case")
    return found

