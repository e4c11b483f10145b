"""05.flash_attention: the kernel with batch, heads, GQA, causal and ragged lengths."""

import contextlib
import math

import torch
import triton
import triton.language as tl

from flashlab.course.interpreter_hooks import listening
from flashlab.course.lessons.data import normal
from flashlab.course.lessons.in_triton import moves
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck

HEAD_DIM = 16
MARGIN = 1 << 14  # elements that lie before and behind every input, all NaN: what is read there shows
TOLERANCE = 2e-5
LOG2E = math.log2(math.e)


def launch(kernel, q, k, v, causal, BLOCK_M=16, BLOCK_N=16, **options):
    """q: (batch, seqlen_q, heads_q, head_dim), k and v: (batch, seqlen_k, heads_kv, head_dim), head_dim a power of two.

    Returns o like q, and lse (batch, heads_q, seqlen_q) in float32. A tile of queries, a head, a sequence: a program.
    """
    batch, seqlen_q, heads_q, head_dim = q.shape
    seqlen_k, heads_kv = k.shape[1:3]
    o = torch.full_like(q, math.nan)  # what the kernel does not write stays NaN
    lse = q.new_full((batch, heads_q, seqlen_q), math.nan, dtype=torch.float32)
    grid = (triton.cdiv(seqlen_q, BLOCK_M), heads_q, batch)
    kernel[grid](
        q, k, v, o, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *o.stride()[:3],
        seqlen_q, seqlen_k, heads_q, heads_kv, head_dim**-0.5, causal, head_dim, BLOCK_M, BLOCK_N, **options,
    )  # fmt: skip
    return o, lse


def spec(q, k, v, causal):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (batch, heads, seqlen, head_dim)
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    s = (q @ k.mT * q.shape[3] ** -0.5).masked_fill(causal & (j > i + len(j) - len(i)), -math.inf)
    o, lse = torch.softmax(s, dim=-1).nan_to_num(0.0) @ v, torch.logsumexp(s, dim=-1)
    o = o.transpose(1, 2)
    return o, lse


@triton.jit
def stub_kernel(
    p_q, p_k, p_v, p_o, p_lse,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_ob, stride_ot, stride_oh, seqlen_q, seqlen_k, heads_q, heads_kv, scale,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    tile, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    ...


def stub(q, k, v, causal):
    """Attention by one kernel. The arguments and what it returns: see launch."""
    return launch(stub_kernel, q, k, v, causal)


@triton.jit
def solution_kernel(
    p_q, p_k, p_v, p_o, p_lse,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_ob, stride_ot, stride_oh, seqlen_q, seqlen_k, heads_q, heads_kv, scale,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    tile, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_head = head // (heads_q // heads_kv)
    p_q += batch * stride_qb + head * stride_qh
    p_k += batch * stride_kb + kv_head * stride_kh
    p_v += batch * stride_vb + kv_head * stride_vh
    p_o += batch * stride_ob + head * stride_oh
    p_lse += (batch * heads_q + head) * seqlen_q
    rows, dims = tile * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)

    offset = seqlen_k - seqlen_q
    full, stop = seqlen_k // BLOCK_N * BLOCK_N, seqlen_k
    if CAUSAL:
        last_row = tl.minimum(tile * BLOCK_M + BLOCK_M, seqlen_q) - 1
        full = tl.maximum(tile * BLOCK_M + offset + 1, 0) // BLOCK_N * BLOCK_N
        stop = tl.maximum(last_row + offset + 1, 0)

    unit = scale * 1.4426950408889634
    b_q = tl.load(p_q + rows[:, None] * stride_qt + dims, mask=rows[:, None] < seqlen_q, other=0.0)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(0, full, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        b_k = tl.load(p_k + cols[:, None] * stride_kt + dims)
        b_v = tl.load(p_v + cols[:, None] * stride_vt + dims)
        qk = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
        m_new = tl.maximum(m, tl.max(qk, 1) * unit)
        alpha = tl.exp2(m - m_new)
        p = tl.exp2(qk * unit - m_new[:, None])
        l = l * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p.to(b_v.dtype), b_v, input_precision="ieee")
        m = m_new
    for start in range(full, stop, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        inside = cols[:, None] < seqlen_k
        b_k = tl.load(p_k + cols[:, None] * stride_kt + dims, mask=inside, other=0.0)
        b_v = tl.load(p_v + cols[:, None] * stride_vt + dims, mask=inside, other=0.0)
        qk = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
        keep = cols[None, :] < seqlen_k
        if CAUSAL:
            keep = keep & (cols[None, :] <= rows[:, None] + offset)
        qk = tl.where(keep, qk, float("-inf"))
        m_new = tl.maximum(m, tl.max(qk, 1) * unit)
        anchor = tl.where(m_new == float("-inf"), 0.0, m_new)  # nothing seen yet: -inf - -inf would be NaN
        alpha = tl.exp2(m - anchor)
        p = tl.exp2(qk * unit - anchor[:, None])
        l = l * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p.to(b_v.dtype), b_v, input_precision="ieee")
        m = m_new

    l = tl.where(l == 0.0, 1.0, l)  # a row without keys: o = 0 and lse = -inf + 0
    o = (acc / l[:, None]).to(p_o.dtype.element_ty)
    tl.store(p_o + rows[:, None] * stride_ot + dims, o, mask=rows[:, None] < seqlen_q)
    tl.store(p_lse + rows, (m + tl.log2(l)) * 0.6931471805599453, mask=rows < seqlen_q)


def solution(q, k, v, causal):
    """Attention by one kernel. The arguments and what it returns: see launch."""
    return launch(solution_kernel, q, k, v, causal)


# Mistakes: in PyTorch, but for those that only show in what a kernel loads.


def _attend(q, k, v, keep, scale=None, base=math.e):
    """Naive attention on repeated heads; keep: bool, broadcast to (batch, heads, seqlen_q, seqlen_k)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    s = q @ k.mT * ((q.shape[3] ** -0.5 if scale is None else scale) * math.log(base))
    s = s.masked_fill(~keep, -math.inf)
    p = torch.where(keep.any(-1, keepdim=True), torch.softmax(s, dim=-1), 0.0)
    return (p @ v).transpose(1, 2).contiguous(), torch.logsumexp(s, dim=-1)


def _repeated(q, k, v):
    group = q.shape[2] // k.shape[2]
    return k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)


def _positions(q, k):
    return torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1]), k.shape[1] - q.shape[1]


def _seen(q, k, causal):
    i, j, offset = _positions(q, k)
    return j <= i + offset if causal else (j >= 0) & (i >= 0)


def _right(q, k, v, causal, **wrong):
    return _attend(q, *_repeated(q, k, v), _seen(q, k, causal), **wrong)


def _by_heads(q, k, v, causal, kv_head):
    """kv_head may lie past the last one: then whatever stands in memory is read."""
    heads = [kv_head(h) for h in range(q.shape[2])]
    wide = lambda x: x.as_strided((*x.shape[:2], max(heads) + 1, x.shape[3]), x.stride(), x.storage_offset())
    return _attend(q, wide(k)[:, :, heads], wide(v)[:, :, heads], _seen(q, k, causal))


def heads_dealt_out(q, k, v, causal):
    return _by_heads(q, k, v, causal, lambda h: h % k.shape[2])


def over_heads_kv(q, k, v, causal):
    return _by_heads(q, k, v, causal, lambda h: h // k.shape[2])


def a_kv_head_for_each(q, k, v, causal):
    return _by_heads(q, k, v, causal, lambda h: h)


def _walked(q, k, v, causal, *strides):
    """k and v read with other strides: which of (batch, token, head) are q's."""
    seen = []
    for x in (k, v):
        stride = [q.stride(i) if i in strides else x.stride(i) for i in range(3)]
        seen.append(x.as_strided(x.shape, (*stride, 1), x.storage_offset()))
    return _right(q, *seen, causal)


def strides_of_q(q, k, v, causal):
    return _walked(q, k, v, causal, 0, 1, 2)


def token_stride_of_q(q, k, v, causal):
    return _walked(q, k, v, causal, 1)


def base_strides_of_q(q, k, v, causal):
    return _walked(q, k, v, causal, 0, 2)


def strides_of_k_for_v(q, k, v, causal):
    return _right(q, k, v.as_strided(v.shape, k.stride(), v.storage_offset()), causal)


def batch_forgotten(q, k, v, causal):
    return _right(q, k[:1].expand_as(k), v[:1].expand_as(v), causal)


def queries_of_the_first_sequence(q, k, v, causal):
    return _right(q[:1].expand_as(q), k, v, causal)


def trans_forgotten(q, k, v, causal):
    padded = torch.nn.functional.pad(k, (0, 0, 0, 0, 0, -k.shape[1] % 16))
    by_tiles = padded.unflatten(1, (-1, 16)).transpose(2, 4).flatten(1, 2)
    return _right(q, by_tiles[:, : k.shape[1]], v, causal)


def aligned_top_left(q, k, v, causal):
    if not causal:
        return _right(q, k, v, causal)
    i, j, _ = _positions(q, k)
    o, lse = _attend(q, *_repeated(q, k, v), j <= i)
    past = (i[:, 0] // 16 * 16 + 1) // 16 * 16 > k.shape[1]  # the loop without a mask reads on behind K
    o[:, past], lse[..., past] = math.nan, math.nan
    return o, lse


def _stop(q, k, causal):
    """(seqlen_q,): where the tile of each row stops."""
    i, _, offset = _positions(q, k)
    i = i[:, 0]
    if not causal:
        return torch.full_like(i, k.shape[1])
    return (torch.minimum(i // 16 * 16 + 16, torch.tensor(len(i))) + offset).clamp(min=0)


def only_the_mask_top_left(q, k, v, causal):
    i, j, offset = _positions(q, k)
    full = (i // 16 * 16 + offset + 1).clamp(min=0) // 16 * 16
    visited = -(-_stop(q, k, causal)[:, None] // 16) * 16
    keep = (j < full) | ((j < visited) & (j <= i))
    return _attend(q, *_repeated(q, k, v), keep) if causal else _right(q, k, v, causal)


def full_past_the_diagonal(q, k, v, causal):
    i, j, offset = _positions(q, k)
    keep = (j < _stop(q, k, causal)[:, None] // 16 * 16) | (j <= i + offset)
    return _attend(q, *_repeated(q, k, v), keep) if causal else _right(q, k, v, causal)


def own_key_masked(q, k, v, causal):
    i, j, offset = _positions(q, k)
    return _attend(q, *_repeated(q, k, v), j < i + offset) if causal else _right(q, k, v, causal)


def zero_keys_counted(q, k, v, causal):
    pad = (0, 0, 0, 0, 0, -k.shape[1] % 16)
    if causal or not pad[-1]:
        return _right(q, k, v, causal)
    return _right(q, torch.nn.functional.pad(k, pad), torch.nn.functional.pad(v, pad), False)


def last_key_tile_dropped(q, k, v, causal):
    whole = k.shape[1] // 16 * 16
    return _right(q, k, v, causal) if causal else _right(q, k[:, :whole], v[:, :whole], False)


def only_whole_tiles_if_causal(q, k, v, causal):
    if not causal:
        return _right(q, k, v, causal)
    i, j, offset = _positions(q, k)
    return _attend(q, *_repeated(q, k, v), j < (i // 16 * 16 + offset + 1).clamp(min=0) // 16 * 16)


def whole_tiles_twice(q, k, v, causal):
    i, j, offset = _positions(q, k)
    full = ((i // 16 * 16 + offset + 1).clamp(min=0) if causal else torch.full_like(i, k.shape[1])) // 16 * 16
    seen = _seen(q, k, causal)
    q, k, v = (x.transpose(1, 2) for x in (q, *_repeated(q, k, v)))
    s = q @ k.mT * q.shape[3] ** -0.5 + torch.where(j < full, math.log(2), 0.0)
    s = s.masked_fill(~seen, -math.inf)
    return (torch.softmax(s, dim=-1).nan_to_num(0.0) @ v).transpose(1, 2).contiguous(), torch.logsumexp(s, dim=-1)


def lse_without_the_batch(q, k, v, causal):
    o, lse = _right(q, k, v, causal)
    stored = torch.full_like(lse, math.nan)
    stored[0] = lse[-1]
    return o, stored


def log2e_forgotten(q, k, v, causal):
    return _right(q, k, v, causal, base=2)


def scale_twice(q, k, v, causal):
    return _right(q, k, v, causal, scale=1 / q.shape[3])


def scale_forgotten(q, k, v, causal):
    return _right(q, k, v, causal, scale=1.0)


def lse_in_base_two(q, k, v, causal):
    o, lse = _right(q, k, v, causal)
    return o, lse * LOG2E


def lse_without_the_maximum(q, k, v, causal):
    o, lse = _right(q, k, v, causal)
    k, _ = _repeated(q, k, v)
    s = q.transpose(1, 2) @ k.transpose(1, 2).mT * q.shape[3] ** -0.5
    m = s.masked_fill(~_seen(q, k, causal), -math.inf).amax(-1)
    return o, torch.where(m == -math.inf, 0.0, lse - m)


def lse_not_stored(q, k, v, causal):
    o, lse = _right(q, k, v, causal)
    return o, torch.full_like(lse, math.nan)


def _half_rescaled(q, k, v, causal):
    """(acc, l) without any rescale, the right l, and the last m."""
    seen = _seen(q, k, causal)
    q, k, v = (x.transpose(1, 2) for x in (q, *_repeated(q, k, v)))
    s = (q @ k.mT * q.shape[3] ** -0.5).masked_fill(~seen, -math.inf)
    tiles = range(0, s.shape[-1], 16)
    m = torch.cat([s[..., : n + 16].amax(-1, keepdim=True).expand_as(s[..., n : n + 16]) for n in tiles], dim=-1)
    p = torch.where(s == -math.inf, 0.0, torch.exp(s - m))
    l = torch.where(s == -math.inf, 0.0, torch.exp(s - m[..., -1:])).sum(-1)
    return p @ v, *(torch.where(x == 0, 1.0, x) for x in (p.sum(-1), l)), m[..., -1]


def acc_not_rescaled(q, k, v, causal):
    _, lse = _right(q, k, v, causal)
    acc, _, l, _ = _half_rescaled(q, k, v, causal)
    return (acc / l[..., None]).transpose(1, 2).contiguous(), lse


def l_not_rescaled(q, k, v, causal):
    o, _ = _right(q, k, v, causal)
    _, l, right, m = _half_rescaled(q, k, v, causal)
    return o * (right / l).transpose(1, 2)[..., None], m + torch.log(l)


def _without_keys(q, k, v, causal, anchored, divided_safely):
    o, lse = _right(q, k, v, causal)
    nothing = ~_seen(q, k, causal).any(-1).expand(q.shape[1])
    visited = nothing & (_stop(q, k, causal) > 0)
    if not divided_safely:
        o[:, nothing] = math.nan
    if not anchored:
        o[:, visited], lse[..., visited] = math.nan, math.nan
    return o, lse


def rows_without_keys_are_nan(q, k, v, causal):
    return _without_keys(q, k, v, causal, anchored=False, divided_safely=True)


def division_by_zero(q, k, v, causal):
    return _without_keys(q, k, v, causal, anchored=True, divided_safely=False)


def no_guard_at_all(q, k, v, causal):
    return _without_keys(q, k, v, causal, anchored=False, divided_safely=False)


@triton.jit
def _wrong_kernel(
    p_q, p_k, p_v, p_o, p_lse,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_ob, stride_ot, stride_oh, seqlen_q, seqlen_k, heads_q, heads_kv, scale,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WRONG: tl.constexpr,
):  # fmt: skip
    """One masked loop. WRONG is the tensor whose mask is missing, or "stop" where every key tile is visited."""
    head, batch = tl.program_id(1), tl.program_id(2)
    kv_head = head // (heads_q // heads_kv)
    rows, dims = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    p_q += batch * stride_qb + head * stride_qh + rows[:, None] * stride_qt + dims
    p_k += batch * stride_kb + kv_head * stride_kh + dims
    p_v += batch * stride_vb + kv_head * stride_vh + dims
    p_o += batch * stride_ob + head * stride_oh + rows[:, None] * stride_ot + dims
    stop = seqlen_k
    if CAUSAL and WRONG != "stop":
        stop = tl.maximum(tl.minimum(tl.program_id(0) * BLOCK_M + BLOCK_M, seqlen_q) + seqlen_k - seqlen_q, 0)
    b_q = tl.load(p_q, mask=(rows[:, None] < seqlen_q) | (WRONG == "q"), other=0.0) * scale
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(0, stop, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        inside = cols < seqlen_k + (BLOCK_N if WRONG == "k" else 0)
        also_v = cols < seqlen_k + (BLOCK_N if WRONG == "k" or WRONG == "v" else 0)
        b_k = tl.load(p_k + cols[:, None] * stride_kt, mask=inside[:, None], other=0.0)
        b_v = tl.load(p_v + cols[:, None] * stride_vt, mask=also_v[:, None], other=0.0)
        keep = inside[None, :] & (cols[None, :] <= rows[:, None] + (seqlen_k - seqlen_q if CAUSAL else 2 * seqlen_k + BLOCK_N))
        s = tl.where(keep, tl.dot(b_q, tl.trans(b_k), input_precision="ieee"), float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        anchor = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp(s - anchor[:, None])
        l = l * tl.exp(m - anchor) + tl.sum(p, 1)
        acc = acc * tl.exp(m - anchor)[:, None] + tl.dot(p, b_v, input_precision="ieee")
        m = m_new
    l = tl.where(l == 0.0, 1.0, l)
    p_lse += (batch * heads_q + head) * seqlen_q
    tl.store(p_o, acc / l[:, None], mask=(rows[:, None] < seqlen_q) | (WRONG == "o"))
    tl.store(p_lse + rows, m + tl.log(l), mask=(rows < seqlen_q) | (WRONG == "lse"))


def nothing_skipped(q, k, v, causal):
    return launch(_wrong_kernel, q, k, v, causal, WRONG="stop")


def keys_past_the_end(q, k, v, causal):
    return launch(_wrong_kernel, q, k, v, causal, WRONG="k")


def values_past_the_end(q, k, v, causal):
    return launch(_wrong_kernel, q, k, v, causal, WRONG="v")


def queries_past_the_end(q, k, v, causal):
    return launch(_wrong_kernel, q, k, v, causal, WRONG="q")


def stored_past_the_end(q, k, v, causal):
    return launch(_wrong_kernel, q, k, v, causal, WRONG="o")


def lse_stored_past_the_end(q, k, v, causal):
    return launch(_wrong_kernel, q, k, v, causal, WRONG="lse")


# Problems.


@contextlib.contextmanager
def interpreted():
    """Kernels inside run on CPU tensors in the interpreter, also on a GPU machine, and touch nothing outside them."""
    with listening(_Deaf(), guard=True):
        yield


class _Deaf:
    """A listener that keeps nothing."""

    def launch(self, *_): ...
    def program(self, *_): ...
    def access(self, *_): ...
    def launched(self, *_): ...


def problem(seed, batch, seqlen_q, seqlen_k, heads_q, heads_kv, heads_first=False, sharp=1.0):
    """q, k, v in float32, NaN before and behind each; heads_first: in memory (batch, heads, seqlen, head_dim)."""
    made = []
    for i, (seqlen, heads) in enumerate(((seqlen_q, heads_q), (seqlen_k, heads_kv), (seqlen_k, heads_kv))):
        tokens_first = not heads_first or i == 2  # v keeps the usual layout: its strides are not k's
        shape = (batch, seqlen, heads, HEAD_DIM) if tokens_first else (batch, heads, seqlen, HEAD_DIM)
        values = normal(seed + i, *shape).float() * (sharp if i == 0 else 1.0)
        room = torch.full((values.numel() + 2 * MARGIN,), math.nan)
        x = room[MARGIN : MARGIN + values.numel()].view(shape)
        x.copy_(values)
        made.append(x if tokens_first else x.transpose(1, 2))
    return tuple(made)


def _case(seed, batch, seqlen_q, seqlen_k, heads_q, heads_kv, causal, **options):
    label = f"batch {batch}, {seqlen_q} queries, {seqlen_k} keys, heads {heads_q}/{heads_kv}{', causal' if causal else ''}"
    args = (*problem(seed, batch, seqlen_q, seqlen_k, heads_q, heads_kv, **options), causal)
    return Case(label, args, tolerance=TOLERANCE)


def _one_head():
    return [_case(10, 1, 16, 32, 1, 1, False)]


def _batch_and_heads():
    return [_case(20, 2, 16, 32, 2, 2, False), _case(24, 2, 32, 16, 2, 2, False, heads_first=True)]


def _groups():
    return [_case(30, 1, 16, 16, 6, 2, False), _case(34, 2, 16, 16, 3, 1, False, heads_first=True)]


def _ragged():
    return [_case(40, 1, 20, 37, 1, 1, False), _case(44, 2, 7, 20, 1, 1, False)]


def _causal():
    return [_case(50, 1, 48, 48, 1, 1, True), _case(54, 1, 21, 21, 1, 1, True)]


def _behind_a_cache():
    return [_case(66, 1, 20, 30, 1, 1, True), _case(60, 1, 20, 50, 1, 1, True), _case(64, 1, 1, 33, 1, 1, True)]


def _rows_without_keys():
    return [_case(70, 1, 40, 20, 1, 1, True)]


def _large():
    return [_case(80, 1, 16, 48, 1, 1, False, sharp=400.0)]


def _watched():
    return "60 x 60, causal, tiles of 16 x 16", (*problem(90, 1, 60, 60, 1, 1), True)


WALKED = (16 + 32 + 48 + 60) * HEAD_DIM * 4  # bytes of K that the four programs of that problem need


EXERCISE = Exercise(
    id="05.flash_attention",
    title="The whole kernel",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Base pointers first: p_q += batch * stride_qb + head * stride_qh, and the same for o. For k and v it is kv_head = "
        "head // (heads_q // heads_kv), and each tensor's own strides. lse is contiguous: (batch * heads_q + head) * "
        "seqlen_q.",
        "rows = tile * BLOCK_M + tl.arange(0, BLOCK_M), dims = tl.arange(0, HEAD_DIM). A tile of queries: tl.load(p_q + "
        "rows[:, None] * stride_qt + dims, mask=rows[:, None] < seqlen_q, other=0.0). Then your loop_bounds, with "
        "tl.minimum and tl.maximum.",
        "The first loop is your base_two with qk = tl.dot(b_q, tl.trans(b_k), input_precision='ieee'). m starts at -inf, l "
        "and acc at 0, in float32. tl.max(qk, 1) and tl.sum(p, 1) go along the keys.",
        "The second loop: mask the loads of K and V with cols[:, None] < seqlen_k and other=0.0; qk = tl.where(keep, qk, "
        "float('-inf')) with keep = cols[None, :] < seqlen_k, and if CAUSAL also cols[None, :] <= rows[:, None] + seqlen_k "
        "- seqlen_q. Where m_new is -inf, subtract 0 in its place.",
        "At the end: l = tl.where(l == 0.0, 1.0, l), store acc / l[:, None] and (m + tl.log2(l)) * ln 2, both masked with "
        "rows < seqlen_q.",
    ),
    sub_checks=(
        SubCheck("one head, tiles that divide the lengths", cases=_one_head),
        SubCheck("batch and heads, in any layout", cases=_batch_and_heads),
        SubCheck("GQA, groups of three", cases=_groups),
        SubCheck("lengths that the tiles do not divide", cases=_ragged),
        SubCheck("causal", cases=_causal),
        SubCheck("causal behind a cache", cases=_behind_a_cache),
        SubCheck("rows without keys", cases=_rows_without_keys),
        SubCheck("large scores", cases=_large),
        SubCheck("no byte too many", test=moves(_watched, {"k": WALKED, "v": WALKED}, {})),
    ),
    mistakes=(
        Mistake(
            heads_dealt_out,
            "This is what comes out when the kv head is head % heads_kv.",
            "Which query heads share a kv head: every third one, or neighbours?",
        ),
        Mistake(
            over_heads_kv,
            "This is what comes out when the kv head is head // heads_kv. The last query heads read past the end of K.",
            "You divide by a number of heads. Of which: those there are, or those in a group?",
        ),
        Mistake(
            a_kv_head_for_each,
            "Query head h reads kv head h, and there are not so many: the later ones read another token's, or nothing at "
            "all.",
            "Does head stand in the line that moves p_k, or kv_head?",
        ),
        Mistake(
            strides_of_q,
            "This is what comes out when K and V are walked with the strides of q. They agree only where q, k and v are "
            "alike in shape and layout.",
            "Which strides stand beside p_k: the ones with q, or the ones with k in their names?",
        ),
        Mistake(
            token_stride_of_q,
            "The base pointers of K and V are right, but the way from token to token is another tensor's: V, or both, were "
            "walked with stride_qt or stride_kt.",
            "cols[:, None] times which stride?",
        ),
        Mistake(
            base_strides_of_q,
            "K and V are walked with their own stride from token to token, but the base pointers were moved by q's strides.",
            "batch and kv_head times which strides, in the lines that move p_k and p_v?",
        ),
        Mistake(
            strides_of_k_for_v,
            "This is what comes out when V is walked with the strides of k.",
            "Which strides stand beside p_v?",
        ),
        Mistake(
            batch_forgotten,
            "Every sequence attends to the keys of the first one.",
            "Which of the base pointers does batch move?",
        ),
        Mistake(
            queries_of_the_first_sequence,
            "Every sequence has the queries of the first one.",
            "Does batch move p_q?",
        ),
        Mistake(
            trans_forgotten,
            "qk is b_q times b_k, not times its transpose. Tiles of 16 x 16 with head_dim 16 hide it: the shapes fit.",
            "b_q is (BLOCK_M, HEAD_DIM) and b_k is (BLOCK_N, HEAD_DIM). What is the shape of qk?",
        ),
        Mistake(
            aligned_top_left,
            "This is the causal mask aligned at the top left: query i sees keys 0 .. i. Behind a cache the newest tokens "
            "would see its beginning only.",
            "Where in your bounds and your mask does seqlen_k - seqlen_q stand?",
        ),
        Mistake(
            only_whole_tiles_if_causal,
            "With a causal mask only the whole tiles were visited: the keys around the diagonal are missing.",
            "From where to where does your second loop run when CAUSAL is on?",
        ),
        Mistake(
            only_the_mask_top_left,
            "The loops end where they should, but within the second one the mask is aligned at the top left: it hides keys "
            "that are seen.",
            "full and stop contain seqlen_k - seqlen_q. Does the comparison of cols with rows?",
        ),
        Mistake(
            full_past_the_diagonal,
            "The loop without a mask runs past the diagonal: the upper rows of a tile look into the future.",
            "Which row of the tile decides full?",
        ),
        Mistake(
            own_key_masked,
            "A query does not see its own position: < stands where <= should.",
            "One query, one key: how many keys does it see?",
        ),
        Mistake(
            zero_keys_counted,
            "The columns past the end of K are loaded as 0, score 0, and are counted: every row's l is too large.",
            "Which scores must be -inf in the last key tile, also without a causal mask?",
        ),
        Mistake(
            keys_past_the_end,
            "The last key tile is loaded and scored without a mask: it takes in what lies behind K in memory, the next "
            "sequence or nothing that is yours.",
            "In which of the two loops does a key tile belong that K ends inside of?",
        ),
        Mistake(
            values_past_the_end,
            "The scores past the end of K are masked, but V is loaded there all the same: a weight of 0 times what is not "
            "there is NaN.",
            "Which of the two loads in your second loop has a mask?",
        ),
        Mistake(
            last_key_tile_dropped,
            "The key tile that K ends in is never visited when there is no causal mask.",
            "Where does your second loop end when CAUSAL is off?",
        ),
        Mistake(
            whole_tiles_twice,
            "The whole tiles were visited by both loops: their keys count twice.",
            "Where does your second loop begin?",
        ),
        Mistake(
            log2e_forgotten,
            "This is softmax in base 2: exp2 without log2(e) in the scale.",
            "exp(x) = exp2(x * ?)",
        ),
        Mistake(
            scale_twice,
            "The scale was applied twice.",
            "Where does scale stand: on b_q, in unit, on qk? Once is enough.",
        ),
        Mistake(
            scale_forgotten,
            "The scores were never scaled.",
            "What is in unit beside log2(e)?",
        ),
        Mistake(
            lse_in_base_two,
            "o is right, and lse is in log2 units.",
            "Which factor leads from log2 to ln?",
        ),
        Mistake(
            lse_without_the_batch,
            "o is right, and the lse of every sequence is stored in the place of the first one.",
            "lse is (batch, heads_q, seqlen_q), contiguous. How far is it from one sequence to the next?",
        ),
        Mistake(
            lse_without_the_maximum,
            "o is right, and lse is log(l) alone.",
            "Against what was l measured?",
        ),
        Mistake(
            lse_not_stored,
            "o is right, and lse was never written.",
            "How many tl.store does your kernel have?",
        ),
        Mistake(
            l_not_rescaled,
            "acc is rescaled when m grows, and l is not.",
            "Which sums hold exp2(.. - m)? Do all of them move with m?",
        ),
        Mistake(
            acc_not_rescaled,
            "l is rescaled when m grows, and acc is not.",
            "Which sums hold exp2(.. - m)? Do all of them move with m?",
        ),
        Mistake(
            rows_without_keys_are_nan,
            "A row that sees no key, in a tile where others see some, has m = -inf; and -inf - -inf is NaN.",
            "What do you subtract from the scores of a row in which all are -inf?",
        ),
        Mistake(
            division_by_zero,
            "A row that sees no key has l = 0, and 0 / 0 is NaN. Its lse is right.",
            "By what do you divide when l is 0?",
        ),
        Mistake(
            no_guard_at_all,
            "A row that sees no key has m = -inf and l = 0: -inf - -inf is NaN, and so is 0 / 0. Both need a guard.",
            "What do you subtract from the scores where m is -inf, and by what do you divide where l is 0?",
        ),
        Mistake(
            queries_past_the_end,
            "The answer is right, but rows that do not exist are loaded. On a GPU that is whatever lies there, or an "
            "illegal address.",
            "Which tile of 16 queries has fewer than 16 when seqlen_q is 60?",
        ),
        Mistake(
            stored_past_the_end,
            "o is stored without a mask: rows that do not exist land in the next sequence, or in somebody else's memory.",
            "Which tile of 16 queries has fewer than 16 when seqlen_q is 60?",
        ),
        Mistake(
            lse_stored_past_the_end,
            "lse is stored without a mask: rows that do not exist land in the next head's, or in somebody else's memory.",
            "Which tile of 16 queries has fewer than 16 when seqlen_q is 60?",
        ),
        Mistake(
            nothing_skipped,
            "The answer is right, but every program loads all of K and V: nothing is skipped.",
            "Where does your second loop end when CAUSAL is on?",
        ),
    ),
    within=interpreted,
    keep="Base pointers by strides, kv head by group, one loop without a mask and one with: that is FlashAttention-2.",
)
