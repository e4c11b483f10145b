"""04.row_sums: rows whose length is no power of two. The mask and the load are left to fill in."""

import torch
import triton
import triton.language as tl

from flashlab.course.lessons.in_triton import TOLERANCE, guarded, matrix, moves
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(x):
    return x.sum(dim=1)


@triton.jit
def stub_kernel(p_x, p_y, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)  # BLOCK is a power of two, n need not be: n <= BLOCK
    inside = ...  # your line: which of the lanes stand for an element of this row
    b_x = ...  # your line: load them
    tl.store(p_y + row, tl.sum(b_x, axis=0))


def stub(x):
    """x: (m, n) float32, rows contiguous. Returns the sum of each row, (m,). One program a row."""
    m, n = x.shape
    y = torch.full((m,), float("nan"), device=x.device)
    stub_kernel[(m,)](x, y, x.stride(0), n, BLOCK=triton.next_power_of_2(n))
    return y


@triton.jit
def solution_kernel(p_x, p_y, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)  # BLOCK is a power of two, n need not be: n <= BLOCK
    inside = cols < n
    b_x = tl.load(p_x + row * stride + cols, mask=inside, other=0.0)
    tl.store(p_y + row, tl.sum(b_x, axis=0))


def solution(x):
    """x: (m, n) float32, rows contiguous. Returns the sum of each row, (m,). One program a row."""
    m, n = x.shape
    y = torch.full((m,), float("nan"), device=x.device)
    solution_kernel[(m,)](x, y, x.stride(0), n, BLOCK=triton.next_power_of_2(n))
    return y


@triton.jit
def _wrong_kernel(p_x, p_y, stride, n, BLOCK: tl.constexpr, WHICH: tl.constexpr):
    """The solution with one of nine wrong loads."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    pointers = p_x + row * stride + cols
    if WHICH == 0:
        b_x = tl.load(pointers)
    elif WHICH == 1:
        b_x = tl.load(pointers, mask=cols <= n, other=0.0)
    elif WHICH == 2:
        b_x = tl.load(pointers, mask=cols < stride, other=0.0)
    elif WHICH == 3:
        b_x = tl.load(pointers, mask=cols < n, other=float("-inf"))
    elif WHICH == 4:
        b_x = tl.load(p_x + row * n + cols, mask=cols < n, other=0.0)
    elif WHICH == 5:
        b_x = tl.load(p_x + cols, mask=cols < n, other=0.0)
    elif WHICH == 6:
        b_x = tl.load(pointers, mask=cols < n)
    elif WHICH == 7:
        b_x = tl.load(pointers, mask=row * stride + cols < n, other=0.0)
    else:
        b_x = tl.load(p_x + row * BLOCK + cols, mask=cols < n, other=0.0)
    tl.store(p_y + row, tl.sum(b_x, axis=0))


def _launch(x, which):
    m, n = x.shape
    y = torch.full((m,), float("nan"), device=x.device)
    _wrong_kernel[(m,)](x, y, x.stride(0), n, triton.next_power_of_2(n), which)
    return y


def mask_forgotten(x):
    return _launch(x, 0)


def one_too_many(x):
    return _launch(x, 1)


def stride_for_width(x):
    return _launch(x, 2)


def minus_infinity(x):
    return _launch(x, 3)


def width_for_stride(x):
    return _launch(x, 4)


def first_row_always(x):
    return _launch(x, 5)


def other_forgotten(x):
    return _launch(x, 6)


def offsets_compared(x):
    return _launch(x, 7)


def block_for_stride(x):
    return _launch(x, 8)


def cases(seed: int, *widths: int, rows: int = 3, gap: int = 3) -> list[Case]:
    """One case a width; the rows lie ``gap`` large numbers apart."""
    return [
        Case(f"{rows} rows of {n}, {n + gap} apart", (matrix(seed + n, rows, n, gap, between=1000.0),), TOLERANCE)
        for n in widths
    ]


def _arguments():
    return "5 rows of 33", (matrix(7, 5, 33, device="cpu"),)


EXERCISE = Exercise(
    id="04.row_sums",
    title="Rows whose length is no power of two",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "A row of 33 gets BLOCK = 64 lanes. Lanes 0 to 32 stand for an element, 33 to 63 for nothing: compare cols "
        "with n.",
        "The pointers are p_x + row * stride + cols. tl.load takes mask= and other=: what a lane holds that is off.",
        "Which number may be added to a sum as often as one likes without changing it?",
    ),
    sub_checks=(
        SubCheck("rows that fill the block", cases=lambda: cases(100, 16, 64, gap=0)),
        SubCheck("rows one longer and one shorter than a power of two", cases=lambda: cases(200, 17, 31, 33, 127)),
        SubCheck("rows of one element", cases=lambda: cases(300, 1)),
        SubCheck("each element is loaded once, and none outside", test=moves(_arguments, {"x": 660}, {"y": 20})),
    ),
    mistakes=(
        Mistake(
            mask_forgotten,
            "There is no mask: the lanes behind the end of the row load what lies there, and it is added to the sum.",
            "With n = 17 and BLOCK = 32, which addresses do lanes 17 to 31 load?",
        ),
        Mistake(
            one_too_many,
            "One lane too many is on: the element behind the last one is added.",
            "The columns of a row of n are 0, 1, ..., and the last one is?",
        ),
        Mistake(
            stride_for_width,
            "The mask ends where the next row begins, not where this one ends: the gap between them is added.",
            "Which argument says how many elements a row has, and which how far apart two rows lie?",
        ),
        Mistake(
            minus_infinity,
            "The lanes that are off hold -inf, so the sum is -inf: -inf is the neutral element of a maximum.",
            "Which number changes nothing when it is added?",
        ),
        Mistake(
            width_for_stride,
            "The rows are taken to lie n elements apart. In a view they lie stride apart.",
            "Compare x.stride(0) with x.shape[1] in the failing case.",
        ),
        Mistake(
            first_row_always,
            "Every program sums the first row.",
            "What in your pointers differs from one program to the next?",
        ),
        Mistake(
            other_forgotten,
            "other= is missing. A lane that is off then holds anything; the checks put NaN there, so that it shows.",
            "What should tl.load(..., mask=inside, other=...) put where inside is False?",
        ),
        Mistake(
            offsets_compared,
            "The whole offset is compared with n. n is the length of one row: from the second row on no lane is on.",
            "Which of your numbers begins at 0 in every row?",
        ),
        Mistake(
            block_for_stride,
            "The rows are taken to lie BLOCK elements apart, as if they had been padded in memory.",
            "Which argument says how far apart two rows lie?",
        ),
    ),
    keep="BLOCK is a power of two, the data is not: mask what is too much, and let it hold the neutral element.",
    within=guarded,
)
