"""06.softmax_gradient: from the gradient of one row's probabilities to that of its scores. One line to fill in."""

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.lessons.lesson_03.watch import Watch
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(p, dp):
    jacobian = torch.diag(p) - torch.outer(p, p)  # entry (j, l) is dp_l / ds_j
    return jacobian @ dp


def stub(p, dp):
    """p: (seqlen_k,), one row of probabilities. dp: (seqlen_k,), the gradient that reached them.

    Returns ds (seqlen_k,), the gradient of the row's scores, without any matrix of seqlen_k x seqlen_k.
    """
    mean = (p * dp).sum()  # of dp, weighted with p
    ds = ...  # your line
    return ds


def solution(p, dp):
    """p: (seqlen_k,), one row of probabilities. dp: (seqlen_k,), the gradient that reached them.

    Returns ds (seqlen_k,), the gradient of the row's scores, without any matrix of seqlen_k x seqlen_k.
    """
    mean = (p * dp).sum()  # of dp, weighted with p
    ds = p * (dp - mean)
    return ds


def mean_forgotten(p, dp):
    return p * dp


def p_forgotten(p, dp):
    return dp - (p * dp).sum()


def plain_mean(p, dp):
    return p * (dp - dp.mean())


def sum_of_dp(p, dp):
    return p * (dp - dp.sum())


def mean_outside(p, dp):
    return p * dp - (p * dp).sum()


def sign(p, dp):
    return p * ((p * dp).sum() - dp)


def each_for_itself(p, dp):
    return p * (1 - p) * dp


def whole_jacobian(p, dp):
    return p * dp - torch.outer(p, p) @ dp


def _row(seed, n, sharp=1.0):
    return torch.softmax(sharp * normal(seed, n), dim=0), normal(seed + 1, n)


def _napkin():
    p, dp = (torch.tensor(row, dtype=torch.float64) for row in ([0.5, 0.3, 0.2], [1.0, 0.0, 0.0]))
    return [Case("p = (0.5, 0.3, 0.2), dp = (1, 0, 0)", (p, dp))]


def _rows():
    return [Case(f"{n} keys", _row(10 + n, n)) for n in (2, 7, 33)]


def _constant(softmax_gradient):
    p, _ = _row(50, 9)
    largest = softmax_gradient(p, torch.full_like(p, 3.0)).abs().max().item()
    if not largest < 1e-12:
        return f"dp = 3 for all 9 keys: the largest |ds| is {largest:.4f}; p sums to 1 whatever s is, so it must be 0"


def _sums_to_zero(softmax_gradient):
    p, dp = _row(60, 12, sharp=3.0)
    total = softmax_gradient(p, dp).sum().item()
    if not abs(total) < 1e-12:
        return (
            f"12 keys: the sum of ds is {total:.4f}; adding the same number to all scores changes no p, so it must be 0"
        )


def _lean(softmax_gradient):
    p, dp = _row(70, 64)
    with Watch(p) as seen:
        softmax_gradient(p, dp)
    if seen.largest > 8 * 64:
        return f"64 keys: a tensor of {seen.largest} elements was made; nothing larger than the row's 64 is needed"


EXERCISE = Exercise(
    id="06.softmax_gradient",
    title="The gradient of one row of softmax",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Write the product of the spec out for entry j: (diag(p) dp)_j is p_j dp_j. What is (p p^T dp)_j?",
        "(p p^T dp)_j = p_j times (the sum over l of p_l dp_l), and that sum is the line above: mean.",
        "So ds_j = p_j dp_j - p_j mean. Take p_j out.",
    ),
    sub_checks=(
        SubCheck("three keys on a napkin", cases=_napkin),
        SubCheck("rows of other lengths", cases=_rows),
        SubCheck("the same dp for all keys moves no score", test=_constant),
        SubCheck("ds sums to zero", test=_sums_to_zero),
        SubCheck("no matrix is made", test=_lean),
    ),
    mistakes=(
        Mistake(
            mean_forgotten,
            "This is p * dp: the mean was not taken off. It treats every probability as if it stood alone, but a "
            "score that rises takes weight from all others.",
            "The line above yours computes mean. Where does it come in?",
        ),
        Mistake(
            p_forgotten,
            "The mean is taken off, but the factor p is missing: a key with almost no weight would get as much "
            "gradient as the heaviest.",
            "Which factor stands in front of both terms of the spec's product?",
        ),
        Mistake(
            plain_mean,
            "This is what comes out with the plain mean of dp. It must be weighted with p.",
            "Which keys count in the mean, and how much?",
        ),
        Mistake(
            sum_of_dp,
            "This is what comes out when the sum of dp is taken off: the weights p are missing from it.",
            "Is (p * dp).sum() what you take off, or dp.sum()?",
        ),
        Mistake(
            mean_outside,
            "The mean is taken off p * dp, outside the bracket: its own factor p is missing.",
            "The second term of the spec is p times (p . dp). Which of the two p's did you keep?",
        ),
        Mistake(
            sign,
            "The right numbers with the wrong sign: mean minus dp. Training would climb instead of descend.",
            "A key with a dp above the mean: should its score's gradient be positive or negative?",
        ),
        Mistake(
            each_for_itself,
            "This is the diagonal of the Jacobian alone, p (1 - p), as for a sigmoid. The other keys' gradients act "
            "on this score as well.",
            "What do the entries off the diagonal, -p_j p_l, multiply?",
        ),
        Mistake(
            whole_jacobian,
            "The numbers are right, but a matrix of seqlen_k x seqlen_k was made for one row.",
            "p p^T dp can be bracketed in two ways. Which of them needs no matrix?",
        ),
    ),
    keep="ds = p * (dp - mean), mean being dp weighted with p: a row's scores only compete with each other.",
)
