"""Whose function is being graded, and where it stands: the report never speaks of any function but the reader's."""

import ast
import functools
import inspect
import linecache
import os
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import flashlab
from flashlab.course import sources
from flashlab.course.compare import describe
from flashlab.course.spec import Exercise

_OURS = f"{Path(flashlab.__file__).parent}{os.sep}"
_OTHERS = tuple(f"{sysconfig.get_path(key)}{os.sep}" for key in ("purelib", "platlib", "stdlib"))


def inner(fn: Any) -> Any:
    """The function under partials, decorators that say what they wrap, methods and callable objects."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif inspect.isclass(fn):
            made = vars(fn).get("__init__")
            if not inspect.isfunction(made):
                return fn
            fn = made
        elif not inspect.isroutine(fn) and inspect.isfunction(vars(type(fn)).get("__call__")):
            fn = vars(type(fn))["__call__"]
        else:
            return fn


def name(fn: Any) -> str:
    """The name the function was defined under."""
    return getattr(fn, "__name__", None) or getattr(inner(fn), "__name__", type(fn).__name__)


def place(fn: Any) -> str:
    """Where the function stands: ``cell 14, line 1`` or ``answers.py:12``; empty where nobody knows."""
    code = _code(fn)
    return at(code, code.co_firstlineno) if code else ""


def at(code: CodeType, line: int) -> str:
    """A line of the reader's code: the cell's number as the notebook shows it, or a file and its line."""
    cell = _cell(code.co_filename)
    if cell:
        return f"cell {cell}, line {line}"
    return f"{os.path.basename(code.co_filename)}:{line}"


def line_of(traceback: TracebackType | None, fn: Any) -> str:
    """The last line of the reader's own code that an exception went through; empty where it went through none."""
    own, found = _code(fn), ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code is own or (own and code.co_filename == own.co_filename) or _cell(code.co_filename):
            found = at(code, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def refusal(exercise: Exercise, siblings: tuple[Exercise, ...], fn: Any) -> str | None:
    """Why this cannot be graded as the reader's own answer, or None."""
    if not callable(fn):
        return f'this is {describe(fn)}: pass the function itself, check("{exercise.id}", {exercise.name})'
    if sources.is_kernel(fn):
        return f'this is a kernel: pass the function that launches it, check("{exercise.id}", {exercise.name})'
    code = _code(fn)
    if code is None:
        return f"{name(fn)} is not a function written in Python: pass the one you wrote"
    if _same_code(fn, exercise.stub):
        return None
    if code.co_filename.startswith(_OURS):
        return f"{name(fn)} belongs to flashlab ({place(fn)}): pass the function you wrote"
    if code.co_filename.startswith(_OTHERS):
        return f"{name(fn)} was written by somebody else ({place(fn)}): pass the function you wrote"
    for other in siblings:
        if other.id != exercise.id and name(fn) == other.name:
            return f'you passed {other.name}, this check grades {exercise.name}: check("{other.id}", {other.name})'
    copied = same_body(fn, exercise.spec) and not same_body(exercise.solution, exercise.spec)
    if copied or f"{exercise.name}_spec" in (code.co_name, *code.co_names):
        return f"this is the spec, or calls it ({place(fn)}): the exercise is to get there without it"
    return None


def untouched(exercise: Exercise, fn: Any) -> bool:
    """Whether the function is the stub, as it was handed out."""
    return _same_code(fn, exercise.stub) or same_body(fn, exercise.stub)


def placeholder(fn: Any) -> str:
    """Where a ``...`` still stands for a line to be filled in; empty where none does. ``x[..., 0]`` is none."""
    for part in (fn, *_kernels(fn)):
        tree, code = _definition(part), _code(part)
        nodes = list(ast.walk(tree)) if tree else []
        meant = {id(inside) for node in nodes if isinstance(node, ast.Subscript) for inside in ast.walk(node.slice)}
        for node in nodes:
            if isinstance(node, ast.Constant) and node.value is ... and id(node) not in meant:
                return at(code, code.co_firstlineno + node.lineno - 1)
    return ""


def same_body(fn: Callable, other: Callable) -> bool:
    """Whether two functions, their kernels with them, are the same code but for names, docstrings, annotations and
    comments."""
    mine, theirs = _body(fn), _body(other)
    return mine is not None and mine == theirs


def _code(fn: Any) -> CodeType | None:
    return getattr(inner(fn), "__code__", None)


def _same_code(fn: Any, other: Callable) -> bool:
    return _code(fn) is not None and _code(fn) is _code(other)


def _cell(filename: str) -> int | None:
    """The execution count of the notebook cell that IPython compiled under this file name."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    shell = get_ipython()
    return getattr(shell.compile, "_filename_map", {}).get(filename) if shell else None


def _definition(fn: Any) -> ast.AST | None:
    target = inner(fn)
    try:
        linecache.checkcache(target.__code__.co_filename)
        tree = ast.parse(textwrap.dedent(inspect.getsource(target)))
    except (OSError, TypeError, SyntaxError, AttributeError):
        return None
    return tree.body[0] if tree.body else None


def _kernels(fn: Any) -> list[Callable]:
    """The functions of the Triton kernels that a function launches."""
    target = inner(fn)
    return [kernel.fn for kernel in sources.kernels(target)] if inspect.isfunction(target) else []


def _body(fn: Any) -> str | None:
    kernels = _kernels(fn)
    bodies = [_own_body(part) for part in (fn, *kernels)]
    if None in bodies:
        return None
    body = "\n".join(bodies)
    for number, kernel in enumerate(kernels):
        body = body.replace(f"'{kernel.__name__}'", f"'kernel {number}'")
    return body


def _own_body(fn: Any) -> str | None:
    tree = _definition(fn)
    if not isinstance(tree, ast.FunctionDef):
        return None
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    arguments = [arg.arg for arg in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)]
    return f"{arguments}{[ast.dump(node) for node in body]}"
