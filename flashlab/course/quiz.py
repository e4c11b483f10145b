"""Questions about earlier lessons: the answer is checked and never shown."""

import math
from typing import Any

from flashlab.course import lessons, state
from flashlab.course.predict import number
from flashlab.course.report import say
from flashlab.course.spec import Question


def quiz(id: str, answer: Any = None) -> None:
    """Print the question ``id``, or say whether ``answer`` (a letter, or a number) is right."""
    question = lessons.question(id)
    if answer is None or answer is ...:
        _ask(question)
        return
    said = _said(question, answer)
    if said is None:
        return
    right = _right(question, said)
    shown = said if isinstance(said, str) else f"{said:g}"
    state.update("quiz", id, lambda old: _kept(old, said, right))
    if right:
        print(f"{id}  {shown}: right.")
        return
    thought = question.feedback.get(str(said), "")
    where = f"Read again: {question.where}." if question.where else ""
    say(" ".join(filter(None, (f"{id}  {shown}: not quite.", thought, where))), later=2)


def _ask(question: Question) -> None:
    say(f"{question.id}  {question.text}", later=2)
    for letter, text in question.choices.items():
        say(f"{letter}) {text}", 2, 5)
    how = f'"{next(iter(question.choices))}") or another letter' if question.choices else "12.5), with your number"
    print(f'  Answer with quiz("{question.id}", {how}.')


def _said(question: Question, answer: Any) -> Any:
    """The answer as a letter or a number; None, with a sentence printed, where it is neither."""
    if not question.choices:
        value, problem = number(answer)
        if problem:
            print(f"{question.id}  {problem}")
        return value
    letter = answer.strip().lower() if isinstance(answer, str) else answer
    if not isinstance(letter, str) or letter not in question.choices:
        print(f"{question.id}  Answer with one of the letters {', '.join(question.choices)}: got {answer!r}.")
        return None
    return letter


def _right(question: Question, said: Any) -> bool:
    if question.choices:
        return said == question.answer
    return math.isclose(said, question.answer, rel_tol=question.tolerance, abs_tol=1e-12)


def _kept(old: dict | None, said: Any, right: bool) -> dict:
    old = old or {"first": said, "tries": 0, "right": False}
    return {**old, "tries": old["tries"] + 1, "right": old["right"] or right}
