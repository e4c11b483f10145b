"""New keys and values written into a cache in place, rotated by their positions on the way; the queries rotated too.

Rotary position embedding turns pairs of dimensions (x, y) by the angle of their position:

    x' = x cos - y sin,     y' = y cos + x sin

over the first rotary_dim dimensions; pair i is dimensions (2 i, 2 i + 1) when interleaved (GPT-J), else
(i, i + rotary_dim / 2) (GPT-NeoX). cos and sin come as tables, one row a position. Su et al., arXiv 2104.09864.

A program handles one token of one batch row, BLOCK_H heads of each of q, k and v. Tokens that would fall beyond the
cache's capacity, or before its first slot, are not written.
"""

import torch
import triton
import triton.language as tl

from flashlab.kernels import backend
from flashlab.kernels.kept import Kept

HEADS_TOGETHER = 16


@triton.jit
def _load_rotated(
    p_x, head_offsets, dims, valid, p_cos, p_sin, angles, known, ROTARY_DIM: tl.constexpr, INTERLEAVED: tl.constexpr
):
    """A (heads, dims) tile in float32, rotated. angles: offset of the position's row in the tables; known: it has one."""
    x = tl.load(p_x + head_offsets[:, None] + dims[None, :], mask=valid, other=0.0).to(tl.float32)
    if ROTARY_DIM > 0:
        HALF: tl.constexpr = ROTARY_DIM // 2
        if INTERLEAVED:
            first = dims % 2 == 0
            partner = tl.where(first, dims + 1, dims - 1)
            pair = dims // 2
        else:
            first = dims < HALF
            partner = tl.where(first, dims + HALF, dims - HALF)
            pair = dims % HALF
        turned = (dims < ROTARY_DIM) & known
        cos = tl.load(p_cos + angles + pair, mask=turned, other=1.0).to(tl.float32)
        sin = tl.load(p_sin + angles + pair, mask=turned, other=0.0).to(tl.float32)
        other = tl.load(p_x + head_offsets[:, None] + partner[None, :], mask=valid & turned[None, :], other=0.0)
        other = other.to(tl.float32) * tl.where(first, -1.0, 1.0)[None, :]
        x = x * cos[None, :] + other * sin[None, :]
    return x


@triton.jit(
    do_not_specialize=["seqlen_new", "seqlen_q", "tokens", "capacity", "heads_kv", "heads_q", "rotary_rows"]
)
def append_kernel(
    p_q, p_k, p_v, p_q_out, p_k_cache, p_v_cache, p_cos, p_sin, p_cache_seqlens, p_cache_batch_idx, p_block_table,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_kcb, stride_kct, stride_kch, stride_vcb, stride_vct, stride_vch, stride_cos, stride_sin, stride_table,
    seqlen_new, seqlen_q, tokens, capacity, heads_kv, heads_q, rotary_rows,
    BATCH_IDX: tl.constexpr, PAGE_SIZE: tl.constexpr, ROTARY_DIM: tl.constexpr, INTERLEAVED: tl.constexpr,
    QUERIES_MOVE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """QUERIES_MOVE: query t stands at cache_seqlens + t (causal or windowed), else every query at cache_seqlens."""
    b = tl.program_id(0) // tokens
    token = tl.program_id(0) % tokens
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    dims = tl.arange(0, BLOCK_D)
    length = tl.load(p_cache_seqlens + b)
    position = length + token
    b = b.to(tl.int64)

    if (token < seqlen_new) & (length >= 0) & (position < capacity):
        valid = (heads < heads_kv)[:, None] & (dims < HEAD_DIM)[None, :]
        if PAGE_SIZE > 0:
            page = tl.load(p_block_table + b * stride_table + position // PAGE_SIZE).to(tl.int64)
            slot = (position % PAGE_SIZE).to(tl.int64)
        else:
            page = b
            if BATCH_IDX:
                page = tl.load(p_cache_batch_idx + b).to(tl.int64)
            slot = position.to(tl.int64)
        new = token.to(tl.int64)
        k = _load_rotated(
            p_k + b * stride_kb + new * stride_kt, heads.to(tl.int64) * stride_kh, dims, valid, p_cos, p_sin,
            position.to(tl.int64) * stride_cos, position < rotary_rows, ROTARY_DIM, INTERLEAVED,
        )  # fmt: skip
        v = _load_rotated(
            p_v + b * stride_vb + new * stride_vt, heads.to(tl.int64) * stride_vh, dims, valid, p_cos, p_sin, 0, True, 0,
            INTERLEAVED,
        )  # fmt: skip
        p_k_new = p_k_cache + page * stride_kcb + slot * stride_kct + heads.to(tl.int64)[:, None] * stride_kch
        p_v_new = p_v_cache + page * stride_vcb + slot * stride_vct + heads.to(tl.int64)[:, None] * stride_vch
        tl.store(p_k_new + dims[None, :], k.to(p_k_cache.dtype.element_ty), mask=valid)
        tl.store(p_v_new + dims[None, :], v.to(p_v_cache.dtype.element_ty), mask=valid)

    if ROTARY_DIM > 0:
        if token < seqlen_q:
            valid = (heads < heads_q)[:, None] & (dims < HEAD_DIM)[None, :]
            place = position
            if not QUERIES_MOVE:
                place = length
            q = _load_rotated(
                p_q + b * stride_qb + token.to(tl.int64) * stride_qt, heads.to(tl.int64) * stride_qh, dims, valid,
                p_cos, p_sin, place.to(tl.int64) * stride_cos, place < rotary_rows, ROTARY_DIM, INTERLEAVED,
            )  # fmt: skip
            p_rotated = p_q_out + ((b * seqlen_q + token) * heads_q + heads)[:, None] * HEAD_DIM + dims[None, :]
            tl.store(p_rotated, q.to(p_q_out.dtype.element_ty), mask=valid)


_append = Kept(append_kernel)


def append(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rotary_cos: torch.Tensor | None,
    rotary_sin: torch.Tensor | None,
    cache_seqlens: torch.Tensor,
    cache_batch_idx: torch.Tensor | None,
    block_table: torch.Tensor | None,
    interleaved: bool,
    queries_move: bool,
) -> torch.Tensor:
    """Write k and v at cache_seqlens of each row, and return q rotated, contiguous (q itself without rotary).

    Arguments are already checked (flashlab.attention.decode): k, v (batch, seqlen_new, heads_kv, head_dim); the caches
    contiguous or paged; rotary_cos, rotary_sin (positions, rotary_dim / 2).
    """
    batch, seqlen_q, heads_q, head_dim = q.shape
    seqlen_new, heads_kv = k.shape[1:3]
    rotary_dim = 0 if rotary_cos is None else 2 * rotary_cos.shape[1]
    if k.numel() == 0 and not rotary_dim:
        return q
    page_size = 0 if block_table is None else k_cache.shape[1]
    capacity = k_cache.shape[1] if block_table is None else page_size * block_table.shape[1]
    tokens = max(seqlen_new, seqlen_q if rotary_dim else 0)
    most_heads = max(heads_kv, heads_q if rotary_dim else 0)
    places, dtype = (k_cache, v_cache), q.dtype
    if backend.interpreting():
        q, k, v, k_cache, v_cache = (backend.widen(t) for t in (q, k, v, k_cache, v_cache))
        if rotary_dim:
            rotary_cos, rotary_sin = backend.widen(rotary_cos), backend.widen(rotary_sin)
    rotated = torch.empty(q.shape, dtype=q.dtype, device=q.device) if rotary_dim else None
    strides = (
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *k_cache.stride()[:3], *v_cache.stride()[:3],
        rotary_cos.stride(0) if rotary_dim else 0, rotary_sin.stride(0) if rotary_dim else 0,
        0 if block_table is None else block_table.stride(0),
    )  # fmt: skip
    constants = (
        cache_batch_idx is not None, page_size, rotary_dim, interleaved, queries_move, head_dim, HEADS_TOGETHER,
        triton.next_power_of_2(head_dim),
    )  # fmt: skip
    with backend.on_device_of(q):
        _append(
            (q.device, dtype, rotary_cos.dtype if rotary_dim else None, strides, constants),
            (batch * tokens, triton.cdiv(most_heads, HEADS_TOGETHER), 1),
            (q, k, v, rotated, k_cache, v_cache, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, block_table),
            (*strides, seqlen_new, seqlen_q, tokens, capacity, heads_kv, heads_q,
             rotary_cos.shape[0] if rotary_dim else 0, *constants),
            num_warps=4,
        )  # fmt: skip
    for place, written in zip(places, (k_cache, v_cache), strict=True):
        if written is not place:
            with torch.no_grad():
                place.copy_(written)
    return rotated.to(dtype) if rotary_dim else q
