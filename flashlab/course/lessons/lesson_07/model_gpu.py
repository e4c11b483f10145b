"""A GPU to practise on: a queue, a clock, an L2 and a slow first call. A model; nothing it says is a measurement.

Its rates are the H200's: reading and the host's cost of a launch as recorded (flashlab.bench.records), the size of the L2
from flashlab.hardware. The rest are round numbers of the right size: compiling takes 0.4 s, waiting for the GPU 5 us, the L2
answers three times as fast as memory, every eighth run is disturbed and takes half as long again, every eleventh finds the
clock boosted and takes a tenth less.
"""

from typing import NamedTuple

from flashlab.course.lessons.lesson_07 import recorded
from flashlab.hardware import gpu

COMPILE_S = 0.4
WAIT_S = 5e-6
L2_TIMES_AS_FAST = 3.0
DISTURBED, DISTURBED_TIMES = 8, 1.5
BOOSTED, BOOSTED_TIMES = 11, 0.9
JITTER = (0.0, 0.004, -0.004, 0.002, -0.002)
FLUSH_BYTES = 2**28  # what flashlab.bench reads to empty the L2


class Kernel(NamedTuple):
    """A kernel and its data: bytes that it reads, and FLOP that it does."""

    name: str
    bytes: float
    flop: float = 0.0


class Event:
    """A mark in the queue. Its time is known when the GPU has passed it and the host has waited."""

    def __init__(self, at: float):
        self._at = at


class ModelGPU:
    """Time passes on two clocks: the host's, and the GPU's, which works through a queue.

    Args:
        compile_s: seconds that the first launch of a kernel takes on the host.
        issue_s: seconds that the host takes for every launch; the H200's, recorded, if not given.
        l2_bytes: size of the L2; the H200's if not given. 0 is none.
        disturbed: whether runs differ a little, and some a lot.
    """

    def __init__(
        self,
        compile_s: float = COMPILE_S,
        issue_s: float | None = None,
        l2_bytes: int | None = None,
        disturbed: bool = True,
    ):
        self._compile_s, self._disturbed = compile_s, disturbed
        self._issue_s = recorded.issue_s() if issue_s is None else issue_s
        self._l2_bytes = gpu("h200").l2_bytes if l2_bytes is None else l2_bytes
        self._read, self._flops = recorded.read_bytes_per_s(), recorded.matmul_flop_per_s()
        self._host = self._free = 0.0  # the host's clock; when the queue will be empty
        self._compiled: set[str] = set()
        self._in_l2: dict[str, float] = {}
        self._runs = 0
        self._marks: list[Event] = []

    def __eq__(self, other) -> bool:
        """The same kind of GPU, whatever it has done."""
        kind = lambda gpu: (gpu._compile_s, gpu._disturbed, gpu._issue_s, gpu._l2_bytes)
        return isinstance(other, ModelGPU) and kind(self) == kind(other)

    def launch(self, kernel: Kernel) -> None:
        """Put a kernel into the queue. The host goes on as soon as that is done."""
        if kernel.name not in self._compiled:
            self._compiled.add(kernel.name)
            self._host += self._compile_s
        self._host += self._issue_s
        hit = self._in_l2.get(kernel.name, 0.0)
        self._run(self._seconds(kernel, hit) * self._luck(), kernel.name, kernel.bytes)

    def flush(self) -> None:
        """Put a kernel into the queue that reads other memory, until nothing else is left in the L2."""
        self._host += self._issue_s
        self._run(FLUSH_BYTES / self._read, "other memory", FLUSH_BYTES)

    def synchronize(self) -> None:
        """Let the host wait until the queue is empty."""
        self._host = max(self._host, self._free) + WAIT_S
        self._marks.clear()

    def clock(self) -> float:
        """Seconds on the host's clock."""
        return self._host

    def event(self) -> Event:
        """Put a mark into the queue."""
        mark = Event(max(self._host, self._free))
        self._marks.append(mark)
        return mark

    def elapsed_us(self, start: Event, end: Event) -> float:
        """Microseconds on the GPU's clock between two marks. RuntimeError before the host has waited for them."""
        if start in self._marks or end in self._marks:
            raise RuntimeError("the GPU may not have passed this event yet: synchronize() first")
        return (end._at - start._at) * 1e6

    def cold_us(self, kernel: Kernel) -> float:
        """What the kernel takes with nothing of it in the L2 and nobody disturbing: what no real GPU tells."""
        return self._seconds(kernel, 0.0) * 1e6

    def _seconds(self, kernel: Kernel, hit: float) -> float:
        reading = (kernel.bytes - hit) / self._read + hit / (L2_TIMES_AS_FAST * self._read)
        return max(reading, kernel.flop / self._flops)

    def _luck(self) -> float:
        self._runs += 1
        if not self._disturbed:
            return 1.0
        times = 1.0 + JITTER[self._runs % len(JITTER)]
        for every, longer in ((DISTURBED, DISTURBED_TIMES), (BOOSTED, BOOSTED_TIMES)):
            times *= longer if self._runs % every == 0 else 1.0
        return times

    def _run(self, seconds: float, name: str, size: float) -> None:
        self._free = max(self._host, self._free) + seconds
        if size > self._l2_bytes:  # it pushed its own beginning out again, and everybody else
            self._in_l2 = {}
            return
        others = {key: held for key, held in self._in_l2.items() if key != name}
        while others and sum(others.values()) + size > self._l2_bytes:  # the longest unused goes first
            del others[next(iter(others))]
        self._in_l2 = others | {name: size}
