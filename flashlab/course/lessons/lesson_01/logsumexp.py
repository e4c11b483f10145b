"""01.logsumexp: the number that a whole row of scores comes down to, without overflow."""

import math

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(s):
    return torch.logsumexp(s, dim=-1)


def stub(s):
    """s: (rows, n). Returns log(sum over j of exp(s[i, j])), (rows,). Use exp, log, sum and amax."""
    raise NotImplementedError


def solution(s):
    """s: (rows, n). Returns log(sum over j of exp(s[i, j])), (rows,). Use exp, log, sum and amax."""
    m = s.amax(dim=-1, keepdim=True)
    m = m.masked_fill(m == -math.inf, 0)  # a row of -inf: -inf - -inf would be NaN
    return m.squeeze(-1) + torch.log(torch.exp(s - m).sum(dim=-1))


def no_maximum(s):
    return torch.log(torch.exp(s).sum(dim=-1))


def maximum_not_added_back(s):
    return torch.log(torch.exp(s - s.amax(dim=-1, keepdim=True)).sum(dim=-1))


def one_maximum_for_all_rows(s):
    return s.max() + torch.log(torch.exp(s - s.max()).sum(dim=-1))


def base_two(s):
    m = s.amax(dim=-1, keepdim=True)
    return m.squeeze(-1) + torch.log2(torch.exp(s - m).sum(dim=-1))


def empty_row_is_nan(s):
    m = s.amax(dim=-1, keepdim=True)
    return m.squeeze(-1) + torch.log(torch.exp(s - m).sum(dim=-1))


def column_kept(s):
    return torch.logsumexp(s, dim=-1, keepdim=True)


def column_plus_row(s):
    m = s.amax(dim=-1, keepdim=True)
    return m + torch.log(torch.exp(s - m).sum(dim=-1))


def maximum_is_no_column(s):
    m = s.amax(dim=-1)
    return m + torch.log(torch.exp(s - m).sum(dim=-1))


def _small():
    return [Case("2 rows of 5 scores", (normal(1, 2, 5),))]


def _large():
    return [Case("2 rows near 1000", (normal(2, 2, 8) + 1000,))]


def _very_negative():
    return [Case("2 rows near -1000", (normal(3, 2, 8) - 1000,))]


def _heights():
    heights = torch.tensor([[0.0], [-2000.0], [2000.0]], dtype=torch.float64)
    return [Case("rows near 0, -2000 and 2000", (normal(4, 3, 6) + heights,))]


def _masked():
    some = normal(5, 3, 6)
    some[0, 2:] = -math.inf
    some[2] = -math.inf
    return [Case("row 0 sees two keys, row 2 none", (some,))]


EXERCISE = Exercise(
    id="01.logsumexp",
    title="Log-sum-exp without overflow",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "log(sum exp(s)) = m + log(sum exp(s - m)) for any m. Which m makes every exponent at most 0?",
        "One m a row: s.amax(dim=-1, keepdim=True) has shape (rows, 1) and broadcasts. The result has shape (rows,).",
        "For a row that is -inf throughout m is -inf, and -inf - -inf is NaN. Replace such an m by 0: every term is then "
        "exp(-inf) = 0, and log(0) = -inf is the right answer.",
    ),
    sub_checks=(
        SubCheck("small scores", cases=_small),
        SubCheck("large scores do not overflow", cases=_large),
        SubCheck("very negative scores do not vanish", cases=_very_negative),
        SubCheck("every row has its own maximum", cases=_heights),
        SubCheck("a query that sees no key gives -inf", cases=_masked),
    ),
    mistakes=(
        Mistake(
            no_maximum,
            "This is what comes out when nothing is subtracted. exp(1000) is inf and exp(-1000) is 0, in float64 too; in "
            "float16 it is all over at a score of 11.1.",
            "What is the largest number you give to exp, and what would it be if you subtracted something first?",
        ),
        Mistake(
            maximum_not_added_back,
            "This subtracts the maximum and does not add it again, so every row comes out too small by its maximum.",
            "exp(s - m) is exp(s) / exp(m). What does that division do to the logarithm of the sum?",
        ),
        Mistake(
            one_maximum_for_all_rows,
            "This takes one maximum for all rows. A row 2000 below it has only terms exp(-2000) = 0, and log(0) is -inf.",
            "Over which dimension do you take the maximum, and what is its shape?",
        ),
        Mistake(
            base_two,
            "This takes the logarithm to base 2 of a sum of powers of e. Kernels like base 2, but then both have "
            "to be: a library that mixed the two merged wrong results (flashinfer issue 2113).",
            "Which base does exp have, and which your logarithm?",
        ),
        Mistake(
            empty_row_is_nan,
            "This is right wherever a row has a finite entry. Where all are -inf, s - m is -inf - -inf, which is NaN.",
            "What is m for a query that is not allowed to look at any key?",
        ),
        Mistake(
            column_kept,
            "The numbers are right, but they stand in a column: shape (rows, 1) instead of (rows,).",
            "keepdim=True is handy for subtracting. Who takes the extra dimension away again?",
        ),
        Mistake(
            column_plus_row,
            "This adds a column, m of shape (rows, 1), to a row, the sums of shape (rows,): broadcasting makes a table of it, "
            "with every maximum against every sum.",
            "m was kept as a column for the subtraction. Which shape must it have for the addition?",
        ),
        Mistake(
            maximum_is_no_column,
            "s is (rows, n) and m is (rows,): broadcasting aligns shapes at their ends and so sets m against the n scores of "
            "a row. Where rows = n there is not even an error.",
            "Which shape must m have, so that row i gets m[i]?",
        ),
    ),
    keep="Subtract the row's maximum before exp, add it back after log: no exponent is above 0, so nothing overflows.",
)
