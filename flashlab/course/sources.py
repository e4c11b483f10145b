"""An exercise's functions as the notebook shows them: the tested source under the reader's name.

A function that launches Triton kernels comes with them: those that are called ``<its name>_...`` stand above it, under
the reader's name too.
"""

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Callable
from typing import Any

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
    """The function's source with another name in its ``def`` (and where it calls itself), its own kernels before it."""
    mine = function.__name__
    own = [kernel.fn for kernel in kernels(function) if kernel.fn.__name__.startswith(f"{mine}_")]
    parts = [*sorted(own, key=lambda part: part.__code__.co_firstlineno), function]
    source = "\n\n\n".join(inspect.getsource(part).rstrip() for part in parts)
    source = re.sub(r"  # fmt: skip$", "", source, flags=re.M)  # a word to the formatter, not to the reader
    for part in parts[:-1]:
        new = name + part.__name__.removeprefix(mine)
        source = re.sub(rf"(?<![\w.]){part.__name__}(?!\w)", new, source)
    return re.sub(rf"(?<![\w.]){mine}(?=\()", name, source)


def kernels(function: Callable) -> list[Any]:
    """The Triton kernels and device functions that a function names, and those that they name."""
    found: dict[str, Any] = {}
    waiting = [function]
    while waiting:
        current = waiting.pop()
        for word in _names(current.__code__):
            value = current.__globals__.get(word)
            if is_kernel(value) and word not in found:
                found[word] = value
                waiting.append(value.fn)
    return list(found.values())


def is_kernel(value: Any) -> bool:
    """Whether this is what ``triton.jit`` makes of a function (asked without Triton)."""
    return type(value).__module__.startswith("triton.") and inspect.isfunction(getattr(value, "fn", None))


def _names(code) -> list[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return [*code.co_names, *(name for part in inner for name in _names(part))]
