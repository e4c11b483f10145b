"""02.lse_from_base_two: a kernel computes with powers of two; its lse must still be a natural logarithm. One line."""

import math

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(s):
    return torch.logsumexp(s, dim=-1)


def stub(s):
    """s: (rows, n), scores. Returns lse (rows,), natural logarithm, by exp2 and log2 alone."""
    s2 = s * math.log2(math.e)
    m2 = s2.amax(dim=-1)
    l = torch.exp2(s2 - m2[:, None]).sum(dim=-1)
    lse = ...  # your line: from m2 and l back to the natural logarithm
    return lse


def solution(s):
    """s: (rows, n), scores. Returns lse (rows,), natural logarithm, by exp2 and log2 alone."""
    s2 = s * math.log2(math.e)
    m2 = s2.amax(dim=-1)
    l = torch.exp2(s2 - m2[:, None]).sum(dim=-1)
    lse = (m2 + torch.log2(l)) * math.log(2.0)
    return lse


def _m2_and_l(s):
    s2 = s * math.log2(math.e)
    m2 = s2.amax(dim=-1)
    return m2, torch.exp2(s2 - m2[:, None]).sum(dim=-1)


def left_in_base_two(s):
    m2, l = _m2_and_l(s)
    return m2 + torch.log2(l)


def natural_log_of_l_only(s):
    m2, l = _m2_and_l(s)
    return m2 + torch.log(l)


def only_the_maximum_converted(s):
    m2, l = _m2_and_l(s)
    return m2 * math.log(2.0) + torch.log2(l)


def converted_twice_over(s):
    m2, l = _m2_and_l(s)
    return (m2 + torch.log(l)) * math.log(2.0)


def converted_the_wrong_way(s):
    m2, l = _m2_and_l(s)
    return (m2 + torch.log2(l)) * math.log2(math.e)


def _zeros():
    return [Case("2 rows of 8 zeros: lse is ln 8 = 2.0794", (torch.zeros(2, 8, dtype=torch.float64),))]


def _random():
    return [Case(f"3 rows, n = {n}", (2 * normal(n, 3, n),)) for n in (1, 17, 129)]


def _large():
    return [Case("2 rows near 1000, n = 8", (1000 + normal(8, 2, 8),))]


EXERCISE = Exercise(
    id="02.lse_from_base_two",
    title="Back to the natural logarithm",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "l * 2**m2 is the sum of 2**s2, and that is the sum of exp(s): the same number, no conversion needed so far.",
        "Its logarithm to base 2 is m2 + log2(l). Only now does the base matter.",
        "ln(y) = log2(y) * ln(2), and ln(2) is math.log(2.0) = 0.6931. It multiplies the whole, not one part.",
    ),
    sub_checks=(
        SubCheck("scores all zero", cases=_zeros),
        SubCheck("random scores", cases=_random),
        SubCheck("large scores do not overflow", cases=_large),
    ),
    mistakes=(
        Mistake(
            left_in_base_two,
            "This is the logarithm to base 2: too large by the factor 1 / ln 2 = 1.4427. Nothing breaks until someone "
            "merges it with a natural lse or feeds it to a backward pass.",
            "m2 and log2(l) are both in base 2. What turns log2(y) into ln(y)?",
        ),
        Mistake(
            natural_log_of_l_only,
            "This is what comes out when log(l), natural, is added to m2, which is in base 2. Two units in one sum.",
            "In which base is m2? In which base is the other summand?",
        ),
        Mistake(
            only_the_maximum_converted,
            "This is what comes out when ln 2 multiplies m2 alone and log2(l) stays in base 2. Two units in one sum.",
            "Which of your two summands is still in base 2?",
        ),
        Mistake(
            converted_twice_over,
            "This is what comes out when log(l), already natural, is multiplied by ln 2 together with m2.",
            "Which of your two summands is converted twice?",
        ),
        Mistake(
            converted_the_wrong_way,
            "This is what comes out when the result is multiplied by log2(e) = 1.4427 where ln(2) = 0.6931 is needed.",
            "log2(8) = 3 and ln(8) = 2.08: does the conversion make the number larger or smaller?",
        ),
    ),
    keep="Powers of two inside, natural logarithm outside: convert once, at the door, and write down which one it is.",
)
