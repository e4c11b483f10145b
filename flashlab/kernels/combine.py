"""Merging partial attention: N results over disjoint keys become the result over all of them.

    lse = log sum_i exp(lse_i),      o = sum_i exp(lse_i - lse) o_i

It is the second half of split-KV decoding and, by itself, ``merge_attn_states``. LSEs are natural logarithms. A partial
over no key has lse = -inf and weighs nothing, whatever its o holds: it is not even read. Merging only such partials gives
(0, -inf).

Dao et al., Flash-Decoding (2023); flashlab.reference.algebra has the algebra.
"""

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from flashlab.kernels import backend
from flashlab.kernels.common import LN2, LOG2E, NEG_INF
from flashlab.kernels.kept import Kept, power_of_two

MOST_PARTIALS = 256  # of a tile; more are merged tile after tile
BALANCED_PARTIALS = 64  # of a tile where rows have runs of different lengths
COLUMNS = 32  # of a program: rows * head_dim / COLUMNS programs fill the GPU even for one row of queries
WIDE = 64  # partials of a tile from which four warps share it
MERGE_TILE = 2048  # elements of a tile of merge_pair


@triton.jit(do_not_specialize=["num_partials", "seqlen", "heads"])
def combine_kernel(
    p_o_parts, p_lse_parts, p_o, p_lse, num_partials,
    stride_on, stride_ob, stride_ot, stride_oh, stride_ln, stride_lb, stride_lh, stride_lt, seqlen, heads,
    HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BALANCE: tl.constexpr,
    STARTED_EARLY: tl.constexpr,
):  # fmt: skip
    """BLOCK_D columns of one (batch, token, head). Partials are (N, batch, seqlen, heads, head_dim) and their LSEs
    (N, batch, heads, seqlen), of any strides; without p_lse_parts the LSEs follow the partials. The results are
    contiguous; without p_lse only o is written. BALANCE: each batch row has its own run of partials, which the decode
    kernel left behind the LSEs (first, how many); a run of one is an answer that is already in place."""
    row = tl.program_id(0)
    head, token, b = row % heads, row // heads % seqlen, row // (heads * seqlen)
    dims = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    if p_lse_parts is None:
        p_lse_parts = p_o_parts + num_partials.to(tl.int64) * stride_on
    if BALANCE:
        p_shares = p_lse_parts + num_partials.to(tl.int64) * stride_ln + 2 * b
    p_o_parts += b.to(tl.int64) * stride_ob + token.to(tl.int64) * stride_ot + head.to(tl.int64) * stride_oh
    p_lse_parts += b.to(tl.int64) * stride_lb + token.to(tl.int64) * stride_lt + head.to(tl.int64) * stride_lh
    if STARTED_EARLY:  # launched while the splits still run: nothing of theirs may be read before this
        gdc_wait()
    if BALANCE:
        first = tl.load(p_shares).to(tl.int64)
        num_partials = tl.load(p_shares + 1).to(tl.int32)
        if num_partials == 1:
            return
        p_o_parts += first * stride_on
        p_lse_parts += first * stride_ln
    m = tl.full([], NEG_INF, tl.float32)
    l = tl.full([], 0.0, tl.float32)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for first in range(0, num_partials, BLOCK_N):
        n = (first + tl.arange(0, BLOCK_N)).to(tl.int64)
        lse = tl.load(p_lse_parts + n * stride_ln, mask=n < num_partials, other=NEG_INF).to(tl.float32)
        o = tl.load(
            p_o_parts + n[:, None] * stride_on + dims[None, :],
            mask=(lse > NEG_INF)[:, None] & (dims < HEAD_DIM)[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        m_new = tl.maximum(m, tl.max(lse, 0))
        anchor = tl.where(m_new == NEG_INF, 0.0, m_new)
        weight = tl.exp2((lse - anchor) * LOG2E)  # the difference first: an LSE may be as large as float32 holds
        alpha = tl.exp2((m - anchor) * LOG2E)
        acc = acc * alpha + tl.sum(o * weight[:, None], 0)
        l = l * alpha + tl.sum(weight, 0)
        m = m_new
    l = tl.where(l == 0.0, 1.0, l)
    p_o += row.to(tl.int64) * HEAD_DIM + dims
    tl.store(p_o, (acc / l).to(p_o.dtype.element_ty), mask=dims < HEAD_DIM)
    if p_lse is not None and tl.program_id(1) == 0:
        tl.store(p_lse + (b.to(tl.int64) * heads + head) * seqlen + token, m + tl.log2(l) * LN2)


@triton.jit(do_not_specialize=["rows", "seqlen", "heads"])
def merge_pair_kernel(
    p_o_a, p_lse_a, p_o_b, p_lse_b, p_o, p_lse, stride_oab, stride_oat, stride_oah, stride_lab, stride_lah, stride_lat,
    stride_obb, stride_obt, stride_obh, stride_lbb, stride_lbh, stride_lbt, rows, seqlen, heads,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Two partials merged for BLOCK_M (batch, token, head) rows: what combine_kernel does for N, without stacking them."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    inside = row < rows
    head, token, b = (row % heads).to(tl.int64), (row // heads % seqlen).to(tl.int64), (row // heads // seqlen).to(tl.int64)
    p_lse_a += b * stride_lab + head * stride_lah + token * stride_lat
    p_lse_b += b * stride_lbb + head * stride_lbh + token * stride_lbt
    lse_a = tl.load(p_lse_a, mask=inside, other=NEG_INF).to(tl.float32)
    lse_b = tl.load(p_lse_b, mask=inside, other=NEG_INF).to(tl.float32)
    m = tl.maximum(lse_a, lse_b)
    anchor = tl.where(m == NEG_INF, 0.0, m)
    weight_a, weight_b = tl.exp2((lse_a - anchor) * LOG2E), tl.exp2((lse_b - anchor) * LOG2E)
    l = weight_a + weight_b
    l = tl.where(l == 0.0, 1.0, l)
    p_a = p_o_a + (b * stride_oab + token * stride_oat + head * stride_oah)[:, None] + dims[None, :]
    p_b = p_o_b + (b * stride_obb + token * stride_obt + head * stride_obh)[:, None] + dims[None, :]
    column = (dims < HEAD_DIM)[None, :]
    o_a = tl.load(p_a, mask=(lse_a > NEG_INF)[:, None] & column, other=0.0).to(tl.float32)
    o_b = tl.load(p_b, mask=(lse_b > NEG_INF)[:, None] & column, other=0.0).to(tl.float32)
    o = o_a * (weight_a / l)[:, None] + o_b * (weight_b / l)[:, None]
    p_o += row.to(tl.int64)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(p_o, o.to(p_o.dtype.element_ty), mask=inside[:, None] & column)
    tl.store(p_lse + (b * heads + head) * seqlen + token, m + tl.log2(l) * LN2, mask=inside)


class Combine:
    """Merging any number of partials of one kind. Its launches keep what they compile.

    Args:
        shape: (batch, seqlen, heads, head_dim) of the result.
        strides: of the partials (N, batch, seqlen, heads), then of their LSEs (N, batch, heads, seqlen), in elements.
        balance: rows have runs of partials of their own, as the decode kernel's BALANCE leaves them.
        started_early: launch by programmatic dependent launch, beside the kernel that writes the partials.
    """

    def __init__(
        self, shape: tuple[int, int, int, int], strides: tuple[int, ...], balance: bool = False, started_early: bool = False
    ):
        batch, seqlen, heads, head_dim = shape
        block_d = min(COLUMNS, power_of_two(head_dim))
        self.grid = (batch * seqlen * heads, -(-head_dim // block_d), 1)
        self.block_n = BALANCED_PARTIALS if balance else None
        self.numbers = {  # all the kernel's but num_partials, by BLOCK_N
            block_n: (*strides, seqlen, heads, head_dim, block_n, block_d, balance, started_early)
            for block_n in (1 << i for i in range(MOST_PARTIALS.bit_length()))
        }
        self.options = dict(launch_pdl=True) if started_early else {}
        self.launch = Kept(combine_kernel)

    def __call__(self, o_parts, lse_parts, o, lse, num_partials: int) -> None:
        """Merge num_partials partials into contiguous o (batch, seqlen, heads, head_dim) and lse (batch, heads, seqlen).

        lse_parts None: the LSEs follow the partials in o_parts. lse None: it is not wanted.
        """
        block_n = self.block_n or min(MOST_PARTIALS, power_of_two(num_partials))
        self.launch(
            (block_n, lse is None), self.grid, (o_parts, lse_parts, o, lse), (num_partials, *self.numbers[block_n]),
            num_warps=4 if block_n >= WIDE else 1, **self.options,
        )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _combine(device, dtypes, shape, strides) -> Combine:
    """One Combine for each device and kind of tensors, so that what it keeps fits them."""
    return Combine(shape, strides)


def combine(o_parts: torch.Tensor, lse_parts: torch.Tensor, o: torch.Tensor, lse: torch.Tensor) -> None:
    """Merge N partials into o and lse.

    Args:
        o_parts: (N, batch, seqlen, heads, head_dim), last dimension contiguous.
        lse_parts: (N, batch, heads, seqlen), natural logarithms.
        o, lse: (batch, seqlen, heads, head_dim) and float32 (batch, heads, seqlen), contiguous; written.
    """
    merge = _combine(
        o.device, (o_parts.dtype, lse_parts.dtype, o.dtype), o.shape, (*o_parts.stride()[:4], *lse_parts.stride())
    )
    with backend.on_device_of(o):
        merge(o_parts, lse_parts, o, lse, o_parts.shape[0])


_merge_pair = Kept(merge_pair_kernel)


def merge_pair(
    o_a: torch.Tensor, lse_a: torch.Tensor, o_b: torch.Tensor, lse_b: torch.Tensor, o: torch.Tensor, lse: torch.Tensor
) -> None:
    """Merge two partials, (batch, seqlen, heads, head_dim) each with its LSE (batch, heads, seqlen), into o and lse."""
    batch, seqlen, heads, head_dim = o.shape
    block_d = power_of_two(head_dim)
    block_m = max(1, MERGE_TILE // block_d)
    rows = batch * seqlen * heads
    strides = (*o_a.stride()[:3], *lse_a.stride(), *o_b.stride()[:3], *lse_b.stride())
    with backend.on_device_of(o):
        _merge_pair(
            (o.device, o_a.dtype, o_b.dtype, lse_a.dtype, lse_b.dtype, o.dtype, strides, head_dim),
            (-(-rows // block_m), 1, 1),
            (o_a, lse_a, o_b, lse_b, o, lse),
            (*strides, rows, seqlen, heads, head_dim, block_m, block_d),
        )
