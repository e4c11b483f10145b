"""Time that means something: hot, flushed, rotated, and as medians.

    warm-up     every contender runs before anyone is timed: compilation, caches and handles stay out
    heat        matrix products first, then a whole round that is thrown away, since what runs first after a rest looks faster
                than it is. Samples still have pauses between them, and clocks stay near boost: the record holds the clock
                under products without a pause beside them
    rotation    contenders take turns in rounds, each round beginning with another one
    flush       before each sample the L2 is emptied by reading: zeroing it, the usual way, leaves dirty lines whose
                write-back is billed to whoever comes next (about 10 us on an H200)
    host ahead  the GPU sleeps first for as long as the host takes to issue the call, so that a short kernel is not timed by
                the speed of Python
    summary     the median, and the 20th and 80th percentile, over all rounds

``measure`` knows no GPU: it asks a timer for samples. EventTimer is the one for CUDA.
"""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

SLEEP_CYCLES_PER_S = 2e9  # torch.cuda._sleep counts SM clocks; no GPU of today runs faster than this by much
HEAT_S = 0.25
PRODUCT_SIDE = 8192
ESTIMATE_SAMPLES = 3


class Runner(NamedTuple):
    """A call to time.

    scope: a context for all calls of a batch (a choice of backend, say), entered outside the time.
    checked: whether the call returns the case's answer, to be held against the oracle.
    """

    call: Callable[[], object]
    scope: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    checked: bool = True


class Plan(NamedTuple):
    """rounds: how often each contender gets its turn. round_s: about how long a turn takes. least, most: samples in it."""

    rounds: int = 5
    round_s: float = 0.025
    least: int = 4
    most: int = 30


STANDARD = Plan()


class Samples(NamedTuple):
    """Seconds on the device, one a call, and seconds the host took to issue a call (the batch's median)."""

    device_s: list[float]
    host_s: float


class Timer(Protocol):
    def heat(self) -> None: ...

    def samples(self, runner: Runner, count: int) -> Samples: ...


class Timing(NamedTuple):
    """Summary of a contender: the median and 20th and 80th percentile of all samples, and the host's median."""

    median_s: float
    p20_s: float
    p80_s: float
    host_s: float
    samples_s: list[float]


def measure(contenders: Mapping[object, Runner], timer: Timer, plan: Plan = STANDARD) -> dict[object, "Timing | Exception"]:
    """Time contenders against one another. One that raises is out of the later rounds, and its exception is its result."""
    failed: dict[object, Exception] = {}
    counts, found, host = {}, {key: [] for key in contenders}, {key: [] for key in contenders}

    def turn(key, count):
        try:
            return timer.samples(contenders[key], count)
        except Exception as error:  # whatever a peer raises is about that peer
            failed[key] = error
            return None

    for key in contenders:
        first = turn(key, 1) and turn(key, ESTIMATE_SAMPLES)
        if first:
            estimate = max(statistics.median(first.device_s), 1e-7)
            counts[key] = min(plan.most, max(plan.least, math.ceil(plan.round_s / estimate)))
    timer.heat()
    keys = list(counts)
    for number in range(plan.rounds + 1):
        start = number % max(len(keys), 1)
        for key in keys[start:] + keys[:start]:
            samples = None if key in failed else turn(key, counts[key])
            if samples and number > 0:  # the first round only heats
                found[key] += samples.device_s
                host[key].append(samples.host_s)
    return {key: failed[key] if key in failed else summary(found[key], statistics.median(host[key])) for key in contenders}


def summary(samples_s: list[float], host_s: float = 0.0) -> Timing:
    """Raises ValueError without samples."""
    if not samples_s:
        raise ValueError("samples_s is empty: a summary needs at least one sample")
    return Timing(statistics.median(samples_s), percentile(samples_s, 20), percentile(samples_s, 80), host_s, samples_s)


def percentile(samples: list[float], percent: float) -> float:
    """By linear interpolation between the two nearest samples."""
    ordered = sorted(samples)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class EventTimer:
    """CUDA events around each call, L2 read empty before it."""

    def __init__(self):
        import torch

        self.torch = torch
        properties = torch.cuda.get_device_properties()
        self.flush_bytes = max(256 * 2**20, 4 * properties.L2_cache_size)
        self._other = torch.ones(self.flush_bytes // 4, dtype=torch.int32, device="cuda")
        self._sink = torch.empty((), dtype=torch.int64, device="cuda")
        side = PRODUCT_SIDE
        self._factors = torch.randn(2, side, side, device="cuda").to(torch.bfloat16)
        self._product = torch.empty(side, side, dtype=torch.bfloat16, device="cuda")

    def product(self) -> None:
        """One large matrix product: what heats the GPU, and the ceiling of those that multiply."""
        self.torch.matmul(self._factors[0], self._factors[1], out=self._product)

    def flush(self) -> None:
        self.torch.sum(self._other, dim=0, out=self._sink)

    def heat(self) -> None:
        self._run_for(HEAT_S)

    def _run_for(self, seconds: float) -> None:
        cuda = self.torch.cuda
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            for _ in range(8):
                self.product()
            cuda.synchronize()

    def samples(self, runner: Runner, count: int) -> Samples:
        cuda = self.torch.cuda
        with runner.scope():
            cuda.synchronize()
            begun = time.perf_counter()
            runner.call()
            issue_s = time.perf_counter() - begun
            cuda.synchronize()
            pause = int((1.5 * min(issue_s, 2e-3) + 30e-6) * SLEEP_CYCLES_PER_S)
            events = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(count)]
            host = []
            cuda._sleep(2 * pause)
            for start, end in events:
                cuda._sleep(pause)
                self.flush()
                start.record()
                begun = time.perf_counter()
                runner.call()
                host.append(time.perf_counter() - begun)
                end.record()
            cuda.synchronize()
        return Samples([start.elapsed_time(end) * 1e-3 for start, end in events], statistics.median(host))


def graphed(runner: Runner) -> Runner:
    """The call as a CUDA graph: what is left of its time when the host has nothing to do."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), runner.scope():
        for _ in range(2):
            runner.call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with runner.scope(), torch.cuda.graph(graph):
        kept = runner.call()

    def replay():
        graph.replay()
        return kept

    return Runner(replay, checked=runner.checked)
