"""Forward and backward timed on a GPU, for the notebook's own-GPU cell: the package beside PyTorch's choice."""

import torch
import torch.nn.functional as F

from flashlab import flash_attn_func
from flashlab.course.lessons.lesson_01.measure import microseconds


def train_us(batch: int, heads: int, seqlen: int, head_dim: int = 128, causal: bool = False) -> dict[str, float]:
    """Microseconds, medians, bf16, forward alone and forward + backward: flashlab's, and those of PyTorch's sdpa."""
    shape = batch, seqlen, heads, head_dim
    q, k, v, do = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(4))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    turned = [x.detach().transpose(1, 2).requires_grad_() for x in inputs]
    ours = lambda: flash_attn_func(*inputs, causal=causal)
    torchs = lambda: F.scaled_dot_product_attention(*turned, is_causal=causal)
    return {
        "flashlab forward": microseconds(ours),
        "flashlab both": microseconds(lambda: torch.autograd.grad(ours(), inputs, do)),
        "torch forward": microseconds(torchs),
        "torch both": microseconds(lambda: torch.autograd.grad(torchs(), turned, do.transpose(1, 2))),
    }
