"""03.keys_outside: FlashAttention-1's loops. Keys outside, queries inside: the state of every row waits in memory."""

import math

import torch

from flashlab.course.lessons.lesson_03 import tiled_forward
from flashlab.course.lessons.lesson_03.problems import cases, problem
from flashlab.course.lessons.lesson_03.watch import Watch
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(q, k, v, block_m, block_n):
    s = q @ k.T * q.shape[1] ** -0.5
    out, lse = torch.softmax(s, dim=1) @ v, torch.logsumexp(s, dim=1)
    return out, lse


def stub(q, k, v, block_m, block_n):
    """q: (seqlen_q, head_dim), k: (seqlen_k, head_dim), v: (seqlen_k, head_dim_v).

    Returns out (seqlen_q, head_dim_v) and lse (seqlen_q,). Keys outside: each tile of K and V is loaded once, and every
    query tile is brought up to date with it before the next one is loaded.
    """
    m = q.new_full((q.shape[0],), -math.inf)  # the state of all rows: on a GPU these three lie in HBM
    l = q.new_zeros(q.shape[0])
    acc = q.new_zeros(q.shape[0], v.shape[1])
    raise NotImplementedError


def solution(q, k, v, block_m, block_n):
    """q: (seqlen_q, head_dim), k: (seqlen_k, head_dim), v: (seqlen_k, head_dim_v).

    Returns out (seqlen_q, head_dim_v) and lse (seqlen_q,). Keys outside: each tile of K and V is loaded once, and every
    query tile is brought up to date with it before the next one is loaded.
    """
    m = q.new_full((q.shape[0],), -math.inf)  # the state of all rows: on a GPU these three lie in HBM
    l = q.new_zeros(q.shape[0])
    acc = q.new_zeros(q.shape[0], v.shape[1])
    for start_n in range(0, k.shape[0], block_n):
        b_k, b_v = k[start_n : start_n + block_n], v[start_n : start_n + block_n]
        for start_m in range(0, q.shape[0], block_m):
            rows = slice(start_m, start_m + block_m)
            b_s = q[rows] @ b_k.T * q.shape[1] ** -0.5
            m_new = torch.maximum(m[rows], b_s.amax(dim=1))
            rescale = torch.exp(m[rows] - m_new)
            b_p = torch.exp(b_s - m_new[:, None])
            l[rows] = l[rows] * rescale + b_p.sum(dim=1)
            acc[rows] = acc[rows] * rescale[:, None] + b_p @ b_v
            m[rows] = m_new
    return acc / l[:, None], m + torch.log(l)


def _loops(q, k, v, block_m, block_n, update):
    """The two loops; update(state, rows, rescale, m_new, b_p, b_v) says what becomes of the state."""
    m, l = q.new_full((q.shape[0],), -math.inf), q.new_zeros(q.shape[0])
    acc = q.new_zeros(q.shape[0], v.shape[1])
    for start_n in range(0, k.shape[0], block_n):
        b_k, b_v = k[start_n : start_n + block_n], v[start_n : start_n + block_n]
        for start_m in range(0, q.shape[0], block_m):
            rows = slice(start_m, start_m + block_m)
            b_s = q[rows] @ b_k.T * q.shape[1] ** -0.5
            m_new = torch.maximum(m[rows], b_s.amax(dim=1))
            b_p = torch.exp(b_s - m_new[:, None])
            update((m, l, acc), rows, torch.exp(m[rows] - m_new), m_new, b_p, b_v)
    return m, l, acc


def acc_not_rescaled(q, k, v, block_m, block_n):
    def update(state, rows, rescale, m_new, b_p, b_v):
        m, l, acc = state
        l[rows] = l[rows] * rescale + b_p.sum(dim=1)
        acc[rows] = acc[rows] + b_p @ b_v
        m[rows] = m_new

    m, l, acc = _loops(q, k, v, block_m, block_n, update)
    return acc / l[:, None], m + torch.log(l)


def maximum_not_stored(q, k, v, block_m, block_n):
    def update(state, rows, rescale, m_new, b_p, b_v):
        m, l, acc = state
        l[rows] = l[rows] * rescale + b_p.sum(dim=1)
        acc[rows] = acc[rows] * rescale[:, None] + b_p @ b_v

    m, l, acc = _loops(q, k, v, block_m, block_n, update)
    return acc / l[:, None], m + torch.log(l)


def never_divided(q, k, v, block_m, block_n):
    out, lse = solution(q, k, v, block_m, block_n)
    m = (q @ k.T * q.shape[1] ** -0.5).amax(dim=1)
    return out * torch.exp(lse - m)[:, None], lse


def nothing_stored(q, k, v, block_m, block_n):
    m, l, acc = _loops(q, k, v, block_m, block_n, lambda *_: None)
    return acc / l[:, None], m + torch.log(l)


def division_never_undone(q, k, v, block_m, block_n):
    def update(state, rows, rescale, m_new, b_p, b_v):
        m, l, acc = state
        l[rows] = l[rows] * rescale + b_p.sum(dim=1)
        acc[rows] = (acc[rows] * rescale[:, None] + b_p @ b_v) / l[rows][:, None]
        m[rows] = m_new

    m, l, acc = _loops(q, k, v, block_m, block_n, update)
    return acc, m + torch.log(l)


def state_started_again(q, k, v, block_m, block_n):
    last = (k.shape[0] - 1) // block_n * block_n
    return solution(q, k[last:], v[last:], block_m, block_n)


def last_key_tile_dropped(q, k, v, block_m, block_n):
    whole = k.shape[0] // block_n * block_n
    return solution(q, k[:whole], v[:whole], block_m, block_n)


def last_query_tile_dropped(q, k, v, block_m, block_n):
    whole = q.shape[0] // block_m * block_m
    m, l = q.new_full((q.shape[0],), -math.inf), q.new_zeros(q.shape[0])
    acc = q.new_zeros(q.shape[0], v.shape[1])
    acc[:whole], lse = solution(q[:whole], k, v, block_m, block_n)
    l[:whole], m[:whole] = 1.0, lse
    return acc / l[:, None], m + torch.log(l)


def queries_outside(q, k, v, block_m, block_n):
    return tiled_forward.solution(q, k, v, block_m, block_n)


def _one_tile():
    return cases(10, (16, 16, 16, 16))


def _block_sizes():
    return cases(20, (16, 16, 16, 4), (16, 16, 4, 16), (16, 16, 4, 8), (16, 16, 1, 1), sharp=2.0)


def _ragged():
    return cases(33, (16, 17, 8, 8), (17, 16, 8, 8), (33, 31, 16, 8), head_dim_v=6)


def _large():
    return [Case("scores in the thousands, tiles of 4 x 4", (*problem(50, 8, 16, sharp=1000.0), 4, 4))]


def _keys_once(keys_outside):
    q, k, v = problem(60, 24, 24)
    with Watch(k) as seen:
        keys_outside(q, k, v, 8, 8)
    back = seen.came_back()
    if back is not None:
        visits = ", ".join(str(row) for row in seen.rows)
        return (
            f"24 x 24 in tiles of 8 x 8: the key tile that starts at row {back} was left and used again later (tiles "
            f"used, in order: {visits})"
        )


EXERCISE = Exercise(
    id="03.keys_outside",
    title="FlashAttention-1's loops",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Swap the loops: for start_n outside, for start_m inside. b_k and b_v are sliced in the outer loop, once.",
        "The body is tile_step on slices of the state: read m[rows], l[rows], acc[rows], work out the new ones, write "
        "all three back. On a GPU that reading and writing goes to HBM.",
        "m must still hold the old maximum when the rescale is worked out, so write m[rows] = m_new last.",
        "Divide after both loops, all rows at once: acc / l[:, None]. If you keep acc divided in between, as the paper "
        "does, multiply by the old l before you add to it.",
    ),
    sub_checks=(
        SubCheck("one tile equals the naive formula", cases=_one_tile),
        SubCheck("block size does not change the answer", cases=_block_sizes),
        SubCheck("lengths not divisible by the block", cases=_ragged),
        SubCheck("large scores do not overflow", cases=_large),
        SubCheck("keys are outside: a key tile that was left does not come back", test=_keys_once),
    ),
    mistakes=(
        Mistake(
            acc_not_rescaled,
            "This is what comes out when l is rescaled but acc is not.",
            "Which running sums hold exp(s - m)? Do all of them move when m grows?",
        ),
        Mistake(
            maximum_not_stored,
            "m was never written back: it is -inf at every visit, the rescale is exp(-inf) = 0, and each key tile "
            "wipes out the ones before. lse is -inf too.",
            "Three things belong to the state of a row. Which of them do you store before you leave it?",
        ),
        Mistake(
            nothing_stored,
            "The state still holds what it started with, m = -inf, l = 0 and acc = 0, and 0 / 0 is NaN. What was worked "
            "out for a pair of tiles went into new tensors and was left there.",
            "m[rows] on the left of an = writes into the state; a new name does not. Where are the three written back?",
        ),
        Mistake(
            never_divided,
            "lse is right, but out is acc undivided: the weights exp(b_s - m) of a row add up to l, not to 1.",
            "What stands between acc and an average of the values, and after which loop is it known?",
        ),
        Mistake(
            division_never_undone,
            "This is what comes out when acc is stored divided by l and taken up again as if it were not.",
            "When a row comes back for the next key tile, what does its acc hold: a sum, or an average?",
        ),
        Mistake(
            state_started_again,
            "Only the last key tile counts: m, l and acc start afresh for every key tile.",
            "Between two key tiles a row has to remember something. Where does it wait in your function?",
        ),
        Mistake(
            last_key_tile_dropped,
            "This is what comes out when the shorter key tile at the end is never loaded.",
            "How many times does your outer loop run for 17 keys and BLOCK_N = 8?",
        ),
        Mistake(
            last_query_tile_dropped,
            "The rows of the shorter query tile at the end were never visited.",
            "How many times does your inner loop run for 17 queries and BLOCK_M = 8?",
        ),
        Mistake(
            queries_outside,
            "The answer is right, but this is FlashAttention-2's order: the queries are outside, and every key tile is "
            "loaded again for each of them.",
            "Which of the two loops should be the outer one, so that b_k is sliced once?",
        ),
    ),
    keep="Keys outside: K and V are read once, but every row's m, l and acc go to memory and back for each key tile.",
)
