"""The forward pass of FlashAttention-2: one program a tile of queries, keys streamed past it, nothing of size S x S stored.

    s = q k^T;   m' = max(m, rowmax(s));   p = exp(s - m');   alpha = exp(m - m')
    l = alpha l + rowsum(p);   acc = alpha acc + p v;         at the end  o = acc / l,  lse = m + log(l)

The keys a tile of rows can see are a band (flashlab.kernels.common). Its inner tiles are seen whole and run without a
mask; only those on the band's edges pay for one; those outside it are never loaded.

Dao, arXiv 2307.08691; bottom-right alignment and the options are flash-attn 2's.
"""

import torch
import triton
import triton.language as tl

from flashlab.kernels import backend, configs
from flashlab.kernels.common import (
    NEG_INF,
    accumulator,
    band_range,
    dot,
    dot_add,
    first_token,
    load_tile,
    loop_bounds,
    score_unit,
    scores,
    sequence,
    sequence_base,
    softmax_finish,
    softmax_start,
    softmax_step,
    stats_row,
    store_tile,
    tile_of_program,
    tile_start,
    token_offsets,
    visible,
)
from flashlab.kernels.kept import Kept


@triton.jit
def _attend(
    acc, m, l, b_q, rows, p_k, p_v, p_block_table, stride_kb, stride_kt, stride_vb, stride_vt,
    start, full_start, full_end, end, shift, seqlen_k, softmax_scale, softcap, slope, window_left, window_right,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
    WIDE: tl.constexpr, PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Stream the band's keys past a tile of queries: its MASKED tiles, or the others."""
    unit = score_unit(softmax_scale, SOFTCAP, ALIBI)
    begin, stop = loop_bounds(start, full_start, full_end, end, MASKED)
    for position in tl.range(begin, stop, BLOCK_N):
        first = tile_start(position, full_start, full_end, MASKED)
        cols = first + tl.arange(0, BLOCK_N)
        inside = cols < seqlen_k
        b_k = load_tile(
            p_k, token_offsets(cols, stride_kt, p_block_table, stride_kb, seqlen_k, PAGE_SIZE, WIDE), inside,
            HEAD_DIM, BLOCK_D, MASKED,
        )  # fmt: skip
        s = dot(b_q, tl.trans(b_k))
        s = scores(s, rows[:, None], cols[None, :], shift, softmax_scale, softcap, slope, SOFTCAP, ALIBI)
        if MASKED:
            keep = visible(
                rows[:, None], cols[None, :], shift, seqlen_k, window_left, window_right, HAS_LEFT, HAS_RIGHT
            )
            s = tl.where(keep, s, NEG_INF)
        p, m, l, alpha = softmax_step(s, m, l, unit, MASKED)
        # V is masked as well as the scores: a probability of 0 times a NaN beyond the sequence is NaN.
        b_v = load_tile(
            p_v, token_offsets(cols, stride_vt, p_block_table, stride_vb, seqlen_k, PAGE_SIZE, WIDE), inside,
            HEAD_DIM, BLOCK_D, MASKED,
        )  # fmt: skip
        acc = dot_add(p, b_v, acc * alpha[:, None])
    return acc, m, l


@triton.jit(do_not_specialize=["seqlen_q", "seqlen_k", "num_tiles", "stride_lse", "window_left", "window_right"])
def forward_kernel(
    p_q, p_k, p_v, p_o, p_lse, p_cu_seqlens_q, p_cu_seqlens_k, p_alibi_slopes, p_block_table,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_lse, stride_alibi, stride_table, seqlen_q, seqlen_k, heads, num_tiles,
    softmax_scale, softcap, window_left, window_right,
    GROUP: tl.constexpr, VARLEN: tl.constexpr, PAGE_SIZE: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, WIDE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of BLOCK_M queries of one head. o is contiguous; lse holds heads rows of stride_lse tokens a batch."""
    tile, head, batch = tile_of_program(num_tiles, heads, HEAD_GROUP, HAS_RIGHT)
    start_q, seqlen_q = sequence(p_cu_seqlens_q, batch, seqlen_q, VARLEN)
    start_k, seqlen_k = sequence(p_cu_seqlens_k, batch, seqlen_k, VARLEN)
    first_row = tile * BLOCK_M
    if first_row >= seqlen_q:
        return
    shift = seqlen_k - seqlen_q
    rows = first_row + tl.arange(0, BLOCK_M)
    last_row = tl.minimum(first_row + BLOCK_M, seqlen_q) - 1

    p_q = sequence_base(p_q, batch, head, start_q, stride_qb, stride_qt, stride_qh)
    kv_head = head // GROUP
    if PAGE_SIZE > 0:  # the table says where a key lies; its batch and first token say nothing
        p_block_table += batch.to(tl.int64) * stride_table
        p_k += kv_head.to(tl.int64) * stride_kh
        p_v += kv_head.to(tl.int64) * stride_vh
    else:
        p_k = sequence_base(p_k, batch, kv_head, start_k, stride_kb, stride_kt, stride_kh)
        p_v = sequence_base(p_v, batch, kv_head, start_k, stride_vb, stride_vt, stride_vh)
    p_o += (first_token(start_q, batch, seqlen_q, VARLEN) * heads + head) * HEAD_DIM
    p_lse += stats_row(start_q, batch, head, heads, stride_lse, VARLEN)
    slope = 0.0
    if ALIBI:
        slope = tl.load(p_alibi_slopes + batch * stride_alibi + head)

    b_q = load_tile(p_q, rows.to(tl.int64) * stride_qt, rows < seqlen_q, HEAD_DIM, BLOCK_D, True)
    dtype: tl.constexpr = accumulator(b_q.dtype)
    m, l = softmax_start(BLOCK_M, dtype)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype)
    start, full_start, full_end, end = band_range(
        first_row, last_row, shift, seqlen_k, window_left, window_right, HAS_LEFT, HAS_RIGHT, BLOCK_N
    )
    acc, m, l = _attend(
        acc, m, l, b_q, rows, p_k, p_v, p_block_table, stride_kb, stride_kt, stride_vb, stride_vt,
        start, full_start, full_end, end, shift, seqlen_k, softmax_scale, softcap, slope, window_left, window_right,
        SOFTCAP, ALIBI, HAS_LEFT, HAS_RIGHT, WIDE, PAGE_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N, True,
    )  # fmt: skip
    acc, m, l = _attend(
        acc, m, l, b_q, rows, p_k, p_v, p_block_table, stride_kb, stride_kt, stride_vb, stride_vt,
        start, full_start, full_end, end, shift, seqlen_k, softmax_scale, softcap, slope, window_left, window_right,
        SOFTCAP, ALIBI, HAS_LEFT, HAS_RIGHT, WIDE, PAGE_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N, False,
    )  # fmt: skip
    o, lse = softmax_finish(acc, m, l)
    store_tile(p_o, rows.to(tl.int64) * (heads * HEAD_DIM), o, rows < seqlen_q, HEAD_DIM, BLOCK_D)
    tl.store(p_lse + rows, lse, mask=rows < seqlen_q)


SPAN_OF_32_BITS = 2**31 - configs.LARGEST_BLOCK_D  # less one row, which begins inside

_forward = Kept(forward_kernel)


class Plan:
    """What a call's shapes decide. Calls alike in them share one, and with it the compiled kernel: it is Kept's key."""

    def __init__(self, grid, sizes, constants, options):
        self.grid, self.sizes, self.constants, self.options = grid, sizes, constants, options


@configs.remembered
def _plan(
    shape_q, stride_q, shape_k, stride_k, stride_v, dtype, device, batch, stride_alibi, stride_table, varlen,
    max_seqlen_q, max_seqlen_k, window_left, window_right, softcapped,
) -> Plan:  # fmt: skip
    """stride_alibi and stride_table are None where there is no alibi_slopes or block_table."""
    *_, total_q, heads, head_dim = shape_q
    paged = stride_table is not None
    config = configs.choose("forward", dtype, device, head_dim, max_seqlen_q, window_left >= 0 or window_right >= 0)
    num_tiles = triton.cdiv(max_seqlen_q, config.BLOCK_M)
    wide = max(max_seqlen_q * stride_q[-3], max_seqlen_k * max(stride_k[-3], stride_v[-3])) > SPAN_OF_32_BITS
    sizes = (
        *strides(stride_q, varlen), *strides(stride_k, varlen and not paged), *strides(stride_v, varlen and not paged),
        total_q, stride_alibi or 0, stride_table or 0, max_seqlen_q, max_seqlen_k, heads, num_tiles,
    )  # fmt: skip
    constants = (
        heads // shape_k[-2], varlen, shape_k[1] if paged else 0, softcapped, stride_alibi is not None,
        window_left >= 0, window_right >= 0, wide, head_dim, *config.blocks(heads),
    )  # fmt: skip
    return Plan((num_tiles * heads * batch, 1, 1), sizes, constants, config.options)


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    block_table: torch.Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    window_left: int,
    window_right: int,
    softcap: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the forward kernel; arguments are already checked (flashlab.attention.checks).

    Args:
        q, k, v: (batch, seqlen, heads, head_dim), or (total, heads, head_dim) with cu_seqlens, last dimension contiguous;
            with block_table k and v are (pages, page_size, heads_kv, head_dim).
        cu_seqlens_q, cu_seqlens_k: (batch + 1,) int32, or None where sequences are padded.
        alibi_slopes: float32 (heads,) or (batch, heads), last dimension contiguous.
        block_table: (batch, columns) int32, last dimension contiguous.
        window_left, window_right: inclusive edges of the band, negative where open; causal is window_right = 0.
        softcap: 0.0 is off.

    Returns:
        o like q but contiguous, and the natural LSE: (batch, heads, seqlen_q) or (heads, total_q), float32
        (float64 for float64 inputs).
    """
    varlen = cu_seqlens_q is not None
    o, lse = empty_outputs(q, varlen)
    if o.numel() == 0:
        return o, lse
    result = o
    if backend.interpreting():
        q, k, v, result = backend.widen(q), backend.widen(k), backend.widen(v), backend.widen(o)
    plan = _plan(
        q.shape, q.stride(), k.shape, k.stride(), v.stride(), q.dtype, q.device,
        cu_seqlens_q.shape[0] - 1 if varlen else q.shape[0], alibi_stride(alibi_slopes),
        None if block_table is None else block_table.stride(0), varlen,
        max_seqlen_q, max_seqlen_k, window_left, window_right, softcap > 0.0,
    )  # fmt: skip
    with backend.on_device_of(q):
        _forward(
            plan, plan.grid,
            (q, k, v, result, lse, cu_seqlens_q, cu_seqlens_k, alibi_slopes, block_table),
            (*plan.sizes, softmax_scale, softcap, window_left, window_right, *plan.constants),
            **plan.options,
        )  # fmt: skip
    if result is not o:
        o.copy_(result)
    return o, lse


def empty_outputs(q: torch.Tensor, varlen: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Unwritten (o, lse) for q: o contiguous, lse (batch, heads, seqlen_q) or (heads, total_q)."""
    tokens, heads, _ = q.shape[-3:]
    dtype = torch.float64 if q.dtype is torch.float64 else torch.float32
    shape = (heads, tokens) if varlen else (q.shape[0], heads, tokens)
    return q.new_empty(q.shape), q.new_empty(shape, dtype=dtype)


def strides(stride: tuple[int, ...], varlen: bool) -> tuple[int, int, int]:
    """(batch, token, head) strides in elements of a tensor's; packed sequences have no batch."""
    return (0, *stride[:2]) if varlen else stride[:3]


def alibi_stride(alibi_slopes: torch.Tensor | None) -> int | None:
    """Elements from one batch row's slopes to the next: 0 where all rows share them, None where there are none."""
    if alibi_slopes is None:
        return None
    return alibi_slopes.stride(0) if alibi_slopes.dim() == 2 else 0
