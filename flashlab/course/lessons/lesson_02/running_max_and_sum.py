"""02.running_max_and_sum: the maximum and the sum of exponentials in one walk. One line is left to fill in."""

import math

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(x):
    m = x.max()
    l = torch.exp(x - m).sum()
    return m, l


def stub(x):
    """x: (n,). Returns m, the largest entry, and l, the sum of exp(x - m), after one walk from left to right."""
    m, l = x.new_tensor(-math.inf), x.new_tensor(0.0)
    for x_j in x:
        m_new = torch.maximum(m, x_j)
        l = ...  # your line: what l was, measured against m_new instead of m, and the new term
        m = m_new
    return m, l


def solution(x):
    """x: (n,). Returns m, the largest entry, and l, the sum of exp(x - m), after one walk from left to right."""
    m, l = x.new_tensor(-math.inf), x.new_tensor(0.0)
    for x_j in x:
        m_new = torch.maximum(m, x_j)
        l = l * torch.exp(m - m_new) + torch.exp(x_j - m_new)
        m = m_new
    return m, l


def rescale_forgotten(x):
    m, l = x.new_tensor(-math.inf), x.new_tensor(0.0)
    for x_j in x:
        m = torch.maximum(m, x_j)
        l = l + torch.exp(x_j - m)
    return m, l


def rescale_upside_down(x):
    m, l = x.new_tensor(-math.inf), x.new_tensor(0.0)
    for x_j in x:
        m_new = torch.maximum(m, x_j)
        l = l * torch.exp(m_new - m) + torch.exp(x_j - m_new)
        m = m_new
    return m, l


def old_maximum(x):
    m, l = x.new_tensor(-math.inf), x.new_tensor(0.0)
    for x_j in x:
        m_new = torch.maximum(m, x_j)
        l = l * torch.exp(m - m_new) + torch.exp(x_j - m)
        m = m_new
    return m, l


def new_term_rescaled_too(x):
    m, l = x.new_tensor(-math.inf), x.new_tensor(0.0)
    for x_j in x:
        m_new = torch.maximum(m, x_j)
        l = (l + torch.exp(x_j - m_new)) * torch.exp(m - m_new)
        m = m_new
    return m, l


def new_term_unshifted(x):
    m, l = x.new_tensor(-math.inf), x.new_tensor(0.0)
    for x_j in x:
        m_new = torch.maximum(m, x_j)
        l = l * torch.exp(m - m_new) + torch.exp(x_j)
        m = m_new
    return m, l


def _single():
    return [Case("x = [2.5]", (torch.tensor([2.5], dtype=torch.float64),))]


def _falling():
    return [Case("x = 4, 3, 2, 1", (torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64),))]


def _rising():
    return [Case("x = 1, 2, 3, 4", (torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64),))]


def _random():
    return [Case(f"n = {n}, random", (2 * normal(n, n),)) for n in (2, 17, 129)]


def _large():
    return [Case("n = 31, all near 1000", (1000 + 3 * normal(5, 31),))]


EXERCISE = Exercise(
    id="02.running_max_and_sum",
    title="The maximum and the sum, in one walk",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "l is a sum of exp(x_i - m) over what has been seen. When m becomes m_new, every one of those terms must "
        "become exp(x_i - m_new).",
        "exp(x_i - m_new) = exp(x_i - m) * exp(m - m_new). The second factor is the same for every i: take it out of "
        "the sum and one multiplication moves the whole of l.",
        "Two summands: l times that factor, and exp(x_j - m_new) for the element that has just arrived.",
    ),
    sub_checks=(
        SubCheck("one number: m is the number, l is 1", cases=_single),
        SubCheck("falling numbers: the maximum never grows", cases=_falling),
        SubCheck("rising numbers: every step rescales", cases=_rising),
        SubCheck("random numbers", cases=_random),
        SubCheck("large numbers do not overflow", cases=_large),
    ),
    mistakes=(
        Mistake(
            rescale_forgotten,
            "This is what comes out when the old sum is not rescaled: its terms were measured against a smaller "
            "maximum, so they are too large. Falling numbers hide it, because there the maximum never changes.",
            "Look at l on the right-hand side of your line: against which maximum were its terms measured?",
        ),
        Mistake(
            rescale_upside_down,
            "This is what comes out when the rescale is infinite at the first element, where m is -inf: l is 0 there, "
            "and 0 * inf is NaN. exp(m_new - m) does that, and so does m - m_new without an exp. A rescale is at most 1.",
            "When the maximum grows, must the old terms shrink or grow? What is your factor when m is 1 and m_new 3?",
        ),
        Mistake(
            old_maximum,
            "This is what comes out when the new term is measured against the old maximum m. At the first element that "
            "is -inf, so the term is exp(+inf) = inf.",
            "Look at the new term: which maximum will be in force when this step is over?",
        ),
        Mistake(
            new_term_rescaled_too,
            "This is what comes out when the new term is multiplied by the rescale factor as well. At the first "
            "element the factor is exp(-inf) = 0, so that element is lost.",
            "Which of the two summands was measured against the old maximum, and which already against the new one?",
        ),
        Mistake(
            new_term_unshifted,
            "This is what comes out when the new term is exp(x_j), with no maximum subtracted. The old terms are "
            "measured against m_new and the new one against 0; near 1000 it overflows.",
            "l is a sum of exp(x_i - m). Does your new term have that form?",
        ),
    ),
    keep="When the maximum grows, one multiplication by exp(m_old - m_new) moves the whole sum to the new maximum.",
)
