"""Bytes counted from the running kernel: what every program of every launch loads and stores, by argument.

The count is taken where Triton's interpreter carries out a load or a store, so it is that of the program text: lanes
that are masked off move nothing, and a lane that is on counts, also where several of them read one address. It is the
traffic between a program and whatever answers it. What caches save, and what a GPU moves beside it (whole sectors of 32
bytes), it cannot know.
"""

import contextlib
import functools
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from flashlab.course.interpreter_hooks import listening

Bytes = dict[str, int]  # by argument; what did not move is absent


class NothingTraced(ValueError):
    """The call launched no kernel. No other ValueError, of the kernel or around it, is one."""


class Outside(NamedTuple):
    """Elements that one program loaded or stored before the first or behind the last of a tensor."""

    program: tuple[int, int, int]
    argument: str
    write: bool
    elements: int  # how many lanes
    element: int  # the farthest one, counted from the tensor's first
    of: int  # elements from the tensor's first to its last

    def __str__(self) -> str:
        did = "stores" if self.write else "loads"
        return f"program {self.program} {did} element {self.element} of {self.argument}, which has {self.of}"


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        kernel: its name.
        grid: programs along x, y and z.
        programs: program (x, y, z) -> {argument: (bytes loaded, bytes stored)}, every program of the grid in the order
            in which it ran.
        outside: accesses outside the tensor that was passed, one a program, argument and direction. A view is taken
            from its first element to its last, so gaps inside it do not show.
    """

    kernel: str
    grid: tuple[int, int, int]
    programs: dict[tuple[int, int, int], dict[str, tuple[int, int]]]
    outside: tuple[Outside, ...] = ()

    @property
    def loaded(self) -> Bytes:
        return _sum(self.programs.values(), 0)

    @property
    def stored(self) -> Bytes:
        return _sum(self.programs.values(), 1)


@dataclass(frozen=True)
class Trace:
    """What a call moved.

    Attributes:
        launches: every launch, in order.
        result: what the call returned.
        loaded, stored: bytes by argument, over all launches. An argument is called as the kernel's parameter is,
            without a leading ``p_``.
        total: all bytes, loaded and stored.
        outside: as Launch.outside, over all launches.
    """

    launches: tuple[Launch, ...]
    result: Any = field(default=None, compare=False)

    @property
    def loaded(self) -> Bytes:
        return dict(sum((Counter(launch.loaded) for launch in self.launches), Counter()))

    @property
    def stored(self) -> Bytes:
        return dict(sum((Counter(launch.stored) for launch in self.launches), Counter()))

    @property
    def total(self) -> int:
        return sum(self.loaded.values()) + sum(self.stored.values())

    @property
    def outside(self) -> tuple[Outside, ...]:
        return tuple(access for launch in self.launches for access in launch.outside)

    def __repr__(self) -> str:
        lines = []
        for launch in self.launches:
            programs = f"{len(launch.programs)} program{'' if len(launch.programs) == 1 else 's'}"
            grid = " x ".join(map(str, launch.grid))
            rows = [(name, launch.loaded.get(name, 0), launch.stored.get(name, 0))
                    for name in dict.fromkeys((*launch.loaded, *launch.stored))]  # fmt: skip
            rows.append(("together", sum(launch.loaded.values()), sum(launch.stored.values())))
            width = max(len(name) for name, *_ in rows)
            lines.append(f"{launch.kernel}, grid {grid}: {programs}")
            lines.append(f"  {'bytes':{width}} {'loaded':>14} {'stored':>14}")
            lines += [f"  {name:{width}} {loaded:14,} {stored:14,}" for name, loaded, stored in rows]
        return "\n".join(lines)


def trace(call: Callable[[], Any], guard: bool = False) -> Trace:
    """Run ``call()``, which launches Triton kernels on CPU tensors, and count what they load and store.

        t = trace(lambda: copy[(4,)](x, y, 1000, BLOCK=256))
        t.loaded, t.stored                        # {"x": 4000}, {"y": 4000}
        t.launches[0].programs[3, 0, 0]           # {"x": (928, 0), "y": (0, 928)}
        trace(lambda: flash_attn_func(q, k, v))   # the package's own kernels

    The kernels really run, and their results are there afterwards (``Trace.result`` holds what the call returned). They
    run in the interpreter, in a process that would compile them too: so a GPU machine counts the same, with tensors on
    the CPU. Launch parameters are then the interpreter's, as they are on a machine without a GPU.

    Raises:
        NothingTraced: the call launched no kernel.
        TypeError: the call is no function, as in ``trace(copy[(4,)](x, y))``, where ``lambda:`` is missing.
        ValueError: a tensor is on a GPU.
        RuntimeError: the Triton installed runs its interpreter in a way this does not know.
        Whatever the call or a kernel raises.
    """
    if not callable(call):
        raise TypeError(f"call is {type(call).__name__}, not a function: write trace(lambda: kernel[grid](...))")
    _ready()
    recorder = _count(call, guard)
    if not recorder.launches:
        raise NothingTraced("nothing was traced: the call launched no Triton kernel")
    return Trace(tuple(recorder.launches), recorder.result)


class _Recorder:
    """What the interpreter tells of (interpreter_hooks.listening), as launches."""

    def __init__(self):
        self.launches: list[Launch] = []
        self.result = None

    def launch(self, kernel, spans):
        self.kernel, self.spans = kernel, spans
        self.programs: dict[tuple, dict[str, list[int]]] = {}
        self.outside: dict[tuple, Outside] = {}

    def program(self, index, grid):
        self.now = index
        self.moved = self.programs.setdefault(index, {})

    def access(self, argument, element, itemsize, write):
        name = argument.removeprefix("p_")
        self.moved.setdefault(name, [0, 0])[write] += element.size * itemsize
        if argument in self.spans:
            self._look_outside(name, element, self.spans[argument], write)

    def launched(self, grid):
        moved = {pid: {name: tuple(both) for name, both in bill.items()} for pid, bill in self.programs.items()}
        self.launches.append(Launch(self.kernel, tuple(grid), moved, tuple(self.outside.values())))

    def _look_outside(self, name, element, span, write):
        out = element[(element < 0) | (element >= span)]
        if out.size:
            before = self.outside.get((self.now, name, write))
            far = [int(out.min()), int(out.max()), *([before.element] if before else ())]
            farthest = max(far, key=lambda e: -e if e < 0 else e - span + 1)
            lanes = int(out.size) + (before.elements if before else 0)
            self.outside[self.now, name, write] = Outside(self.now, name, write, lanes, farthest, span)


@contextlib.contextmanager
def guarded():
    """Kernels launched inside touch nothing outside their tensors, as with ``trace(call, guard=True)``.

    For kernels that are being learnt. Does nothing where kernels are compiled. numpy's warnings of what overflows are
    left out, since a GPU gives none.
    """
    from flashlab.kernels import backend

    if backend.interpreting():
        with listening(_Recorder(), guard=True), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    else:
        yield


def _count(call, guard=False) -> _Recorder:
    recorder = _Recorder()
    with listening(recorder, guard):
        recorder.result = call()
    return recorder


def _sum(programs, direction: int) -> Bytes:
    total = Counter()
    for moved in programs:
        total.update({name: both[direction] for name, both in moved.items() if both[direction]})
    return dict(total)


@functools.cache
def _ready() -> None:
    """Count a kernel whose bytes are known, once a process: a change in Triton shows here, not in a wrong count."""
    from flashlab.kernels import canary

    why = "its count of a known kernel is wrong"
    try:
        seen = _count(lambda: canary.largest_error(torch.float32, n=27))
        (launch,) = seen.launches
        bill = launch.loaded, launch.stored, launch.grid, list(launch.programs)
        matrix = 27 * 27 * 4
        right = seen.result < 1e-5 and bill == ({"x": matrix, "y": matrix}, {"out": matrix}, (1, 1, 1), [(0, 0, 0)])
    except Exception as error:
        right, why = False, f"{type(error).__name__}: {error}"
    if not right:
        import triton

        raise RuntimeError(
            f"Triton {triton.__version__} runs its interpreter in a way that flashlab.course.trace does not know, so "
            f"bytes cannot be counted with it; Triton 3.6 to 3.9 are known ({why})"
        )
