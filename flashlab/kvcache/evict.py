"""Which tokens to let go when a cache grows too long: three policies over the pool, what each saves and what it loses.

    SlidingWindow     the last tokens                                     frees whole pages; nothing moves
    AttentionSinks    the first few and the last (StreamingLLM)           the kept are moved together
    HeavyHitters      those attended to most so far, and the last (H2O)   the kept are moved together

What is lost is attention that would have gone to the tokens let go. With LSE over the keys kept and over all keys,

    lost = 1 - exp(lse_kept - lse_all)

is the share of a query's attention, between 0 and 1: the kernel's own LSE measures it, before and after. A value is at most
max|v|, so the output moves by at most 2 * lost * max|v|.

A sequence's tokens are the same for all layers and heads here, since the pool keeps one list of pages a sequence; H2O's
authors choose per head. Keys carry the rotation of the position they were written at: keeping is exact for them, while
StreamingLLM's authors rotate anew by position in the cache.

StreamingLLM: Xiao et al., arXiv 2309.17453. H2O: Zhang et al., arXiv 2306.14048.
"""

from typing import NamedTuple

import torch

from flashlab.attention import flash_attn_with_kvcache
from flashlab.kvcache.pool import PagedKVCache


class Eviction(NamedTuple):
    """What an eviction did. mass_lost is per query head, (layers, seqlen_q, heads_q), or None without queries.

    tokens_before leaves out what an earlier eviction dropped, and mass_lost is a share of what was still held."""

    tokens_before: int
    tokens_after: int
    pages_freed: int
    bytes_freed: int
    mass_lost: torch.Tensor | None


class SlidingWindow:
    """Keep the last ``window`` tokens. Positions stay: attend with window_size=(window - 1, 0) afterwards.

    The window is honoured to the token by that argument, and in memory to the page: a page goes once no token of it is in.
    """

    def __init__(self, window: int):
        self.window = _at_least_one("window", window)

    def evict(self, pool: PagedKVCache, sequence: int, q: torch.Tensor | None = None) -> Eviction:
        """Free what has left the window. q: (layers, seqlen_q, heads_q, head_dim), queries to measure the loss with."""
        first, length = pool.dropped(sequence), pool.length(sequence)
        outside = max(first, length - self.window)
        everything = _lse(pool, sequence, q)
        hidden = torch.tensor([outside], dtype=torch.int32).to(pool.device)
        inside = _lse(pool, sequence, q, cache_leftpad=hidden)
        used = pool.utilisation().pages_used
        pool.drop_front(sequence, outside)
        return _report(pool, length - first, length - outside, used, everything, inside)


class AttentionSinks:
    """Keep the first ``sinks`` tokens, which every query attends to whatever they say, and the last ``window``."""

    def __init__(self, sinks: int, window: int):
        if sinks < 0:
            raise ValueError(f"sinks {sinks}: must not be negative")
        self.sinks, self.window = sinks, _at_least_one("window", window)

    def kept(self, length: int) -> list[int]:
        """The tokens that stay of a sequence of that length."""
        return [*range(min(self.sinks, length)), *range(max(self.sinks, length - self.window), length)]

    def evict(self, pool: PagedKVCache, sequence: int, q: torch.Tensor | None = None) -> Eviction:
        """Keep sinks and window. q: (layers, seqlen_q, heads_q, head_dim), queries to measure the loss with.

        OutOfPages: pages shared with other sequences leave no room for the kept; nothing was changed.
        """
        return _keep(pool, sequence, self.kept(pool.length(sequence)), q)


class HeavyHitters:
    """Keep the last ``window`` tokens and, of the others, the ``budget`` that have drawn most attention so far.

    Call ``observe`` with each step's queries; ``evict`` when the cache is too long. The tally follows a sequence through
    its evictions.
    """

    def __init__(self, budget: int, window: int):
        self.budget, self.window = _at_least_one("budget", budget), _at_least_one("window", window)
        self._drawn: dict[int, torch.Tensor] = {}

    def observe(self, pool: PagedKVCache, sequence: int, q: torch.Tensor, softmax_scale: float | None = None) -> torch.Tensor:
        """Add the attention q (layers, seqlen_q, heads_q, head_dim) pays each token, summed over layers, queries and heads.

        The queries are the sequence's last tokens, so attention is causal. Returns the tally, float32 (tokens,).
        ValueError for another shape, or more queries than tokens.
        """
        _check_queries(pool, q)
        layers, seqlen_q, heads_q, head_dim = q.shape
        length = pool.length(sequence)
        if heads_q % pool.heads_kv or head_dim != pool.head_dim:
            raise ValueError(
                f"q has shape {tuple(q.shape)}: heads must be a multiple of {pool.heads_kv}, head_dim {pool.head_dim}"
            )
        if seqlen_q > length:
            raise ValueError(f"q has {seqlen_q} queries: they are the last tokens of sequence {sequence}, which holds {length}")
        scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
        drawn = torch.zeros(length, device=pool.device)
        last = torch.arange(length, device=pool.device) + seqlen_q - length  # the first query that sees token j
        unseen = last > torch.arange(seqlen_q, device=pool.device)[:, None]
        for layer in range(layers):
            k, _ = pool.read(layer, sequence)
            k = k.float().repeat_interleave(heads_q // pool.heads_kv, 1)
            scores = torch.einsum("qhd,khd->hqk", q[layer].float(), k) * scale
            drawn += torch.softmax(scores.masked_fill(unseen, float("-inf")), -1).sum((0, 1))
        self._drawn[sequence] = drawn + self._tally(sequence, length).to(drawn.device)
        return self._drawn[sequence]

    def kept(self, sequence: int, length: int) -> list[int]:
        """The tokens that stay of a sequence, in order."""
        recent = max(0, length - self.window)
        heaviest = self._tally(sequence, length)[:recent].sort(descending=True, stable=True).indices  # ties: the oldest
        return [*sorted(heaviest[: self.budget].tolist()), *range(recent, length)]

    def evict(self, pool: PagedKVCache, sequence: int, q: torch.Tensor | None = None) -> Eviction:
        """Keep heavy hitters and window. q: (layers, seqlen_q, heads_q, head_dim), queries to measure the loss with.

        OutOfPages: pages shared with other sequences leave no room for the kept; nothing was changed.
        """
        length = pool.length(sequence)
        kept = self.kept(sequence, length)
        result = _keep(pool, sequence, kept, q)
        self._drawn[sequence] = self._tally(sequence, length)[kept]
        return result

    def forget(self, sequence: int) -> None:
        """Drop the tally of a sequence that was freed."""
        self._drawn.pop(sequence, None)

    def _tally(self, sequence, length):
        """The tally so far, 0 for tokens that came since."""
        drawn = self._drawn.get(sequence, torch.zeros(0))
        if drawn.numel() > length:
            raise ValueError(f"sequence {sequence} holds {length} tokens, fewer than the {drawn.numel()} observed: forget it first")
        return torch.nn.functional.pad(drawn, (0, length - drawn.numel()))


def _keep(pool, sequence, tokens, q) -> Eviction:
    before, used = pool.length(sequence), pool.utilisation().pages_used
    everything = _lse(pool, sequence, q)
    pool.keep(sequence, tokens)
    return _report(pool, before, len(tokens), used, everything, _lse(pool, sequence, q))


def _lse(pool, sequence, q, **options):
    """(layers, seqlen_q, heads_q): the log of all attention weight, which every query pays the same keys."""
    if q is None:
        return None
    _check_queries(pool, q)
    lses = []
    for layer in range(q.shape[0]):
        _, lse = flash_attn_with_kvcache(
            q[layer][None], **pool.arguments(layer, [sequence]) | options, return_softmax_lse=True
        )
        lses.append(lse[0].transpose(0, 1))
    return torch.stack(lses)


def _report(pool, before, after, used, everything, kept) -> Eviction:
    freed = used - pool.utilisation().pages_used
    lost = None if everything is None else (-torch.expm1(kept - everything)).clamp(0, 1)
    if lost is not None:  # of an empty sequence nothing is lost
        lost = torch.where(everything == float("-inf"), 0.0, lost)
    return Eviction(before, after, freed, freed * pool.page_bytes, lost)


def _check_queries(pool, q) -> None:
    if q.dim() != 4 or q.shape[0] != len(pool.layers):
        raise ValueError(f"q has shape {tuple(q.shape)}: must be ({len(pool.layers)}, seqlen_q, heads_q, {pool.head_dim})")


def _at_least_one(name: str, value: int) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{name} is a {type(value).__name__}: must be an int")
    if value < 1:
        raise ValueError(f"{name} {value}: must be at least 1")
    return value
