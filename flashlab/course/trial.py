"""One run of somebody's function: on copies of the inputs, under a time limit, and never raising."""

import contextlib
import copy
import io
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flashlab.course import author

LIMIT_S = 10.0


@dataclass(frozen=True)
class Outcome:
    """What came out: a value and the arguments as they were left, or an error in words."""

    value: Any = None
    arguments: tuple = ()
    error: str = ""  # "ZeroDivisionError: division by zero"
    where: str = ""  # the reader's line it came from: "cell 14, line 3"
    raised: type[BaseException] | None = None
    cause: str = ""  # equal for two errors of one cause
    printed: int = 0  # lines the function printed

    @property
    def failure(self) -> str:
        """The error and its line in one."""
        return f"{self.error} ({self.where})" if self.where else self.error


class TookTooLong(BaseException):
    """Not an Exception, so that a reader's ``except Exception`` does not swallow it."""


def attempt(fn: Callable, arguments: tuple, seconds: float = LIMIT_S, reader: Callable | None = None) -> Outcome:
    """Call ``fn`` on a copy of the arguments.

    ``reader`` is the function whose lines an error is traced to (``fn`` unless it calls the reader's). An endless loop ends
    after ``seconds`` where the platform has alarms and this is the main thread.
    """
    given = duplicate(arguments)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), time_limit(seconds):
            value = fn(*given)
    except KeyboardInterrupt:
        raise
    except TookTooLong:
        return Outcome(error=f"did not finish within {seconds:g} s", raised=TookTooLong, cause="endless")
    except BaseException as error:
        error = _of_the_kernel(error)
        where = author.line_of(error.__traceback__, reader or fn)
        said = _in_words(error)
        return Outcome(error=said, where=where, raised=type(error), cause=f"{type(error).__name__} {where or said}")
    return Outcome(value, given, printed=printed.getvalue().count("\n"))


def duplicate(value: Any) -> Any:
    """A deep copy; tensors keep requires_grad and lose their history."""
    if isinstance(value, torch.Tensor):
        return copy.deepcopy(value.detach()).requires_grad_(value.requires_grad)
    if type(value) in (tuple, list):
        return type(value)(duplicate(item) for item in value)
    if type(value) is dict:
        return {key: duplicate(item) for key, item in value.items()}
    return copy.deepcopy(value)


@contextlib.contextmanager
def time_limit(seconds: float):
    """Raise TookTooLong in the block after so many seconds, where that is possible."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_):
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _of_the_kernel(error: BaseException) -> BaseException:
    """What went wrong inside a Triton kernel, where the interpreter has wrapped it up."""
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__
    return error


def _in_words(error: BaseException) -> str:
    message = " ".join(str(error).split())
    if len(message) > 200:
        message = message[:197] + "..."
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
