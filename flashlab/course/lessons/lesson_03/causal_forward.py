"""03.causal_forward: the tiled loops under a causal mask, with the tiles beyond the diagonal skipped."""

import math

import torch

from flashlab.course.lessons.lesson_03.problems import cases, problem, unwritten_is_nan
from flashlab.course.lessons.lesson_03.watch import Watch
from flashlab.course.spec import Exercise, Mistake, SubCheck


def spec(q, k, v, block_m, block_n):
    i, j = torch.arange(q.shape[0])[:, None], torch.arange(k.shape[0])
    s = (q @ k.T * q.shape[1] ** -0.5).masked_fill(j > i + k.shape[0] - q.shape[0], -math.inf)
    out, lse = torch.softmax(s, dim=1).nan_to_num(0.0) @ v, torch.logsumexp(s, dim=1)  # a row without keys: (0, -inf)
    return out, lse


def stub(q, k, v, block_m, block_n):
    """q: (seqlen_q, head_dim), k: (seqlen_k, head_dim), v: (seqlen_k, head_dim_v).

    Returns out (seqlen_q, head_dim_v) and lse (seqlen_q,) under a causal mask, aligned at the bottom right.
    Key tiles that no row of the query tile sees are not touched. A row that sees no key gets out 0 and lse -inf.
    """
    raise NotImplementedError


def solution(q, k, v, block_m, block_n):
    """q: (seqlen_q, head_dim), k: (seqlen_k, head_dim), v: (seqlen_k, head_dim_v).

    Returns out (seqlen_q, head_dim_v) and lse (seqlen_q,) under a causal mask, aligned at the bottom right.
    Key tiles that no row of the query tile sees are not touched. A row that sees no key gets out 0 and lse -inf.
    """
    scale, offset = q.shape[1] ** -0.5, k.shape[0] - q.shape[0]
    out, lse = q.new_zeros(q.shape[0], v.shape[1]), q.new_zeros(q.shape[0])
    for start_m in range(0, q.shape[0], block_m):
        rows = slice(start_m, min(start_m + block_m, q.shape[0]))
        i = torch.arange(rows.start, rows.stop)[:, None]
        m = q.new_full((len(i),), -math.inf)
        l = q.new_zeros(len(i))
        acc = q.new_zeros(len(i), v.shape[1])
        for start_n in range(0, max(0, rows.stop + offset), block_n):  # the last row sees rows.stop + offset keys
            b_k, b_v = k[start_n : start_n + block_n], v[start_n : start_n + block_n]
            j = start_n + torch.arange(len(b_k))
            b_s = (q[rows] @ b_k.T * scale).masked_fill(j > i + offset, -math.inf)
            m_new = torch.maximum(m, b_s.amax(dim=1))
            anchor = torch.where(m_new == -math.inf, 0.0, m_new)  # nothing seen yet: -inf - -inf would be NaN
            rescale = torch.exp(m - anchor)
            b_p = torch.exp(b_s - anchor[:, None])
            l = l * rescale + b_p.sum(dim=1)
            acc = acc * rescale[:, None] + b_p @ b_v
            m = m_new
        out[rows] = acc / torch.where(l == 0, 1.0, l)[:, None]
        lse[rows] = m + torch.log(l)
    return out, lse


def _naive(q, k, v, hidden, filled=-math.inf):
    s = (q @ k.T * q.shape[1] ** -0.5).masked_fill(hidden, filled)
    return torch.softmax(s, dim=1).nan_to_num(0.0) @ v, torch.logsumexp(s, dim=1)


def _positions(q, k):
    return torch.arange(q.shape[0])[:, None], torch.arange(k.shape[0]), k.shape[0] - q.shape[0]


def _end(i, block_m, block_n, offset):
    """The end of the tiles that each row's query tile visits, in keys."""
    last_row = ((i // block_m + 1) * block_m).clamp(max=len(i)) - 1
    return -(-(last_row + offset + 1).clamp(min=0) // block_n) * block_n


def mask_forgotten(q, k, v, block_m, block_n):
    i, j, offset = _positions(q, k)
    return _naive(q, k, v, j >= _end(i, block_m, block_n, offset))


def mask_top_left(q, k, v, block_m, block_n):
    i, j, _ = _positions(q, k)
    return _naive(q, k, v, j > i)


def mask_top_left_in_the_right_tiles(q, k, v, block_m, block_n):
    i, j, offset = _positions(q, k)
    return _naive(q, k, v, (j > i) | (j >= _end(i, block_m, block_n, offset)))


def positions_in_the_tile(q, k, v, block_m, block_n):
    i, j, offset = _positions(q, k)
    return _naive(q, k, v, (j % block_n > i % block_m) | (j >= _end(i, block_m, block_n, offset)))


def positions_in_the_tile_and_offset(q, k, v, block_m, block_n):
    i, j, offset = _positions(q, k)
    return _naive(q, k, v, (j % block_n > i % block_m + offset) | (j >= _end(i, block_m, block_n, offset)))


def past_hidden(q, k, v, block_m, block_n):
    i, j, offset = _positions(q, k)
    return _naive(q, k, v, (j < i + offset) | (j >= _end(i, block_m, block_n, offset)))


def own_key_masked(q, k, v, block_m, block_n):
    i, j, offset = _positions(q, k)
    return _naive(q, k, v, j >= i + offset)


def masked_with_zero(q, k, v, block_m, block_n):
    i, j, offset = _positions(q, k)
    s = (q @ k.T * q.shape[1] ** -0.5).masked_fill(j > i + offset, 0.0)
    s = s.masked_fill(j >= _end(i, block_m, block_n, offset), -math.inf)
    return torch.softmax(s, dim=1).nan_to_num(0.0) @ v, torch.logsumexp(s, dim=1)


def masked_with_a_large_number(q, k, v, block_m, block_n):
    i, j, offset = _positions(q, k)
    s = (q @ k.T * q.shape[1] ** -0.5).masked_fill(j > i + offset, -1e9)
    s = s.masked_fill(j >= _end(i, block_m, block_n, offset), -math.inf)
    return torch.softmax(s, dim=1).nan_to_num(0.0) @ v, torch.logsumexp(s, dim=1)


def diagonal_tiles_skipped(q, k, v, block_m, block_n):
    i, j, offset = _positions(q, k)
    last_row = ((i // block_m + 1) * block_m).clamp(max=q.shape[0]) - 1
    end = (last_row + offset + 1).clamp(min=0) // block_n * block_n
    return _naive(q, k, v, (j > i + offset) | (j >= end))


def only_whole_tiles(q, k, v, block_m, block_n):
    i, j, offset = _positions(q, k)
    return _naive(q, k, v, j >= (i // block_m * block_m + offset + 1).clamp(min=0) // block_n * block_n)


def rows_without_keys_are_nan(q, k, v, block_m, block_n):
    return _half_guarded(q, k, v, block_m, block_n)


def division_by_zero(q, k, v, block_m, block_n):
    return _half_guarded(q, k, v, block_m, block_n, anchored=True)


def maximum_of_nothing(q, k, v, block_m, block_n):
    return _half_guarded(q, k, v, block_m, block_n, divided_safely=True)


def _half_guarded(q, k, v, block_m, block_n, anchored=False, divided_safely=False):
    """The solution, but for rows that see no key."""
    scale, offset = q.shape[1] ** -0.5, k.shape[0] - q.shape[0]
    out, lse = q.new_zeros(q.shape[0], v.shape[1]), q.new_zeros(q.shape[0])
    for start_m in range(0, q.shape[0], block_m):
        rows = slice(start_m, min(start_m + block_m, q.shape[0]))
        i = torch.arange(rows.start, rows.stop)[:, None]
        m, l, acc = q.new_full((len(i),), -math.inf), q.new_zeros(len(i)), q.new_zeros(len(i), v.shape[1])
        for start_n in range(0, max(0, rows.stop + offset), block_n):
            b_k, b_v = k[start_n : start_n + block_n], v[start_n : start_n + block_n]
            j = start_n + torch.arange(len(b_k))
            b_s = (q[rows] @ b_k.T * scale).masked_fill(j > i + offset, -math.inf)
            m_new = torch.maximum(m, b_s.amax(dim=1))
            anchor = torch.where(m_new == -math.inf, 0.0, m_new) if anchored else m_new
            b_p = torch.exp(b_s - anchor[:, None])
            l = l * torch.exp(m - anchor) + b_p.sum(dim=1)
            acc = acc * torch.exp(m - anchor)[:, None] + b_p @ b_v
            m = m_new
        out[rows] = acc / (torch.where(l == 0, 1.0, l) if divided_safely else l)[:, None]
        lse[rows] = m + torch.log(l)
    return out, lse


def nothing_skipped(q, k, v, block_m, block_n):
    i, j, offset = _positions(q, k)
    scale = q.shape[1] ** -0.5
    out, lse = q.new_zeros(q.shape[0], v.shape[1]), q.new_zeros(q.shape[0])
    for start_m in range(0, q.shape[0], block_m):
        rows = slice(start_m, start_m + block_m)
        parts = [q[rows] @ k[n : n + block_n].T * scale for n in range(0, k.shape[0], block_n)]
        s = torch.cat(parts, dim=1).masked_fill(j > i[rows] + offset, -math.inf)
        out[rows], lse[rows] = torch.softmax(s, dim=1).nan_to_num(0.0) @ v, torch.logsumexp(s, dim=1)
    return out, lse


def _one_tile():
    return cases(10, (16, 16, 16, 16))


def _block_sizes():
    return cases(20, (16, 16, 4, 4), (16, 16, 8, 4), (16, 16, 4, 8), (16, 16, 1, 1), sharp=2.0)


def _chunk():
    return cases(30, (8, 24, 4, 4), (1, 40, 4, 16))


def _ragged():
    return cases(40, (17, 17, 8, 4), (11, 30, 4, 8), (33, 33, 8, 16))


def _empty_rows():
    return cases(50, (12, 5, 4, 4))


def _skips(causal_forward):
    q, k, v = problem(60, 32, 32)
    with Watch(k) as seen:
        causal_forward(q, k, v, 8, 8)
    if len(seen.rows) > 10:
        return f"32 x 32 in tiles of 8 x 8: {len(seen.rows)} products with a key tile were made, 10 are needed"


EXERCISE = Exercise(
    id="03.causal_forward",
    title="Tiled, causal, with tiles skipped",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Start from tiled_forward. Two changes: the inner loop ends earlier, and b_s is masked before its maximum is "
        "taken.",
        "The query tile's last row sees stop + seqlen_k - seqlen_q keys, stop being the end of the tile (at most "
        "seqlen_q). range(0, that, block_n) visits every tile it reaches into; range copes with a negative end.",
        "The mask of a tile: j > i + seqlen_k - seqlen_q, with i = the rows' own numbers as a column and j = the "
        "keys' own numbers as a row. Fill with -inf.",
        "Rows that have seen nothing yet have m_new = -inf. Subtract 0 instead there (torch.where), and divide by 1 "
        "where l is 0: the two guards of merge_two.",
    ),
    sub_checks=(
        SubCheck("one tile equals the masked formula", cases=_one_tile),
        SubCheck("block size does not change the answer", cases=_block_sizes),
        SubCheck("more keys than queries: aligned at the bottom right", cases=_chunk),
        SubCheck("lengths not divisible by the block", cases=_ragged),
        SubCheck("rows that see no key give (0, -inf)", cases=_empty_rows),
        SubCheck("tiles that nobody sees are not touched", test=_skips),
    ),
    mistakes=(
        Mistake(
            mask_forgotten,
            "Tiles beyond the diagonal are skipped, but those on it are not masked: rows look a few keys into the "
            "future.",
            "A tile on the diagonal is seen by its rows only in part. What happens to the rest of b_s?",
        ),
        Mistake(
            mask_top_left,
            "The mask is aligned at the top left: query i sees keys 0 .. i. With equal lengths that is the same; with "
            "a cache in front it hides almost everything.",
            "The last query must see the last key. How far must the diagonal move for that?",
        ),
        Mistake(
            mask_top_left_in_the_right_tiles,
            "The right tiles are visited, but in them the mask is aligned at the top left: query i sees keys 0 .. i. "
            "With equal lengths that is the same.",
            "Your loop's end knows of seqlen_k - seqlen_q. Does your mask?",
        ),
        Mistake(
            positions_in_the_tile,
            "The mask compares positions inside the tile, which begin at 0 in every tile: each tile is cut by a "
            "diagonal of its own.",
            "Which key of the whole row is column 0 of the tile that starts at start_n?",
        ),
        Mistake(
            positions_in_the_tile_and_offset,
            "The mask knows of seqlen_k - seqlen_q, but counts positions from 0 inside every tile: each tile is cut by "
            "a diagonal of its own.",
            "Which key of the whole row is column 0 of the tile that starts at start_n?",
        ),
        Mistake(
            past_hidden,
            "The mask hides the past and shows the future: it is the wrong way round.",
            "May query 3 look at key 2? At key 4? Which of the two does your comparison hide?",
        ),
        Mistake(
            own_key_masked,
            "One key too many is hidden: a query sees its own position too.",
            "Should the mask hide j > d or j >= d, d being the query's own position?",
        ),
        Mistake(
            masked_with_zero,
            "Hidden scores were set to 0. exp(0 - m) is not 0: they still get weight.",
            "Which score makes exp(score - m) exactly 0?",
        ),
        Mistake(
            masked_with_a_large_number,
            "Right wherever a row sees a key. A row that sees none has only scores of -1e9 (or the like): the largest "
            "of them is subtracted, each weighs exp(0) = 1, and hidden values are averaged.",
            "Which score makes exp(score - m) exactly 0, whatever else is in the row?",
        ),
        Mistake(
            diagonal_tiles_skipped,
            "The tile that the diagonal ends in was skipped: the newest keys are missing.",
            "How many tiles do 13 visible keys reach into when BLOCK_N is 4? Do you round up or down?",
        ),
        Mistake(
            only_whole_tiles,
            "Only the tiles that every row sees whole were visited (full of them, not end): those that the diagonal cuts "
            "are missing, and each row's newest keys with them.",
            "causal_tile_bounds gives two numbers. Which of them says where to stop, and what is the other one for?",
        ),
        Mistake(
            rows_without_keys_are_nan,
            "Right wherever a row sees a key. Where it sees none, -inf - -inf made NaN inside the loop, and 0 / 0 "
            "after it.",
            "What is m_new in such a row, and what is subtracted from what? What is l there?",
        ),
        Mistake(
            division_by_zero,
            "lse is right everywhere. In rows that see no key acc / l is 0 / 0.",
            "What should out be in such a row, and what could you divide by instead of 0?",
        ),
        Mistake(
            maximum_of_nothing,
            "The division is safe, but in a row that has seen nothing yet m_new is -inf, and b_s - m_new is -inf - "
            "-inf.",
            "Which number can you subtract where every score so far is -inf?",
        ),
        Mistake(
            nothing_skipped,
            "The answer is right, but every tile was computed, those beyond the diagonal too: twice the work for a "
            "long square problem.",
            "Where could your inner loop stop?",
        ),
    ),
    within=unwritten_is_nan,
    keep="Causal costs half: tiles past the diagonal are never loaded, and only the tiles on it are masked.",
)
