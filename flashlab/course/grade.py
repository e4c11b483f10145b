"""From the reader's function to the report: refused, not attempted, or every sub-check with what it looks like."""

from collections.abc import Callable

from flashlab.course import author
from flashlab.course.compare import describe
from flashlab.course.diagnose import Trial, diagnose
from flashlab.course.probe import probes
from flashlab.course.report import Line, Report, count
from flashlab.course.spec import Exercise
from flashlab.course.trial import LIMIT_S, TookTooLong

UNKNOWN = (
    "No mistake we know gives this. Work this case by hand, or print what your function computes step by step, and find "
    "the first number that is not what it should be."
)


def grade(exercise: Exercise, fn: Callable, siblings: tuple[Exercise, ...] = ()) -> Report:
    """The report on ``fn``. ``siblings`` are the lesson's exercises: a function of another one is not graded."""
    if not callable(fn):
        return Report(exercise.id, exercise.name, "", ended=f"Not graded: {author.refusal(exercise, siblings, fn)}.")
    head = dict(id=exercise.id, name=author.name(fn), place=author.place(fn))
    refused = author.refusal(exercise, siblings, fn)
    if refused:
        return Report(**head, ended=f"Not graded: {refused}.")
    if author.untouched(exercise, fn):
        return Report(**head, ended=_not_attempted(exercise))
    trials = _trials(exercise, fn)
    failing = [trial for trial in trials if trial.complaint]
    if all(trial.outcome.raised is NotImplementedError for trial in trials):
        return Report(**head, ended=_not_attempted(exercise))
    unfilled = author.placeholder(fn)
    if failing and unfilled:
        return Report(**head, ended=f"{_not_attempted(exercise)} A `...` still stands at {unfilled}.")
    return Report(**head, lines=_lines(exercise, trials), remarks=_remarks(exercise, fn, trials))


def _trials(exercise: Exercise, fn: Callable) -> list[Trial]:
    """Every probe put to the reader's function; after one endless loop the later ones get less time."""
    trials, seconds = [], LIMIT_S
    for sub in exercise.sub_checks:
        for number, probe in enumerate(probes(exercise, sub)):
            outcome = probe.run(fn, seconds)
            trials.append(Trial(sub.name, number, probe, outcome, probe.complaint(outcome)))
            if outcome.raised is TookTooLong:
                seconds = 1.0
                break
    return trials


def _lines(exercise: Exercise, trials: list[Trial]) -> tuple[Line, ...]:
    diagnosis = diagnose(exercise, trials)
    told: set = set()
    lines = []
    for sub in exercise.sub_checks:
        failing = [trial for trial in trials if trial.sub_check == sub.name and trial.complaint]
        lines.append(_failing(sub.name, failing, diagnosis, told) if failing else Line(sub.name, ok=True))
    return tuple(lines)


def _failing(name: str, failing: list[Trial], diagnosis, told: set) -> Line:
    """The line of a failing sub-check; ``told`` holds what the lines above have explained already."""
    for mistake, explained in diagnosis:
        if not all(trial in explained for trial in failing):
            continue
        if mistake in told:
            return Line(name, ok=False, same_cause=True)
        told.add(mistake)
        return Line(name, False, failing[0].complaint.text, (mistake.diagnosis, mistake.look_at))
    complaint = failing[0].complaint
    cause = complaint.cause or UNKNOWN
    seen = cause in told
    told.add(cause)
    if complaint.cause:
        return Line(name, False, complaint.text, same_cause=seen)
    return Line(name, False, complaint.text, () if seen else (UNKNOWN,))


def _not_attempted(exercise: Exercise) -> str:
    waiting = count(len(exercise.sub_checks), "check")
    steps = count(len(exercise.hints), "step")
    return f'Not attempted yet: {waiting} to pass. hint("{exercise.id}") has {steps}.'


def _remarks(exercise: Exercise, fn: Callable, trials: list[Trial]) -> tuple[str, ...]:
    remarks = []
    if isinstance(fn, type):
        remarks.append(f"You passed {describe(fn)}: the exercise asks for a function.")
    elif author.name(fn) not in (exercise.name, "<lambda>") and author.name(fn) == author.name(author.inner(fn)):
        remarks.append(f"This function is called {author.name(fn)}; the exercise asks for {exercise.name}.")
    printed = sum(trial.outcome.printed for trial in trials)
    if printed:
        remarks.append(f"Your function printed {count(printed, 'line')}, not shown here: call it yourself to see them.")
    return tuple(remarks)
