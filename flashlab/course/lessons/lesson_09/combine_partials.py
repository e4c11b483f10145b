"""09.combine_partials: merging the splits, where what nobody wrote may be NaN."""

import math

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.reference.algebra import Partial, merge


def spec(outs, lses):
    whole = merge(*(Partial(out, lse) for out, lse in zip(outs, lses, strict=True)))
    out, lse = whole.out, whole.lse
    return out, lse


def stub(outs, lses):
    """outs: (num_splits, rows, head_dim), lses: (num_splits, rows), natural logarithms.

    Where lse is -inf the split saw no key and wrote no out: memory nobody wrote, perhaps NaN. Returns out (rows, head_dim)
    and lse (rows,); (0, -inf) for a row without keys.
    """
    m = lses.amax(dim=0)
    m = torch.where(m == -math.inf, 0.0, m)
    w = torch.exp(lses - m)
    l = w.sum(dim=0)
    acc = ...  # (rows, head_dim): the sum of w * outs over the splits
    return acc / torch.where(l == 0, 1.0, l)[:, None], m + torch.log(l)


def solution(outs, lses):
    """outs: (num_splits, rows, head_dim), lses: (num_splits, rows), natural logarithms.

    Where lse is -inf the split saw no key and wrote no out: memory nobody wrote, perhaps NaN. Returns out (rows, head_dim)
    and lse (rows,); (0, -inf) for a row without keys.
    """
    m = lses.amax(dim=0)
    m = torch.where(m == -math.inf, 0.0, m)
    w = torch.exp(lses - m)
    l = w.sum(dim=0)
    acc = torch.where(w[:, :, None] > 0, w[:, :, None] * outs, 0.0).sum(dim=0)
    return acc / torch.where(l == 0, 1.0, l)[:, None], m + torch.log(l)


def _clean(outs, lses):
    return torch.where(lses[:, :, None] == -math.inf, 0.0, outs)


def _merged(outs, lses):
    return solution(outs, lses)


def zero_times_nan(outs, lses):
    m = lses.amax(dim=0)
    m = torch.where(m == -math.inf, 0.0, m)
    w = torch.exp(lses - m)
    l = w.sum(dim=0)
    return (w[:, :, None] * outs).sum(dim=0) / torch.where(l == 0, 1.0, l)[:, None], m + torch.log(l)


def averaged(outs, lses):
    filled = (lses > -math.inf).sum(dim=0).clamp(min=1)
    return _clean(outs, lses).sum(dim=0) / filled[:, None], torch.logsumexp(lses, dim=0)


def weights_left_out(outs, lses):
    _, lse = _merged(outs, lses)
    m = lses.amax(dim=0)
    l = torch.exp(lses - torch.where(m == -math.inf, 0.0, m)).sum(dim=0)
    return _clean(outs, lses).sum(dim=0) / torch.where(l == 0, 1.0, l)[:, None], lse


def without_the_maximum(outs, lses):
    w = torch.exp(lses)
    l = w.sum(dim=0)
    acc = (w[:, :, None] * _clean(outs, lses)).sum(dim=0)
    return acc / torch.where(l == 0, 1.0, l)[:, None], torch.log(l)


def lse_summed(outs, lses):
    return _merged(outs, lses)[0], lses.masked_fill(lses == -math.inf, 0.0).sum(dim=0)


def lse_is_the_largest(outs, lses):
    return _merged(outs, lses)[0], lses.amax(dim=0)


def lse_without_its_maximum(outs, lses):
    m = lses.amax(dim=0)
    return _merged(outs, lses)[0], torch.log(torch.exp(lses - torch.where(m == -math.inf, 0.0, m)).sum(dim=0))


def nothing_is_nan(outs, lses):
    m = lses.amax(dim=0)
    w = torch.exp(lses - m)
    l = w.sum(dim=0)
    return (w[:, :, None] * _clean(outs, lses)).sum(dim=0) / l[:, None], m + torch.log(l)


def measured_against_lse(outs, lses):
    lse = torch.logsumexp(lses, dim=0)
    return (torch.exp(lses - lse)[:, :, None] * _clean(outs, lses)).sum(dim=0), lse


def base_two_weights(outs, lses):
    m = lses.amax(dim=0)
    m = torch.where(m == -math.inf, 0.0, m)
    w = torch.exp2(lses - m)
    l = w.sum(dim=0)
    acc = (w[:, :, None] * _clean(outs, lses)).sum(dim=0)
    return acc / torch.where(l == 0, 1.0, l)[:, None], m + torch.log2(l)


def last_split_dropped(outs, lses):
    return _merged(outs[:-1], lses[:-1])


def _parts(seed, lengths, rows=3, head_dim=4, shift=0.0, unwritten=math.nan):
    """Attention over parts of the given lengths; a part without keys holds ``unwritten``."""
    scores, v = normal(seed, rows, sum(lengths)) * 2 + shift, normal(seed + 1, sum(lengths), head_dim)
    pieces = list(zip(scores.split(lengths, dim=1), v.split(lengths), strict=True))
    outs = [torch.softmax(s, dim=1) @ b_v if len(b_v) else torch.full_like(v[:rows], unwritten) for s, b_v in pieces]
    outs = [o if len(o) == rows else torch.full((rows, head_dim), unwritten, dtype=v.dtype) for o in outs]
    return torch.stack(outs), torch.stack([torch.logsumexp(s, dim=1) for s, _ in pieces])


def _written():
    return [Case("4 splits of 16, 16, 16 and 3 keys", _parts(10, [16, 16, 16, 3]))]


def _many():
    return [Case("33 splits of 2 keys", _parts(20, [2] * 33))]


def _unwritten():
    return [
        Case("splits of 5, 0, 3 and 0 keys; NaN where nobody wrote", _parts(30, [5, 0, 3, 0])),
        Case("splits of 4 and 0 keys; infinity where nobody wrote", _parts(40, [4, 0], unwritten=math.inf)),
    ]


def _nothing():
    return [Case("3 splits, no key in any; NaN where nobody wrote", _parts(50, [0, 0, 0]))]


def _large():
    heights = torch.tensor([[0.0], [-2000.0], [2000.0]], dtype=torch.float64)
    return [Case("3 splits, rows near 0, -2000 and 2000", _parts(60, [4, 4, 4], shift=heights))]


EXERCISE = Exercise(
    id="09.combine_partials",
    title="Merging splits that may be unwritten",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "(w[:, :, None] * outs).sum(dim=0) is right wherever every split wrote something. What is 0 * NaN?",
        "torch.where(condition, a, b) takes b where the condition is false, whatever stands in a.",
        "The condition is w[:, :, None] > 0, and b is 0.0.",
    ),
    sub_checks=(
        SubCheck("splits that all have keys", cases=_written),
        SubCheck("33 splits", cases=_many),
        SubCheck("an empty split may hold anything", cases=_unwritten),
        SubCheck("every split is empty", cases=_nothing),
        SubCheck("lses near 2000 and -2000", cases=_large),
    ),
    mistakes=(
        Mistake(
            zero_times_nan,
            "Right wherever every split wrote its out. But an empty one did not, and a weight of 0 times NaN is NaN.",
            "What does your code do with outs[i] where lses[i] is -inf? Multiplying by 0 is not enough.",
        ),
        Mistake(
            averaged,
            "out is the plain average of the splits that have keys: a split with three keys counts as much as one with "
            "sixteen.",
            "Which number says how much weight a split carries?",
        ),
        Mistake(
            weights_left_out,
            "The outs were added without their weights, and then divided by the sum of the weights.",
            "What multiplies outs in your acc?",
        ),
        Mistake(
            without_the_maximum,
            "This is what comes out when exp(lse) is taken as it stands: inf / inf near 2000, nothing left near -2000.",
            "What is the largest number your code passes to exp?",
        ),
        Mistake(
            lse_summed,
            "out is right, but lse is the sum of the lses. Weights add, their logarithms do not.",
            "What is log(exp(a) + exp(b))?",
        ),
        Mistake(
            lse_is_the_largest,
            "out is right, but lse is the largest of the lses: log(l) was left out.",
            "l is the total weight against m. What is the logarithm of exp(m) * l?",
        ),
        Mistake(
            lse_without_its_maximum,
            "out is right, but lse is log(l) alone: l was measured against m.",
            "What is the logarithm of exp(m) * l?",
        ),
        Mistake(
            measured_against_lse,
            "Right wherever some split has a key. Where none has, lse is -inf, and exp(lses - lse) is exp(-inf - -inf), NaN.",
            "What do you subtract from lses where every one is -inf?",
        ),
        Mistake(
            nothing_is_nan,
            "Right wherever some split has a key. Where none has, the maximum is -inf, and -inf - -inf is NaN.",
            "Which number can be subtracted instead, when there is nothing to measure against?",
        ),
        Mistake(
            base_two_weights,
            "This is what comes out when a natural lse meets exp2 and log2: the splits are weighted by 2**lse.",
            "In which base are these lses, and in which base are your weights?",
        ),
        Mistake(
            last_split_dropped,
            "The last split is missing from the sum.",
            "How many splits does your code look at when there are two?",
        ),
    ),
    keep="lse = -inf says: I saw nothing, do not even look at my out. A weight of 0 does not protect from NaN; a select does.",
)
