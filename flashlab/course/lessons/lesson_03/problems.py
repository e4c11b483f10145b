"""Small attention problems for this lesson's exercises, and the memory they run in."""

import contextlib

import torch
import torch.utils.deterministic

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


@contextlib.contextmanager
def unwritten_is_nan():
    """Inside, memory that torch.empty hands out holds NaN: what is never written is seen, and is the same each time."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = filled
