"""Which known mistake the reader's function behaves like."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flashlab.course.probe import CaseProbe, Complaint, PropertyProbe
from flashlab.course.spec import Exercise, Mistake
from flashlab.course.trial import Outcome, TookTooLong

LIMIT_S = 2.0  # a mistake is as quick as the solution


@dataclass(frozen=True)
class Trial:
    """A probe and what the reader's function made of it."""

    sub_check: str
    number: int  # of the probe, among the sub-check's
    probe: CaseProbe | PropertyProbe
    outcome: Outcome
    complaint: Complaint | None


def diagnose(exercise: Exercise, trials: Sequence[Trial]) -> list[tuple[Mistake, list[Trial]]]:
    """The mistakes that explain failing trials, best first, each with the trials that it explains.

    A mistake explains a trial when it fails there too, and with the reader's very outcome. The best one explains the most
    failing trials; between equals, the one that is right where the reader is right.
    """
    failing = [trial for trial in trials if trial.complaint]
    right = [trial for trial in trials if not trial.complaint]
    found = [(mistake, [trial for trial in failing if _like(mistake, trial)]) for mistake in exercise.mistakes]
    found = [(mistake, explained) for mistake, explained in found if explained]
    tied = Counter(len(explained) for _, explained in found)

    def rank(entry: tuple[Mistake, list[Trial]]) -> tuple[int, int]:
        mistake, explained = entry
        decide = tied[len(explained)] > 1
        return len(explained), sum(_right(mistake, trial) for trial in right) if decide else 0

    return sorted(found, key=rank, reverse=True)


def _like(mistake: Mistake, trial: Trial) -> bool:
    outcome = _outcome(mistake, trial)
    return trial.probe.complaint(outcome) is not None and trial.probe.same(outcome, trial.outcome)


def _right(mistake: Mistake, trial: Trial) -> bool:
    return trial.probe.complaint(_outcome(mistake, trial)) is None


_known: dict[tuple, Outcome] = {}


def _outcome(mistake: Mistake, trial: Trial) -> Outcome:
    """What the mistake makes of a probe. Probes are the same each time, so once is enough."""
    key = trial.probe.exercise, trial.sub_check, trial.number, mistake.function
    if key in _known:
        return _known[key]
    outcome = trial.probe.run(mistake.function, LIMIT_S)
    if outcome.raised is not TookTooLong:  # that is about the machine
        _known[key] = outcome
    return outcome
