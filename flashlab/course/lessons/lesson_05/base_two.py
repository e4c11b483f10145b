"""05.base_two: the online softmax in base 2, its scale folded in, its lse given back in natural logarithms."""

import math

import torch
from torch.overrides import TorchFunctionMode

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck

LOG2E = 1.4426950408889634


def spec(qk, v, scale, block_n):
    s = qk * scale
    out, lse = torch.softmax(s, dim=1) @ v, torch.logsumexp(s, dim=1)
    return out, lse


def stub(qk, v, scale, block_n):
    """qk: (rows, keys) raw products q . k, not scaled; v: (keys, head_dim). Returns out (rows, head_dim), lse (rows,).

    One pass, block_n keys at a time, with exp2 and log2 alone. m is in log2 units throughout; lse is natural.
    """
    unit = scale * 1.4426950408889634  # log2(e): exp(scale * x) = exp2(unit * x)
    m = qk.new_full((len(qk),), -math.inf)
    l = qk.new_zeros(len(qk))
    acc = qk.new_zeros(len(qk), v.shape[1])
    for start in range(0, qk.shape[1], block_n):
        b_qk, b_v = qk[:, start : start + block_n], v[start : start + block_n]
        m_new = ...
        alpha = ...
        p = ...
        l = l * alpha + p.sum(dim=1)
        acc = acc * alpha[:, None] + p @ b_v
        m = m_new
    lse = ...
    return acc / l[:, None], lse


def solution(qk, v, scale, block_n):
    """qk: (rows, keys) raw products q . k, not scaled; v: (keys, head_dim). Returns out (rows, head_dim), lse (rows,).

    One pass, block_n keys at a time, with exp2 and log2 alone. m is in log2 units throughout; lse is natural.
    """
    unit = scale * 1.4426950408889634  # log2(e): exp(scale * x) = exp2(unit * x)
    m = qk.new_full((len(qk),), -math.inf)
    l = qk.new_zeros(len(qk))
    acc = qk.new_zeros(len(qk), v.shape[1])
    for start in range(0, qk.shape[1], block_n):
        b_qk, b_v = qk[:, start : start + block_n], v[start : start + block_n]
        m_new = torch.maximum(m, b_qk.amax(dim=1) * unit)
        alpha = torch.exp2(m - m_new)
        p = torch.exp2(b_qk * unit - m_new[:, None])
        l = l * alpha + p.sum(dim=1)
        acc = acc * alpha[:, None] + p @ b_v
        m = m_new
    lse = (m + torch.log2(l)) * math.log(2)
    return acc / l[:, None], lse


def _walk(qk, v, block_n, step, finish):
    """The loop of the solution around a step (b_qk, m) -> (m_new, alpha, p)."""
    m = qk.new_full((len(qk),), -math.inf)
    l, acc = qk.new_zeros(len(qk)), qk.new_zeros(len(qk), v.shape[1])
    for start in range(0, qk.shape[1], block_n):
        m_new, alpha, p = step(qk[:, start : start + block_n], m)
        l = l * alpha + p.sum(dim=1)
        acc = acc * alpha[:, None] + p @ v[start : start + block_n]
        m = m_new
    return acc / l[:, None], finish(m, l)


def _natural(m, l):
    return (m + torch.log2(l)) * math.log(2)


def _folded(unit, scale_of_maximum=None, alpha=torch.exp2):
    def step(b_qk, m):
        m_new = torch.maximum(m, b_qk.amax(dim=1) * (unit if scale_of_maximum is None else scale_of_maximum))
        return m_new, alpha(m - m_new), torch.exp2(b_qk * unit - m_new[:, None])

    return step


def log2e_forgotten(qk, v, scale, block_n):
    return _walk(qk, v, block_n, _folded(scale), _natural)


def scale_twice(qk, v, scale, block_n):
    return _walk(qk, v, block_n, _folded(scale * scale * LOG2E), _natural)


def scale_forgotten(qk, v, scale, block_n):
    return _walk(qk, v, block_n, _folded(LOG2E), _natural)


def times_ln_two(qk, v, scale, block_n):
    return _walk(qk, v, block_n, _folded(scale * math.log(2)), _natural)


def maximum_in_other_units(qk, v, scale, block_n):
    return _walk(qk, v, block_n, _folded(scale * LOG2E, scale_of_maximum=scale), _natural)


def rescale_in_base_e(qk, v, scale, block_n):
    return _walk(qk, v, block_n, _folded(scale * LOG2E, alpha=torch.exp), _natural)


def lse_left_in_base_two(qk, v, scale, block_n):
    return _walk(qk, v, block_n, _folded(scale * LOG2E), lambda m, l: m + torch.log2(l))


def lse_half_converted(qk, v, scale, block_n):
    return _walk(qk, v, block_n, _folded(scale * LOG2E), lambda m, l: m + torch.log2(l) * math.log(2))


def lse_the_other_way(qk, v, scale, block_n):
    return _walk(qk, v, block_n, _folded(scale * LOG2E), lambda m, l: (m + torch.log2(l)) * LOG2E)


def all_in_base_e(qk, v, scale, block_n):
    def step(b_qk, m):
        m_new = torch.maximum(m, b_qk.amax(dim=1) * scale)
        return m_new, torch.exp(m - m_new), torch.exp(b_qk * scale - m_new[:, None])

    return _walk(qk, v, block_n, step, lambda m, l: m + torch.log(l))


def exp_of_log2_units(qk, v, scale, block_n):
    unit = scale * LOG2E

    def step(b_qk, m):
        m_new = torch.maximum(m, b_qk.amax(dim=1) * unit)
        return m_new, torch.exp(m - m_new), torch.exp(b_qk * unit - m_new[:, None])

    return _walk(qk, v, block_n, step, _natural)


def raw_maximum(qk, v, scale, block_n):
    return _walk(qk, v, block_n, _folded(scale * LOG2E, scale_of_maximum=1.0), _natural)


def _step(unit, maximum=None, alpha=None, exponent=None):
    """The right step, but for what is given."""

    def step(b_qk, m):
        m_new = maximum(m, b_qk * unit) if maximum else torch.maximum(m, b_qk.amax(dim=1) * unit)
        s = exponent(b_qk, m_new) if exponent else b_qk * unit - m_new[:, None]
        return m_new, (alpha(m, m_new) if alpha else torch.exp2(m - m_new)), torch.exp2(s)

    return step


def maximum_of_the_tile_alone(qk, v, scale, block_n):
    return _walk(qk, v, block_n, _step(scale * LOG2E, maximum=lambda m, s: s.amax(dim=1)), _natural)


def maximum_over_all_rows(qk, v, scale, block_n):
    return _walk(qk, v, block_n, _step(scale * LOG2E, maximum=lambda m, s: torch.maximum(m, s.amax())), _natural)


def rescale_upside_down(qk, v, scale, block_n):
    return _walk(qk, v, block_n, _step(scale * LOG2E, alpha=lambda m, m_new: torch.exp2(m_new - m)), _natural)


def rescale_scaled_again(qk, v, scale, block_n):
    unit = scale * LOG2E
    return _walk(qk, v, block_n, _step(unit, alpha=lambda m, m_new: torch.exp2((m - m_new) * unit)), _natural)


def maximum_scaled_again(qk, v, scale, block_n):
    unit = scale * LOG2E
    return _walk(qk, v, block_n, _step(unit, exponent=lambda b_qk, m_new: (b_qk - m_new[:, None]) * unit), _natural)


def lse_other_half_converted(qk, v, scale, block_n):
    return _walk(qk, v, block_n, _folded(scale * LOG2E), lambda m, l: m * math.log(2) + torch.log2(l))


class Exponentials(TorchFunctionMode):
    """``with Exponentials() as used:`` notes by name which exponentials and logarithms a function calls."""

    NAMES = {"exp", "exp_", "expm1", "log", "log_", "log1p", "softmax", "log_softmax", "logsumexp", "logaddexp"}

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in self.NAMES and any(isinstance(arg, torch.Tensor) and arg.numel() > 1 for arg in args):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def _problem(seed, rows, keys, sharp=1.0):
    return sharp * normal(seed, rows, keys), normal(seed + 1, keys, 4)


def _cases(seed, *shapes, scale=0.125, sharp=8.0):
    return [
        Case(f"{rows} rows, {keys} keys, {block} at a time, scale {scale:g}", (*_problem(seed, rows, keys, sharp), scale, block))
        for rows, keys, block in shapes
    ]


def _one_tile():
    return _cases(10, (4, 16, 16))


def _many_tiles():
    return _cases(20, (4, 16, 4), (4, 18, 4), (3, 7, 1))


def _scales():
    return _cases(30, (4, 16, 4), scale=1.0, sharp=1.0) + _cases(32, (4, 16, 8), scale=0.02, sharp=50.0)


def _large():
    return _cases(40, (4, 16, 4), sharp=8e4)


def _base_two_alone(base_two):
    with Exponentials() as used:
        base_two(*_problem(50, 4, 16, 8.0), 0.125, 4)
    if used.found:
        return f"4 rows, 16 keys, 4 at a time: torch.{used.found[0]} was called, {len(used.found)} calls in base e in all"


EXERCISE = Exercise(
    id="05.base_two",
    title="The online softmax in base 2",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Everything that is compared or subtracted must be in the same units: log2 units, unit * (q . k).",
        "m_new = torch.maximum(m, b_qk.amax(dim=1) * unit). alpha and p are exp2 of a difference of two numbers in log2 "
        "units, as they were exp of a difference before.",
        "p = torch.exp2(b_qk * unit - m_new[:, None]): one multiply-add for each score, then one exp2.",
        "m + log2(l) is the lse in log2 units: all of it times ln 2 = math.log(2) is the natural one.",
    ),
    sub_checks=(
        SubCheck("one tile", cases=_one_tile),
        SubCheck("several tiles, the last one short", cases=_many_tiles),
        SubCheck("other scales", cases=_scales),
        SubCheck("scores in the tens of thousands", cases=_large),
        SubCheck("exp2 and log2 alone", test=_base_two_alone),
    ),
    mistakes=(
        Mistake(
            log2e_forgotten,
            "This is softmax in base 2: exp2 was taken of scale * (q . k), without log2(e). It is smooth, sums to 1, and "
            "is a softmax at another temperature: exactly what 0.69 times the scale would give.",
            "exp(x) = exp2(x * ?)",
        ),
        Mistake(
            scale_twice,
            "The scale is in unit already, and was multiplied in once more.",
            "In which lines does scale appear, and in which unit?",
        ),
        Mistake(
            scale_forgotten,
            "log2(e) is there, and the scale is not.",
            "qk is raw. Where does head_dim ** -0.5 come in?",
        ),
        Mistake(
            times_ln_two,
            "The scores were multiplied by ln 2. That is the way back: log2 units times ln 2 are natural ones.",
            "Is exp2(x * 0.69) larger or smaller than exp(x)?",
        ),
        Mistake(
            maximum_in_other_units,
            "m is the largest of scale * (q . k), and is subtracted from numbers in log2 units. For small scores the answer "
            "is right all the same, because any anchor cancels; for large ones exp2 of what is left over overflows.",
            "In which units is m, and in which units is what it is subtracted from?",
        ),
        Mistake(
            rescale_in_base_e,
            "The rescale is exp of a difference in log2 units: earlier tiles are shrunk too much.",
            "m and m_new are in log2 units. Which function undoes a log2?",
        ),
        Mistake(
            exp_of_log2_units,
            "The scores are in log2 units, and exp was taken of them: that is 1.44 times the scale.",
            "unit contains log2(e). Which function goes with it?",
        ),
        Mistake(
            raw_maximum,
            "m is the largest raw product q . k, and is subtracted from unit * (q . k). For small scores the answer is right "
            "all the same, because any anchor cancels; for large ones every weight is 0 in float, and so is l.",
            "Which factor do the scores have that m does not?",
        ),
        Mistake(
            maximum_of_the_tile_alone,
            "The running maximum is lost: m_new is the maximum of this tile alone, or m, which is in log2 units, was "
            "multiplied by unit again. For small scores any anchor cancels; for large ones an exp2 overflows.",
            "Is m_new at least m in every tile, and at least unit * qk?",
        ),
        Mistake(
            maximum_over_all_rows,
            "One maximum for all rows. For small scores any anchor cancels; for large ones a row far below the largest has "
            "only weights of 0, and l = 0.",
            "amax without dim gives one number. How many rows are there?",
        ),
        Mistake(
            rescale_upside_down,
            "alpha is exp2(m_new - m), the inverse of what it should be. In the first tile m is -inf, so it is infinite.",
            "m grows. Do the earlier weights become smaller or larger, measured against the new m?",
        ),
        Mistake(
            rescale_scaled_again,
            "alpha has unit in it once more. m and m_new are in log2 units already.",
            "In which units is m - m_new?",
        ),
        Mistake(
            maximum_scaled_again,
            "p is exp2((qk - m_new) * unit): that multiplies m_new by unit too, and it was in log2 units already.",
            "Which of qk and m_new is raw?",
        ),
        Mistake(
            lse_other_half_converted,
            "Only m was converted. log2(l) is in log2 units as well.",
            "Which of the two terms of m + log2(l) is natural already?",
        ),
        Mistake(
            lse_left_in_base_two,
            "out is right, and lse is left in log2 units: 1.44 times too large. The backward pass and every merge with "
            "another kernel's lse would be wrong.",
            "What is ln(x) if you know log2(x)?",
        ),
        Mistake(
            lse_half_converted,
            "Only log2(l) was converted. m is in log2 units as well.",
            "Which of the two terms of m + log2(l) is natural already?",
        ),
        Mistake(
            lse_the_other_way,
            "lse was multiplied by log2(e): that is the way into log2 units, and it was in them already.",
            "ln(8) = 2.08 and log2(8) = 3. Which factor leads from 3 to 2.08?",
        ),
        Mistake(
            all_in_base_e,
            "The answer is right, and it is lesson 02's: exp and log in base e. A GPU has exp2 only and multiplies by "
            "log2(e) each time.",
            "Which of your lines call torch.exp or torch.log?",
        ),
    ),
    keep="Fold scale * log2(e) into one multiply-add, stay in log2 units inside, leave with (m + log2(l)) * ln 2.",
)
