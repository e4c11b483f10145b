"""The backward pass of FlashAttention-2, in a form that adds nothing twice and so is the same bit for bit every time.

With p = exp(s - lse) recomputed tile by tile and f the softcap (f' = 1 without one):

    delta = rowsum(do * o) - dlse
    dv = p^T do;    dp = do v^T;    ds = p * (dp - delta) * f'(s)
    dk = softmax_scale * ds^T q;    dq = softmax_scale * ds k

``dlse`` is the gradient that reached the LSE itself: d lse_i / d s_ij = p_ij, so it joins delta.

Three launches: ``preprocess`` (delta, and the LSE in log2 units), ``dkdv`` (one program a tile of keys, queries streamed
past it) and ``dq`` (one program a tile of queries, keys streamed past it). Computing s and dp twice costs 7 matrix
products where 5 would do; adding dq with atomics from ``dkdv`` would save them, and lose repeatability. A kv head's
gradient sums over the query heads that share it, in order, inside one program.

A row that saw no key has lse = -inf and p must be 0 there: the LSE kept for the backward is +inf instead, so that
exp2(s - lse) is 0. The same value pads the rows past the end of a sequence.

Dao, arXiv 2307.08691, algorithm 2.
"""

import torch
import triton
import triton.language as tl

from flashlab.kernels import backend, configs
from flashlab.kernels.common import (
    LOG2E,
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
    softcap_slope,
    stats_row,
    store_tile,
    tile_of_program,
    tile_start,
    token_offsets,
    visible,
)
from flashlab.kernels.forward import SPAN_OF_32_BITS, Plan, alibi_stride, strides
from flashlab.kernels.kept import Kept

POS_INF = tl.constexpr(float("inf"))


@triton.jit(do_not_specialize=["seqlen_q", "num_tiles", "stride_lse"])
def preprocess_kernel(
    p_o, p_do, p_lse, p_dlse, p_lse_log2, p_delta, p_cu_seqlens_q,
    stride_dob, stride_dot, stride_doh, stride_lse, seqlen_q, heads, num_tiles,
    VARLEN: tl.constexpr, DLSE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """delta and the LSE in log2 units, for one tile of rows of one head."""
    tile, head, batch = tile_of_program(num_tiles, heads, 1, False)
    start_q, seqlen_q = sequence(p_cu_seqlens_q, batch, seqlen_q, VARLEN)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = rows < seqlen_q
    p_o += (first_token(start_q, batch, seqlen_q, VARLEN) * heads + head) * HEAD_DIM
    p_do = sequence_base(p_do, batch, head, start_q, stride_dob, stride_dot, stride_doh)
    stats = stats_row(start_q, batch, head, heads, stride_lse, VARLEN) + rows
    lse = tl.load(p_lse + stats, mask=valid, other=0.0)
    b_o = load_tile(p_o, rows.to(tl.int64) * heads * HEAD_DIM, valid, HEAD_DIM, BLOCK_D, True).to(lse.dtype)
    b_do = load_tile(p_do, rows.to(tl.int64) * stride_dot, valid, HEAD_DIM, BLOCK_D, True).to(lse.dtype)
    delta = tl.sum(b_o * b_do, 1)
    if DLSE:
        delta -= tl.load(p_dlse + stats, mask=valid, other=0.0)
    tl.store(p_delta + stats, delta, mask=valid)
    tl.store(p_lse_log2 + stats, tl.where(lse == NEG_INF, POS_INF, lse * LOG2E), mask=valid)


@triton.jit
def _probabilities(s, rows, cols, lse, shift, seqlen_k, softmax_scale, softcap, slope, window_left, window_right,
                   SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
                   MASKED: tl.constexpr):  # fmt: skip
    """p = exp(s - lse) from raw q . k, in either orientation. Masked last: exp2 of a hidden score may be anything."""
    unit = score_unit(softmax_scale, SOFTCAP, ALIBI)
    p = tl.exp2(scores(s, rows, cols, shift, softmax_scale, softcap, slope, SOFTCAP, ALIBI) * unit - lse)
    if MASKED:
        p = tl.where(visible(rows, cols, shift, seqlen_k, window_left, window_right, HAS_LEFT, HAS_RIGHT), p, 0.0)
    return p


@triton.jit
def _gather_queries(
    dk, dv, b_k, b_v, cols, p_q, p_do, p_lse, p_delta, stride_qt, stride_dot,
    start, full_start, full_end, end, shift, seqlen_q, seqlen_k, softmax_scale, softcap, slope, window_left, window_right,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, WIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Stream the band's queries past a tile of keys, scores transposed: (BLOCK_N, BLOCK_M)."""
    begin, stop = loop_bounds(start, full_start, full_end, end, MASKED)
    for position in tl.range(begin, stop, BLOCK_M):
        first = tile_start(position, full_start, full_end, MASKED)
        rows = first + tl.arange(0, BLOCK_M)
        valid = rows < seqlen_q
        b_q = load_tile(
            p_q, token_offsets(rows, stride_qt, None, 0, seqlen_q, 0, WIDE), valid, HEAD_DIM, BLOCK_D, MASKED
        )
        b_do = load_tile(
            p_do, token_offsets(rows, stride_dot, None, 0, seqlen_q, 0, WIDE), valid, HEAD_DIM, BLOCK_D, MASKED
        )
        if MASKED:
            lse = tl.load(p_lse + rows, mask=valid, other=POS_INF)
            delta = tl.load(p_delta + rows, mask=valid, other=0.0)
        else:
            lse = tl.load(p_lse + rows)
            delta = tl.load(p_delta + rows)
        s = dot(b_k, tl.trans(b_q))
        p = _probabilities(
            s, rows[None, :], cols[:, None], lse[None, :], shift, seqlen_k, softmax_scale, softcap, slope,
            window_left, window_right, SOFTCAP, ALIBI, HAS_LEFT, HAS_RIGHT, MASKED,
        )  # fmt: skip
        dp = dot(b_v, tl.trans(b_do))
        dv = dot_add(p, b_do, dv)
        ds = p * (dp - delta[None, :])
        if SOFTCAP:
            ds = ds * softcap_slope(s, softmax_scale, softcap)
        dk = dot_add(ds, b_q, dk)
    return dk, dv


@triton.jit(do_not_specialize=["seqlen_q", "seqlen_k", "num_tiles", "stride_lse", "window_left", "window_right"])
def dkdv_kernel(
    p_q, p_k, p_v, p_do, p_lse, p_delta, p_dk, p_dv, p_cu_seqlens_q, p_cu_seqlens_k, p_alibi_slopes,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_dob, stride_dot, stride_doh, stride_lse, stride_alibi, seqlen_q, seqlen_k, heads_kv, num_tiles,
    softmax_scale, softcap, window_left, window_right,
    GROUP: tl.constexpr, VARLEN: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, WIDE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_GROUP: tl.constexpr,
):  # fmt: skip
    """dk and dv of one tile of BLOCK_N keys of one kv head. The first key tiles see the most causal queries: in order."""
    tile, kv_head, batch = tile_of_program(num_tiles, heads_kv, HEAD_GROUP, False)
    start_q, seqlen_q = sequence(p_cu_seqlens_q, batch, seqlen_q, VARLEN)
    start_k, seqlen_k = sequence(p_cu_seqlens_k, batch, seqlen_k, VARLEN)
    first_col = tile * BLOCK_N
    if first_col >= seqlen_k:
        return
    shift = seqlen_k - seqlen_q
    cols = first_col + tl.arange(0, BLOCK_N)
    last_col = tl.minimum(first_col + BLOCK_N, seqlen_k) - 1
    p_k = sequence_base(p_k, batch, kv_head, start_k, stride_kb, stride_kt, stride_kh)
    p_v = sequence_base(p_v, batch, kv_head, start_k, stride_vb, stride_vt, stride_vh)
    b_k = load_tile(p_k, cols.to(tl.int64) * stride_kt, cols < seqlen_k, HEAD_DIM, BLOCK_D, True)
    b_v = load_tile(p_v, cols.to(tl.int64) * stride_vt, cols < seqlen_k, HEAD_DIM, BLOCK_D, True)
    dtype: tl.constexpr = accumulator(b_k.dtype)
    dk = tl.zeros([BLOCK_N, BLOCK_D], dtype)
    dv = tl.zeros([BLOCK_N, BLOCK_D], dtype)

    # The band from the keys' side: edges swapped, shift negated.
    start, full_start, full_end, end = band_range(
        first_col, last_col, -shift, seqlen_q, window_right, window_left, HAS_RIGHT, HAS_LEFT, BLOCK_M
    )
    for member in range(GROUP):
        head = kv_head * GROUP + member
        slope = 0.0
        if ALIBI:
            slope = tl.load(p_alibi_slopes + batch * stride_alibi + head)
        p_qh = sequence_base(p_q, batch, head, start_q, stride_qb, stride_qt, stride_qh)
        p_doh = sequence_base(p_do, batch, head, start_q, stride_dob, stride_dot, stride_doh)
        stats = stats_row(start_q, batch, head, heads_kv * GROUP, stride_lse, VARLEN)
        dk, dv = _gather_queries(
            dk, dv, b_k, b_v, cols, p_qh, p_doh, p_lse + stats, p_delta + stats, stride_qt, stride_dot,
            start, full_start, full_end, end, shift, seqlen_q, seqlen_k, softmax_scale, softcap, slope,
            window_left, window_right, SOFTCAP, ALIBI, HAS_LEFT, HAS_RIGHT, WIDE, HEAD_DIM, BLOCK_D, BLOCK_M, True,
        )  # fmt: skip
        dk, dv = _gather_queries(
            dk, dv, b_k, b_v, cols, p_qh, p_doh, p_lse + stats, p_delta + stats, stride_qt, stride_dot,
            start, full_start, full_end, end, shift, seqlen_q, seqlen_k, softmax_scale, softcap, slope,
            window_left, window_right, SOFTCAP, ALIBI, HAS_LEFT, HAS_RIGHT, WIDE, HEAD_DIM, BLOCK_D, BLOCK_M, False,
        )  # fmt: skip
    out = (first_token(start_k, batch, seqlen_k, VARLEN) * heads_kv + kv_head) * HEAD_DIM
    offsets = cols.to(tl.int64) * heads_kv * HEAD_DIM
    store_tile(p_dk + out, offsets, dk * softmax_scale, cols < seqlen_k, HEAD_DIM, BLOCK_D)
    store_tile(p_dv + out, offsets, dv, cols < seqlen_k, HEAD_DIM, BLOCK_D)


@triton.jit
def _gather_keys(
    dq, b_q, b_do, lse, delta, rows, p_k, p_v, stride_kt, stride_vt,
    start, full_start, full_end, end, shift, seqlen_k, softmax_scale, softcap, slope, window_left, window_right,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, WIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Stream the band's keys past a tile of queries, scores as in the forward: (BLOCK_M, BLOCK_N)."""
    begin, stop = loop_bounds(start, full_start, full_end, end, MASKED)
    for position in tl.range(begin, stop, BLOCK_N):
        first = tile_start(position, full_start, full_end, MASKED)
        cols = first + tl.arange(0, BLOCK_N)
        inside = cols < seqlen_k
        b_k = load_tile(
            p_k, token_offsets(cols, stride_kt, None, 0, seqlen_k, 0, WIDE), inside, HEAD_DIM, BLOCK_D, MASKED
        )
        b_v = load_tile(
            p_v, token_offsets(cols, stride_vt, None, 0, seqlen_k, 0, WIDE), inside, HEAD_DIM, BLOCK_D, MASKED
        )
        s = dot(b_q, tl.trans(b_k))
        p = _probabilities(
            s, rows[:, None], cols[None, :], lse[:, None], shift, seqlen_k, softmax_scale, softcap, slope,
            window_left, window_right, SOFTCAP, ALIBI, HAS_LEFT, HAS_RIGHT, MASKED,
        )  # fmt: skip
        dp = dot(b_do, tl.trans(b_v))
        ds = p * (dp - delta[:, None])
        if SOFTCAP:
            ds = ds * softcap_slope(s, softmax_scale, softcap)
        dq = dot_add(ds, b_k, dq)
    return dq


@triton.jit(do_not_specialize=["seqlen_q", "seqlen_k", "num_tiles", "stride_lse", "window_left", "window_right"])
def dq_kernel(
    p_q, p_k, p_v, p_do, p_lse, p_delta, p_dq, p_cu_seqlens_q, p_cu_seqlens_k, p_alibi_slopes,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_dob, stride_dot, stride_doh, stride_lse, stride_alibi, seqlen_q, seqlen_k, heads, num_tiles,
    softmax_scale, softcap, window_left, window_right,
    GROUP: tl.constexpr, VARLEN: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, WIDE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_GROUP: tl.constexpr,
):  # fmt: skip
    """dq of one tile of BLOCK_M queries of one head."""
    tile, head, batch = tile_of_program(num_tiles, heads, HEAD_GROUP, HAS_RIGHT)
    start_q, seqlen_q = sequence(p_cu_seqlens_q, batch, seqlen_q, VARLEN)
    start_k, seqlen_k = sequence(p_cu_seqlens_k, batch, seqlen_k, VARLEN)
    first_row = tile * BLOCK_M
    if first_row >= seqlen_q:
        return
    shift = seqlen_k - seqlen_q
    rows = first_row + tl.arange(0, BLOCK_M)
    valid = rows < seqlen_q
    last_row = tl.minimum(first_row + BLOCK_M, seqlen_q) - 1
    p_q = sequence_base(p_q, batch, head, start_q, stride_qb, stride_qt, stride_qh)
    p_do = sequence_base(p_do, batch, head, start_q, stride_dob, stride_dot, stride_doh)
    p_k = sequence_base(p_k, batch, head // GROUP, start_k, stride_kb, stride_kt, stride_kh)
    p_v = sequence_base(p_v, batch, head // GROUP, start_k, stride_vb, stride_vt, stride_vh)
    stats = stats_row(start_q, batch, head, heads, stride_lse, VARLEN) + rows
    slope = 0.0
    if ALIBI:
        slope = tl.load(p_alibi_slopes + batch * stride_alibi + head)
    b_q = load_tile(p_q, rows.to(tl.int64) * stride_qt, valid, HEAD_DIM, BLOCK_D, True)
    b_do = load_tile(p_do, rows.to(tl.int64) * stride_dot, valid, HEAD_DIM, BLOCK_D, True)
    lse = tl.load(p_lse + stats, mask=valid, other=POS_INF)
    delta = tl.load(p_delta + stats, mask=valid, other=0.0)
    dtype: tl.constexpr = accumulator(b_q.dtype)
    dq = tl.zeros([BLOCK_M, BLOCK_D], dtype)
    start, full_start, full_end, end = band_range(
        first_row, last_row, shift, seqlen_k, window_left, window_right, HAS_LEFT, HAS_RIGHT, BLOCK_N
    )
    dq = _gather_keys(
        dq, b_q, b_do, lse, delta, rows, p_k, p_v, stride_kt, stride_vt,
        start, full_start, full_end, end, shift, seqlen_k, softmax_scale, softcap, slope, window_left, window_right,
        SOFTCAP, ALIBI, HAS_LEFT, HAS_RIGHT, WIDE, HEAD_DIM, BLOCK_D, BLOCK_N, True,
    )  # fmt: skip
    dq = _gather_keys(
        dq, b_q, b_do, lse, delta, rows, p_k, p_v, stride_kt, stride_vt,
        start, full_start, full_end, end, shift, seqlen_k, softmax_scale, softcap, slope, window_left, window_right,
        SOFTCAP, ALIBI, HAS_LEFT, HAS_RIGHT, WIDE, HEAD_DIM, BLOCK_D, BLOCK_N, False,
    )  # fmt: skip
    p_dq += (first_token(start_q, batch, seqlen_q, VARLEN) * heads + head) * HEAD_DIM
    store_tile(p_dq, rows.to(tl.int64) * heads * HEAD_DIM, dq * softmax_scale, valid, HEAD_DIM, BLOCK_D)


_preprocess, _dkdv, _dq = Kept(preprocess_kernel), Kept(dkdv_kernel), Kept(dq_kernel)


@configs.remembered
def _plans(
    shape_q, stride_q, shape_k, stride_k, stride_v, stride_do, dtype, device, batch, stride_alibi, varlen, has_dlse,
    max_seqlen_q, max_seqlen_k, window_left, window_right, softcapped,
) -> tuple[Plan, Plan, Plan]:  # fmt: skip
    """The launches of preprocess, dkdv and dq. stride_alibi is None where there is no alibi_slopes."""
    *_, total_q, heads, head_dim = shape_q
    heads_kv = shape_k[-2]
    banded = window_left >= 0 or window_right >= 0
    spans = max_seqlen_q * max(stride_q[-3], stride_do[-3]), max_seqlen_k * max(stride_k[-3], stride_v[-3])
    features = (
        heads // heads_kv, varlen, softcapped, stride_alibi is not None,
        window_left >= 0, window_right >= 0, max(spans) > SPAN_OF_32_BITS, head_dim,
    )  # fmt: skip
    sizes = (
        *strides(stride_q, varlen), *strides(stride_k, varlen), *strides(stride_v, varlen), *strides(stride_do, varlen),
        total_q, stride_alibi or 0, max_seqlen_q, max_seqlen_k,
    )  # fmt: skip

    config = configs.choose("preprocess", dtype, device, head_dim, max_seqlen_q, banded)
    num_tiles = triton.cdiv(max_seqlen_q, config.BLOCK_M)
    preprocess = Plan(
        (num_tiles * heads * batch, 1, 1),
        (*strides(stride_do, varlen), total_q, max_seqlen_q, heads, num_tiles),
        (varlen, has_dlse, head_dim, config.BLOCK_D, config.BLOCK_M),
        config.options,
    )
    config = configs.choose("dkdv", dtype, device, head_dim, max_seqlen_k, banded)
    num_tiles = triton.cdiv(max_seqlen_k, config.BLOCK_N)
    dkdv = Plan(
        (num_tiles * heads_kv * batch, 1, 1),
        (*sizes, heads_kv, num_tiles),
        (*features, *config.blocks(heads_kv)),
        config.options,
    )
    config = configs.choose("dq", dtype, device, head_dim, max_seqlen_q, banded)
    num_tiles = triton.cdiv(max_seqlen_q, config.BLOCK_M)
    dq = Plan(
        (num_tiles * heads * batch, 1, 1), (*sizes, heads, num_tiles), (*features, *config.blocks(heads)), config.options
    )
    return preprocess, dkdv, dq


def backward(
    do: torch.Tensor,
    dlse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    window_left: int,
    window_right: int,
    softcap: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Launch the backward kernels; the arguments are ``forward``'s, what it returned, and the gradients of that.

    Args:
        do: like o, any strides (an expanded gradient has stride 0).
        dlse: like lse, or None.

    Returns:
        dq, dk, dv: contiguous, shaped and typed like q, k, v.
    """
    varlen = cu_seqlens_q is not None
    dq, dk, dv = (tensor.new_empty(tensor.shape) for tensor in (q, k, v))
    if q.numel() == 0 or k.numel() == 0:
        return dq.zero_(), dk.zero_(), dv.zero_()
    if do.stride(-1) != 1:
        do = do.contiguous()
    if dlse is not None:
        dlse = dlse.contiguous()
    results = dq, dk, dv
    if backend.interpreting():
        q, k, v, o, do = (backend.widen(tensor) for tensor in (q, k, v, o, do))
        results = tuple(backend.widen(tensor) for tensor in results)
    preprocess, dkdv, dq_of_rows = _plans(
        q.shape, q.stride(), k.shape, k.stride(), v.stride(), do.stride(), q.dtype, q.device,
        cu_seqlens_q.shape[0] - 1 if varlen else q.shape[0], alibi_stride(alibi_slopes), varlen, dlse is not None,
        max_seqlen_q, max_seqlen_k, window_left, window_right, softcap > 0.0,
    )  # fmt: skip
    lse_log2, delta = torch.empty_like(lse), torch.empty_like(lse)
    inputs = q, k, v, do, lse_log2, delta
    indices = cu_seqlens_q, cu_seqlens_k, alibi_slopes
    numbers = softmax_scale, softcap, window_left, window_right
    with backend.on_device_of(q):
        for kernel, plan, tensors, scalars in (
            (_preprocess, preprocess, (o, do, lse, dlse, lse_log2, delta, cu_seqlens_q), ()),
            (_dkdv, dkdv, (*inputs, *results[1:], *indices), numbers),
            (_dq, dq_of_rows, (*inputs, results[0], *indices), numbers),
        ):
            kernel(plan, plan.grid, tensors, (*plan.sizes, *scalars, *plan.constants), **plan.options)
    if results[0] is not dq:
        for tensor, result in zip((dq, dk, dv), results, strict=True):
            tensor.copy_(result)
    return dq, dk, dv
