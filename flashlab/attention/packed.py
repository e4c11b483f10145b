"""Attention over q, k and v that lie in one tensor: views of it, no copies."""

import torch

from flashlab.attention import checks
from flashlab.attention.prefill import flash_attn_func, flash_attn_varlen_func


def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """``flash_attn_func`` of qkv (batch, seqlen, 3, heads, head_dim)."""
    return flash_attn_func(
        *_parts("qkv", qkv, 5, 3), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """``flash_attn_func`` of q (batch, seqlen_q, heads_q, head_dim), kv (batch, seqlen_k, 2, heads_kv, head_dim)."""
    return flash_attn_func(
        q, *_parts("kv", kv, 5, 2), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """``flash_attn_varlen_func`` of qkv (total, 3, heads, head_dim)."""
    return flash_attn_varlen_func(
        *_parts("qkv", qkv, 4, 3), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """``flash_attn_varlen_func`` of q (total_q, heads_q, head_dim), kv (total_k, 2, heads_kv, head_dim)."""
    return flash_attn_varlen_func(
        q, *_parts("kv", kv, 4, 2), cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def _parts(name: str, packed: torch.Tensor, dims: int, count: int) -> tuple[torch.Tensor, ...]:
    """The views of a tensor whose third dimension from the end holds q, k and v, or k and v."""
    checks.tensor(name, packed, dims)
    if packed.shape[-3] != count:
        raise ValueError(f"{name} has shape {tuple(packed.shape)}: dimension {dims - 3} must be {count}")
    return packed.unbind(-3)
