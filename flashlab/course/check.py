"""Grade the reader's function: every sub-check by name, the first difference, and the mistake it looks like."""

from collections.abc import Callable

from flashlab.course import lessons, state
from flashlab.course.grade import grade
from flashlab.course.report import text


def check(id: str, fn: Callable) -> None:
    """Print the report on the reader's function ``fn`` for exercise ``id``, and keep the result.

    Raises ValueError for an unknown id, and for nothing that ``fn`` is or does.
    """
    exercise = lessons.exercise(id)
    siblings = lessons.lesson(id.split(".", 1)[0]).exercises
    report = grade(exercise, fn, siblings)
    hints_left = len(exercise.hints) - state.get("hints", id, 0)
    print(text(report, exercise.keep, hints_left))
    if report.lines:
        total = len(report.lines)
        state.update("checks", id, lambda old: _best(old, report.passed, total))


def _best(old: dict | None, passed: int, total: int) -> dict:
    best = max(passed, (old or {}).get("passed", 0)) if (old or {}).get("of", total) == total else passed
    return {"passed": best, "of": total, "done": best == total}
