"""09.combine_splits: the second launch, written whole."""

import math

import torch
import triton
import triton.language as tl

from flashlab.course.lessons.data import normal
from flashlab.course.lessons.in_triton import DEVICE, guarded, moves
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.reference.algebra import Partial, merge

TOLERANCE = 2e-5  # float32


def spec(outs, lses):
    whole = merge(*(Partial(out, lse) for out, lse in zip(outs, lses, strict=True)))
    out, lse = whole.out, whole.lse
    return out, lse


@triton.jit
def stub_kernel(
    p_outs, p_lses, p_out, p_lse, rows, num_splits, HEAD_DIM: tl.constexpr, BLOCK_S: tl.constexpr
):
    """Merge one row. BLOCK_S: num_splits, rounded up to a power of two."""
    ...  # your kernel


def stub(outs, lses):
    """outs: (num_splits, rows, head_dim) float32, lses: (num_splits, rows), natural; where lse is -inf, out may be NaN.

    Returns out (rows, head_dim) and lse (rows,): one program a row. (0, -inf) for a row without keys.
    """
    num_splits, rows, head_dim = outs.shape
    out = torch.full((rows, head_dim), math.nan, device=outs.device)
    lse = torch.full((rows,), math.nan, device=outs.device)
    block_s = triton.next_power_of_2(num_splits)
    stub_kernel[(rows,)](outs, lses, out, lse, rows, num_splits, HEAD_DIM=head_dim, BLOCK_S=block_s)
    return out, lse


@triton.jit
def solution_kernel(
    p_outs, p_lses, p_out, p_lse, rows, num_splits, HEAD_DIM: tl.constexpr, BLOCK_S: tl.constexpr
):
    """Merge one row. BLOCK_S: num_splits, rounded up to a power of two."""
    row = tl.program_id(0)
    splits, dims = tl.arange(0, BLOCK_S), tl.arange(0, HEAD_DIM)
    b_lse = tl.load(p_lses + splits * rows + row, mask=splits < num_splits, other=float("-inf"))
    at = (splits[:, None] * rows + row) * HEAD_DIM + dims
    b_out = tl.load(p_outs + at, mask=b_lse[:, None] > float("-inf"), other=0.0)  # what nobody wrote is not read
    m = tl.max(b_lse, 0)
    m = tl.where(m == float("-inf"), 0.0, m)
    w = tl.exp(b_lse - m)
    l = tl.sum(w, 0)
    acc = tl.sum(w[:, None] * b_out, 0)
    tl.store(p_out + row * HEAD_DIM + dims, acc / tl.where(l == 0.0, 1.0, l))
    tl.store(p_lse + row, m + tl.log(l))


def solution(outs, lses):
    """outs: (num_splits, rows, head_dim) float32, lses: (num_splits, rows), natural; where lse is -inf, out may be NaN.

    Returns out (rows, head_dim) and lse (rows,): one program a row. (0, -inf) for a row without keys.
    """
    num_splits, rows, head_dim = outs.shape
    out = torch.full((rows, head_dim), math.nan, device=outs.device)
    lse = torch.full((rows,), math.nan, device=outs.device)
    block_s = triton.next_power_of_2(num_splits)
    solution_kernel[(rows,)](outs, lses, out, lse, rows, num_splits, HEAD_DIM=head_dim, BLOCK_S=block_s)
    return out, lse


@triton.jit
def _wrong_kernel(
    p_outs, p_lses, p_out, p_lse, rows, num_splits, HEAD_DIM: tl.constexpr, BLOCK_S: tl.constexpr, WHICH: tl.constexpr
):
    """The solution with one mistake."""
    row = tl.program_id(0)
    if WHICH == "one_row_only":
        row = tl.program_id(1)
    splits, dims = tl.arange(0, BLOCK_S), tl.arange(0, HEAD_DIM)
    if WHICH == "last_split_dropped":
        num_splits -= 1
    places = splits * rows + row
    if WHICH == "lses_row_first" or WHICH == "parts_row_first":
        places = row * num_splits + splits
    if WHICH == "padding_weighs" or WHICH == "other_is_zero":
        b_lse = tl.load(p_lses + places, mask=splits < num_splits, other=0.0)
    elif WHICH == "other_forgotten":
        b_lse = tl.load(p_lses + places, mask=splits < num_splits)
    elif WHICH == "mask_forgotten":
        b_lse = tl.load(p_lses + places)
    else:
        b_lse = tl.load(p_lses + places, mask=splits < num_splits, other=float("-inf"))
    written = b_lse > float("-inf")
    if WHICH == "padding_weighs":
        written = written & (splits < num_splits)
    if WHICH == "zero_times_nan":
        written = splits < num_splits
    at = (splits[:, None] * rows + row) * HEAD_DIM + dims
    if WHICH == "parts_row_first":
        at = places[:, None] * HEAD_DIM + dims
    if WHICH == "parts_packed_like_lses":
        at = places[:, None] + dims
    if WHICH == "outs_unmasked":
        b_out = tl.load(p_outs + at)
    else:
        b_out = tl.load(p_outs + at, mask=written[:, None], other=0.0)
    m = tl.max(b_lse, 0)
    if WHICH != "nothing_is_nan":
        m = tl.where(m == float("-inf"), 0.0, m)
    if WHICH == "without_the_maximum":
        m = 0.0
    if WHICH == "base_two_weights" or WHICH == "exp2_alone":
        w = tl.exp2(b_lse - m)
    elif WHICH == "averaged":
        w = tl.where(written, 1.0, 0.0)
    else:
        w = tl.exp(b_lse - m)
    l = tl.sum(w, 0)
    acc = tl.sum(w[:, None] * b_out, 0)
    if WHICH == "never_divided":
        out = acc
    elif WHICH == "nothing_is_nan" or WHICH == "divided_by_zero":
        out = acc / l
    else:
        out = acc / tl.where(l == 0.0, 1.0, l)
    if WHICH == "averaged":
        l = tl.sum(tl.exp(b_lse - m), 0)
    lse = m + tl.log(l)
    if WHICH == "base_two_weights" or WHICH == "bases_mixed":
        lse = m + tl.log2(l)
    if WHICH == "base_two_lse":
        lse = lse * 1.4426950408889634
    if WHICH == "lse_without_its_maximum":
        lse = tl.log(l)
    if WHICH == "nothing_weighs_something":
        lse = m + tl.log(tl.where(l == 0.0, 1.0, l))
    if WHICH == "sum_for_lse":
        lse = l
    if WHICH == "lse_is_the_largest":
        lse = tl.max(b_lse, 0)
    if WHICH == "lse_summed":
        lse = tl.sum(tl.where(written, b_lse, 0.0), 0)
    if WHICH == "out_packed_like_lse":
        tl.store(p_out + row + dims, out)
    else:
        tl.store(p_out + row * HEAD_DIM + dims, out)
    if WHICH != "lse_not_stored":
        tl.store(p_lse + row, lse)


def _launch(outs, lses, which):
    num_splits, rows, head_dim = outs.shape
    out = torch.full((rows, head_dim), math.nan, device=outs.device)
    lse = torch.full((rows,), math.nan, device=outs.device)
    block_s = triton.next_power_of_2(num_splits)
    _wrong_kernel[(rows,)](outs, lses, out, lse, rows, num_splits, HEAD_DIM=head_dim, BLOCK_S=block_s, WHICH=which)
    return out, lse


def padding_weighs(outs, lses):
    return _launch(outs, lses, "padding_weighs")


def other_forgotten(outs, lses):
    return _launch(outs, lses, "other_forgotten")


def zero_times_nan(outs, lses):
    return _launch(outs, lses, "zero_times_nan")


def averaged(outs, lses):
    return _launch(outs, lses, "averaged")


def without_the_maximum(outs, lses):
    return _launch(outs, lses, "without_the_maximum")


def nothing_is_nan(outs, lses):
    return _launch(outs, lses, "nothing_is_nan")


def divided_by_zero(outs, lses):
    return _launch(outs, lses, "divided_by_zero")


def bases_mixed(outs, lses):
    return _launch(outs, lses, "bases_mixed")


def one_row_only(outs, lses):
    return _launch(outs, lses, "one_row_only")


def never_divided(outs, lses):
    return _launch(outs, lses, "never_divided")


def lse_without_its_maximum(outs, lses):
    return _launch(outs, lses, "lse_without_its_maximum")


def lse_is_the_largest(outs, lses):
    return _launch(outs, lses, "lse_is_the_largest")


def lse_summed(outs, lses):
    return _launch(outs, lses, "lse_summed")


def base_two_weights(outs, lses):
    return _launch(outs, lses, "base_two_weights")


def base_two_lse(outs, lses):
    return _launch(outs, lses, "base_two_lse")


def lse_not_stored(outs, lses):
    return _launch(outs, lses, "lse_not_stored")


def lses_row_first(outs, lses):
    return _launch(outs, lses, "lses_row_first")


def other_is_zero(outs, lses):
    return _launch(outs, lses, "other_is_zero")


def mask_forgotten(outs, lses):
    return _launch(outs, lses, "mask_forgotten")


def parts_row_first(outs, lses):
    return _launch(outs, lses, "parts_row_first")


def parts_packed_like_lses(outs, lses):
    return _launch(outs, lses, "parts_packed_like_lses")


def outs_unmasked(outs, lses):
    return _launch(outs, lses, "outs_unmasked")


def exp2_alone(outs, lses):
    return _launch(outs, lses, "exp2_alone")


def nothing_weighs_something(outs, lses):
    return _launch(outs, lses, "nothing_weighs_something")


def sum_for_lse(outs, lses):
    return _launch(outs, lses, "sum_for_lse")


def out_packed_like_lse(outs, lses):
    return _launch(outs, lses, "out_packed_like_lse")


def last_split_dropped(outs, lses):
    return _launch(outs, lses, "last_split_dropped")


def _parts(seed, lengths, rows=3, head_dim=16, shift=0.0, device=DEVICE):
    """Attention over parts of the given lengths, NaN where a part has no key."""
    scores, v = normal(seed, rows, sum(lengths)) * 2 + shift, normal(seed + 1, sum(lengths), head_dim)
    pieces = list(zip(scores.split(lengths, dim=1), v.split(lengths), strict=True))
    nobody = torch.full((rows, head_dim), math.nan, dtype=v.dtype)
    outs = torch.stack([torch.softmax(s, dim=1) @ b_v if len(b_v) else nobody for s, b_v in pieces])
    lses = torch.stack([torch.logsumexp(s, dim=1) for s, _ in pieces])
    return outs.float().to(device), lses.float().to(device)


def _four():
    return [Case("4 splits of 16, 16, 16 and 3 keys", _parts(10, [16, 16, 16, 3]), TOLERANCE)]


def _odd():
    low = torch.full((3, 1), -8.0, dtype=torch.float64)
    return [
        Case("5 splits of 4 keys", _parts(20, [4] * 5), TOLERANCE),
        Case("33 splits of 2 keys, all lses below 0", _parts(30, [2] * 33, shift=low), TOLERANCE),
    ]


def _unwritten():
    return [Case("splits of 5, 0, 3 and 0 keys; NaN where nobody wrote", _parts(40, [5, 0, 3, 0]), TOLERANCE)]


def _nothing():
    return [Case("4 splits, no key in any; NaN where nobody wrote", _parts(50, [0] * 4), TOLERANCE)]


def _large():
    heights = torch.tensor([[0.0], [-2000.0], [2000.0]], dtype=torch.float64)
    return [Case("4 splits, rows near 0, -2000 and 2000", _parts(60, [4] * 4, shift=heights), TOLERANCE)]


def _bytes():
    return "5 splits of 4 keys", _parts(70, [4] * 5, device="cpu")


_ROWS = 3 * 4  # bytes of a number for every row


EXERCISE = Exercise(
    id="09.combine_splits",
    title="The combine kernel",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "It is combine_partials for one row. lses is (num_splits, rows), so the row's lses stand at splits * rows + row. "
        "Lanes past num_splits need a mask, and an `other` that weighs nothing.",
        "The outs stand at (splits[:, None] * rows + row) * HEAD_DIM + dims, a tile of (BLOCK_S, HEAD_DIM). Load it only "
        "where the lse is above -inf: mask=b_lse[:, None] > float('-inf'), other=0.0.",
        "m = tl.max(b_lse, 0), 0.0 where that is -inf; w = tl.exp(b_lse - m); l = tl.sum(w, 0); "
        "acc = tl.sum(w[:, None] * b_out, 0).",
        "Store acc / l at row * HEAD_DIM + dims and m + tl.log(l) at row. Where l is 0: out 0 and lse -inf.",
    ),
    sub_checks=(
        SubCheck("four splits", cases=_four),
        SubCheck("a number of splits that is no power of two", cases=_odd),
        SubCheck("an empty split may hold anything", cases=_unwritten),
        SubCheck("every split is empty", cases=_nothing),
        SubCheck("lses near 2000 and -2000", cases=_large),
        SubCheck(
            "each part is read once, each result written once",
            test=moves(_bytes, {"outs": 5 * 16 * _ROWS, "lses": 5 * _ROWS}, {"out": 16 * _ROWS, "lse": _ROWS}),
        ),
    ),
    mistakes=(
        Mistake(
            padding_weighs,
            "Right for four splits, not for five: the lanes between num_splits and BLOCK_S were loaded as 0.0. An lse of 0 "
            "is a weight of 1.",
            "What is `other` of your load of the lses?",
        ),
        Mistake(
            other_is_zero,
            "Right for four splits, not for five: the lanes between num_splits and BLOCK_S hold an lse of 0, which is a "
            "weight of 1, and then outs was read where there is none. (Outside a tensor there is NaN here.)",
            "What is `other` of your load of the lses?",
        ),
        Mistake(
            outs_unmasked,
            "outs was loaded without a mask: past num_splits there is none, and where nobody wrote it is no better. "
            "Their weight is 0, and 0 * NaN is NaN.",
            "Which lanes have an out that somebody wrote, and which number says so?",
        ),
        Mistake(
            other_forgotten,
            "Right for four splits, not for five: the lanes between num_splits and BLOCK_S hold whatever they like (here "
            "NaN), for want of an `other` in your load of the lses.",
            "Which lse weighs nothing?",
        ),
        Mistake(
            mask_forgotten,
            "Right for four splits, not for five: the lses were loaded without a mask, past the last one. (Outside a "
            "tensor there is NaN here.)",
            "BLOCK_S is 8 for five splits. What is in the lanes 5 to 7?",
        ),
        Mistake(
            zero_times_nan,
            "Right wherever every split wrote its out. An empty one did not, and 0 * NaN is NaN.",
            "Under which mask do you load the outs?",
        ),
        Mistake(
            averaged,
            "out is the plain average of the splits that have keys.",
            "Which number says how much weight a split carries?",
        ),
        Mistake(
            without_the_maximum,
            "This is what comes out when exp(lse) is taken as it stands: inf / inf near 2000, nothing left near -2000.",
            "What is the largest number your kernel passes to exp?",
        ),
        Mistake(
            nothing_is_nan,
            "Right wherever some split has a key. Where none has, the maximum is -inf, and -inf - -inf is NaN.",
            "Which number can be subtracted instead?",
        ),
        Mistake(
            divided_by_zero,
            "Right wherever some split has a key, and lse is right even where none has. There l is 0, and out is 0 / 0.",
            "Which number may stand for l there?",
        ),
        Mistake(
            bases_mixed,
            "out is right, but lse adds a natural m and a log2(l).",
            "In which base are the lses, and in which is tl.log2?",
        ),
        Mistake(
            one_row_only,
            "Only row 0 was written; the other rows still hold what was there before. Every program took the same row.",
            "The grid has one axis. Which number does tl.program_id take?",
        ),
        Mistake(
            never_divided,
            "out is the weighted sum, never divided by the sum of the weights.",
            "Do your weights add up to 1?",
        ),
        Mistake(
            lse_without_its_maximum,
            "out is right, but lse is log(l) alone: l was measured against m.",
            "What is the logarithm of exp(m) * l?",
        ),
        Mistake(
            lse_is_the_largest,
            "out is right, but lse is the largest of the lses: log(l) was left out.",
            "What is the logarithm of exp(m) * l?",
        ),
        Mistake(
            nothing_weighs_something,
            "Right wherever some split has a key. Where none has, lse came out as 0: the 1 that stands for l was meant for "
            "the division alone.",
            "What is the logarithm of a weight of 0?",
        ),
        Mistake(
            sum_for_lse,
            "out is right, but lse is l, the sum of the weights, not its logarithm.",
            "What is the logarithm of exp(m) * l?",
        ),
        Mistake(
            lse_summed,
            "out is right, but lse is the sum of the lses. Weights add, their logarithms do not.",
            "What is log(exp(a) + exp(b))?",
        ),
        Mistake(
            base_two_weights,
            "This is what comes out when a natural lse meets exp2 and log2: the splits are weighted by 2**lse.",
            "In which base are these lses? Multiply them by log2(e) before exp2, or use exp.",
        ),
        Mistake(
            exp2_alone,
            "The splits are weighted by 2**lse, and the lses are natural.",
            "In which base are these lses? Multiply them by log2(e) before exp2, or use exp.",
        ),
        Mistake(
            base_two_lse,
            "out is right, but lse is to base 2.",
            "Which number times log2(x) is log(x)?",
        ),
        Mistake(
            lse_not_stored,
            "out is right, but nothing was stored to p_lse.",
            "How many results does the kernel have?",
        ),
        Mistake(
            lses_row_first,
            "The lses were read as if they were (rows, num_splits). They are (num_splits, rows).",
            "How far apart in memory are two splits of the same row?",
        ),
        Mistake(
            parts_row_first,
            "outs and lses were read as if they were (rows, num_splits, ...). They are (num_splits, rows, ...).",
            "How far apart in memory are two splits of the same row?",
        ),
        Mistake(
            parts_packed_like_lses,
            "lse is right. The outs were read one element apart: a place in outs is HEAD_DIM numbers long.",
            "How far apart in outs are two rows of the same split?",
        ),
        Mistake(
            out_packed_like_lse,
            "lse is right. The outs were stored one element apart, over each other: a row of out is HEAD_DIM numbers long.",
            "Where in out does row 1 begin?",
        ),
        Mistake(
            last_split_dropped,
            "The last split is missing from the sum.",
            "Which lanes does your mask let through when num_splits is 4?",
        ),
    ),
    keep="The combine kernel is a softmax over the splits: weights from the lses, a weighted mean of the outs, one lse.",
    within=guarded,
)
