"""Small attention problems with all that a forward pass leaves behind, for this lesson's exercises. float64."""

import math

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case


def problem(
    seed: int, seqlen_q: int, seqlen_k: int, head_dim: int = 8, head_dim_v: int = 6, sharp: float = 1.0, causal=False
) -> tuple[torch.Tensor, ...]:
    """q, k, v, o, lse, do of one head. ``sharp`` makes the scores larger; causal is aligned at the bottom right."""
    q, k = sharp * normal(seed, seqlen_q, head_dim), normal(seed + 1, seqlen_k, head_dim)
    v, do = normal(seed + 2, seqlen_k, head_dim_v), normal(seed + 3, seqlen_q, head_dim_v)
    return q, k, v, *forward(q, k, v, causal), do


def forward(q, k, v, causal: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, lse); a row that sees no key gives (0, -inf)."""
    s = q @ k.T * q.shape[1] ** -0.5
    if causal:
        s = s.masked_fill(hidden(q, k), -math.inf)
    return torch.softmax(s, dim=1).nan_to_num(0.0) @ v, torch.logsumexp(s, dim=1)


def hidden(q, k) -> torch.Tensor:
    """(seqlen_q, seqlen_k): True where query i may not look at key j."""
    i, j = torch.arange(q.shape[0])[:, None], torch.arange(k.shape[0])
    return j > i + k.shape[0] - q.shape[0]


def cases(seed: int, *shapes: tuple[int, int, int, int], **options) -> list[Case]:
    """One case for each (queries, keys, BLOCK_M, BLOCK_N); ``options`` are problem's."""
    return [
        Case(f"{sq} queries, {sk} keys in tiles of {m} x {n}", (*problem(seed, sq, sk, **options), m, n))
        for sq, sk, m, n in shapes
    ]
