"""00.rows_to_fill: how many rows a weight matrix needs before the GPU is limited by its arithmetic."""

import itertools
import math

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.hardware import gpu


def spec(n, k, element_bytes, ridge):
    for m in itertools.count(1):
        if 2 * m * n * k >= ridge * element_bytes * (m * k + k * n + m * n):
            return m


def stub(n, k, element_bytes, ridge):
    """Returns the smallest whole m for which (m, k) @ (k, n) has at least `ridge` FLOP per byte.

    (k, n) are the weights. Solve for m instead of searching.
    """
    raise NotImplementedError


def solution(n, k, element_bytes, ridge):
    """Returns the smallest whole m for which (m, k) @ (k, n) has at least `ridge` FLOP per byte.

    (k, n) are the weights. Solve for m instead of searching.
    """
    needed = ridge * element_bytes  # FLOP that each element moved has to feed
    return math.ceil(needed * k * n / (2 * n * k - needed * (k + n)))


def weights_only(n, k, element_bytes, ridge):
    return math.ceil(ridge * element_bytes / 2)


def ridge_alone(n, k, element_bytes, ridge):
    return ridge * element_bytes / 2


def rounded_down(n, k, element_bytes, ridge):
    needed = ridge * element_bytes
    return math.floor(needed * k * n / (2 * n * k - needed * (k + n)))


def width_forgotten(n, k, element_bytes, ridge):
    return math.ceil(ridge * k * n / (2 * n * k - ridge * (k + n)))


def additions_forgotten(n, k, element_bytes, ridge):
    needed = ridge * element_bytes
    return math.ceil(needed * k * n / (n * k - needed * (k + n)))


def not_a_whole_number(n, k, element_bytes, ridge):
    needed = ridge * element_bytes
    return needed * k * n / (2 * n * k - needed * (k + n))


def _case(name, n, k, element_bytes, dtype):
    part = gpu(name)
    return Case(f"{part.name}, weights ({k}, {n}) in {dtype}", (n, k, element_bytes, part.ridge))


def _square():
    return [_case("h200", 4096, 4096, 2, "bf16")]


def _wide():
    return [_case("h200", 28672, 8192, 2, "bf16"), _case("h200", 1024, 8192, 2, "bf16")]


def _gpus():
    return [_case("a100", 4096, 4096, 2, "bf16"), _case("h100", 4096, 4096, 2, "bf16")]


def _narrow():
    return [_case("h200", 4096, 4096, 1, "an 8-bit format")]


EXERCISE = Exercise(
    id="00.rows_to_fill",
    title="The batch that fills the chip",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Write the condition with your matmul_intensity: 2 m n k / (element_bytes (m k + k n + m n)) >= ridge.",
        "Multiply out and collect the terms with m on one side: m (2 n k - ridge element_bytes (k + n)) >= ridge "
        "element_bytes k n.",
        "The smallest whole number that is at least x is math.ceil(x).",
    ),
    sub_checks=(
        SubCheck("a square weight matrix", cases=_square),
        SubCheck("wide and narrow weights", cases=_wide),
        SubCheck("other GPUs, other ridges", cases=_gpus),
        SubCheck("8-bit weights and activations", cases=_narrow),
    ),
    mistakes=(
        Mistake(
            weights_only,
            "This is ridge * element_bytes / 2: the traffic of the weights alone. It is a fine estimate for large weights, but "
            "the m rows that go in and come out are traffic, too, so more of them are needed.",
            "How many matrices did your matmul_intensity count?",
        ),
        Mistake(
            ridge_alone,
            "This is ridge * element_bytes / 2, the crossing point if the weights were the only traffic. There are the m rows that "
            "go in and come out as well, and the answer is a whole number of rows.",
            "Your formula never uses n and k: when may they be left out?",
        ),
        Mistake(
            rounded_down,
            "This is one row short: rounding down gives the last m that does not reach the ridge.",
            "Put your answer into the inequality: does it hold?",
        ),
        Mistake(
            width_forgotten,
            "This takes every element for one byte. In bf16 each element has to feed twice as many FLOP.",
            "Where does element_bytes enter your formula?",
        ),
        Mistake(
            additions_forgotten,
            "This is what comes out with m * n * k FLOP instead of twice that: about twice the rows.",
            "Multiply and add: how many FLOP does each product cost?",
        ),
        Mistake(
            not_a_whole_number,
            "This is the crossing point itself, and a batch has a whole number of rows.",
            "Which whole number is the first on the right side of it?",
        ),
    ),
    keep="On an H200 about 230 rows share a weight matrix before its arithmetic is the limit: one user is far too few.",
)
