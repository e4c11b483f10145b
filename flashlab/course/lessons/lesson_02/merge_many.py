"""02.merge_many: any number of partial attentions at once, as the combine step of split-KV decoding does."""

import functools
import math

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.reference.algebra import Partial, merge


def spec(outs, lses):
    partials = [Partial(out, lse) for out, lse in zip(outs, lses, strict=True)]
    whole = functools.reduce(merge, partials)  # two at a time, left to right
    out, lse = whole.out, whole.lse
    return out, lse


def stub(outs, lses):
    """outs: (n, rows, head_dim), lses: (n, rows); -inf where a part saw no key for that row.

    Returns out (rows, head_dim) and lse (rows,): all n parts at once, no loop.
    """
    raise NotImplementedError


def solution(outs, lses):
    """outs: (n, rows, head_dim), lses: (n, rows); -inf where a part saw no key for that row.

    Returns out (rows, head_dim) and lse (rows,): all n parts at once, no loop.
    """
    m = lses.amax(dim=0)
    m = torch.where(m == -math.inf, 0.0, m)
    w = torch.exp(lses - m)
    l = w.sum(dim=0)
    acc = (w[:, :, None] * outs).sum(dim=0)
    return acc / torch.where(l == 0, 1.0, l)[:, None], m + torch.log(l)


def plain_average(outs, lses):
    return outs.mean(dim=0), torch.logsumexp(lses, dim=0)


def average_of_the_filled(outs, lses):
    filled = (lses > -math.inf).sum(dim=0).clamp(min=1)
    return outs.sum(dim=0) / filled[:, None], torch.logsumexp(lses, dim=0)


def no_maximum(outs, lses):
    w = torch.exp(lses)
    l = w.sum(dim=0)
    return (w[:, :, None] * outs).sum(dim=0) / torch.where(l == 0, 1.0, l)[:, None], torch.log(l)


def one_maximum_for_all_rows(outs, lses):
    m = lses.max()
    m = torch.where(m == -math.inf, 0.0, m)
    w = torch.exp(lses - m)
    l = w.sum(dim=0)
    return (w[:, :, None] * outs).sum(dim=0) / torch.where(l == 0, 1.0, l)[:, None], m + torch.log(l)


def one_maximum_and_no_guard(outs, lses):
    m = lses.max()
    w = torch.exp(lses - m)
    l = w.sum(dim=0)
    return (w[:, :, None] * outs).sum(dim=0) / l[:, None], m + torch.log(l)


def only_out_guarded(outs, lses):
    out, lse = all_empty_is_nan(outs, lses)
    return out.nan_to_num(0.0), lse


def mean_of_the_weighted(outs, lses):
    out, lse = solution(outs, lses)
    return out / len(outs), lse


def all_empty_is_nan(outs, lses):
    m = lses.amax(dim=0)
    w = torch.exp(lses - m)
    l = w.sum(dim=0)
    return (w[:, :, None] * outs).sum(dim=0) / l[:, None], m + torch.log(l)


def never_divided(outs, lses):
    out, lse = solution(outs, lses)
    m = lses.amax(dim=0)
    m = torch.where(m == -math.inf, 0.0, m)
    return out * torch.exp(lse - m)[:, None], lse


def last_part_dropped(outs, lses):
    return solution(outs[:-1], lses[:-1])


def base_two_weights(outs, lses):
    m = lses.amax(dim=0)
    m = torch.where(m == -math.inf, 0.0, m)
    w = torch.exp2(lses - m)
    l = w.sum(dim=0)
    return (w[:, :, None] * outs).sum(dim=0) / torch.where(l == 0, 1.0, l)[:, None], m + torch.log2(l)


def _parts(seed, lengths, rows=3, head_dim=4, shift=0.0):
    """One part for each of the lengths; a length of 0 is an empty part."""
    scores, v = normal(seed, rows, sum(lengths)) * 2 + shift, normal(seed + 1, sum(lengths), head_dim)
    pieces = list(zip(scores.split(lengths, dim=1), v.split(lengths), strict=True))
    outs = torch.stack([torch.softmax(s, dim=1) @ b_v for s, b_v in pieces])
    return outs, torch.stack([torch.logsumexp(s, dim=1) for s, _ in pieces])


def _two():
    return [Case("2 parts of 8 keys", _parts(10, [8, 8]))]


def _many():
    return [Case("16 parts of 1 to 16 keys", _parts(20, list(range(1, 17))))]


def _empties():
    return [Case("parts of 5, 0, 3, 0, 0, 9 keys", _parts(30, [5, 0, 3, 0, 0, 9]))]


def _all_empty():
    return [Case("4 parts, no key in any", _parts(40, [0, 0, 0, 0]))]


def _heights():
    heights = torch.tensor([[0.0], [-2000.0], [2000.0]], dtype=torch.float64)
    return [Case("3 parts, rows near 0, -2000 and 2000", _parts(50, [4, 4, 4], shift=heights))]


def _order_does_not_matter(merge_many):
    outs, lses = _parts(60, [1, 7, 2, 0, 30])
    (out, lse), (out_r, lse_r) = merge_many(outs, lses), merge_many(outs.flip(0), lses.flip(0))
    difference = max(float((out - out_r).abs().max()), float((lse - lse_r).abs().max()))
    if not difference <= 1e-12:
        return f"5 parts of 1, 7, 2, 0 and 30 keys, then the same five reversed: the answers differ by {difference:.4g}"


EXERCISE = Exercise(
    id="02.merge_many",
    title="Merging all parts at once",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "It is merge_two with a dimension in place of the pair: maximum over dim=0, weights exp(lses - m) of shape "
        "(n, rows), sums over dim=0.",
        "m = lses.amax(dim=0) keeps one maximum a row. w[:, :, None] * outs lines up the weights with the outputs.",
        "The two guards are the same as before: m = 0 where every part is empty, and no division by an l of 0.",
    ),
    sub_checks=(
        SubCheck("two parts", cases=_two),
        SubCheck("sixteen parts of unequal length", cases=_many),
        SubCheck("some parts are empty", cases=_empties),
        SubCheck("all parts are empty", cases=_all_empty),
        SubCheck("every row keeps its own maximum", cases=_heights),
        SubCheck("the order of the parts does not matter", test=_order_does_not_matter),
    ),
    mistakes=(
        Mistake(
            plain_average,
            "out is the plain average of the parts. A part with one key counts as much as one with sixteen, and an "
            "empty one pulls the answer towards 0.",
            "Which number says how much weight a part carries?",
        ),
        Mistake(
            average_of_the_filled,
            "out is the plain average of the parts that saw a key. Empty parts are treated well, the others are not: "
            "each counts the same, whatever weight its keys carry.",
            "Which number says how much weight a part carries?",
        ),
        Mistake(
            no_maximum,
            "This is what comes out when exp(lse) is taken as it stands: inf / inf near 2000, nothing left near -2000.",
            "What is the largest number your code passes to exp?",
        ),
        Mistake(
            one_maximum_for_all_rows,
            "This is what comes out when one maximum serves all rows: rows far below it lose everything to exp(-2000) "
            "= 0.",
            "What is the shape of your m? How many rows share it?",
        ),
        Mistake(
            one_maximum_and_no_guard,
            "One maximum serves all rows: a row far below it has only weights exp(-2000) = 0, and 0 / 0 is NaN. Where "
            "no part saw a key that maximum is -inf, and -inf - -inf is NaN too.",
            "What is the shape of your m? How many rows share it? And what is it when all parts are empty?",
        ),
        Mistake(
            only_out_guarded,
            "out is right everywhere. Where no part saw a key lse is still NaN: -inf - -inf came in before the sum.",
            "Guard one line earlier: which number can you subtract when there is nothing to measure against?",
        ),
        Mistake(
            mean_of_the_weighted,
            "out is too small by the number of parts: the weights are divided by their sum already, and a mean divides "
            "once more.",
            "Is it a sum over the parts that you take, or a mean?",
        ),
        Mistake(
            all_empty_is_nan,
            "Right wherever some part saw a key. Where none did, the maximum is -inf, and -inf - -inf is NaN.",
            "Which number can you subtract instead, when there is nothing to measure against?",
        ),
        Mistake(
            never_divided,
            "out is the weighted sum of the parts, never divided by the sum of the weights.",
            "Do your weights add up to 1 over the parts?",
        ),
        Mistake(
            last_part_dropped,
            "This is what comes out when the last part is left out.",
            "How many parts does your code look at when n is 2?",
        ),
        Mistake(
            base_two_weights,
            "This is what comes out when a natural lse meets exp2 and log2: the parts are weighted by 2**lse instead "
            "of e**lse.",
            "In which base are these lses? In which base are your weights?",
        ),
    ),
    keep="Merging is addition in disguise: any order, any grouping, empties included. Split-KV decoding rests on it.",
)
