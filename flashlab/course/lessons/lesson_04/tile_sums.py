"""04.tile_sums: where the elements of a tile lie. One line is left to fill in."""

import torch
import triton
import triton.language as tl

from flashlab.course.lessons.in_triton import TOLERANCE, guarded, matrix, moves
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(x, block_m, block_n):
    m, n = x.shape
    return x.reshape(m // block_m, block_m, n // block_n, block_n).sum(dim=(1, 3))


@triton.jit
def stub_kernel(p_x, p_y, stride_m, stride_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    i, j = tl.program_id(0), tl.program_id(1)
    rows = i * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = j * BLOCK_N + tl.arange(0, BLOCK_N)
    offsets = ...  # your line: (BLOCK_M, BLOCK_N), from rows, cols, stride_m and stride_n
    b_x = tl.load(p_x + offsets)
    tl.store(p_y + i * tl.num_programs(1) + j, tl.sum(b_x))


def stub(x, block_m, block_n):
    """x: (m, n) float32, any strides. Returns the sum of each block_m x block_n tile: (m / block_m, n / block_n)."""
    grid = (x.shape[0] // block_m, x.shape[1] // block_n)
    y = torch.full(grid, float("nan"), device=x.device)  # NaN: what no program writes will show
    stub_kernel[grid](x, y, x.stride(0), x.stride(1), block_m, block_n)
    return y


@triton.jit
def solution_kernel(p_x, p_y, stride_m, stride_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    i, j = tl.program_id(0), tl.program_id(1)
    rows = i * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = j * BLOCK_N + tl.arange(0, BLOCK_N)
    offsets = rows[:, None] * stride_m + cols[None, :] * stride_n
    b_x = tl.load(p_x + offsets)
    tl.store(p_y + i * tl.num_programs(1) + j, tl.sum(b_x))


def solution(x, block_m, block_n):
    """x: (m, n) float32, any strides. Returns the sum of each block_m x block_n tile: (m / block_m, n / block_n)."""
    grid = (x.shape[0] // block_m, x.shape[1] // block_n)
    y = torch.full(grid, float("nan"), device=x.device)  # NaN: what no program writes will show
    solution_kernel[grid](x, y, x.stride(0), x.stride(1), block_m, block_n)
    return y


@triton.jit
def _wrong_kernel(p_x, p_y, stride_m, stride_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WHICH: tl.constexpr):
    """The solution with one of seven wrong lines."""
    i, j = tl.program_id(0), tl.program_id(1)
    rows = i * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = j * BLOCK_N + tl.arange(0, BLOCK_N)
    if WHICH == 0:
        offsets = rows[:, None] * stride_n + cols[None, :] * stride_m
    elif WHICH == 1:
        offsets = rows[:, None] * stride_m + cols[None, :]
    elif WHICH == 2:
        offsets = rows[:, None] + cols[None, :] * stride_n
    elif WHICH == 3:
        offsets = rows[:, None] * (tl.num_programs(1) * BLOCK_N) + cols[None, :]
    elif WHICH == 4:
        offsets = rows * stride_m + cols * stride_n
    elif WHICH == 5:
        offsets = tl.arange(0, BLOCK_M)[:, None] * stride_m + tl.arange(0, BLOCK_N)[None, :] * stride_n
    else:
        offsets = (i * BLOCK_M + rows)[:, None] * stride_m + (j * BLOCK_N + cols)[None, :] * stride_n
    tl.store(p_y + i * tl.num_programs(1) + j, tl.sum(tl.load(p_x + offsets)))


def _launch(x, block_m, block_n, which):
    grid = (x.shape[0] // block_m, x.shape[1] // block_n)
    y = torch.full(grid, float("nan"), device=x.device)
    _wrong_kernel[grid](x, y, x.stride(0), x.stride(1), block_m, block_n, which)
    return y


def strides_swapped(x, block_m, block_n):
    return _launch(x, block_m, block_n, 0)


def column_stride_forgotten(x, block_m, block_n):
    return _launch(x, block_m, block_n, 1)


def row_stride_forgotten(x, block_m, block_n):
    return _launch(x, block_m, block_n, 2)


def width_for_stride(x, block_m, block_n):
    return _launch(x, block_m, block_n, 3)


def diagonal_only(x, block_m, block_n):
    return _launch(x, block_m, block_n, 4)


def first_tile_always(x, block_m, block_n):
    return _launch(x, block_m, block_n, 5)


def begin_added_twice(x, block_m, block_n):
    return _launch(x, block_m, block_n, 6)


def _one_tile():
    return [Case("one tile of 4 x 8", (matrix(1, 4, 8, gap=0), 4, 8), TOLERANCE)]


def _square():
    return [Case("8 x 16 in tiles of 4 x 4", (matrix(2, 8, 16, gap=0), 4, 4), TOLERANCE)]


def _gap():
    return [Case("8 x 16 in tiles of 4 x 8, rows 19 apart", (matrix(3, 8, 16, between=1000.0), 4, 8), TOLERANCE)]


def _transposed():
    return [Case("a transposed 16 x 8 in tiles of 2 x 4", (matrix(4, 8, 16).T, 2, 4), TOLERANCE)]


def _arguments():
    return "8 x 16 in tiles of 4 x 4", (matrix(5, 8, 16, device="cpu"), 4, 4)


EXERCISE = Exercise(
    id="04.tile_sums",
    title="Where the elements of a tile lie",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Element (r, c) lies r * stride_m + c * stride_n elements behind the first one. Say it for one r and one c "
        "first.",
        "rows has shape (BLOCK_M,), cols has (BLOCK_N,). As in PyTorch, [:, None] makes a column of one and [None, "
        ":] a row of the other; their sum is a tile.",
        "rows[:, None] * stride_m is the first half.",
    ),
    sub_checks=(
        SubCheck("one tile", cases=_one_tile),
        SubCheck("several square tiles", cases=_square),
        SubCheck("rows that lie farther apart than they are wide", cases=_gap),
        SubCheck("a transposed view, whose columns are the far ones", cases=_transposed),
        SubCheck("each element is loaded once, and none outside", test=moves(_arguments, {"x": 512}, {"y": 32})),
    ),
    mistakes=(
        Mistake(
            strides_swapped,
            "The strides are swapped: a step to the next row moves by stride_n, a step to the next column by stride_m.",
            "In a row-major matrix, which of the two strides is 1? Which step should be that short?",
        ),
        Mistake(
            column_stride_forgotten,
            "stride_n is missing: columns are taken to lie side by side. In a transposed view they do not.",
            "What is x.T.stride()?",
        ),
        Mistake(
            row_stride_forgotten,
            "stride_m is missing: the next row is taken to begin one element after this one.",
            "How many elements lie between x[0, 0] and x[1, 0]?",
        ),
        Mistake(
            width_for_stride,
            "The row is taken to be as long as the matrix is wide. A view of some columns of a wider matrix has its "
            "rows farther apart.",
            "Which of the kernel's arguments says how far apart rows really lie?",
        ),
        Mistake(
            diagonal_only,
            "rows and cols were added entry by entry: that is the diagonal of the tile, and with BLOCK_M not equal to "
            "BLOCK_N no tile at all.",
            "What is the shape of your offsets, and which index makes a column of rows?",
        ),
        Mistake(
            first_tile_always,
            "Every program sums the first tile: neither i nor j is in the offsets.",
            "Two lines above yours, rows and cols hold what differs from program to program. Are they used?",
        ),
        Mistake(
            begin_added_twice,
            "The tile's first row and column are added twice: rows and cols contain them already.",
            "What is rows in program (1, 0), with BLOCK_M = 4?",
        ),
    ),
    keep="A tile is a tile of pointers: base + rows[:, None] * stride_m + cols[None, :] * stride_n.",
    within=guarded,
)
