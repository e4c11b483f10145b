"""02.online_softmax: softmax of rows that arrive a block at a time."""

import math

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(x, block):
    return torch.softmax(x, dim=-1)  # whatever the block


def stub(x, block):
    """x: (rows, n), looked at `block` columns at a time. Returns softmax of each row, (rows, n).

    First pass: keep m and l, one of each a row. Second pass: write the answer.
    """
    raise NotImplementedError


def solution(x, block):
    """x: (rows, n), looked at `block` columns at a time. Returns softmax of each row, (rows, n).

    First pass: keep m and l, one of each a row. Second pass: write the answer.
    """
    rows, n = x.shape
    m = x.new_full((rows, 1), -math.inf)
    l = x.new_zeros(rows, 1)
    for start in range(0, n, block):
        tile = x[:, start : start + block]
        m_new = torch.maximum(m, tile.amax(dim=1, keepdim=True))
        l = l * torch.exp(m - m_new) + torch.exp(tile - m_new).sum(dim=1, keepdim=True)
        m = m_new
    return torch.exp(x - m) / l


def rescale_forgotten(x, block):
    m = x.new_full((x.shape[0], 1), -math.inf)
    l = x.new_zeros(x.shape[0], 1)
    for start in range(0, x.shape[1], block):
        tile = x[:, start : start + block]
        m = torch.maximum(m, tile.amax(dim=1, keepdim=True))
        l = l + torch.exp(tile - m).sum(dim=1, keepdim=True)
    return torch.exp(x - m) / l


def softmax_of_each_block(x, block):
    return torch.cat([torch.softmax(tile, dim=1) for tile in x.split(block, dim=1)], dim=1)


def block_maximum(x, block):
    m = x.new_full((x.shape[0], 1), -math.inf)
    l = x.new_zeros(x.shape[0], 1)
    for start in range(0, x.shape[1], block):
        tile = x[:, start : start + block]
        m_new = tile.amax(dim=1, keepdim=True)
        l = l * torch.exp(m - m_new) + torch.exp(tile - m_new).sum(dim=1, keepdim=True)
        m = m_new
    return torch.exp(x - m) / l


def last_block_dropped(x, block):
    n = x.shape[1] // block * block
    m = x.new_full((x.shape[0], 1), -math.inf)
    l = x.new_zeros(x.shape[0], 1)
    for start in range(0, n, block):
        tile = x[:, start : start + block]
        m_new = torch.maximum(m, tile.amax(dim=1, keepdim=True))
        l = l * torch.exp(m - m_new) + torch.exp(tile - m_new).sum(dim=1, keepdim=True)
        m = m_new
    return torch.exp(x - m) / l


def one_maximum_for_all_rows(x, block):
    m = x.new_tensor(-math.inf)
    l = x.new_zeros(x.shape[0], 1)
    for start in range(0, x.shape[1], block):
        tile = x[:, start : start + block]
        m_new = torch.maximum(m, tile.max())
        l = l * torch.exp(m - m_new) + torch.exp(tile - m_new).sum(dim=1, keepdim=True)
        m = m_new
    return torch.exp(x - m) / l


def no_maximum(x, block):
    l = x.new_zeros(x.shape[0], 1)
    for start in range(0, x.shape[1], block):
        l = l + torch.exp(x[:, start : start + block]).sum(dim=1, keepdim=True)
    return torch.exp(x) / l


def one_sum_for_all_rows(x, block):
    m = x.new_full((x.shape[0], 1), -math.inf)
    l = x.new_zeros(x.shape[0], 1)
    for start in range(0, x.shape[1], block):
        tile = x[:, start : start + block]
        m_new = torch.maximum(m, tile.amax(dim=1, keepdim=True))
        l = l * torch.exp(m - m_new) + torch.exp(tile - m_new).sum()
        m = m_new
    return torch.exp(x - m) / l


def terms_kept_from_the_first_pass(x, block):
    m = x.new_full((x.shape[0], 1), -math.inf)
    l, terms = x.new_zeros(x.shape[0], 1), []
    for tile in x.split(block, dim=1):
        m_new = torch.maximum(m, tile.amax(dim=1, keepdim=True))
        terms.append(torch.exp(tile - m_new))
        l = l * torch.exp(m - m_new) + terms[-1].sum(dim=1, keepdim=True)
        m = m_new
    return torch.cat(terms, dim=1) / l


def _one_block():
    return [Case("3 rows, n = 16, block = 16", (normal(1, 3, 16), 16))]


def _block_sizes():
    x = 2 * normal(2, 4, 16)
    return [Case(f"4 rows, n = 16, block = {block}", (x, block)) for block in (8, 4, 2, 1)]


def _ragged():
    return [
        Case(f"2 rows, n = {n}, block = {block}", (2 * normal(n, 2, n), block)) for n, block in ((17, 8), (129, 32))
    ]


def _rising():
    x = torch.arange(12.0, dtype=torch.float64).expand(2, 12)
    return [Case("2 rows rising from 0 to 11, block = 4", (x, 4))]


def _large():
    low_then_high = torch.cat([normal(3, 2, 8) - 1000, normal(4, 2, 8) + 1000], dim=1)
    return [
        Case("scores near -1000, then near 1000, block = 4", (low_then_high, 4)),
        Case("scores near 1000, then near -1000, block = 4", (low_then_high.flip(1), 4)),
    ]


def _heights():
    x = normal(6, 3, 8) + torch.tensor([[0.0], [-2000.0], [2000.0]], dtype=torch.float64)
    return [Case("rows near 0, -2000 and 2000, block = 4", (x, 4))]


EXERCISE = Exercise(
    id="02.online_softmax",
    title="Softmax, a block at a time",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Start with m = -inf and l = 0, one of each a row: shape (rows, 1) lets them broadcast against a tile of shape "
        "(rows, block).",
        "One step a tile: m_new is the larger of m and the tile's own maximum (amax over dim=1), then l is rescaled, "
        "then the tile's terms are added. It is your line of the last exercise with a sum around the new terms.",
        "x[:, start : start + block] is right for the last, shorter tile too: slicing stops at the end. So loop over "
        "range(0, n, block), not over n // block tiles.",
        "After the loop m and l belong to the whole row: return torch.exp(x - m) / l.",
    ),
    sub_checks=(
        SubCheck("one block equals torch.softmax", cases=_one_block),
        SubCheck("block size does not change the answer", cases=_block_sizes),
        SubCheck("length not divisible by the block", cases=_ragged),
        SubCheck("a later, larger maximum rescales what came before", cases=_rising),
        SubCheck("large scores do not overflow", cases=_large),
        SubCheck("every row keeps its own maximum", cases=_heights),
    ),
    mistakes=(
        Mistake(
            rescale_forgotten,
            "This is what comes out when the running sum is not rescaled after the maximum grows: the earlier terms "
            "stay too large, so l is too large and every weight too small.",
            "Look at the line that updates l: against which maximum were the earlier terms measured?",
        ),
        Mistake(
            softmax_of_each_block,
            "This is what comes out when every block is normalised by its own sum. Each block then adds up to 1, and "
            "the row adds up to the number of blocks.",
            "What does your row sum to? When do you know the number to divide by: inside the loop, or after it?",
        ),
        Mistake(
            block_maximum,
            "This is what comes out when m is the maximum of the last block instead of the running one. The algebra "
            "still holds, but where a block lies far below an earlier one exp(m - m_new) overflows.",
            "Look at m_new: can it become smaller than m? What is exp(m - m_new) then?",
        ),
        Mistake(
            last_block_dropped,
            "This is what comes out when the shorter block at the end never reaches m and l: n // block whole blocks "
            "are counted. Lengths that the block divides hide it.",
            "How many times does your loop run for n = 17 and block = 8, and how many columns does it see?",
        ),
        Mistake(
            one_maximum_for_all_rows,
            "This is what comes out when one maximum serves all rows. A row far below it has only terms exp(-2000) = "
            "0, and 0 / 0 is NaN.",
            "Over which dimension do you take the maximum, and what is the shape of m?",
        ),
        Mistake(
            no_maximum,
            "This is what comes out when no maximum is subtracted at all: right while scores are small, inf / inf = "
            "NaN from about 710 on in float64 (89 in float32).",
            "What is the largest number your code passes to exp?",
        ),
        Mistake(
            one_sum_for_all_rows,
            "This is what comes out when the sum runs over all rows of the block: every row's l then holds the terms "
            "of the others too.",
            "Your sum() takes a dim. Which one goes along a row?",
        ),
        Mistake(
            terms_kept_from_the_first_pass,
            "This is what comes out when exp(x - m) is written in the first pass, against the maximum known by then. "
            "l is measured against the last one, so what was written early is too large.",
            "Which m belongs to the whole row, and in which pass is it known?",
        ),
    ),
    keep="One pass is enough to know m and l of a whole row; only writing the probabilities needs a second.",
)
