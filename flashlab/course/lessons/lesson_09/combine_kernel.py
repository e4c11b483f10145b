"""09.combine_kernel: the second launch, written whole."""

import math

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.lessons.lesson_09.problems import DEVICE, room
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.kernels import backend
from flashlab.reference.algebra import Partial, merge

backend.prepare()  # before Triton is imported

import triton  # noqa: E402
import triton.language as tl  # noqa: E402


def spec(outs, lses):
    whole = merge(*(Partial(out, lse) for out, lse in zip(outs, lses, strict=True)))
    out, lse = whole.out, whole.lse
    return out, lse


def stub(outs, lses):
    """outs: (num_splits, rows, head_dim) float32, lses: (num_splits, rows), natural; where lse is -inf, out may be NaN.

    Returns out (rows, head_dim) and lse (rows,): one program a row. (0, -inf) for a row without keys.
    """

    @triton.jit
    def combine_kernel(
        p_outs, p_lses, p_out, p_lse, rows, num_splits, HEAD_DIM: tl.constexpr, BLOCK_S: tl.constexpr
    ):
        row = tl.program_id(0)
        splits, dims = tl.arange(0, BLOCK_S), tl.arange(0, HEAD_DIM)  # BLOCK_S: num_splits, padded to a power of two
        ...

    outs, lses = outs.to(DEVICE), lses.to(DEVICE)
    num_splits, rows, head_dim = outs.shape
    out, lse = room(math.nan, rows, head_dim), room(math.nan, rows)
    combine_kernel[(rows,)](
        outs, lses, out, lse, rows, num_splits, HEAD_DIM=head_dim, BLOCK_S=triton.next_power_of_2(num_splits)
    )
    return out, lse


def solution(outs, lses):
    """outs: (num_splits, rows, head_dim) float32, lses: (num_splits, rows), natural; where lse is -inf, out may be NaN.

    Returns out (rows, head_dim) and lse (rows,): one program a row. (0, -inf) for a row without keys.
    """

    @triton.jit
    def combine_kernel(
        p_outs, p_lses, p_out, p_lse, rows, num_splits, HEAD_DIM: tl.constexpr, BLOCK_S: tl.constexpr
    ):
        row = tl.program_id(0)
        splits, dims = tl.arange(0, BLOCK_S), tl.arange(0, HEAD_DIM)  # BLOCK_S: num_splits, padded to a power of two
        b_lse = tl.load(p_lses + splits * rows + row, mask=splits < num_splits, other=float("-inf"))
        at = (splits[:, None] * rows + row) * HEAD_DIM + dims
        b_out = tl.load(p_outs + at, mask=b_lse[:, None] > float("-inf"), other=0.0)
        m = tl.max(b_lse, 0)
        m = tl.where(m == float("-inf"), 0.0, m)
        w = tl.exp(b_lse - m)
        l = tl.sum(w, 0)
        acc = tl.sum(w[:, None] * b_out, 0)
        tl.store(p_out + row * HEAD_DIM + dims, acc / tl.where(l == 0.0, 1.0, l))
        tl.store(p_lse + row, tl.where(l == 0.0, float("-inf"), m + tl.log(tl.where(l == 0.0, 1.0, l))))

    outs, lses = outs.to(DEVICE), lses.to(DEVICE)
    num_splits, rows, head_dim = outs.shape
    out, lse = room(math.nan, rows, head_dim), room(math.nan, rows)
    combine_kernel[(rows,)](
        outs, lses, out, lse, rows, num_splits, HEAD_DIM=head_dim, BLOCK_S=triton.next_power_of_2(num_splits)
    )
    return out, lse


def _variant(outs, lses, clean=True, anchor=True, guard=True, exp=torch.exp, finish=None, lanes=0):
    """What a kernel like the solution computes, one thing changed. ``lanes``: padding with lse 0 and out 0."""
    if clean:
        outs = torch.where(lses[:, :, None] == -math.inf, 0.0, outs)
    if lanes:
        outs, lses = (torch.cat([x, x.new_zeros(lanes, *x.shape[1:])]) for x in (outs, lses))
    m = lses.amax(dim=0) if anchor else torch.zeros_like(lses[0])
    if guard:
        m = torch.where(m == -math.inf, 0.0, m)
    w = exp(lses - m)
    l, acc = w.sum(dim=0), (w[:, :, None] * outs).sum(dim=0)
    safe = torch.where(l == 0, 1.0, l) if guard else l
    return (acc / safe[:, None], m + torch.log(l)) if finish is None else finish(acc, safe, m, l)


def zero_times_nan(outs, lses):
    return _variant(outs, lses, clean=False)


def padding_weighs(outs, lses):
    n = len(lses)
    return _variant(outs, lses, lanes=(1 << (n - 1).bit_length()) - n)


def averaged(outs, lses):
    filled = (lses > -math.inf).sum(dim=0).clamp(min=1)
    mean = torch.where(lses[:, :, None] == -math.inf, 0.0, outs).sum(dim=0) / filled[:, None]
    return mean, torch.logsumexp(lses, dim=0)


def without_the_maximum(outs, lses):
    return _variant(outs, lses, anchor=False)


def nothing_is_nan(outs, lses):
    return _variant(outs, lses, guard=False)


def never_divided(outs, lses):
    return _variant(outs, lses, finish=lambda acc, safe, m, l: (acc, m + torch.log(l)))


def lse_without_its_maximum(outs, lses):
    return _variant(outs, lses, finish=lambda acc, safe, m, l: (acc / safe[:, None], torch.log(l)))


def lse_is_the_largest(outs, lses):
    return _variant(outs, lses, finish=lambda acc, safe, m, l: (acc / safe[:, None], lses.amax(dim=0)))


def lse_summed(outs, lses):
    total = lses.masked_fill(lses == -math.inf, 0.0).sum(dim=0)
    return _variant(outs, lses, finish=lambda acc, safe, m, l: (acc / safe[:, None], total))


def base_two_weights(outs, lses):
    finish = lambda acc, safe, m, l: (acc / safe[:, None], m + torch.log2(l))
    return _variant(outs, lses, exp=torch.exp2, finish=finish)


def base_two_lse(outs, lses):
    out, lse = _variant(outs, lses)
    return out, lse / math.log(2)


def lse_not_stored(outs, lses):
    out, lse = _variant(outs, lses)
    return out, torch.full_like(lse, math.nan)


def last_split_dropped(outs, lses):
    return _variant(outs[:-1], lses[:-1])


TOLERANCE = 2e-5  # float32


def _parts(seed, lengths, rows=3, head_dim=16, shift=0.0):
    """Attention over parts of the given lengths, NaN where a part has no key."""
    scores, v = normal(seed, rows, sum(lengths)) * 2 + shift, normal(seed + 1, sum(lengths), head_dim)
    pieces = list(zip(scores.split(lengths, dim=1), v.split(lengths), strict=True))
    nobody = torch.full((rows, head_dim), math.nan, dtype=v.dtype)
    outs = torch.stack([torch.softmax(s, dim=1) @ b_v if len(b_v) else nobody for s, b_v in pieces])
    lses = torch.stack([torch.logsumexp(s, dim=1) for s, _ in pieces])
    return outs.float(), lses.float()


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


EXERCISE = Exercise(
    id="09.combine_kernel",
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
    ),
    mistakes=(
        Mistake(
            padding_weighs,
            "Right for four splits, not for five: the lanes between num_splits and BLOCK_S were loaded as 0.0. An lse of 0 "
            "is a weight of 1.",
            "What is `other` of your load of the lses?",
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
            last_split_dropped,
            "The last split is missing from the sum.",
            "Which lanes does your mask let through when num_splits is 4?",
        ),
    ),
    keep="The combine kernel is a softmax over the splits: weights from the lses, a weighted mean of the outs, one lse.",
)
