"""Split-KV decoding (Flash-Decoding): a few queries against a long cache, the keys shared out over the whole GPU.

One query token gives a kv head one tile of work, however long the cache. So its keys are cut into splits, each split is a
program, and each program leaves a partial result (o_i, lse_i); flashlab.kernels.combine merges them,

    lse = log sum_i exp(lse_i),      o = sum_i exp(lse_i - lse) o_i.

GQA. The query heads of a kv head, times the query tokens, are the rows of one tile: K and V are loaded once for them all.

Who does what. The keys a program reads follow its row's real length, read on the device. Two ways to share them out:

    even       programs (row, split) of rows by num_splits, rows = batch * heads_kv * tiles of queries. n = min(num_splits,
               key tiles of the row) of them cut its tiles evenly; one beyond n says (lse = -inf) and leaves.
    BALANCE    for batches whose lengths differ or are not known on the host. A row gets splits in proportion to its tiles,
                   n = floor(slots * tiles / tiles of all rows), at least 1,
               slots being the programs the GPU runs at once; floor, since one program past a full wave starts another.
               Programs are numbered through, row after row, and each finds its own row by adding up the n before it. A
               row with n = 1 writes its answer at once and has nothing to merge.

Paging. A cache is pages of tokens, found through block_table; a contiguous cache is one page a row. Keys outside the band
that the rows see are never loaded: what lies there may be NaN, and may not be theirs.

Tiles. AXIS is where the keys of a score tile lie. 1: rows are the long side, padded to the 16 of the tensor core. 0: keys
are, and rows pad to 8 only, which leaves registers and issue slots to unpack quantised keys (flashlab.kernels.dequantise).

Dao et al., Flash-Decoding (2023); GQA packing and the interface are flash-attn 2's.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from flashlab.kernels.common import (
    NEG_INF,
    band_range,
    score_unit,
    scores,
    softmax_finish,
    softmax_start,
    softmax_step,
    visible,
)
from flashlab.kernels.dequantise import unpack

BATCH_CHUNK = tl.constexpr(128)


# Lengths and splits.


@triton.jit
def _real_length(
    p_cache_seqlens, batch, valid, seqlen_k, seqlen_new, capacity, RAGGED: tl.constexpr
):  # fmt: skip
    """Keys of a batch row, those just appended included; never more than the cache can hold."""
    if RAGGED:
        seqlen_k = tl.load(p_cache_seqlens + batch, mask=valid, other=0)
    return tl.minimum(seqlen_k + seqlen_new, capacity)


@triton.jit
def _left_padding(p_cache_leftpad, batch, valid, LEFTPAD: tl.constexpr):
    if LEFTPAD:
        return tl.load(p_cache_leftpad + batch, mask=valid, other=0)
    else:
        return batch * 0


@triton.jit
def _key_tiles(
    seqlen_k, leftpad, seqlen_q, window_left, window_right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
    LEFTPAD: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """(start, full_start, full_end, end) in tiles: those some row sees, and within them those all rows see whole."""
    start, full_start, full_end, end = band_range(
        0, seqlen_q - 1, seqlen_k - seqlen_q, seqlen_k, window_left, window_right, HAS_LEFT, HAS_RIGHT, BLOCK_N
    )
    start, full_start, full_end, end = start // BLOCK_N, full_start // BLOCK_N, full_end // BLOCK_N, tl.cdiv(end, BLOCK_N)
    if LEFTPAD:
        start = tl.maximum(start, leftpad // BLOCK_N)
        full_start = tl.maximum(full_start, tl.cdiv(leftpad, BLOCK_N))
    end = tl.maximum(start, end)
    full_start = tl.minimum(tl.maximum(full_start, start), end)
    full_end = tl.minimum(tl.maximum(full_end, full_start), end)
    return start, full_start, full_end, end


@triton.jit
def _tiles_of_rows(
    row, batch, p_cache_seqlens, p_cache_leftpad, seqlen_q, seqlen_k, seqlen_new, capacity, window_left, window_right,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, LEFTPAD: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Key tiles of each of some batch rows; 0 past the last row."""
    length = _real_length(p_cache_seqlens, row, row < batch, seqlen_k, seqlen_new, capacity, True)
    leftpad = _left_padding(p_cache_leftpad, row, row < batch, LEFTPAD)
    start, _full_start, _full_end, end = _key_tiles(
        length, leftpad, seqlen_q, window_left, window_right, HAS_LEFT, HAS_RIGHT, LEFTPAD, BLOCK_N
    )
    return tl.where(row < batch, end - start, 0)


@triton.jit
def _share_out(
    work, slots, programs_each, batch, p_cache_seqlens, p_cache_leftpad, seqlen_q, seqlen_k, seqlen_new, capacity,
    window_left, window_right,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, LEFTPAD: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """(batch row of program ``work``, the row's first program, its splits); no splits: there is no such program."""
    total = tl.full([], 0, tl.int32)
    for chunk in range(0, batch, BATCH_CHUNK):
        row = chunk + tl.arange(0, BATCH_CHUNK)
        tiles = _tiles_of_rows(
            row, batch, p_cache_seqlens, p_cache_leftpad, seqlen_q, seqlen_k, seqlen_new, capacity, window_left,
            window_right, HAS_LEFT, HAS_RIGHT, LEFTPAD, BLOCK_N,
        )  # fmt: skip
        total += tl.sum(tiles)
    everything = tl.maximum(total.to(tl.int64) * programs_each, 1)
    before = tl.full([], 0, tl.int32)
    b = tl.full([], 0, tl.int32)
    first = tl.full([], 0, tl.int32)
    splits = tl.full([], 0, tl.int32)
    for chunk in range(0, batch, BATCH_CHUNK):
        row = chunk + tl.arange(0, BATCH_CHUNK)
        tiles = _tiles_of_rows(
            row, batch, p_cache_seqlens, p_cache_leftpad, seqlen_q, seqlen_k, seqlen_new, capacity, window_left,
            window_right, HAS_LEFT, HAS_RIGHT, LEFTPAD, BLOCK_N,
        )  # fmt: skip
        share = (tiles.to(tl.int64) * slots // everything).to(tl.int32)
        share = tl.where(row < batch, tl.maximum(tl.minimum(share, tiles), 1), 0)
        end = before + tl.cumsum(share, 0)
        mine = (end - share <= work) & (work < end)
        b += tl.sum(tl.where(mine, row, 0))
        first += tl.sum(tl.where(mine, end - share, 0))
        splits += tl.sum(tl.where(mine, share, 0))
        before += tl.sum(share)
    return b, first, splits


# Addresses.


@triton.jit
def _locate(tile, cols, valid, row, p_block_table, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr):
    """(page, slot, step): key n of the tile is slot + step of page. One page for the whole tile where that is possible."""
    n = tl.arange(0, BLOCK_N)
    if PAGE_SIZE == 0:
        return row, tile * BLOCK_N, n
    elif PAGE_SIZE % BLOCK_N == 0:
        first = tile * BLOCK_N
        return tl.load(p_block_table + first // PAGE_SIZE), first % PAGE_SIZE, n
    elif MASKED:
        return tl.load(p_block_table + cols // PAGE_SIZE, mask=valid, other=0), cols % PAGE_SIZE, n * 0
    else:
        return tl.load(p_block_table + cols // PAGE_SIZE), cols % PAGE_SIZE, n * 0


@triton.jit
def _offsets(page, slot, step, stride_page, stride_token):
    """Element offsets of a tile's keys, 64-bit; the part that does not change from tile to tile is kept apart."""
    return tl.cast(page, tl.int64) * stride_page + tl.cast(slot, tl.int64) * stride_token + step.to(tl.int64) * stride_token


@triton.jit
def _load(pointers, valid, dims, DIMS: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr, BLOCK_E: tl.constexpr):
    """A tile of words whose keys lie along KEYS; what is not valid, and words past DIMS, are 0."""
    if MASKED and DIMS != BLOCK_E:
        mask = tl.expand_dims(valid, 1 - KEYS) & tl.expand_dims(dims < DIMS, KEYS)
        return tl.load(pointers, mask=mask, other=0)
    elif MASKED:
        return tl.load(pointers, mask=tl.expand_dims(valid, 1 - KEYS), other=0)
    elif DIMS != BLOCK_E:
        return tl.load(pointers, mask=tl.expand_dims(dims < DIMS, KEYS), other=0)
    else:
        return tl.load(pointers)


@triton.jit
def _load_scale(pointers, valid, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(pointers, mask=valid, other=0.0).to(tl.float32)
    else:
        return tl.load(pointers).to(tl.float32)


# Products, plane by plane.


@triton.jit
def _query_plane(
    p_q, offsets, valid, dims, PLANE: tl.constexpr, PLANES: tl.constexpr, DIMS: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """Elements PLANE, PLANE + PLANES, ... of the rows: (M, E), or (E, M) with AXIS 0."""
    pointers = p_q + tl.expand_dims(offsets, AXIS) + tl.expand_dims(dims * PLANES + PLANE, 1 - AXIS)
    mask = tl.expand_dims(valid, AXIS) & tl.expand_dims(dims < DIMS, 1 - AXIS)
    b_q = tl.load(pointers, mask=mask, other=0.0)
    if PLANES > 1 and b_q.dtype != tl.float32:  # quantised keys unpack to float16
        b_q = b_q.to(tl.float16)
    return b_q


@triton.jit
def _query_keys(b_q, b_k, PLANES: tl.constexpr, FORMAT: tl.constexpr, FAST: tl.constexpr, AXIS: tl.constexpr):
    """Raw scores (M, N), or (N, M) with AXIS 0, of one tile of keys (N, E)."""
    if AXIS == 1:
        s = tl.zeros([b_q[0].shape[0], b_k.shape[0]], tl.float32)
    else:
        s = tl.zeros([b_k.shape[0], b_q[0].shape[1]], tl.float32)
    for plane in tl.static_range(PLANES):
        keys = unpack(b_k, plane, FORMAT, FAST).to(b_q[plane].dtype)
        if AXIS == 1:
            s = tl.dot(b_q[plane], tl.trans(keys), s, input_precision="ieee")
        else:
            s = tl.dot(keys, b_q[plane], s, input_precision="ieee")
    return s


@triton.jit
def _weigh_values(
    acc, alpha, p, b_v, PLANES: tl.constexpr, FORMAT: tl.constexpr, FAST: tl.constexpr, AXIS: tl.constexpr
):
    """acc * alpha + p v for every plane. Values are (N, E), or (E, N) with AXIS 0."""
    result = ()
    for plane in tl.static_range(PLANES):
        values = unpack(b_v, plane, FORMAT, FAST).to(p.dtype)
        scaled = acc[plane] * tl.expand_dims(alpha, AXIS)
        if AXIS == 1:
            result = result + (tl.dot(p, values, scaled, input_precision="ieee"),)
        else:
            result = result + (tl.dot(values, p, scaled, input_precision="ieee"),)
    return result


# One split.


@triton.jit
def _attend(
    acc, m, l, b_q, first_tile, last_tile, rows, slopes, lowest, highest, shift, row,
    p_k, p_v, p_k_scale, p_v_scale, p_block_table,
    stride_kb, stride_kt, stride_vb, stride_vt, stride_ksb, stride_kst, stride_vsb, stride_vst,
    softmax_scale, softcap, window_left, window_right,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
    PAGE_SIZE: tl.constexpr, FORMAT: tl.constexpr, PLANES: tl.constexpr, FAST: tl.constexpr, TOKEN_SCALES: tl.constexpr,
    VALUE_BOOST: tl.constexpr, DIMS: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_N: tl.constexpr, AXIS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Stream key tiles first_tile..last_tile past the rows. MASKED: some pairs of these tiles are not visible."""
    unit = score_unit(softmax_scale, SOFTCAP, ALIBI)
    n = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_E)
    for tile in tl.range(first_tile, last_tile, num_stages=1 if MASKED else None):
        cols = tile * BLOCK_N + n
        valid = (cols >= lowest) & (cols < highest)
        page, slot, step = _locate(tile, cols, valid, row, p_block_table, PAGE_SIZE, BLOCK_N, MASKED)
        keys = _offsets(page, slot, step, stride_kb, stride_kt)
        b_k = _load(p_k + keys[:, None] + dims[None, :], valid, dims, DIMS, 0, MASKED, BLOCK_E)
        s = _query_keys(b_q, b_k, PLANES, FORMAT, FAST, AXIS)
        if TOKEN_SCALES:
            p_scales = p_k_scale + _offsets(page, slot, step, stride_ksb, stride_kst)
            s = s * tl.expand_dims(_load_scale(p_scales, valid, MASKED), 1 - AXIS)
        places, columns = tl.expand_dims(rows, AXIS), tl.expand_dims(cols, 1 - AXIS)
        s = scores(s, places, columns, shift, softmax_scale, softcap, tl.expand_dims(slopes, AXIS), SOFTCAP, ALIBI)
        if MASKED:
            keep = visible(places, columns, shift, highest, window_left, window_right, HAS_LEFT, HAS_RIGHT)
            s = tl.where(keep & (columns >= lowest), s, NEG_INF)
        p, m, l, alpha = softmax_step(s, m, l, unit, MASKED, AXIS)
        if TOKEN_SCALES:
            p_scales = p_v_scale + _offsets(page, slot, step, stride_vsb, stride_vst)
            p = p * tl.expand_dims(_load_scale(p_scales, valid, MASKED) * VALUE_BOOST, 1 - AXIS)
        values = _offsets(page, slot, step, stride_vb, stride_vt)
        if AXIS == 1:
            p_values = p_v + values[:, None] + dims[None, :]
        else:
            p_values = p_v + values[None, :] + dims[:, None]
        b_v = _load(p_values, valid, dims, DIMS, 1 - AXIS, MASKED, BLOCK_E)
        acc = _weigh_values(acc, alpha, p.to(b_q[0].dtype), b_v, PLANES, FORMAT, FAST, AXIS)
    return acc, m, l


@triton.jit
def _store(
    p_o, p_lse, acc, m, l, value_unit, o_offsets, lse_offsets, is_row,
    PLANES: tl.constexpr, DIMS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_E: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """Divide by l, undo the scales, and write o plane by plane, and the LSE unless p_lse is None."""
    dims = tl.arange(0, BLOCK_E)
    for plane in tl.static_range(PLANES):
        o, lse = softmax_finish(acc[plane], m, l, AXIS)
        columns = tl.expand_dims(dims * PLANES + plane, 1 - AXIS)
        mask = tl.expand_dims(is_row, AXIS) & tl.expand_dims(dims < DIMS, 1 - AXIS)
        tl.store(
            p_o + tl.expand_dims(o_offsets * HEAD_DIM, AXIS) + columns, (o * value_unit).to(p_o.dtype.element_ty), mask=mask
        )
        if plane == 0 and p_lse is not None:
            tl.store(p_lse + lse_offsets, lse, mask=is_row)


@triton.jit
def _store_answer(
    p_o, p_lse, b, answers, acc, m, l, value_unit, o_offsets, lse_offsets, is_row,
    PLANES: tl.constexpr, DIMS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_E: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """A row that nobody shares: its partial is the answer."""
    before = b.to(tl.int64) * answers
    if p_lse is not None:
        p_lse += before
    _store(p_o + before * HEAD_DIM, p_lse, acc, m, l, value_unit, o_offsets, lse_offsets, is_row,
           PLANES, DIMS, HEAD_DIM, BLOCK_E, AXIS)  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "batch", "seqlen_q", "seqlen_k", "seqlen_new", "capacity", "heads_kv", "num_splits", "slots",
        "window_left", "window_right",
    ]
)  # fmt: skip
def decode_kernel(
    p_q, p_k, p_v, p_k_scale, p_v_scale, p_o, p_lse, p_parts,
    p_cache_seqlens, p_cache_batch_idx, p_cache_leftpad, p_block_table, p_alibi_slopes,
    seqlen_k, seqlen_new, num_splits,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_ksb, stride_kst, stride_ksh, stride_vsb, stride_vst, stride_vsh, stride_table, stride_alibi,
    batch, seqlen_q, capacity, heads_kv, slots, softmax_scale, softcap, window_left, window_right,
    GROUP: tl.constexpr, RAGGED: tl.constexpr, BALANCE: tl.constexpr, BATCH_IDX: tl.constexpr, LEFTPAD: tl.constexpr,
    PAGE_SIZE: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
    FORMAT: tl.constexpr, PLANES: tl.constexpr, FAST: tl.constexpr, TOKEN_SCALES: tl.constexpr, HEAD_SCALES: tl.constexpr,
    VALUE_BOOST: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, AXIS: tl.constexpr, SPLIT: tl.constexpr, EARLY_COMBINE: tl.constexpr,
):  # fmt: skip
    """One split of one tile of rows.

    p_o is (batch, seqlen_q, heads_q, head_dim), p_lse (batch, heads_q, seqlen_q) or None. With SPLIT, p_parts is a float32
    workspace: partials (slots, seqlen_q, heads_q, head_dim), then their LSEs (slots, heads_q, seqlen_q), and with BALANCE
    each batch row's first slot and number of slots. The slot of a program is split * batch + b, or its number. The combine
    kernel may start early.
    """
    DIMS: tl.constexpr = HEAD_DIM // PLANES
    row_tiles = tl.cdiv(seqlen_q * GROUP, BLOCK_M)
    place = tl.program_id(0)
    split = tl.program_id(1)
    splits = num_splits
    num_slots = num_splits * batch
    if BALANCE:
        num_slots = num_splits
        b, first_slot, splits = _share_out(
            split, slots, row_tiles * heads_kv, batch, p_cache_seqlens, p_cache_leftpad, seqlen_q, seqlen_k, seqlen_new,
            capacity, window_left, window_right, HAS_LEFT, HAS_RIGHT, LEFTPAD, BLOCK_N,
        )  # fmt: skip
        if splits == 0:
            return
        slot = split
        split -= first_slot
    else:
        b = place // (row_tiles * heads_kv)
        slot = split * batch + b
    head = place // row_tiles % heads_kv
    packed = place % row_tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    rows = packed // GROUP
    heads = head * GROUP + packed % GROUP
    is_row = rows < seqlen_q
    answers = seqlen_q * heads_kv * GROUP
    o_offsets = rows * (heads_kv * GROUP) + heads
    lse_offsets = heads * seqlen_q + rows
    if SPLIT:
        slot_o = slot.to(tl.int64) * answers
        p_lse_parts = p_parts + num_slots.to(tl.int64) * answers * HEAD_DIM + slot_o
        p_o_parts = p_parts + slot_o * HEAD_DIM
    if BALANCE:
        if (split == 0) & (place == 0):
            p_shares = p_parts + num_slots.to(tl.int64) * answers * (HEAD_DIM + 1) + 2 * b
            tl.store(p_shares, first_slot.to(tl.float32))
            tl.store(p_shares + 1, splits.to(tl.float32))

    length = _real_length(p_cache_seqlens, b, True, seqlen_k, seqlen_new, capacity, RAGGED)
    leftpad = _left_padding(p_cache_leftpad, b, True, LEFTPAD)
    start, full_start, full_end, end = _key_tiles(
        length, leftpad, seqlen_q, window_left, window_right, HAS_LEFT, HAS_RIGHT, LEFTPAD, BLOCK_N
    )
    if SPLIT and not BALANCE:
        splits = tl.maximum(tl.minimum(splits, end - start), 1)
        if split >= splits:
            tl.store(p_lse_parts + lse_offsets, tl.full([BLOCK_M], NEG_INF, tl.float32), mask=is_row)
            return
    first_tile = start + ((end - start).to(tl.int64) * split // splits).to(tl.int32)
    last_tile = start + ((end - start).to(tl.int64) * (split + 1) // splits).to(tl.int32)

    shift = length - seqlen_q
    lowest = leftpad
    if HAS_LEFT:
        lowest = tl.maximum(lowest, shift - window_left)
    row = b
    if BATCH_IDX:
        row = tl.load(p_cache_batch_idx + b)
    if PAGE_SIZE > 0:
        p_block_table += b.to(tl.int64) * stride_table
    p_k += head.to(tl.int64) * stride_kh
    p_v += head.to(tl.int64) * stride_vh
    value_unit = 1.0
    if TOKEN_SCALES:
        p_k_scale += head.to(tl.int64) * stride_ksh
        p_v_scale += head.to(tl.int64) * stride_vsh
        value_unit = 1.0 / VALUE_BOOST
    if HEAD_SCALES:
        softmax_scale *= tl.load(p_k_scale + head.to(tl.int64) * stride_ksh).to(tl.float32)
        value_unit = tl.load(p_v_scale + head.to(tl.int64) * stride_vsh).to(tl.float32)
    slopes = tl.zeros([BLOCK_M], tl.float32)
    if ALIBI:
        slopes = tl.load(p_alibi_slopes + b.to(tl.int64) * stride_alibi + heads, mask=is_row, other=0.0)

    dims = tl.arange(0, BLOCK_E)
    q_offsets = b.to(tl.int64) * stride_qb + rows.to(tl.int64) * stride_qt + heads.to(tl.int64) * stride_qh
    b_q = ()
    acc = ()
    for plane in tl.static_range(PLANES):
        b_q = b_q + (_query_plane(p_q, q_offsets, is_row, dims, plane, PLANES, DIMS, AXIS),)
        if AXIS == 1:
            acc = acc + (tl.zeros([BLOCK_M, BLOCK_E], tl.float32),)
        else:
            acc = acc + (tl.zeros([BLOCK_E, BLOCK_M], tl.float32),)
    m, l = softmax_start(BLOCK_M, tl.float32)

    # The tiles on the band's edges need a mask, which costs; those between run without one.
    full_first = tl.minimum(tl.maximum(first_tile, full_start), last_tile)
    full_last = tl.maximum(tl.minimum(last_tile, full_end), full_first)
    if HAS_LEFT or LEFTPAD:
        acc, m, l = _attend(
            acc, m, l, b_q, first_tile, full_first, rows, slopes, lowest, length, shift, row,
            p_k, p_v, p_k_scale, p_v_scale, p_block_table,
            stride_kb, stride_kt, stride_vb, stride_vt, stride_ksb, stride_kst, stride_vsb, stride_vst,
            softmax_scale, softcap, window_left, window_right,
            SOFTCAP, ALIBI, HAS_LEFT, HAS_RIGHT, PAGE_SIZE, FORMAT, PLANES, FAST, TOKEN_SCALES, VALUE_BOOST,
            DIMS, BLOCK_E, BLOCK_N, AXIS, True,
        )  # fmt: skip
    acc, m, l = _attend(
        acc, m, l, b_q, full_first, full_last, rows, slopes, lowest, length, shift, row,
        p_k, p_v, p_k_scale, p_v_scale, p_block_table,
        stride_kb, stride_kt, stride_vb, stride_vt, stride_ksb, stride_kst, stride_vsb, stride_vst,
        softmax_scale, softcap, window_left, window_right,
        SOFTCAP, ALIBI, HAS_LEFT, HAS_RIGHT, PAGE_SIZE, FORMAT, PLANES, FAST, TOKEN_SCALES, VALUE_BOOST,
        DIMS, BLOCK_E, BLOCK_N, AXIS, False,
    )  # fmt: skip
    acc, m, l = _attend(
        acc, m, l, b_q, full_last, last_tile, rows, slopes, lowest, length, shift, row,
        p_k, p_v, p_k_scale, p_v_scale, p_block_table,
        stride_kb, stride_kt, stride_vb, stride_vt, stride_ksb, stride_kst, stride_vsb, stride_vst,
        softmax_scale, softcap, window_left, window_right,
        SOFTCAP, ALIBI, HAS_LEFT, HAS_RIGHT, PAGE_SIZE, FORMAT, PLANES, FAST, TOKEN_SCALES, VALUE_BOOST,
        DIMS, BLOCK_E, BLOCK_N, AXIS, True,
    )  # fmt: skip

    if EARLY_COMBINE:
        gdc_launch_dependents()
    if SPLIT:
        if BALANCE and splits == 1:
            _store_answer(p_o, p_lse, b, answers, acc, m, l, value_unit, o_offsets, lse_offsets, is_row,
                          PLANES, DIMS, HEAD_DIM, BLOCK_E, AXIS)  # fmt: skip
        else:
            _store(p_o_parts, p_lse_parts, acc, m, l, value_unit, o_offsets, lse_offsets, is_row,
                   PLANES, DIMS, HEAD_DIM, BLOCK_E, AXIS)  # fmt: skip
    else:
        _store_answer(p_o, p_lse, b, answers, acc, m, l, value_unit, o_offsets, lse_offsets, is_row,
                      PLANES, DIMS, HEAD_DIM, BLOCK_E, AXIS)  # fmt: skip
