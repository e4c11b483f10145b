"""Batch size that follows memory: a stream of requests through a cache of fixed size, step by step.

A step gives every running request one token. A request that is admitted is prefilled within its step and yields its
first token there, so after g steps it holds input + g tokens, and it leaves after `output` steps. Requests are admitted
in order of arrival. Two policies:

    paged      a request holds the pages of the tokens it has so far. When growth finds no page, the request admitted
               last gives up all of its pages, waits at the head of the queue and is computed again when it returns
               (vLLM's recompute preemption, arXiv 2309.06180 section 4.5).
    reserved   a request holds the memory of its final length (or of reserve_tokens) from the start. Nothing is ever
               preempted, and what is reserved but not yet written is wasted.

Time is counted in steps, nothing is drawn at random, and the same stream always gives the same timeline.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from flashlab.hardware.checks import whole
from flashlab.sizing.cache import CacheSpec
from flashlab.sizing.timeline import Request, Step, Timeline

POLICIES = ("paged", "reserved")


def simulate(
    spec: CacheSpec,
    cache_bytes: int,
    requests: Iterable[Request],
    *,
    policy: str = "paged",
    page_size: int = 16,
    reserve_tokens: int | None = None,
    max_batch: int | None = None,
) -> Timeline:
    """Run the requests through cache_bytes of cache and return the timeline.

    reserve_tokens: under "reserved", what every request reserves; None reserves each one's own final length.
    Raises ValueError for a request that could never fit alone, naming it.
    """
    cache_bytes = whole("cache_bytes", cache_bytes, 0)
    if policy not in POLICIES:
        raise ValueError(f"policy {policy!r}: must be one of {', '.join(POLICIES)}")
    whole("page_size", page_size)
    if reserve_tokens is not None:
        whole("reserve_tokens", reserve_tokens)
        if policy == "paged":
            raise ValueError("reserve_tokens: goes with policy 'reserved'")
    if max_batch is not None:
        whole("max_batch", max_batch)
    cost = _Cost(spec, page_size if policy == "paged" else None, reserve_tokens)
    run = _Run(cost, cache_bytes - spec.constant_bytes, _checked(requests), max_batch)
    run.all()
    return Timeline(cache_bytes, run.steps, run.spans, run.recomputed)


def _checked(requests: Iterable[Request]) -> list[Request]:
    requests = [Request(*request) for request in requests]
    for i, request in enumerate(requests):
        whole(f"requests[{i}].arrival", request.arrival, 0)
        whole(f"requests[{i}].input", request.input, 0)
        whole(f"requests[{i}].output", request.output)
    return requests


class _Cost:
    """Bytes of a sequence, remembered: a paged sequence costs the same until it opens a page."""

    def __init__(self, spec: CacheSpec, page_size: int | None, reserve_tokens: int | None):
        self.spec, self.page_size, self.reserve_tokens = spec, page_size, reserve_tokens
        self._held: dict[int, int] = {}
        self._live: dict[int, int] = {}

    def held(self, request: Request, tokens: int) -> int:
        if self.page_size is None:
            tokens = self.reserve_tokens or request.input + request.output
        else:
            tokens = -(-tokens // self.page_size) * self.page_size
        if tokens not in self._held:
            self._held[tokens] = self.spec.sequence_bytes(tokens, self.page_size)
        return self._held[tokens]

    def live(self, tokens: int) -> int:
        if tokens not in self._live:
            self._live[tokens] = self.spec.sequence_bytes(tokens)
        return self._live[tokens]


@dataclass(slots=True)
class _Running:
    number: int
    request: Request
    since: int
    made: int
    held: int

    @property
    def tokens(self) -> int:
        return self.request.input + self.made


@dataclass(slots=True)
class _Run:
    """The state of a simulation. Invariant: the sum of `held` over running never exceeds room after a step."""

    cost: _Cost
    room: int
    requests: list[Request]
    max_batch: int | None
    time: int = 0
    recomputed: int = 0
    free: int = 0
    running: list[_Running] = field(default_factory=list)
    queue: deque = field(default_factory=deque)
    steps: list[Step] = field(default_factory=list)
    spans: list = field(default_factory=list)

    def all(self) -> None:
        for i, request in enumerate(self.requests):
            final = request.input + request.output
            reserved = self.cost.reserve_tokens or final
            if final > reserved:
                raise ValueError(f"requests[{i}]: ends at {final} tokens, beyond reserve_tokens {reserved}")
            if self.cost.held(request, final) > self.room:
                raise ValueError(f"requests[{i}]: its {final} tokens alone do not fit into the cache")
        self.free = self.room
        self.spans = [[] for _ in self.requests]
        coming = deque(sorted(range(len(self.requests)), key=lambda i: self.requests[i].arrival))
        while coming or self.queue or self.running:
            if not self.queue and not self.running:
                self.time = max(self.time, self.requests[coming[0]].arrival)
            while coming and self.requests[coming[0]].arrival <= self.time:
                self.queue.append((coming.popleft(), 0))
            self.step()
            self.time += 1

    def step(self) -> None:
        preempted = self.grow()
        admitted = self.admit()  # never one just preempted: what it freed has gone to an older one
        running = len(self.running)
        tokens = sum(one.tokens for one in self.running)
        live = sum(self.cost.live(one.tokens) for one in self.running)
        held = self.room - self.free
        finished = self.finish()
        waiting = len(self.queue)
        self.steps.append(Step(self.time, running, waiting, tokens, held, live, admitted, finished, preempted))

    def grow(self) -> tuple[int, ...]:
        """One token more for each running request, oldest first; the newest give way where there is no room."""
        preempted = []
        i = 0
        while i < len(self.running):
            one = self.running[i]
            size = self.cost.held(one.request, one.tokens + 1)
            while size - one.held > self.free and self.running[-1] is not one:
                preempted.append(self.preempt())
            if size - one.held > self.free:
                preempted.append(self.preempt())  # itself, now the newest; the older ones keep going
                break
            self.free -= size - one.held
            one.held, one.made = size, one.made + 1
            i += 1
        return tuple(preempted)

    def preempt(self) -> int:
        one = self.running.pop()
        self.free += one.held
        self.recomputed += one.tokens
        self.spans[one.number].append((one.since, self.time))
        self.queue.appendleft((one.number, one.made))
        return one.number

    def admit(self) -> tuple[int, ...]:
        admitted = []
        while self.queue and (self.max_batch is None or len(self.running) < self.max_batch):
            number, made = self.queue[0]
            request = self.requests[number]
            size = self.cost.held(request, request.input + made + 1)
            if size > self.free:
                break
            self.queue.popleft()
            self.free -= size
            self.running.append(_Running(number, request, self.time, made + 1, size))
            admitted.append(number)
        return tuple(admitted)

    def finish(self) -> tuple[int, ...]:
        done = [one for one in self.running if one.made == one.request.output]
        for one in done:
            self.free += one.held
            self.spans[one.number].append((one.since, self.time + 1))
        self.running = [one for one in self.running if one.made < one.request.output]
        return tuple(one.number for one in done)
