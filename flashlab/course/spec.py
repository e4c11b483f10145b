"""What a lesson is made of: exercises with their known mistakes, predictions and quiz questions, all as plain data."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One call of the reader's function: ``fn(*args)`` must equal ``exercise.spec(*args)``."""

    label: str  # what is special about it, with its sizes: "n = 16, block = 3"
    args: tuple
    tolerance: float = 1e-9  # largest allowed |yours - spec|, absolute plus relative to the spec's largest entry


@dataclass(frozen=True)
class SubCheck:
    """A named property of the answer, shown as one line of the report.

    Either ``cases`` (each compared with the spec), or ``test``, which takes the function and returns None when the
    property holds and otherwise one sentence with the numbers that show it does not.
    """

    name: str
    cases: Callable[[], Iterable[Case]] | None = None
    test: Callable[[Callable], str | None] | None = None


@dataclass(frozen=True)
class Mistake:
    """A wrong solution that readers really write; the checker recognises its output and says what went wrong."""

    function: Callable  # same signature as the solution
    diagnosis: str  # what comes out and why: "This is what comes out when the running sum is not rescaled ..."
    look_at: str  # a question that points at the line, without giving it away


@dataclass(frozen=True)
class Exercise:
    """One function the reader writes. ``stub``, ``solution`` and the mistakes all carry the same signature."""

    id: str  # "02.online_softmax": lesson, then the name of the function the reader defines
    title: str
    spec: Callable  # 1 to 8 lines of plain PyTorch, shown above the stub; takes the same arguments
    stub: Callable  # what the notebook shows; its body raises NotImplementedError or holds `...` to be filled in
    solution: Callable
    hints: tuple[str, ...]  # each one step further
    sub_checks: tuple[SubCheck, ...]
    mistakes: tuple[Mistake, ...]
    keep: str  # the one sentence worth keeping, printed when every sub-check passes
    within: Callable[[], AbstractContextManager] = nullcontext  # every call of a graded function is made inside it

    @property
    def name(self) -> str:
        """The function's name in the notebook."""
        return self.id.split(".", 1)[1]


@dataclass(frozen=True)
class Prediction:
    """A number the reader commits to before a cell reveals it."""

    id: str  # "03.k_bytes"
    question: str
    unit: str  # the keyword of predict(): GB, blocks, us, ...
    answer: Callable[[], float]  # computed by the package (reference, hardware, sizing), never typed in
    explain: Callable[[float, float], str]  # (said, actual) -> why the actual value is what it is
    source: str = "Counted"  # how the actual value came about: Counted, Computed, Measured, Recorded


@dataclass(frozen=True)
class Question:
    """A quiz question about earlier lessons: the answer is checked and never shown."""

    id: str  # "03.q1"
    text: str
    answer: Any  # a letter of choices, or a number
    choices: dict[str, str] = field(default_factory=dict)  # letter -> text; empty for a numeric answer
    feedback: dict[str, str] = field(default_factory=dict)  # wrong letter -> the thought that leads away from it
    where: str = ""  # which lesson and section to read again
    tolerance: float = 0.02  # relative, for numbers


@dataclass(frozen=True)
class Lesson:
    """Everything of a lesson that is not prose; the prose is notebooks/source/<name>.py."""

    number: str  # "02"
    name: str  # "02_online_softmax"
    title: str
    exercises: tuple[Exercise, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    questions: tuple[Question, ...] = ()
