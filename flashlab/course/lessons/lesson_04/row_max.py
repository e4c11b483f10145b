"""04.row_max: a kernel that reads what is not its own. The reader repairs its mask."""

import torch
import triton
import triton.language as tl

from flashlab.course.lessons.in_triton import TOLERANCE, guarded, matrix, moves, unwritten
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(x, block_m):
    return x.amax(dim=1)


@triton.jit
def stub_kernel(p_x, p_y, stride, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The maxima of BLOCK_M rows. Something is wrong with its memory: repair it. n <= BLOCK_N."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_N)
    inside = (cols <= n)[None, :]
    b_x = tl.load(p_x + rows[:, None] * stride + cols[None, :], mask=inside, other=float("-inf"))
    tl.store(p_y + rows, tl.max(b_x, axis=1), mask=rows < m)


def stub(x, block_m):
    """x: (m, n) float32, rows contiguous. Returns the maximum of each row, (m,). block_m rows a program."""
    m, n = x.shape
    y = torch.full((m,), float("nan"), device=x.device)
    grid = (triton.cdiv(m, block_m),)
    stub_kernel[grid](x, y, x.stride(0), m, n, BLOCK_M=block_m, BLOCK_N=triton.next_power_of_2(n))
    return y


@triton.jit
def solution_kernel(p_x, p_y, stride, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The maxima of BLOCK_M rows. n <= BLOCK_N."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_N)
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    b_x = tl.load(p_x + rows[:, None] * stride + cols[None, :], mask=inside, other=float("-inf"))
    tl.store(p_y + rows, tl.max(b_x, axis=1), mask=rows < m)


def solution(x, block_m):
    """x: (m, n) float32, rows contiguous. Returns the maximum of each row, (m,). block_m rows a program."""
    m, n = x.shape
    y = torch.full((m,), float("nan"), device=x.device)
    grid = (triton.cdiv(m, block_m),)
    solution_kernel[grid](x, y, x.stride(0), m, n, BLOCK_M=block_m, BLOCK_N=triton.next_power_of_2(n))
    return y


@triton.jit
def _wrong_kernel(p_x, p_y, stride, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WHICH: tl.constexpr):
    """The solution with one of eight mistakes."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_N)
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    if WHICH == 0:
        inside = (cols < n)[None, :]
    elif WHICH == 1:
        inside = (rows < m)[:, None] & (cols <= n)[None, :]
    elif WHICH == 2:
        inside = (rows < m)[:, None] | (cols < n)[None, :]
    elif WHICH == 3:
        inside = (rows <= m)[:, None] & (cols < n)[None, :]
    elif WHICH == 6:
        inside = (rows < m)[:, None]
    elif WHICH == 7:
        inside = cols[None, :] < n & rows[:, None] < m
    other = 0.0 if WHICH == 4 else float("-inf")
    b_x = tl.load(p_x + rows[:, None] * stride + cols[None, :], mask=inside, other=other)
    if WHICH == 5:
        tl.store(p_y + rows, tl.max(b_x, axis=1))
    else:
        tl.store(p_y + rows, tl.max(b_x, axis=1), mask=rows < m)


def _launch(x, block_m, which):
    m, n = x.shape
    y = unwritten(m, device=x.device)
    _wrong_kernel[(triton.cdiv(m, block_m),)](x, y, x.stride(0), m, n, block_m, triton.next_power_of_2(n), which)
    return y


def rows_not_masked(x, block_m):
    return _launch(x, block_m, 0)


def one_column_too_many(x, block_m):
    return _launch(x, block_m, 1)


def masks_joined_with_or(x, block_m):
    return _launch(x, block_m, 2)


def one_row_too_many(x, block_m):
    return _launch(x, block_m, 3)


def other_is_zero(x, block_m):
    return _launch(x, block_m, 4)


def store_mask_dropped(x, block_m):
    return _launch(x, block_m, 5)


def columns_not_masked(x, block_m):
    return _launch(x, block_m, 6)


def brackets_forgotten(x, block_m):
    return _launch(x, block_m, 7)


def _fits():
    return [Case("8 rows of 16, 4 a program", (matrix(1, 8, 16, between=1000.0), 4), TOLERANCE)]


def _width():
    """The entry behind each row is larger than any in it: the next row's first."""
    x = matrix(2, 8, 13, gap=0)
    x[:, 0] += 10.0
    return [Case("8 rows of 13, 4 a program, each row's first entry large", (x, 4), TOLERANCE)]


def _below_zero():
    return [Case("8 rows of 13, all entries negative", (matrix(3, 8, 13, gap=0).sub_(9.0), 4), TOLERANCE)]


def _height():
    return [Case("7 rows of 16, 4 a program", (matrix(4, 7, 16, between=1000.0), 4), TOLERANCE)]


def _arguments():
    return "6 rows of 13, 4 a program", (matrix(5, 6, 13, gap=0, device="cpu"), 4)


EXERCISE = Exercise(
    id="04.row_max",
    title="Find what is read out of bounds",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "A tile has two edges. For each of rows and cols ask: which is the last one that exists, and is the next "
        "one off?",
        "The last column is n - 1. And with 7 rows, 4 a program, which rows does program 1 take?",
        "Two masks make a tile of masks as two offsets make a tile of offsets: (...)[:, None] & (...)[None, :].",
    ),
    sub_checks=(
        SubCheck("tiles that fit", cases=_fits),
        SubCheck("rows narrower than the block", cases=_width),
        SubCheck("entries below zero", cases=_below_zero),
        SubCheck("fewer rows than the last program has", cases=_height),
        SubCheck("each element is loaded once, and none outside", test=moves(_arguments, {"x": 312}, {"y": 24})),
    ),
    mistakes=(
        Mistake(
            rows_not_masked,
            "The results are right, and yet rows are loaded that do not exist: their maxima are thrown away at the "
            "store. On a GPU such a load may end the whole process.",
            "The store knows rows < m. Does the load?",
        ),
        Mistake(
            one_column_too_many,
            "Column n is still loaded: it is the first entry of the next row. That shows only where it is the largest.",
            "The columns of a row of n are 0, 1, ..., and the last one is?",
        ),
        Mistake(
            masks_joined_with_or,
            "The two masks are joined with |: a lane is on if its row exists *or* its column does.",
            "What must be true of an element that exists: one of the two, or both?",
        ),
        Mistake(
            columns_not_masked,
            "Only the rows are masked. (Did you write `and`? Between two tiles Python's `and` gives the second one, whole.)",
            "Which sign joins two masks lane by lane?",
        ),
        Mistake(
            brackets_forgotten,
            "Brackets are missing. & binds tighter than <: a < n & b < m means a < (n & b) < m.",
            "Where must brackets stand, so that both comparisons come first?",
        ),
        Mistake(
            one_row_too_many,
            "Row m is still loaded: the results are right, since it is not stored, but it is not yours to read.",
            "The rows of a matrix of m are 0, 1, ..., and the last one is?",
        ),
        Mistake(
            other_is_zero,
            "The lanes that are off hold 0, which is larger than any entry of a row below zero.",
            "Which number never wins a maximum?",
        ),
        Mistake(
            store_mask_dropped,
            "The load is in order, but the store has lost its mask: the last program writes behind the end of y.",
            "How many results does the last program have, and how many lanes?",
        ),
    ),
    keep="A right result does not prove a right kernel: an access outside shows only where somebody watches memory.",
    within=guarded,
)
