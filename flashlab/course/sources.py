"""An exercise's functions as the notebook shows them: the tested source under the reader's name."""

import inspect
import re
from collections.abc import Callable

from flashlab.course.spec import Exercise


def stub(exercise: Exercise) -> str:
    """What the reader starts from."""
    return renamed(exercise.stub, exercise.name)


def spec(exercise: Exercise) -> str:
    """The executable specification, called ``<name>_spec``."""
    return renamed(exercise.spec, f"{exercise.name}_spec")


def solution(exercise: Exercise) -> str:
    """The tested answer."""
    return renamed(exercise.solution, exercise.name)


def renamed(function: Callable, name: str) -> str:
    """The function's source with another name in its ``def`` (and where it calls itself)."""
    source = inspect.getsource(function).rstrip()
    return re.sub(rf"(?<![\w.]){function.__name__}(?=\()", name, source)
