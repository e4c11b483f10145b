"""What fits: the largest batch at a context, the largest context at a batch, and requests of mixed lengths.

Everything is for one GPU: under tensor parallelism every GPU holds its share of every sequence, so what fits on one
fits on the group.
"""

from collections.abc import Iterable
from typing import NamedTuple

from flashlab.hardware.checks import whole
from flashlab.sizing.budget import UTILIZATION, Budget, memory_budget
from flashlab.sizing.cache import CacheSpec

WEIGHTS, WORKSPACE, CACHE, MODEL, NOTHING = "weights", "workspace", "cache", "model", "nothing"


class Plan(NamedTuple):
    """What fits on each GPU, and what limits it.

    limiter (of max_batch at `tokens`) and context_limiter (of max_context at `batch`) are "weights" (they leave no room
    for one token), "workspace" (the weights would, it does not), "cache" (it fills the rest), "model"
    (max_position_embeddings) or, for a context, "nothing" (the cache stopped growing and the config names no maximum;
    max_context is then None). largest_kind is the kind of layer that takes most of a sequence's bytes.
    """

    budget: Budget
    tp: int
    page_size: int | None
    tokens: int
    batch: int
    sequence_bytes: int
    largest_kind: str
    max_batch: int
    limiter: str
    max_context: int | None
    context_limiter: str


class Concurrency(NamedTuple):
    """How many requests of a mix run at once, on average; fractions are meant.

    longest: every request reserves the longest one's length. own: each reserves its own final length. growing: each
    holds only what it has so far.
    """

    longest: float
    own: float
    growing: float


def max_batch(spec: CacheSpec, cache_bytes: int, tokens: int, page_size: int | None = None) -> int:
    """The most sequences of `tokens` tokens each that fit into cache_bytes."""
    tokens, page_size = whole("tokens", tokens), _page_size(page_size)
    return max(0, (_room(cache_bytes) - spec.constant_bytes) // spec.sequence_bytes(tokens, page_size))


def max_context(spec: CacheSpec, cache_bytes: int, batch: int = 1, page_size: int | None = None) -> int | None:
    """The most tokens that each of `batch` sequences can have in cache_bytes, at most the model's own maximum.

    None where nothing ends it: every window is full, the rest fits, and the config names no maximum.
    """
    batch, page_size, cache_bytes = whole("batch", batch), _page_size(page_size), _room(cache_bytes)
    fits = lambda tokens: spec.bytes(batch, tokens, page_size) <= cache_bytes
    most = spec.max_context or 1 << 40
    if fits(most):
        return spec.max_context
    low, high = 0, most  # 0 tokens count as fitting; `high` never does
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def concurrency(
    spec: CacheSpec, cache_bytes: int, lengths: Iterable[tuple], page_size: int | None = None
) -> Concurrency:
    """How many requests of a length distribution run at once in cache_bytes.

    lengths: (input, output) or (input, output, weight) tuples, in tokens. A request stays for `output` steps and holds
    input + 1 ... input + output tokens meanwhile, so at any moment requests are met in proportion to weight * output.
    """
    page_size = _page_size(page_size)
    mix = [_request(entry) for entry in lengths]
    stay = sum(weight * outputs for _, outputs, weight in mix)
    if stay <= 0:
        raise ValueError("lengths: must hold at least one (input, output) with a positive weight")
    size = lambda tokens: spec.sequence_bytes(tokens, page_size)
    own = sum(weight * outputs * size(inputs + outputs) for inputs, outputs, weight in mix) / stay
    grown = lambda inputs, outputs: spec.growth_bytes(inputs + 1, inputs + outputs, page_size)
    growing = sum(weight * grown(inputs, outputs) for inputs, outputs, weight in mix)
    longest = max(size(inputs + outputs) for inputs, outputs, weight in mix if weight)
    room = max(0, _room(cache_bytes) - spec.constant_bytes)
    return Concurrency(room / longest, room / own, room * stay / growing)


def plan(
    spec: CacheSpec,
    gpu,
    *,
    tokens: int | None = None,
    batch: int = 1,
    tp: int = 1,
    page_size: int | None = None,
    utilization: float = UTILIZATION,
    weights: int | None = None,
    weights_dtype=None,
    workspace: int = 0,
) -> Plan:
    """The largest batch at `tokens` (default: the model's maximum) and the largest context at `batch`, on gpu.

    gpu, utilization, weights, weights_dtype, workspace: see memory_budget. tp: GPUs that share the model; leave it at 1
    where spec is a shard already. Raises ValueError for tokens beyond the model's max_position_embeddings, and for none
    where the config has no such maximum.
    """
    spec = spec if tp == 1 else spec.shard(tp)
    if tokens is None and spec.max_context is None:
        raise ValueError("tokens: must be given, as no max_position_embeddings is known")
    tokens = whole("tokens", spec.max_context if tokens is None else tokens)
    if spec.max_context is not None and tokens > spec.max_context:
        raise ValueError(f"tokens {tokens}: the model's max_position_embeddings is {spec.max_context}")
    budget = memory_budget(
        spec, gpu, utilization=utilization, weights=weights, weights_dtype=weights_dtype, workspace=workspace
    )
    kinds = spec.per_kind(1, tokens)
    context = max_context(spec, budget.cache, batch, page_size)
    return Plan(
        budget=budget,
        tp=spec.tp,
        page_size=page_size,
        tokens=tokens,
        batch=batch,
        sequence_bytes=spec.sequence_bytes(tokens, page_size),
        largest_kind=max(kinds, key=kinds.get),
        max_batch=max_batch(spec, budget.cache, tokens, page_size),
        limiter=_memory_limiter(spec, budget),
        max_context=context,
        context_limiter=_context_limiter(spec, budget, context),
    )


def _memory_limiter(spec: CacheSpec, budget: Budget) -> str:
    least = spec.bytes(1, 1)
    if least <= budget.cache:
        return CACHE
    return WORKSPACE if least <= budget.cache + budget.workspace else WEIGHTS


def _context_limiter(spec: CacheSpec, budget: Budget, context: int | None) -> str:
    if context is None:
        return NOTHING
    return MODEL if context == spec.max_context else _memory_limiter(spec, budget)


def _page_size(page_size) -> int | None:
    return None if page_size is None else whole("page_size", page_size)


def _room(cache_bytes) -> int:
    """A budget may be negative: then nothing fits."""
    return whole("cache_bytes", cache_bytes, least=float("-inf"))


def _request(entry) -> tuple[int, int, float]:
    if not isinstance(entry, (tuple, list)) or len(entry) not in (2, 3):
        raise ValueError(f"lengths: holds {entry!r}; each must be (input, output) or (input, output, weight)")
    inputs, outputs, weight = (*entry, 1)[:3]
    inputs, outputs = whole("input", inputs, 0), whole("output", outputs)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < float("inf"):
        raise ValueError(f"weight {weight!r}: must be a number of at least 0")
    return inputs, outputs, weight
