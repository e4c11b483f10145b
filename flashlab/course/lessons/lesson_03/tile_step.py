"""03.tile_step: one tile of keys and values against one tile of queries. One line is left to fill in."""

import math

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(b_q, b_k, b_v, m, l, acc):
    b_s = b_q @ b_k.T * b_q.shape[1] ** -0.5
    m_new = torch.maximum(m, b_s.amax(dim=1))
    l = l * torch.exp(m) + torch.exp(b_s).sum(dim=1)  # the plain sums, measured against nothing ...
    acc = acc * torch.exp(m)[:, None] + torch.exp(b_s) @ b_v
    l, acc = l * torch.exp(-m_new), acc * torch.exp(-m_new)[:, None]  # ... then against m_new
    return m_new, l, acc


def stub(b_q, b_k, b_v, m, l, acc):
    """b_q: (BLOCK_M, head_dim), b_k: (BLOCK_N, head_dim), b_v: (BLOCK_N, head_dim_v).

    m, l: (BLOCK_M,), acc: (BLOCK_M, head_dim_v): what the earlier tiles left. Returns the new m, l and acc.
    """
    b_s = b_q @ b_k.T * b_q.shape[1] ** -0.5
    m_new = torch.maximum(m, b_s.amax(dim=1))
    rescale = torch.exp(m - m_new)
    b_p = torch.exp(b_s - m_new[:, None])
    l = l * rescale + b_p.sum(dim=1)
    acc = ...  # your line
    return m_new, l, acc


def solution(b_q, b_k, b_v, m, l, acc):
    """b_q: (BLOCK_M, head_dim), b_k: (BLOCK_N, head_dim), b_v: (BLOCK_N, head_dim_v).

    m, l: (BLOCK_M,), acc: (BLOCK_M, head_dim_v): what the earlier tiles left. Returns the new m, l and acc.
    """
    b_s = b_q @ b_k.T * b_q.shape[1] ** -0.5
    m_new = torch.maximum(m, b_s.amax(dim=1))
    rescale = torch.exp(m - m_new)
    b_p = torch.exp(b_s - m_new[:, None])
    l = l * rescale + b_p.sum(dim=1)
    acc = acc * rescale[:, None] + b_p @ b_v
    return m_new, l, acc


def _parts(b_q, b_k, m):
    b_s = b_q @ b_k.T * b_q.shape[1] ** -0.5
    m_new = torch.maximum(m, b_s.amax(dim=1))
    return m_new, torch.exp(m - m_new), torch.exp(b_s - m_new[:, None])


def acc_not_rescaled(b_q, b_k, b_v, m, l, acc):
    m_new, rescale, b_p = _parts(b_q, b_k, m)
    return m_new, l * rescale + b_p.sum(dim=1), acc + b_p @ b_v


def rescale_along_columns(b_q, b_k, b_v, m, l, acc):
    m_new, rescale, b_p = _parts(b_q, b_k, m)
    return m_new, l * rescale + b_p.sum(dim=1), acc * rescale + b_p @ b_v


def new_part_rescaled_too(b_q, b_k, b_v, m, l, acc):
    m_new, rescale, b_p = _parts(b_q, b_k, m)
    return m_new, l * rescale + b_p.sum(dim=1), (acc + b_p @ b_v) * rescale[:, None]


def products_elementwise(b_q, b_k, b_v, m, l, acc):
    m_new, rescale, b_p = _parts(b_q, b_k, m)
    return m_new, l * rescale + b_p.sum(dim=1), acc * rescale[:, None] + b_p * b_v


def new_part_divided(b_q, b_k, b_v, m, l, acc):
    m_new, rescale, b_p = _parts(b_q, b_k, m)
    l = l * rescale + b_p.sum(dim=1)
    return m_new, l, acc * rescale[:, None] + b_p @ b_v / l[:, None]


def divided_by_l(b_q, b_k, b_v, m, l, acc):
    m_new, rescale, b_p = _parts(b_q, b_k, m)
    l = l * rescale + b_p.sum(dim=1)
    return m_new, l, (acc * rescale[:, None] + b_p @ b_v) / l[:, None]


def old_values_forgotten(b_q, b_k, b_v, m, l, acc):
    m_new, rescale, b_p = _parts(b_q, b_k, m)
    return m_new, l * rescale + b_p.sum(dim=1), b_p @ b_v


def _tiles(seed, block_m=4, block_n=3, head_dim=8, head_dim_v=5):
    return normal(seed, block_m, head_dim), normal(seed + 1, block_n, head_dim), normal(seed + 2, block_n, head_dim_v)


def _state(seed, m, block_m=4, head_dim_v=5):
    """A state as an earlier tile would have left it, with running maximum m in every row."""
    m = torch.full((block_m,), float(m), dtype=torch.float64)
    return m, 1 + normal(seed, block_m).abs(), normal(seed + 1, block_m, head_dim_v)


def _first():
    nothing = torch.zeros(4, dtype=torch.float64)
    return [Case("m = -inf, l = 0, acc = 0", (*_tiles(10), nothing - math.inf, nothing, torch.zeros(4, 5).double()))]


def _stands():
    return [Case("m = 9 before, all new scores smaller", (*_tiles(20), *_state(25, 9)))]


def _grows():
    return [Case("m = -2 before, new scores larger", (*_tiles(30), *_state(35, -2)))]


def _square():
    args = (*_tiles(40, 4, 4, 4, 4), *_state(45, -1, 4, 4))
    return [Case("BLOCK_M = BLOCK_N = head_dim = 4", args)]


EXERCISE = Exercise(
    id="03.tile_step",
    title="One tile against one tile",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Lesson 02, one row: acc = acc * rescale + p @ v. Now there are BLOCK_M rows, and each has its own rescale.",
        "rescale has shape (BLOCK_M,), acc has shape (BLOCK_M, head_dim_v). A bare product lines rescale up with the "
        "columns; rescale[:, None] lines it up with the rows.",
    ),
    sub_checks=(
        SubCheck("the first tile", cases=_first),
        SubCheck("the maximum stands: nothing is rescaled", cases=_stands),
        SubCheck("the maximum grows", cases=_grows),
        SubCheck("square tiles, where a wrong broadcast does not raise", cases=_square),
    ),
    mistakes=(
        Mistake(
            acc_not_rescaled,
            "This is what comes out when acc is not rescaled: right for the first tile and wherever the maximum "
            "stands, wrong as soon as it grows.",
            "l got the factor rescale. acc is a sum over the same exponentials: what does it need?",
        ),
        Mistake(
            rescale_along_columns,
            "rescale, of shape (BLOCK_M,), was lined up with the columns of acc instead of its rows. PyTorch refuses, "
            "unless BLOCK_M = head_dim_v: then it is silently wrong.",
            "Which of acc's two dimensions counts query rows? Which one does a bare rescale line up with?",
        ),
        Mistake(
            new_part_rescaled_too,
            "This is what comes out when the new part is rescaled as well. In the first tile the factor is exp(-inf) "
            "= 0 and everything is lost.",
            "Against which maximum was b_p measured when it was made?",
        ),
        Mistake(
            products_elementwise,
            "b_p * b_v multiplies entry by entry. Each row of acc wants the sum over the tile's keys, weight times "
            "value: a matrix product.",
            "b_p is (BLOCK_M, BLOCK_N) and b_v (BLOCK_N, head_dim_v). Which dimension has to go?",
        ),
        Mistake(
            new_part_divided,
            "This is what comes out when the new part is divided by l and the old one is not. l is not final yet: "
            "later tiles add to it.",
            "How many tiles are still to come, and when is l final?",
        ),
        Mistake(
            divided_by_l,
            "This is what comes out when acc is divided by l inside the step. The next tile will divide again.",
            "How many tiles are still to come, and when is l final?",
        ),
        Mistake(
            old_values_forgotten,
            "This is what comes out when acc keeps only the newest tile: the earlier values are gone, while l still "
            "counts their weights.",
            "What did the earlier tiles leave in acc, and where does it appear in your line?",
        ),
    ),
    keep="A tile step is the online softmax for BLOCK_M rows at once: two matrix products, and one rescale per row.",
)
