"""06.tiled_dq: the gradient of the queries. Queries outside, keys inside, p computed again from lse."""

import torch

from flashlab.course.lessons.lesson_03.watch import Watch
from flashlab.course.lessons.lesson_06.problems import cases, problem
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(q, k, v, o, lse, do, block_m, block_n):
    scale = q.shape[1] ** -0.5
    p = torch.exp(q @ k.T * scale - lse[:, None])
    dp = do @ v.T
    ds = p * (dp - (p * dp).sum(dim=1, keepdim=True))
    return ds @ k * scale


def stub(q, k, v, o, lse, do, block_m, block_n):
    """q: (seqlen_q, head_dim), k: (seqlen_k, head_dim), v: (seqlen_k, head_dim_v), o, do: (seqlen_q, head_dim_v).

    lse: (seqlen_q,). Returns dq (seqlen_q, head_dim).
    Queries outside, block_m at a time; keys inside, block_n at a time.
    """
    raise NotImplementedError


def solution(q, k, v, o, lse, do, block_m, block_n):
    """q: (seqlen_q, head_dim), k: (seqlen_k, head_dim), v: (seqlen_k, head_dim_v), o, do: (seqlen_q, head_dim_v).

    lse: (seqlen_q,). Returns dq (seqlen_q, head_dim).
    Queries outside, block_m at a time; keys inside, block_n at a time.
    """
    scale = q.shape[1] ** -0.5
    delta = (do * o).sum(dim=1)
    dq = torch.zeros_like(q)
    for start_m in range(0, q.shape[0], block_m):
        rows = slice(start_m, start_m + block_m)
        b_q, b_do, b_lse, b_delta = q[rows], do[rows], lse[rows], delta[rows]
        acc = torch.zeros_like(b_q)
        for start_n in range(0, k.shape[0], block_n):
            b_k, b_v = k[start_n : start_n + block_n], v[start_n : start_n + block_n]
            b_p = torch.exp(b_q @ b_k.T * scale - b_lse[:, None])
            b_dp = b_do @ b_v.T
            b_ds = b_p * (b_dp - b_delta[:, None])
            acc = acc + b_ds @ b_k
        dq[rows] = acc * scale
    return dq


def _loops(q, k, v, do, block_m, block_n, delta, probabilities, outer_scale=None, add=True):
    """The solution with its parts handed in: probabilities(b_s, rows), delta (seqlen_q,) or None."""
    scale = q.shape[1] ** -0.5
    dq = torch.zeros_like(q)
    for start_m in range(0, q.shape[0], block_m):
        rows = slice(start_m, start_m + block_m)
        acc = torch.zeros_like(q[rows])
        for start_n in range(0, k.shape[0], block_n):
            keys = slice(start_n, start_n + block_n)
            b_ds = do[rows] @ v[keys].T - (0.0 if delta is None else delta[rows][:, None])
            part = (probabilities(q[rows] @ k[keys].T * scale, rows) * b_ds) @ k[keys]
            acc = acc + part if add else part
        dq[rows] = acc * (scale if outer_scale is None else outer_scale)
    return dq


def _exact(lse):
    return lambda b_s, rows: torch.exp(b_s - lse[rows][:, None])


def delta_forgotten(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, do, block_m, block_n, None, _exact(lse))


def delta_without_do(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, do, block_m, block_n, torch.ones_like(lse), _exact(lse))


def delta_of_the_tile(q, k, v, o, lse, do, block_m, block_n):
    scale, dq = q.shape[1] ** -0.5, torch.zeros_like(q)
    for start_m in range(0, q.shape[0], block_m):
        rows = slice(start_m, start_m + block_m)
        for start_n in range(0, k.shape[0], block_n):
            keys = slice(start_n, start_n + block_n)
            b_p = torch.exp(q[rows] @ k[keys].T * scale - lse[rows][:, None])
            b_dp = do[rows] @ v[keys].T
            dq[rows] += (b_p * (b_dp - (b_p * b_dp).sum(dim=1, keepdim=True))) @ k[keys] * scale
    return dq


def scale_forgotten(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, do, block_m, block_n, (do * o).sum(dim=1), _exact(lse), outer_scale=1.0)


def scale_twice(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, do, block_m, block_n, (do * o).sum(dim=1), _exact(lse), outer_scale=q.shape[1] ** -1.0)


def scores_not_scaled(q, k, v, o, lse, do, block_m, block_n):
    unscaled = lambda b_s, rows: torch.exp(b_s * q.shape[1] ** 0.5 - lse[rows][:, None])
    return _loops(q, k, v, do, block_m, block_n, (do * o).sum(dim=1), unscaled)


def softmax_of_the_tile(q, k, v, o, lse, do, block_m, block_n):
    tile = lambda b_s, rows: torch.softmax(b_s, dim=1)
    return _loops(q, k, v, do, block_m, block_n, (do * o).sum(dim=1), tile)


def against_the_maximum(q, k, v, o, lse, do, block_m, block_n):
    m = torch.cat([(row @ k.T * q.shape[1] ** -0.5).amax().reshape(1) for row in q])
    return _loops(
        q, k, v, do, block_m, block_n, (do * o).sum(dim=1), lambda b_s, rows: torch.exp(b_s - m[rows][:, None])
    )


def against_the_maximum_of_the_tile(q, k, v, o, lse, do, block_m, block_n):
    tile = lambda b_s, rows: torch.exp(b_s - b_s.amax(dim=1, keepdim=True))
    return _loops(q, k, v, do, block_m, block_n, (do * o).sum(dim=1), tile)


def lse_along_the_keys(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, do, block_m, block_n, (do * o).sum(dim=1), lambda b_s, rows: torch.exp(b_s - lse[rows]))


def sign_of_delta(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, do, block_m, block_n, -(do * o).sum(dim=1), _exact(lse))


def exponentials_apart(q, k, v, o, lse, do, block_m, block_n):
    apart = lambda b_s, rows: torch.exp(b_s) / torch.exp(lse[rows])[:, None]
    return _loops(q, k, v, do, block_m, block_n, (do * o).sum(dim=1), apart)


def overwritten(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, do, block_m, block_n, (do * o).sum(dim=1), _exact(lse), add=False)


def scaled_in_each_step(q, k, v, o, lse, do, block_m, block_n):
    scale, delta, dq = q.shape[1] ** -0.5, (do * o).sum(dim=1), torch.zeros_like(q)
    for start_m in range(0, q.shape[0], block_m):
        rows = slice(start_m, start_m + block_m)
        for start_n in range(0, k.shape[0], block_n):
            keys = slice(start_n, start_n + block_n)
            b_p = torch.exp(q[rows] @ k[keys].T * scale - lse[rows][:, None])
            b_ds = b_p * (do[rows] @ v[keys].T - delta[rows][:, None])
            dq[rows] = (dq[rows] + b_ds @ k[keys]) * scale
    return dq


def delta_along_the_keys(q, k, v, o, lse, do, block_m, block_n):
    scale, delta, dq = q.shape[1] ** -0.5, (do * o).sum(dim=1), torch.zeros_like(q)
    for start_m in range(0, q.shape[0], block_m):
        rows = slice(start_m, start_m + block_m)
        for start_n in range(0, k.shape[0], block_n):
            keys = slice(start_n, start_n + block_n)
            b_p = torch.exp(q[rows] @ k[keys].T * scale - lse[rows][:, None])
            dq[rows] += (b_p * (do[rows] @ v[keys].T - delta[rows])) @ k[keys] * scale
    return dq


def last_key_tile_dropped(q, k, v, o, lse, do, block_m, block_n):
    whole = k.shape[0] // block_n * block_n
    return solution(q, k[:whole], v[:whole], o, lse, do, block_m, block_n)


def all_probabilities_at_once(q, k, v, o, lse, do, block_m, block_n):
    scale = q.shape[1] ** -0.5
    p = torch.exp(q @ k.T * scale - lse[:, None])
    return (p * (do @ v.T - (do * o).sum(dim=1)[:, None])) @ k * scale


def _one_tile():
    return cases(10, (16, 16, 16, 16))


def _block_sizes():
    return cases(20, (16, 16, 16, 4), (16, 16, 4, 16), (16, 16, 4, 8), (16, 16, 1, 1), sharp=2.0)


def _ragged():
    return cases(33, (16, 17, 8, 8), (17, 16, 8, 8), (33, 31, 16, 8))


def _large():
    parts = problem(50, 6, 12, sharp=1000.0)
    return [Case("scores in the thousands, tiles of 4 x 4", (*parts, 4, 4))]


def _never_whole(tiled_dq):
    q, k, v, o, lse, do = problem(60, 96, 96, 4, 4)
    with Watch(k) as seen:
        tiled_dq(q, k, v, o, lse, do, 16, 8)
    if seen.largest > 96 * 16:
        return (
            f"96 x 96 in tiles of 16 x 8: a tensor of {seen.largest} elements was made; a tile of p has 128, all of p "
            "9216"
        )


EXERCISE = Exercise(
    id="06.tiled_dq",
    title="dQ, tile by tile",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Before the loops: delta = (do * o).sum(dim=1). Then the two loops of tiled_forward. There is no m and no l: "
        "lse is known, so a tile of p comes out right at once.",
        "Inside: b_p = exp(b_q @ b_k.T * scale - lse of these rows), b_dp = b_do @ b_v.T, and b_ds by the rule of "
        "softmax_gradient, with delta of these rows for the mean.",
        "acc = acc + b_ds @ b_k over the key tiles; after the inner loop dq[rows] = acc * scale. lse and delta need "
        "[:, None] to line up with the rows.",
    ),
    sub_checks=(
        SubCheck("one tile equals the formula", cases=_one_tile),
        SubCheck("block size does not change the answer", cases=_block_sizes),
        SubCheck("lengths not divisible by the block", cases=_ragged),
        SubCheck("large scores", cases=_large),
        SubCheck("p is never built whole", test=_never_whole),
    ),
    mistakes=(
        Mistake(
            delta_forgotten,
            "This is what comes out without D: ds = p * dp.",
            "What does softmax_gradient take off dp?",
        ),
        Mistake(
            delta_without_do,
            "This is what comes out when D is the row sum of p, which is 1. dO never came into it.",
            "D is the mean of dp, weighted with p. Where is dp in yours?",
        ),
        Mistake(
            delta_of_the_tile,
            "D was summed over the tile's keys only. It is right for one tile; with more, each tile has another D.",
            "D needs all keys of the row. Which of the two ways gives it without them?",
        ),
        Mistake(
            scale_forgotten,
            "dq is sqrt(head_dim) too large: the scale is missing. s = scale * q . k, so ds reaches q with the same "
            "factor.",
            "What is the derivative of scale * q . k with respect to q?",
        ),
        Mistake(
            scale_twice,
            "dq was multiplied by the scale twice.",
            "In how many places after b_ds does the scale appear: in the loop, and again at the end?",
        ),
        Mistake(
            scores_not_scaled,
            "p is wrong: its scores were not multiplied by head_dim ** -0.5, while lse was taken over scores that "
            "were.",
            "Compare your argument of exp with the second line of the spec.",
        ),
        Mistake(
            softmax_of_the_tile,
            "The softmax was taken over the tile's own keys. Every tile's rows then add up to 1; together they must.",
            "Which number, already known, holds the sum over all keys?",
        ),
        Mistake(
            against_the_maximum,
            "p was measured against the row's maximum, as in the forward pass, and never divided by l. With lse both "
            "are done at once: exp(s - lse) = exp(s - m) / l.",
            "Do the rows of your p add up to 1 over all tiles?",
        ),
        Mistake(
            against_the_maximum_of_the_tile,
            "p was measured against the tile's maximum. That belongs to the forward pass, where lse is not known yet.",
            "Which number of the forward pass was kept so that the maximum is not needed again?",
        ),
        Mistake(
            lse_along_the_keys,
            "lse was lined up with the keys. In square tiles that is silently wrong; elsewhere PyTorch refuses.",
            "lse has one number a row. Which of a tile's two dimensions does a bare lse line up with?",
        ),
        Mistake(
            sign_of_delta,
            "D was added to dp. It is the mean, and the mean is taken off.",
            "Look at the sign in ds = p * (dp - D).",
        ),
        Mistake(
            exponentials_apart,
            "exp(s) / exp(lse) is the same on paper, and inf / inf for large scores.",
            "How large does the exponent get if you subtract before you take exp?",
        ),
        Mistake(
            overwritten,
            "dq keeps only what the last key tile gave: each tile overwrites the one before.",
            "Every key that a query looks at adds to its gradient. Where do you add?",
        ),
        Mistake(
            scaled_in_each_step,
            "The whole sum was multiplied by scale after each tile, so that early tiles were scaled many times.",
            "How often does the scale act on each part of dq?",
        ),
        Mistake(
            delta_along_the_keys,
            "delta was taken off along the keys: (block_m,) beside (block_m, block_n) is taken for a row.",
            "delta has one number for each query. Which index makes a column of it?",
        ),
        Mistake(
            last_key_tile_dropped,
            "The shorter key tile at the end is never visited.",
            "How many times does your inner loop run for 17 keys and BLOCK_N = 8?",
        ),
        Mistake(
            all_probabilities_at_once,
            "The answer is right, but all of p was built at once. Not having to do that is what lse was kept for.",
            "What is the largest tensor your function makes when both lengths double?",
        ),
    ),
    keep="With lse and D at hand, any tile of p and ds can be made on its own, in any order. dq adds up over the keys.",
)
