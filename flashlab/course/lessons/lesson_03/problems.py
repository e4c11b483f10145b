"""Small attention problems for this lesson's exercises."""

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case


def problem(
    seed: int, seqlen_q: int, seqlen_k: int, head_dim: int = 8, head_dim_v: int = 8, sharp: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q (seqlen_q, head_dim), k (seqlen_k, head_dim), v (seqlen_k, head_dim_v); ``sharp`` makes the scores larger."""
    q, k = sharp * normal(seed, seqlen_q, head_dim), normal(seed + 1, seqlen_k, head_dim)
    return q, k, normal(seed + 2, seqlen_k, head_dim_v)


def cases(seed: int, *shapes: tuple[int, int, int, int], **options) -> list[Case]:
    """One case for each (queries, keys, BLOCK_M, BLOCK_N); ``options`` are problem's."""
    return [
        Case(f"{sq} queries, {sk} keys in tiles of {m} x {n}", (*problem(seed, sq, sk, **options), m, n))
        for sq, sk, m, n in shapes
    ]
