"""What every attention kernel shares: addresses, the visible band of keys, scores in log2 units, the online softmax step.

Positions. Query ``row`` and key ``col`` are aligned at the bottom right: with ``shift = seqlen_k - seqlen_q`` a row sees

    row + shift - window_left <= col <= row + shift + window_right,      0 <= col < seqlen_k

and causal attention is ``window_right = 0``. HAS_LEFT and HAS_RIGHT say at compile time which edges exist, so a kernel
without a window carries no trace of one. Read from the keys' side the same band holds rows
``col - shift - window_right .. col - shift + window_left``: swap the edges and negate the shift.

Units. exp2 is the hardware's exponential, so softmax runs in base 2: exp(x) = exp2(x * LOG2E), and m and every LSE inside
a kernel are in log2 units. Scores stay raw (q . k) until exp2, where one fused multiply-add applies ``score_unit``; where
softcap or ALiBi change them they are brought into log2 units first, and their unit is 1.

Online softmax: Milakov and Gimelshein, arXiv 1805.02867; FlashAttention-2: Dao, arXiv 2307.08691; ALiBi: Press et al.,
arXiv 2108.12409.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NEG_INF = tl.constexpr(float("-inf"))


# Addresses: a sequence's base is 64-bit always, so tensors past 2^31 elements work.


@triton.jit
def sequence(p_cu_seqlens, batch, seqlen, VARLEN: tl.constexpr):
    """(first token, number of tokens) of a sequence: from cu_seqlens when sequences are packed, else (0, seqlen)."""
    if VARLEN:
        start = tl.load(p_cu_seqlens + batch)
        return start.to(tl.int64), tl.load(p_cu_seqlens + batch + 1) - start
    else:
        return tl.full([], 0, tl.int64), seqlen


@triton.jit
def sequence_base(p_tensor, batch, head, start, stride_batch, stride_token, stride_head):
    """Where (batch, token ``start``, head) begins; packed sequences pass stride_batch 0, padded ones start 0."""
    return p_tensor + batch.to(tl.int64) * stride_batch + start * stride_token + head.to(tl.int64) * stride_head


@triton.jit
def first_token(start, batch, seqlen, VARLEN: tl.constexpr):
    """A sequence's first token in a contiguous tensor, padded sequences counted whole."""
    if VARLEN:
        return start
    else:
        return batch.to(tl.int64) * seqlen


@triton.jit
def stats_row(start, batch, head, heads, stride_head, VARLEN: tl.constexpr):
    """Where a sequence's row of LSE (or delta) begins: (batch, heads, seqlen_q) padded, (heads, total_q) packed."""
    if VARLEN:
        return head.to(tl.int64) * stride_head + start
    else:
        return (batch.to(tl.int64) * heads + head) * stride_head


@triton.jit
def token_offsets(tokens, stride_token, p_block_table, stride_page, seqlen, PAGE_SIZE: tl.constexpr, WIDE: tl.constexpr):
    """Element offsets of tokens from their sequence's base; with PAGE_SIZE > 0, through the sequence's row of the table.

    Tokens from seqlen on look no page up (the table may end there) and must be masked by whoever loads them. A sequence
    that spans fewer than 2^31 elements (not WIDE) is walked in 32 bits from its 64-bit base, which halves the registers
    that addresses take.
    """
    if PAGE_SIZE > 0:
        page = tl.load(p_block_table + tokens // PAGE_SIZE, mask=tokens < seqlen, other=0)
        return page.to(tl.int64) * stride_page + (tokens % PAGE_SIZE).to(tl.int64) * stride_token
    elif WIDE:
        return tokens.to(tl.int64) * stride_token
    else:
        return tokens * stride_token


@triton.jit
def load_tile(base, offsets, valid, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr):
    """A (tokens, BLOCK_D) tile. Columns from HEAD_DIM on are zero and, if MASKED, so are tokens that are not valid."""
    dims = tl.arange(0, BLOCK_D)
    pointers = base + offsets[:, None] + dims[None, :]
    if MASKED and HEAD_DIM != BLOCK_D:
        return tl.load(pointers, mask=valid[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    elif MASKED:
        return tl.load(pointers, mask=valid[:, None], other=0.0)
    elif HEAD_DIM != BLOCK_D:
        return tl.load(pointers, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def store_tile(base, offsets, tile, valid, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Store a (tokens, BLOCK_D) tile: valid tokens and the first HEAD_DIM columns only."""
    dims = tl.arange(0, BLOCK_D)
    mask = valid[:, None]
    if HEAD_DIM != BLOCK_D:
        mask = mask & (dims < HEAD_DIM)[None, :]
    tl.store(base + offsets[:, None] + dims[None, :], tile.to(base.dtype.element_ty), mask=mask)


@triton.jit
def tile_of_program(num_tiles, heads, HEAD_GROUP: tl.constexpr, LAST_FIRST: tl.constexpr):
    """(tile, head, batch) of this program of a one-dimensional grid of num_tiles * heads * batch.

    The tiles of HEAD_GROUP heads (a divisor of heads) run side by side, so their keys stay in L2. LAST_FIRST starts with
    the last tile, the longest of a causal grid, and leaves the short ones to fill the end.
    """
    program = tl.program_id(0)
    group = program // (num_tiles * HEAD_GROUP)
    rest = program - group * (num_tiles * HEAD_GROUP)
    tile = rest // HEAD_GROUP
    head_and_batch = group * HEAD_GROUP + rest - tile * HEAD_GROUP
    if LAST_FIRST:
        tile = num_tiles - 1 - tile
    return tile, head_and_batch % heads, head_and_batch // heads


# The band of keys a row sees.


@triton.jit
def visible(
    rows, cols, shift, seqlen_k, window_left, window_right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr
):
    """The boolean tile of visible pairs. rows and cols broadcast: (M, 1) with (1, N), or transposed (1, M) with (N, 1)."""
    keep = cols < seqlen_k
    if HAS_RIGHT:
        keep = keep & (cols <= rows + shift + window_right)
    if HAS_LEFT:
        keep = keep & (cols >= rows + shift - window_left)
    return keep


@triton.jit
def band_range(
    first, last, shift, length, window_left, window_right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """(start, full_start, full_end, end): the positions that rows first..last see, in tiles of BLOCK from start.

    Tiles in [full_start, full_end) are seen whole by every row and need no mask; those in [start, full_start) and
    [full_end, end) need one; every other tile is masked whole and never visited. start <= full_start <= full_end.
    """
    start = 0
    end = length
    if HAS_LEFT:
        start = tl.maximum(first + shift - window_left, 0) // BLOCK * BLOCK
    if HAS_RIGHT:
        end = tl.maximum(tl.minimum(last + shift + window_right + 1, length), 0)
    full_start = start
    full_end = end // BLOCK * BLOCK
    if HAS_LEFT:
        full_start = tl.cdiv(tl.maximum(last + shift - window_left, 0), BLOCK) * BLOCK
        full_start = tl.maximum(tl.minimum(full_start, tl.cdiv(end, BLOCK) * BLOCK), start)
    if HAS_RIGHT:
        full_end = tl.maximum(tl.minimum(first + shift + window_right + 1, length), 0) // BLOCK * BLOCK
    full_end = tl.maximum(full_end, full_start)
    return start, full_start, full_end, end


@triton.jit
def loop_bounds(start, full_start, full_end, end, MASKED: tl.constexpr):
    """(from, to) of a loop over a band's tiles: its inner ones, or the MASKED ones of both its edges in one loop, which
    jumps over the inner ones (``tile_start``)."""
    if MASKED:
        return start, full_start + tl.maximum(end - full_end, 0)
    else:
        return full_start, full_end


@triton.jit
def tile_start(position, full_start, full_end, MASKED: tl.constexpr):
    """Where the tile at ``position`` of such a loop begins."""
    if MASKED:
        return tl.where(position < full_start, position, position - full_start + full_end)
    else:
        return position


# Scores.


@triton.jit
def tanh(x):
    """tanh that neither overflows nor cancels: exp2 of a large argument is infinite, and 2 / inf is 0; near 0, where
    1 - 2 / (exp(2x) + 1) would lose its digits, the Taylor series takes over (next term below 1e-8 of x)."""
    x2 = x * x
    series = x * (1.0 + x2 * (-1.0 / 3.0 + x2 * (2.0 / 15.0 + x2 * (-17.0 / 315.0 + x2 * (62.0 / 2835.0)))))
    return tl.where(x2 < 0.0625, series, 1.0 - 2.0 / (tl.exp2(x * (2.0 * LOG2E)) + 1.0))


@triton.jit
def score_unit(softmax_scale, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr):
    """What multiplies a tile of ``scores`` to bring it into log2 units."""
    if SOFTCAP or ALIBI:
        return 1.0
    else:
        return softmax_scale * LOG2E


@triton.jit
def scores(s, rows, cols, shift, softmax_scale, softcap, slope, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr):
    """Raw q . k, softcapped and biased: in log2 units where either acts, untouched (unit ``score_unit``) otherwise."""
    if SOFTCAP:
        s = tanh(s * (softmax_scale / softcap)) * (softcap * LOG2E)
    elif ALIBI:
        s = s * (softmax_scale * LOG2E)
    if ALIBI:
        s = s - (slope * LOG2E) * tl.abs(rows + shift - cols).to(tl.float32)
    return s


@triton.jit
def softcap_slope(s, softmax_scale, softcap):
    """The derivative of softcap * tanh(x / softcap) at x = s * softmax_scale, s being raw q . k."""
    t = tanh(s * (softmax_scale / softcap))
    return 1.0 - t * t


# Online softmax.


@triton.constexpr_function
def accumulator(dtype):
    """What sums of ``dtype`` are held in: float32, or float64 for float64."""
    return tl.float64 if dtype == tl.float64 else tl.float32


@triton.jit
def dot(a, b):
    """a @ b in float32 (float64 for float64 inputs). Float32 inputs are multiplied as IEEE floats, never as TF32."""
    return tl.dot(a, b, input_precision="ieee", out_dtype=accumulator(a.dtype))


@triton.jit
def dot_add(a, b, acc):
    """acc + a @ b, with ``a`` rounded to b's dtype, which is what the tensor cores multiply."""
    return tl.dot(a.to(b.dtype), b, acc, input_precision="ieee", out_dtype=acc.dtype)


@triton.jit
def softmax_start(BLOCK_M: tl.constexpr, dtype: tl.constexpr):
    """(m, l) of rows that have seen no key. dtype is the accumulator's: float32, or float64 for float64 inputs."""
    return tl.full([BLOCK_M], NEG_INF, dtype), tl.zeros([BLOCK_M], dtype)


@triton.jit
def softmax_step(s, m, l, unit, MASKED: tl.constexpr, AXIS: tl.constexpr = 1):
    """One step over a tile of scores: (p, m, l, alpha), where alpha rescales what was accumulated before.

    The keys lie along AXIS of s: (M, N), or transposed (N, M) with AXIS 0.

    Masked scores are -inf. A row that has seen no key yet has m = -inf, and -inf - -inf is NaN: such a row is anchored at
    0, which makes its p and alpha 0. An unmasked tile cannot leave a row like that, so it skips the check.
    """
    m_new = tl.maximum(m, tl.max(s, AXIS) * unit)
    anchor = m_new
    if MASKED:
        anchor = tl.where(m_new == NEG_INF, 0.0, m_new)
    p = tl.exp2(s * unit - tl.expand_dims(anchor, AXIS))
    alpha = tl.exp2(m - anchor)
    return p, m_new, l * alpha + tl.sum(p, AXIS), alpha


@triton.jit
def softmax_finish(acc, m, l, AXIS: tl.constexpr = 1):
    """(o, natural LSE) of a tile; a row that saw no key has l = 0 and gives o = 0, LSE = -inf.

    acc is (M, D), or transposed (D, M) with AXIS 0.
    """
    l = tl.where(l == 0.0, 1.0, l)
    return acc / tl.expand_dims(l, AXIS), (m + tl.log2(l)) * LN2
