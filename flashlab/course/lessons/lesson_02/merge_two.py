"""02.merge_two: two partial attentions become the attention over both sets of keys."""

import math

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(out_a, lse_a, out_b, lse_b):
    lses = torch.stack([lse_a, lse_b])
    share = torch.softmax(lses, dim=0).nan_to_num(0.0)  # two empty sides: nothing to share
    out, lse = share[0, :, None] * out_a + share[1, :, None] * out_b, torch.logsumexp(lses, dim=0)
    return out, lse


def stub(out_a, lse_a, out_b, lse_b):
    """out_a, out_b: (rows, head_dim); lse_a, lse_b: (rows,). (0, -inf) stands for no keys at all.

    Returns out (rows, head_dim) and lse (rows,). As a kernel would: exp, log, maximum, where; no softmax, no logsumexp.
    """
    raise NotImplementedError


def solution(out_a, lse_a, out_b, lse_b):
    """out_a, out_b: (rows, head_dim); lse_a, lse_b: (rows,). (0, -inf) stands for no keys at all.

    Returns out (rows, head_dim) and lse (rows,). As a kernel would: exp, log, maximum, where; no softmax, no logsumexp.
    """
    m = torch.maximum(lse_a, lse_b)
    m = torch.where(m == -math.inf, 0.0, m)  # both empty: -inf - -inf would be NaN
    w_a, w_b = torch.exp(lse_a - m), torch.exp(lse_b - m)
    l = w_a + w_b
    acc = w_a[:, None] * out_a + w_b[:, None] * out_b
    return acc / torch.where(l == 0, 1.0, l)[:, None], m + torch.log(l)


def plain_average(out_a, lse_a, out_b, lse_b):
    return (out_a + out_b) / 2, torch.logaddexp(lse_a, lse_b)


def shares_of_lse(out_a, lse_a, out_b, lse_b):
    share = (lse_a / (lse_a + lse_b))[:, None]
    return share * out_a + (1 - share) * out_b, torch.logaddexp(lse_a, lse_b)


def no_maximum(out_a, lse_a, out_b, lse_b):
    w_a, w_b = torch.exp(lse_a), torch.exp(lse_b)
    l = w_a + w_b
    acc = w_a[:, None] * out_a + w_b[:, None] * out_b
    return acc / torch.where(l == 0, 1.0, l)[:, None], torch.log(l)


def both_empty_is_nan(out_a, lse_a, out_b, lse_b):
    m = torch.maximum(lse_a, lse_b)
    w_a, w_b = torch.exp(lse_a - m), torch.exp(lse_b - m)
    l = w_a + w_b
    return (w_a[:, None] * out_a + w_b[:, None] * out_b) / l[:, None], m + torch.log(l)


def division_by_zero(out_a, lse_a, out_b, lse_b):
    m = torch.maximum(lse_a, lse_b)
    m = torch.where(m == -math.inf, 0.0, m)
    w_a, w_b = torch.exp(lse_a - m), torch.exp(lse_b - m)
    l = w_a + w_b
    return (w_a[:, None] * out_a + w_b[:, None] * out_b) / l[:, None], m + torch.log(l)


def only_out_guarded(out_a, lse_a, out_b, lse_b):
    out, lse = both_empty_is_nan(out_a, lse_a, out_b, lse_b)
    return out.nan_to_num(0.0), lse


def never_divided(out_a, lse_a, out_b, lse_b):
    m = torch.maximum(lse_a, lse_b)
    m = torch.where(m == -math.inf, 0.0, m)
    w_a, w_b = torch.exp(lse_a - m), torch.exp(lse_b - m)
    return w_a[:, None] * out_a + w_b[:, None] * out_b, m + torch.log(w_a + w_b)


def lse_is_the_maximum(out_a, lse_a, out_b, lse_b):
    return solution(out_a, lse_a, out_b, lse_b)[0], torch.maximum(lse_a, lse_b)


def lse_without_the_maximum(out_a, lse_a, out_b, lse_b):
    out, lse = solution(out_a, lse_a, out_b, lse_b)
    m = torch.maximum(lse_a, lse_b)
    return out, lse - torch.where(m == -math.inf, 0.0, m)


def lses_added(out_a, lse_a, out_b, lse_b):
    return solution(out_a, lse_a, out_b, lse_b)[0], lse_a + lse_b


def _partial(seed, keys, rows=3, head_dim=4, shift=0.0):
    scores, v = normal(seed, rows, keys) + shift, normal(seed + 1, keys, head_dim)
    return torch.softmax(scores, dim=-1) @ v, torch.logsumexp(scores, dim=-1)


def _empty(rows=3, head_dim=4):
    return torch.zeros(rows, head_dim, dtype=torch.float64), torch.full((rows,), -math.inf, dtype=torch.float64)


def _halves():
    return [Case("8 keys and 8 keys", (*_partial(10, 8), *_partial(20, 8)))]


def _unequal():
    return [Case("100 keys and 1 key", (*_partial(30, 100), *_partial(40, 1)))]


def _large():
    return [
        Case("lse near 1000 and 1002", (*_partial(50, 8, shift=1000.0), *_partial(60, 8, shift=1002.0))),
        Case("lse near -1000 and -1002", (*_partial(50, 8, shift=-1000.0), *_partial(60, 8, shift=-1002.0))),
    ]


def _one_empty():
    return [
        Case("b is empty", (*_partial(70, 8), *_empty())),
        Case("a is empty", (*_empty(), *_partial(70, 8))),
    ]


def _two_empty():
    return [Case("both are empty", (*_empty(), *_empty()))]


EXERCISE = Exercise(
    id="02.merge_two",
    title="merge(a, b)",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "exp(lse_a) is l_a, the total weight of a's keys, and exp(lse_a) * out_a is a's plain sum of weight times "
        "value. Plain sums add. Everything else is about not overflowing.",
        "Take m = maximum(lse_a, lse_b) and use w_a = exp(lse_a - m), w_b = exp(lse_b - m): both at most 1, one of "
        "them exactly 1. Then out = (w_a out_a + w_b out_b) / (w_a + w_b) and lse = m + log(w_a + w_b).",
        "w has shape (rows,) and out (rows, head_dim): w[:, None] lines them up.",
        "Two empty sides: m is -inf, and -inf - -inf is NaN. Replace such an m by 0; then both weights are 0, and so "
        "is their sum, which must not be divided by. torch.where does both.",
    ),
    sub_checks=(
        SubCheck("two halves", cases=_halves),
        SubCheck("unequal halves", cases=_unequal),
        SubCheck("large and small lse", cases=_large),
        SubCheck("an empty side changes nothing", cases=_one_empty),
        SubCheck("two empty sides give (0, -inf)", cases=_two_empty),
    ),
    mistakes=(
        Mistake(
            plain_average,
            "out is the plain average of the two: right only if both sides carry the same total weight. One key would "
            "then count as much as a hundred.",
            "How much weight do a's keys carry together, and where is that number stored?",
        ),
        Mistake(
            shares_of_lse,
            "out is weighted by lse itself. lse is a logarithm: 5 against 4 does not mean 5 to 4, but e to 1.",
            "Which number is proportional to the weight: lse or exp(lse)?",
        ),
        Mistake(
            no_maximum,
            "This is what comes out when exp(lse) is taken as it stands: inf / inf above about 709, and everything "
            "lost to 0 below about -745.",
            "What is the largest number your code passes to exp?",
        ),
        Mistake(
            both_empty_is_nan,
            "Right wherever there is a key. Where both sides are empty the maximum is -inf, and -inf - -inf is NaN.",
            "Which number can you subtract instead, when there is nothing to measure against?",
        ),
        Mistake(
            division_by_zero,
            "lse is right everywhere. Where both sides are empty the weights are 0, and 0 / 0 is NaN.",
            "What do you divide by in a row without keys, and what should out be there?",
        ),
        Mistake(
            only_out_guarded,
            "out is right everywhere. Where both sides are empty lse is still NaN: -inf - -inf came in before the sum, "
            "and m + log(NaN) keeps it.",
            "Guard one line earlier: which number can you subtract when there is nothing to measure against?",
        ),
        Mistake(
            never_divided,
            "out is the sum of weight times out, never divided by the sum of the weights.",
            "Do your two weights add up to 1?",
        ),
        Mistake(
            lse_is_the_maximum,
            "out is right, but lse is only the larger of the two: the weight of the smaller side is forgotten, and the "
            "next merge will give this part too little.",
            "What is log(exp(lse_a) + exp(lse_b)) when both are equal?",
        ),
        Mistake(
            lse_without_the_maximum,
            "out is right, but lse is log(w_a + w_b) alone: the m that was subtracted has not been added back.",
            "Your weights are measured against m. What is log(exp(m) * l)?",
        ),
        Mistake(
            lses_added,
            "out is right, but lse is lse_a + lse_b: adding logarithms multiplies the weights, and here they add.",
            "Is it the logarithms that add, or what they are logarithms of?",
        ),
    ),
    keep="Attention over some keys is (out, lse); two of them merge into one, and (0, -inf) is the merge of nothing.",
)
