"""03.tiled_forward: FlashAttention-2's loops. Queries outside, keys inside, the score matrix never built."""

import math

import torch

from flashlab.course.lessons.lesson_03.problems import cases, problem, unwritten_is_nan
from flashlab.course.lessons.lesson_03.watch import Watch
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(q, k, v, block_m, block_n):
    s = q @ k.T * q.shape[1] ** -0.5
    out, lse = torch.softmax(s, dim=1) @ v, torch.logsumexp(s, dim=1)
    return out, lse


def stub(q, k, v, block_m, block_n):
    """q: (seqlen_q, head_dim), k: (seqlen_k, head_dim), v: (seqlen_k, head_dim_v).

    Returns out (seqlen_q, head_dim_v) and lse (seqlen_q,). Queries outside, block_m at a time; keys inside, block_n
    at a time. out and lse are written once per query tile.
    """
    raise NotImplementedError


def solution(q, k, v, block_m, block_n):
    """q: (seqlen_q, head_dim), k: (seqlen_k, head_dim), v: (seqlen_k, head_dim_v).

    Returns out (seqlen_q, head_dim_v) and lse (seqlen_q,). Queries outside, block_m at a time; keys inside, block_n
    at a time. out and lse are written once per query tile.
    """
    scale = q.shape[1] ** -0.5
    out, lse = q.new_zeros(q.shape[0], v.shape[1]), q.new_zeros(q.shape[0])
    for start_m in range(0, q.shape[0], block_m):
        rows = slice(start_m, start_m + block_m)
        b_q = q[rows]
        m = q.new_full((len(b_q),), -math.inf)
        l = q.new_zeros(len(b_q))
        acc = q.new_zeros(len(b_q), v.shape[1])
        for start_n in range(0, k.shape[0], block_n):
            b_k, b_v = k[start_n : start_n + block_n], v[start_n : start_n + block_n]
            b_s = b_q @ b_k.T * scale
            m_new = torch.maximum(m, b_s.amax(dim=1))
            rescale = torch.exp(m - m_new)
            b_p = torch.exp(b_s - m_new[:, None])
            l = l * rescale + b_p.sum(dim=1)
            acc = acc * rescale[:, None] + b_p @ b_v
            m = m_new
        out[rows] = acc / l[:, None]
        lse[rows] = m + torch.log(l)
    return out, lse


def acc_not_rescaled(q, k, v, block_m, block_n):
    out, lse = q.new_zeros(q.shape[0], v.shape[1]), q.new_zeros(q.shape[0])
    for start_m in range(0, q.shape[0], block_m):
        rows = slice(start_m, start_m + block_m)
        b_q = q[rows]
        m, l, acc = q.new_full((len(b_q),), -math.inf), q.new_zeros(len(b_q)), q.new_zeros(len(b_q), v.shape[1])
        for start_n in range(0, k.shape[0], block_n):
            b_s = b_q @ k[start_n : start_n + block_n].T * q.shape[1] ** -0.5
            m_new = torch.maximum(m, b_s.amax(dim=1))
            b_p = torch.exp(b_s - m_new[:, None])
            l = l * torch.exp(m - m_new) + b_p.sum(dim=1)
            acc = acc + b_p @ v[start_n : start_n + block_n]
            m = m_new
        out[rows], lse[rows] = acc / l[:, None], m + torch.log(l)
    return out, lse


def state_not_reset(q, k, v, block_m, block_n):
    out, lse = q.new_zeros(q.shape[0], v.shape[1]), q.new_zeros(q.shape[0])
    m, l, acc = q.new_full((block_m,), -math.inf), q.new_zeros(block_m), q.new_zeros(block_m, v.shape[1])
    for start_m in range(0, q.shape[0], block_m):
        rows = slice(start_m, start_m + block_m)
        b_q = q[rows]
        for start_n in range(0, k.shape[0], block_n):
            b_s = b_q @ k[start_n : start_n + block_n].T * q.shape[1] ** -0.5
            m_new = torch.maximum(m, b_s.amax(dim=1))
            b_p = torch.exp(b_s - m_new[:, None])
            l = l * torch.exp(m - m_new) + b_p.sum(dim=1)
            acc = acc * torch.exp(m - m_new)[:, None] + b_p @ v[start_n : start_n + block_n]
            m = m_new
        out[rows], lse[rows] = acc / l[:, None], m + torch.log(l)
    return out, lse


def last_key_tile_dropped(q, k, v, block_m, block_n):
    whole = k.shape[0] // block_n * block_n
    return solution(q, k[:whole], v[:whole], block_m, block_n)


def last_query_tile_dropped(q, k, v, block_m, block_n):
    out, lse = q.new_zeros(q.shape[0], v.shape[1]), q.new_zeros(q.shape[0])
    whole = q.shape[0] // block_m * block_m
    out[:whole], lse[:whole] = solution(q[:whole], k, v, block_m, block_n)
    return out, lse


def last_query_tile_unwritten(q, k, v, block_m, block_n):
    out, lse = last_query_tile_dropped(q, k, v, block_m, block_n)
    whole = q.shape[0] // block_m * block_m
    out[whole:], lse[whole:] = math.nan, math.nan
    return out, lse


def never_divided(q, k, v, block_m, block_n):
    out, lse = solution(q, k, v, block_m, block_n)
    m = (q @ k.T * q.shape[1] ** -0.5).amax(dim=1)
    return out * torch.exp(lse - m)[:, None], lse


def divided_along_columns(q, k, v, block_m, block_n):
    out, lse = q.new_zeros(q.shape[0], v.shape[1]), q.new_zeros(q.shape[0])
    for start_m in range(0, q.shape[0], block_m):
        rows = slice(start_m, start_m + block_m)
        b_out, lse[rows] = solution(q[rows], k, v, block_m, block_n)
        l = torch.exp(lse[rows] - (q[rows] @ k.T * q.shape[1] ** -0.5).amax(dim=1))
        out[rows] = b_out * l[:, None] / l
    return out, lse


def scale_forgotten(q, k, v, block_m, block_n):
    return solution(q * q.shape[1] ** 0.5, k, v, block_m, block_n)


def scale_twice(q, k, v, block_m, block_n):
    return solution(q * q.shape[1] ** -0.5, k, v, block_m, block_n)


def divided_in_every_tile(q, k, v, block_m, block_n):
    out, lse = q.new_zeros(q.shape[0], v.shape[1]), q.new_zeros(q.shape[0])
    for start_m in range(0, q.shape[0], block_m):
        rows = slice(start_m, start_m + block_m)
        b_q = q[rows]
        m, l, acc = q.new_full((len(b_q),), -math.inf), q.new_zeros(len(b_q)), q.new_zeros(len(b_q), v.shape[1])
        for start_n in range(0, k.shape[0], block_n):
            b_s = b_q @ k[start_n : start_n + block_n].T * q.shape[1] ** -0.5
            m_new = torch.maximum(m, b_s.amax(dim=1))
            b_p = torch.exp(b_s - m_new[:, None])
            l = l * torch.exp(m - m_new) + b_p.sum(dim=1)
            acc = (acc * torch.exp(m - m_new)[:, None] + b_p @ v[start_n : start_n + block_n]) / l[:, None]
            m = m_new
        out[rows], lse[rows] = acc, m + torch.log(l)
    return out, lse


def one_maximum_per_tile(q, k, v, block_m, block_n):
    out, lse = q.new_zeros(q.shape[0], v.shape[1]), q.new_zeros(q.shape[0])
    for start_m in range(0, q.shape[0], block_m):
        rows = slice(start_m, start_m + block_m)
        b_q = q[rows]
        m, l, acc = q.new_tensor(-math.inf), q.new_zeros(len(b_q)), q.new_zeros(len(b_q), v.shape[1])
        for start_n in range(0, k.shape[0], block_n):
            b_s = b_q @ k[start_n : start_n + block_n].T * q.shape[1] ** -0.5
            m_new = torch.maximum(m, b_s.max())
            b_p = torch.exp(b_s - m_new)
            l = l * torch.exp(m - m_new) + b_p.sum(dim=1)
            acc = acc * torch.exp(m - m_new) + b_p @ v[start_n : start_n + block_n]
            m = m_new
        out[rows], lse[rows] = acc / l[:, None], m + torch.log(l)
    return out, lse


def lse_without_the_maximum(q, k, v, block_m, block_n):
    out, lse = solution(q, k, v, block_m, block_n)
    return out, lse - (q @ k.T * q.shape[1] ** -0.5).amax(dim=1)


def all_scores_at_once(q, k, v, block_m, block_n):
    s = q @ k.T * q.shape[1] ** -0.5
    m = s.amax(dim=1)
    p = torch.exp(s - m[:, None])
    l = p.sum(dim=1)
    return p @ v / l[:, None], m + torch.log(l)


def _one_tile():
    return cases(10, (16, 16, 16, 16))


def _block_sizes():
    return cases(20, (16, 16, 16, 4), (16, 16, 4, 16), (16, 16, 4, 8), (16, 16, 1, 1), sharp=2.0)


def _ragged():
    return cases(33, (16, 17, 8, 8), (17, 16, 8, 8), (33, 31, 16, 8))


def _decode():
    return cases(40, (1, 100, 4, 32), head_dim_v=6)


def _large():
    q, k, v = problem(50, 8, 16)
    q = q * torch.tensor([1.0, 1000.0] * 4, dtype=torch.float64)[:, None]  # next to each other: a mild row, a sharp row
    return [Case("every second row with scores in the thousands, tiles of 4 x 4", (q, k, v, 4, 4))]


def _never_whole(tiled_forward):
    q, k, v = problem(60, 96, 96, 4, 4)
    with Watch(k) as seen:
        tiled_forward(q, k, v, 16, 8)
    if seen.largest > 96 * 16:
        return (
            f"96 x 96 in tiles of 16 x 8: a tensor of {seen.largest} elements was made; a score tile has 128, the "
            "whole score matrix 9216"
        )


EXERCISE = Exercise(
    id="03.tiled_forward",
    title="FlashAttention-2's loops",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Two loops: for start_m in range(0, seqlen_q, block_m), and inside it for start_n in range(0, seqlen_k, "
        "block_n). Slices past the end are cut short by PyTorch, so the last tiles look after themselves.",
        "A query tile starts with m = -inf, l = 0, acc = 0, of as many rows as b_q really has. They belong to this "
        "tile: make them inside the outer loop.",
        "The body of the inner loop is tile_step. After the inner loop: out[rows] = acc / l[:, None] and "
        "lse[rows] = m + log(l).",
    ),
    sub_checks=(
        SubCheck("one tile equals the naive formula", cases=_one_tile),
        SubCheck("block size does not change the answer", cases=_block_sizes),
        SubCheck("lengths not divisible by the block", cases=_ragged),
        SubCheck("one query against many keys", cases=_decode),
        SubCheck("large scores, and rows that differ", cases=_large),
        SubCheck("the score matrix is never built", test=_never_whole),
    ),
    mistakes=(
        Mistake(
            acc_not_rescaled,
            "This is what comes out when l is rescaled but acc is not: earlier tiles keep weights measured against a "
            "smaller maximum.",
            "Which running sums hold exp(s - m)? Do all of them move when m grows?",
        ),
        Mistake(
            state_not_reset,
            "This is what comes out when m, l and acc live on from one query tile to the next: the second tile starts "
            "with the first one's sums, as if it had seen more keys.",
            "On which line are m, l and acc made, and inside which loop is it?",
        ),
        Mistake(
            last_key_tile_dropped,
            "This is what comes out when the shorter key tile at the end is never visited.",
            "How many times does your inner loop run for 17 keys and BLOCK_N = 8?",
        ),
        Mistake(
            last_query_tile_dropped,
            "The rows of the shorter query tile at the end were never written.",
            "How many times does your outer loop run for 17 queries and BLOCK_M = 8?",
        ),
        Mistake(
            last_query_tile_unwritten,
            "The rows of the shorter query tile at the end were never written: they hold whatever lay in the memory of "
            "torch.empty (NaN here, so that it shows).",
            "How many times does your outer loop run for 17 queries and BLOCK_M = 8?",
        ),
        Mistake(
            never_divided,
            "lse is right, but out is acc undivided: the weights exp(b_s - m) of a row add up to l, not to 1.",
            "What stands between acc and an average of the values, and after which loop is it known?",
        ),
        Mistake(
            divided_along_columns,
            "l, of shape (BLOCK_M,), was lined up with the columns of acc instead of its rows. PyTorch refuses, unless "
            "the tile has head_dim_v rows or a single one: then it may be silently wrong.",
            "Which of acc's two dimensions counts query rows? Which one does a bare l line up with?",
        ),
        Mistake(
            scale_forgotten,
            "This is what comes out when the scores are not multiplied by head_dim ** -0.5.",
            "Compare the line that makes b_s with the first line of the spec.",
        ),
        Mistake(
            scale_twice,
            "This is what comes out when the scores are multiplied by head_dim ** -0.5 twice.",
            "In how many places does the scale appear: on b_q when it is loaded, on b_s when it is made?",
        ),
        Mistake(
            divided_in_every_tile,
            "This is what comes out when acc is divided by l in every step of the inner loop.",
            "After which loop is l final?",
        ),
        Mistake(
            one_maximum_per_tile,
            "This is what comes out when one maximum serves all rows of a query tile. A mild row next to a sharp one "
            "is left with exp(-1000) = 0 everywhere, and 0 / 0 is NaN.",
            "What is the shape of your m? amax takes a dim.",
        ),
        Mistake(
            lse_without_the_maximum,
            "out is right, but lse is log(l) alone: l was measured against m.",
            "What is the logarithm of exp(m) * l?",
        ),
        Mistake(
            all_scores_at_once,
            "The answer is right, but the whole score matrix was built: that is the naive algorithm again, with its "
            "seqlen_q * seqlen_k numbers.",
            "What is the largest tensor your function makes when both lengths double?",
        ),
    ),
    within=unwritten_is_nan,
    keep="A query tile walks once over all keys with m, l and acc at hand, and writes its output exactly once.",
)
