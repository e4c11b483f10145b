"""Help that comes a step at a time, and the answer."""

from flashlab.course import lessons, sources, state
from flashlab.course.report import count, say


def hint(id: str) -> None:
    """Print one more hint for the exercise ``id`` each time; the ones before come along."""
    exercise = lessons.exercise(id)
    total = len(exercise.hints)
    taken = state.update("hints", id, lambda old: min((old or 0) + 1, total))
    for number, step in enumerate(exercise.hints[:taken], start=1):
        say(f"{number}. {step}", 2, 5)
    left = total - taken
    print(f"  ({count(left, 'more step')} to ask for.)" if left else f'  (That is all. solution("{id}") shows the answer.)')


def solution(id: str) -> None:
    """Print the tested source of the exercise ``id``."""
    exercise = lessons.exercise(id)
    state.update("solutions", id, lambda old: True)
    print(f"# {exercise.title}")
    print(sources.solution(exercise))
