"""An exercise's functions as the notebook shows them: the tested source under the reader's name."""

import ast
import inspect
import re
import textwrap
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


def returned(function: Callable) -> list[str]:
    """The names in the function's last ``return a, b``; empty where it returns something else."""
    body = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    value = body.body[-1].value if isinstance(body, ast.FunctionDef) and isinstance(body.body[-1], ast.Return) else None
    parts = value.elts if isinstance(value, ast.Tuple) else []
    return [part.id for part in parts] if all(isinstance(part, ast.Name) for part in parts) else []


def renamed(function: Callable, name: str) -> str:
    """The function's source with another name in its ``def`` (and where it calls itself)."""
    source = inspect.getsource(function).rstrip()
    return re.sub(rf"(?<![\w.]){function.__name__}(?=\()", name, source)
