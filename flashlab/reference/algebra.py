"""The one identity behind every later lesson: attention over two sets of keys, merged into attention over both.

Over a set of keys A, with scores s_j = softmax_scale * <q, k_j>, attention is a weighted mean:

    l_A   = sum_{j in A} e^s_j                   the total weight
    lse_A = log l_A
    out_A = sum_{j in A} e^s_j v_j / l_A         so the plain sum over A is l_A * out_A

Plain sums over disjoint sets add, and that is all there is to it:

    l   = l_A + l_B                              lse = log(e^lse_A + e^lse_B)
    out = (l_A out_A + l_B out_B) / l            out = (e^lse_A out_A + e^lse_B out_B) / e^lse

e^lse overflows, so both sides are scaled by e^-m, m = max(lse_A, lse_B): every exponent is then at most 0 and one of
them is 0. Adding weights is commutative and associative, so merging is: keys may be cut anywhere, worked on in any
order by anyone, and merged in a tree, a ring or one after another. The empty set has l = 0: (out, lse) = (0, -inf) is
the identity. (Online softmax: arXiv 1805.02867; Flash-Decoding's combine; Ring attention: arXiv 2310.01889.)
"""

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Partial:
    """Attention over some of the keys.

    Attributes:
        out: (..., head_dim), the weighted mean of the values seen.
        lse: (...), the logarithm of the total weight, below +inf; -inf where no key was seen, and then ``out`` counts
            for nothing whatever it holds.
        base: of that logarithm. Kernels that use exp2 keep 2; only equal bases merge.
    """

    out: torch.Tensor
    lse: torch.Tensor
    base: float = math.e

    def __post_init__(self):
        if self.out.shape[:-1] != self.lse.shape or self.out.dim() == 0:
            shapes = f"out has shape {tuple(self.out.shape)} and lse {tuple(self.lse.shape)}"
            raise ValueError(f"{shapes}: lse must be out's shape without its last dimension")
        if not self.base > 1:
            raise ValueError(f"base is {self.base}: a logarithm here needs a base above 1")
        if (self.lse == math.inf).any():
            raise ValueError("lse holds +inf: the total weight of some keys is a finite number")

    @classmethod
    def empty(cls, *shape: int, base: float = math.e, **factory) -> "Partial":
        """No keys at all, (0, -inf), for out of that shape. ``factory`` is torch's dtype and device."""
        return cls(torch.zeros(shape, **factory), torch.full(shape[:-1], -math.inf, **factory), base)

    @classmethod
    def of(cls, scores: torch.Tensor, values: torch.Tensor) -> "Partial":
        """Attention over the keys at hand: scores (..., seqlen_q, n), -inf where masked; values (..., n, head_dim)."""
        lse = torch.logsumexp(scores, dim=-1)
        return cls(torch.exp(scores - _finite(lse)[..., None]) @ values, lse)

    def with_base(self, base: float) -> "Partial":
        """The same weights, their logarithm taken to another base."""
        return Partial(self.out, self.lse * (math.log(self.base) / math.log(base)), base)


def merge(*partials: Partial) -> Partial:
    """Attention over all the keys that the partials saw, each key counted in one of them.

    Takes two or any number from one up, of one shape, dtype and base. Where all are empty the result is (0, -inf).

    Raises:
        ValueError: no partial, or shapes, dtypes or bases that differ.
    """
    if not partials:
        raise ValueError("merge needs at least one partial; the empty one is Partial.empty(shape)")
    first = partials[0]
    for other in partials[1:]:
        if other.out.shape != first.out.shape or other.out.dtype != first.out.dtype:
            ours, theirs = (f"{tuple(p.out.shape)} {p.out.dtype}" for p in (first, other))
            raise ValueError(f"cannot merge out {theirs} into {ours}")
        if other.base != first.base:
            raise ValueError(f"cannot merge lse to base {other.base:g} into base {first.base:g}: use with_base first")
    ln_base = math.log(first.base)
    lse = torch.stack([p.lse for p in partials])
    out = torch.stack([p.out for p in partials])
    m = _finite(lse.amax(0))  # all empty: -inf - -inf would be NaN, -inf - 0 is -inf
    weight = torch.exp((lse - m) * ln_base)
    total = weight.sum(0)
    share = weight / total.masked_fill(total == 0, 1)
    merged = (share[..., None] * out).masked_fill(weight[..., None] == 0, 0).sum(0)
    return Partial(merged, m + torch.log(total) / ln_base, first.base)


def _finite(lse: torch.Tensor) -> torch.Tensor:
    """-inf becomes 0: a maximum that is safe to subtract."""
    return lse.masked_fill(lse == -math.inf, 0)
