"""A stream of requests, and the timeline of running it: what flashlab.sizing.batching takes and returns."""

from typing import NamedTuple

from flashlab.hardware.checks import positive, whole


class Request(NamedTuple):
    """arrival: the first step in which it may be admitted. input, output: tokens."""

    arrival: int
    input: int
    output: int


class Step(NamedTuple):
    """One step. held_bytes are taken from the cache, live_bytes of them hold tokens; the tuples are request numbers."""

    time: int
    running: int
    waiting: int
    tokens: int
    held_bytes: int
    live_bytes: int
    admitted: tuple[int, ...]
    finished: tuple[int, ...]
    preempted: tuple[int, ...]


class Timeline(NamedTuple):
    """What happened. Idle steps are left out of `steps`.

    spans: for each request, in the order given, the (first, last + 1) steps of each stretch that it ran.
    """

    cache_bytes: int
    steps: list[Step]
    spans: list[list[tuple[int, int]]]
    recomputed_tokens: int

    @property
    def end(self) -> int:
        """The number of steps until everything was done, idle ones included."""
        return self.steps[-1].time + 1 if self.steps else 0

    @property
    def mean_batch(self) -> float:
        """Requests running, averaged over the steps that ran any: the tokens of an average step."""
        return sum(step.running for step in self.steps) / len(self.steps) if self.steps else 0.0

    @property
    def peak_batch(self) -> int:
        return max((step.running for step in self.steps), default=0)

    @property
    def peak_bytes(self) -> int:
        return max((step.held_bytes for step in self.steps), default=0)

    @property
    def waste(self) -> float:
        """The share of the held bytes, over all steps, that hold no token."""
        held = sum(step.held_bytes for step in self.steps)
        return 1 - sum(step.live_bytes for step in self.steps) / held if held else 0.0

    @property
    def preemptions(self) -> int:
        return sum(len(step.preempted) for step in self.steps)


def stream(count: int, every: float, input: tuple[int, int], output: tuple[int, int], seed: int = 0) -> list[Request]:
    """A made-up stream: `count` requests, on average one in `every` steps, lengths uniform in the two closed ranges.

    Arrivals are a Poisson process. The same seed gives the same stream. Raises ValueError for an empty range or one
    that starts below 0 (output: below 1).
    """
    from random import Random

    whole("count", count)
    if every != 0:
        positive("every", every)
    for name, (low, high), least in (("input", input, 0), ("output", output, 1)):
        whole(f"{name}[1]", high, whole(f"{name}[0]", low, least))
    draw = Random(seed)
    uniform = lambda low, high: low + int(draw.random() * (high - low + 1))
    time, made = 0.0, []
    for _ in range(count):
        time += draw.expovariate(1 / every) if every else 0
        made.append(Request(int(time), uniform(*input), uniform(*output)))
    return made
