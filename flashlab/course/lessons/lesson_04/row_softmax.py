"""04.row_softmax: softmax of each row, in one program a row."""

import torch
import triton
import triton.language as tl

from flashlab.course.lessons.in_triton import TOLERANCE, guarded, matrix, moves, unwritten
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(x):
    return torch.softmax(x, dim=1)


@triton.jit
def stub_kernel(p_x, p_y, stride_x, stride_y, n, BLOCK: tl.constexpr):
    """One program a row: load it, subtract its maximum, exp, divide by the sum, store it. n <= BLOCK."""
    ...  # your kernel


def stub(x):
    """x: (m, n) float32, rows contiguous. Returns softmax of each row, (m, n)."""
    m, n = x.shape
    y = torch.full((m, n), float("nan"), device=x.device)
    stub_kernel[(m,)](x, y, x.stride(0), y.stride(0), n, BLOCK=triton.next_power_of_2(n))
    return y


@triton.jit
def solution_kernel(p_x, p_y, stride_x, stride_y, n, BLOCK: tl.constexpr):
    """One program a row: load it, subtract its maximum, exp, divide by the sum, store it. n <= BLOCK."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    inside = cols < n
    b_x = tl.load(p_x + row * stride_x + cols, mask=inside, other=float("-inf"))
    b_e = tl.exp(b_x - tl.max(b_x, axis=0))
    b_y = b_e / tl.sum(b_e, axis=0)
    tl.store(p_y + row * stride_y + cols, b_y, mask=inside)


def solution(x):
    """x: (m, n) float32, rows contiguous. Returns softmax of each row, (m, n)."""
    m, n = x.shape
    y = torch.full((m, n), float("nan"), device=x.device)
    solution_kernel[(m,)](x, y, x.stride(0), y.stride(0), n, BLOCK=triton.next_power_of_2(n))
    return y


@triton.jit
def _wrong_kernel(p_x, p_y, stride_x, stride_y, n, BLOCK: tl.constexpr, WHICH: tl.constexpr):
    """The solution with one of eleven mistakes."""
    row = tl.program_id(0)
    if WHICH == 7:
        row = tl.program_id(1)
    cols = tl.arange(0, BLOCK)
    inside = row * BLOCK + cols < n if WHICH == 9 else cols < n
    begin_x, begin_y = row * stride_x, row * stride_y
    if WHICH == 4:
        begin_x = row * n
    if WHICH == 5:
        begin_y = row * stride_x
    if WHICH == 0:
        b_x = tl.load(p_x + begin_x + cols, mask=inside, other=0.0)
    elif WHICH == 1:
        b_x = tl.load(p_x + begin_x + cols)
    elif WHICH == 8:
        b_x = tl.load(p_x + begin_x + cols, mask=inside)
    else:
        b_x = tl.load(p_x + begin_x + cols, mask=inside, other=float("-inf"))
    b_e = tl.exp(b_x) if WHICH == 3 else tl.exp(b_x - tl.max(b_x, axis=0))
    b_y = b_e if WHICH == 6 else b_e / tl.sum(b_e, axis=0)
    if WHICH == 2:
        tl.store(p_y + begin_y + cols, b_y)
    elif WHICH != 10:
        tl.store(p_y + begin_y + cols, b_y, mask=inside)


def _launch(x, which):
    m, n = x.shape
    y = unwritten(m, n, device=x.device)
    _wrong_kernel[(m,)](x, y, x.stride(0), y.stride(0), n, triton.next_power_of_2(n), which)
    return y


def other_is_zero(x):
    return _launch(x, 0)


def mask_forgotten_on_load(x):
    return _launch(x, 1)


def mask_forgotten_on_store(x):
    return _launch(x, 2)


def maximum_not_subtracted(x):
    return _launch(x, 3)


def width_for_stride(x):
    return _launch(x, 4)


def stride_of_x_for_y(x):
    return _launch(x, 5)


def not_divided(x):
    return _launch(x, 6)


def wrong_axis_of_the_grid(x):
    return _launch(x, 7)


def other_forgotten(x):
    return _launch(x, 8)


def one_row_over_all_programs(x):
    return _launch(x, 9)


def not_stored(x):
    return _launch(x, 10)


def _cases(seed, *widths, rows=3, gap=0, factor=1.0, shift=0.0):
    """One case a width. Scaled in place, so that the NaN around stay where they are."""
    apart = f", {widths[0] + gap} apart" if gap else ""
    return [
        Case(f"{rows} rows of {n}{apart}", (matrix(seed + n, rows, n, gap, between=50.0).mul_(factor).add_(shift),), TOLERANCE)
        for n in widths
    ]


def _arguments():
    return "5 rows of 129", (matrix(9, 5, 129, device="cpu"),)


EXERCISE = Exercise(
    id="04.row_softmax",
    title="Softmax of each row",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Five steps: which row (tl.program_id(0)), which columns (tl.arange(0, BLOCK)), which lanes are inside "
        "(cols < n), load, compute, store.",
        "tl.max(b_x, axis=0) and tl.sum(b_e, axis=0) are the row's maximum and sum; tl.exp works on the whole row "
        "at once.",
        "A lane that is off must count for nothing in the maximum *and* in the sum. What must it hold, so that exp "
        "makes a 0 of it?",
        'Load with mask=cols < n, other=float("-inf"), and store with the same mask.',
    ),
    sub_checks=(
        SubCheck("rows that fill the block", cases=lambda: _cases(100, 16, 64)),
        SubCheck("rows of any length", cases=lambda: _cases(200, 1, 17, 31, 33, 127, 129)),
        SubCheck("all entries far below zero", cases=lambda: _cases(300, 33, shift=-50.0)),
        SubCheck("large entries do not overflow", cases=lambda: _cases(400, 33, factor=100.0)),
        SubCheck("rows that lie farther apart than they are wide", cases=lambda: _cases(500, 17, gap=5)),
        SubCheck(
            "each element is loaded once and stored once, and none outside",
            test=moves(_arguments, {"x": 2580}, {"y": 2580}),
        ),
    ),
    mistakes=(
        Mistake(
            other_is_zero,
            "The lanes that are off hold 0, and exp makes a weight of it: the sum is too large. With entries far "
            "below zero the row vanishes beside it.",
            "Which value of x gives exp(x - max) = 0?",
        ),
        Mistake(
            mask_forgotten_on_load,
            "The load has no mask: the row's maximum and sum take in what lies behind it, the next row or worse.",
            "With n = 17 and BLOCK = 32, which addresses do lanes 17 to 31 load?",
        ),
        Mistake(
            mask_forgotten_on_store,
            "The store has no mask: a program writes on into the next row. One after another that does not show, "
            "because the next program writes its own row afterwards; on a GPU they run at the same time, and "
            "whoever comes last wins.",
            "Which lanes may write, and does your tl.store know?",
        ),
        Mistake(
            maximum_not_subtracted,
            "The maximum is not subtracted. exp(89) is more than float32 can hold; far below zero everything "
            "becomes 0 and 0 / 0 is NaN.",
            "Lesson 02: which number may be subtracted from all entries, and which one is safe?",
        ),
        Mistake(
            width_for_stride,
            "The rows of x are taken to lie n elements apart. In a view they lie stride_x apart.",
            "Compare x.stride(0) with x.shape[1] in the failing case.",
        ),
        Mistake(
            stride_of_x_for_y,
            "y is written with the strides of x. The two tensors need not lie alike.",
            "The launcher passes two strides. Where is each used?",
        ),
        Mistake(
            not_divided,
            "These are the exponentials, not yet divided by their sum.",
            "What should each row of the result add up to?",
        ),
        Mistake(
            wrong_axis_of_the_grid,
            "Every program worked on row 0, and only that one was written. The grid is (m,): tl.program_id(0) is the row, "
            "program_id(1) is always 0.",
            "Does the row's number come from tl.program_id(0), and does it stand in both pointers?",
        ),
        Mistake(
            one_row_over_all_programs,
            "Only row 0 is there. cols = row * BLOCK + arange spreads *one* row over all programs, as double_kernel does: "
            "from program 1 on nothing is below n.",
            "Which part of the offset should a mask compare with n, the one that begins at 0 in every row or the whole?",
        ),
        Mistake(
            other_forgotten,
            "other= is missing on the load. A lane that is off then holds anything; the checks put NaN there, so that it "
            "shows.",
            "Which value of x gives exp(x - max) = 0?",
        ),
        Mistake(
            not_stored,
            "Nothing was stored: y is as the launcher made it, NaN. A kernel returns nothing.",
            "Which line brings your result to p_y?",
        ),
    ),
    keep="A row that fits into one program is read once and written once: softmax needs no second pass over memory.",
    within=guarded,
)
