"""Inputs for the exercises: the same on any machine, because every one has its own seed."""

import torch


def normal(seed: int, *shape: int) -> torch.Tensor:
    """Standard normal numbers of that shape, float64 on the CPU."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
