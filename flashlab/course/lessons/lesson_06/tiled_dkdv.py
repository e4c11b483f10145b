"""06.tiled_dkdv: the gradients of keys and values under a causal mask. Keys outside, queries inside."""

import torch

from flashlab.course.lessons.lesson_03.watch import Watch
from flashlab.course.lessons.lesson_06.problems import cases, forward, problem
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(q, k, v, o, lse, do, block_m, block_n):
    scale = q.shape[1] ** -0.5
    i, j = torch.arange(q.shape[0])[:, None], torch.arange(k.shape[0])
    p = torch.exp(q @ k.T * scale - lse[:, None]).masked_fill(j > i + k.shape[0] - q.shape[0], 0.0)
    ds = p * (do @ v.T - (do * o).sum(dim=1, keepdim=True))
    dk, dv = ds.T @ q * scale, p.T @ do
    return dk, dv


def stub(q, k, v, o, lse, do, block_m, block_n):
    """q: (seqlen_q, head_dim), k: (seqlen_k, head_dim), v: (seqlen_k, head_dim_v), o, do: (seqlen_q, head_dim_v).

    lse: (seqlen_q,), -inf for a row that sees no key. Causal, aligned at the bottom right.
    Returns dk and dv, like k and v. Keys outside, block_n at a time; queries inside, block_m at a time;
    query tiles that see no key of the tile are skipped.
    """
    raise NotImplementedError


def solution(q, k, v, o, lse, do, block_m, block_n):
    """q: (seqlen_q, head_dim), k: (seqlen_k, head_dim), v: (seqlen_k, head_dim_v), o, do: (seqlen_q, head_dim_v).

    lse: (seqlen_q,), -inf for a row that sees no key. Causal, aligned at the bottom right.
    Returns dk and dv, like k and v. Keys outside, block_n at a time; queries inside, block_m at a time;
    query tiles that see no key of the tile are skipped.
    """
    scale, offset = q.shape[1] ** -0.5, k.shape[0] - q.shape[0]
    delta = (do * o).sum(dim=1)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    for start_n in range(0, k.shape[0], block_n):
        keys = slice(start_n, start_n + block_n)
        b_k, b_v = k[keys], v[keys]
        j = start_n + torch.arange(len(b_k))
        b_dk, b_dv = torch.zeros_like(b_k), torch.zeros_like(b_v)
        first = max(0, start_n - offset) // block_m * block_m  # the tile of the first row that sees key start_n
        for start_m in range(first, q.shape[0], block_m):
            rows = slice(start_m, start_m + block_m)
            b_q, b_do = q[rows], do[rows]
            i = start_m + torch.arange(len(b_q))[:, None]
            b_p = torch.exp(b_q @ b_k.T * scale - lse[rows][:, None])
            b_p = b_p.masked_fill(j > i + offset, 0.0)  # after exp: whatever it made of a hidden score is gone
            b_ds = b_p * (b_do @ b_v.T - delta[rows][:, None])
            b_dv = b_dv + b_p.T @ b_do
            b_dk = b_dk + b_ds.T @ b_q
        dk[keys], dv[keys] = b_dk * scale, b_dv
    return dk, dv


def _loops(
    q, k, v, o, lse, do, block_m, block_n, *,
    offset=None, mask=None, first=None, delta=None, scale=None, dv_of=None, dk_of=None, keep=False, stop=None,
):  # fmt: skip
    """The solution with one part exchanged. mask(b_s, b_lse, unseen) -> b_p; first(start_n) -> the first query tile."""
    inner, shift = q.shape[1] ** -0.5, k.shape[0] - q.shape[0]
    offset = shift if offset is None else offset
    delta = (do * o).sum(dim=1) if delta is None else delta
    mask = mask or (lambda b_s, b_lse, unseen: torch.exp(b_s - b_lse).masked_fill(unseen, 0.0))
    first = first or (lambda start_n: max(0, start_n - offset) // block_m * block_m)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    b_dk, b_dv = 0.0, 0.0
    for start_n in range(0, k.shape[0], block_n):
        keys = slice(start_n, start_n + block_n)
        j = start_n + torch.arange(len(k[keys]))
        if not keep:
            b_dk, b_dv = 0.0, 0.0
        for start_m in range(first(start_n), q.shape[0] if stop is None else stop, block_m):
            rows = slice(start_m, start_m + block_m)
            i = start_m + torch.arange(len(q[rows]))[:, None]
            b_p = mask(q[rows] @ k[keys].T * inner, lse[rows][:, None], j > i + offset)
            b_dp = do[rows] @ v[keys].T
            b_ds = b_p * (b_dp - delta[rows][:, None])
            b_dv = b_dv + (b_p.T if dv_of is None else dv_of(b_p, b_dp, b_ds)) @ do[rows]
            b_dk = b_dk + (b_ds.T if dk_of is None else dk_of(b_p, b_dp, b_ds)) @ q[rows]
        dk[keys], dv[keys] = b_dk * (inner if scale is None else scale), b_dv
    return dk, dv


def scale_forgotten(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, o, lse, do, block_m, block_n, scale=1.0)


def delta_forgotten(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, o, lse, do, block_m, block_n, delta=torch.zeros_like(lse))


def dv_from_dp(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, o, lse, do, block_m, block_n, dv_of=lambda b_p, b_dp, b_ds: b_dp.T)


def dv_from_ds(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, o, lse, do, block_m, block_n, dv_of=lambda b_p, b_dp, b_ds: b_ds.T)


def ds_not_transposed(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, o, lse, do, block_m, block_n, dk_of=lambda b_p, b_dp, b_ds: b_ds)


def p_not_transposed(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, o, lse, do, block_m, block_n, dv_of=lambda b_p, b_dp, b_ds: b_p)


def mask_forgotten(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, o, lse, do, block_m, block_n, mask=lambda b_s, b_lse, unseen: torch.exp(b_s - b_lse))


def mask_before_exp(q, k, v, o, lse, do, block_m, block_n):
    before = lambda b_s, b_lse, unseen: torch.exp(b_s.masked_fill(unseen, -torch.inf) - b_lse)
    return _loops(q, k, v, o, lse, do, block_m, block_n, mask=before)


def mask_by_product(q, k, v, o, lse, do, block_m, block_n):
    product = lambda b_s, b_lse, unseen: torch.exp(b_s - b_lse) * ~unseen
    return _loops(q, k, v, o, lse, do, block_m, block_n, mask=product)


def mask_top_left(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, o, lse, do, block_m, block_n, offset=0)


def own_key_hidden(q, k, v, o, lse, do, block_m, block_n):
    shift = k.shape[0] - q.shape[0]
    late = lambda start_n: max(0, start_n - shift) // block_m * block_m
    return _loops(q, k, v, o, lse, do, block_m, block_n, offset=shift - 1, first=late)


def dv_scaled(q, k, v, o, lse, do, block_m, block_n):
    dk, dv = solution(q, k, v, o, lse, do, block_m, block_n)
    return dk, dv * q.shape[1] ** -0.5


def first_tile_top_left(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, o, lse, do, block_m, block_n, first=lambda start_n: start_n // block_m * block_m)


def diagonal_tile_skipped(q, k, v, o, lse, do, block_m, block_n):
    offset = k.shape[0] - q.shape[0]
    up = lambda start_n: -(-max(0, start_n + block_n - 1 - offset) // block_m) * block_m
    return _loops(q, k, v, o, lse, do, block_m, block_n, first=up)


def sums_not_reset(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, o, lse, do, block_m, block_n, keep=True)


def last_query_tile_dropped(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, o, lse, do, block_m, block_n, stop=q.shape[0] // block_m * block_m)


def nothing_skipped(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, o, lse, do, block_m, block_n, first=lambda start_n: 0)


def begins_before_row_zero(q, k, v, o, lse, do, block_m, block_n):
    offset = k.shape[0] - q.shape[0]
    early = lambda start_n: (start_n - offset) // block_m * block_m
    return _loops(q, k, v, o, lse, do, block_m, block_n, first=early)


def offset_upside_down(q, k, v, o, lse, do, block_m, block_n):
    return _loops(q, k, v, o, lse, do, block_m, block_n, offset=q.shape[0] - k.shape[0])


def next_key_seen(q, k, v, o, lse, do, block_m, block_n):
    shift = k.shape[0] - q.shape[0]
    first = lambda start_n: max(0, start_n - shift) // block_m * block_m
    return _loops(q, k, v, o, lse, do, block_m, block_n, offset=shift + 1, first=first)


def begins_at_the_last_key(q, k, v, o, lse, do, block_m, block_n):
    offset = k.shape[0] - q.shape[0]
    late = lambda start_n: max(0, start_n + block_n - 1 - offset) // block_m * block_m
    return _loops(q, k, v, o, lse, do, block_m, block_n, first=late)


def _one_tile():
    return cases(10, (16, 16, 16, 16), causal=True)


def _block_sizes():
    return cases(20, (16, 16, 4, 4), (16, 16, 8, 4), (16, 16, 4, 8), (16, 16, 1, 1), causal=True, sharp=2.0)


def _chunk():
    return cases(30, (8, 24, 4, 4), (1, 40, 4, 16), causal=True)


def _ragged():
    return cases(40, (17, 17, 8, 4), (11, 30, 4, 8), (33, 33, 8, 16), causal=True)


def _empty_rows():
    return cases(50, (12, 5, 4, 4), causal=True)


def _hidden_giant():
    q, k, v, _, _, do = problem(60, 8, 8)
    k[5] = 3000 * q[2]  # hidden from row 2, seen by the rows from 5 on
    o, lse = forward(q, k, v, causal=True)
    return [Case("8 x 8 in tiles of 4 x 8, a hidden score in the thousands", (q, k, v, o, lse, do, 4, 8))]


def _skips(tiled_dkdv):
    q, k, v, o, lse, do = problem(70, 32, 32, causal=True)
    with Watch(q) as seen:
        tiled_dkdv(q, k, v, o, lse, do, 8, 8)
    if len(seen.rows) > 20:
        return (
            f"32 x 32 in tiles of 8 x 8: {len(seen.rows)} products with a query tile were made; 10 pairs need two each"
        )


EXERCISE = Exercise(
    id="06.tiled_dkdv",
    title="dK and dV, tile by tile, causal",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Turn tiled_dq inside out: the outer loop takes a tile of keys, the inner loop the query tiles, and two "
        "sums, b_dk and b_dv, belong to the key tile.",
        "Inside: b_p as before, with its hidden entries set to 0 by masked_fill after exp. b_dv adds b_p.T @ b_do, "
        "b_dk adds b_ds.T @ b_q. At the end dk[keys] = b_dk * scale; dv has no scale.",
        "Hidden: j > i + offset with offset = seqlen_k - seqlen_q, i and j being the tokens' own numbers.",
        "The first row that sees key start_n is start_n - offset, but at least 0. Begin at the tile that holds it: "
        "max(0, start_n - offset) // block_m * block_m.",
    ),
    sub_checks=(
        SubCheck("one tile equals the formula", cases=_one_tile),
        SubCheck("block size does not change the answer", cases=_block_sizes),
        SubCheck("more keys than queries: aligned at the bottom right", cases=_chunk),
        SubCheck("lengths not divisible by the block", cases=_ragged),
        SubCheck("rows that see no key add nothing", cases=_empty_rows),
        SubCheck("a large score that is hidden adds nothing", cases=_hidden_giant),
        SubCheck("query tiles that see no key of the tile are skipped", test=_skips),
    ),
    mistakes=(
        Mistake(
            scale_forgotten,
            "dv is right and dk is sqrt(head_dim) too large: the scale is missing from dk.",
            "What is the derivative of scale * q . k with respect to k?",
        ),
        Mistake(
            delta_forgotten,
            "dv is right, dk is what comes out without D: ds = p * dp.",
            "What does softmax_gradient take off dp?",
        ),
        Mistake(
            dv_from_dp,
            "dv was made from dp. dp is what do sends to the probabilities; what v receives is weighted with p.",
            "o = p v. In the rule for products, which of the two factors stays when you want the gradient of v?",
        ),
        Mistake(
            dv_from_ds,
            "dv was made from ds. ds is the gradient of the scores, and no score depends on v.",
            "o = p v. Which matrix multiplies v there?",
        ),
        Mistake(
            ds_not_transposed,
            "ds was used as it stands, (queries, keys), where dk needs (keys, queries). Square tiles hide it from "
            "the shapes.",
            "dk has one row for each key. Over what does it sum?",
        ),
        Mistake(
            p_not_transposed,
            "p was used as it stands, (queries, keys), where dv needs (keys, queries). Square tiles hide it from the "
            "shapes.",
            "dv has one row for each key. Over what does it sum?",
        ),
        Mistake(
            mask_forgotten,
            "The hidden entries of the tiles on the diagonal were not set to 0. lse knows nothing of them, so their "
            "p can even be above 1.",
            "Which entries of a tile on the diagonal may not add to dk and dv?",
        ),
        Mistake(
            mask_before_exp,
            "The scores were masked with -inf before exp. Where a row sees no key, lse is -inf too, and -inf - -inf "
            "is NaN.",
            "What would happen to a hidden entry if it were set to 0 after exp?",
        ),
        Mistake(
            mask_by_product,
            "The mask was multiplied in. exp of a hidden score can overflow to inf, and inf * 0 is NaN.",
            "masked_fill and torch.where choose, a product computes. Which one forgets what was there?",
        ),
        Mistake(
            mask_top_left,
            "The mask is aligned at the top left: query 0 at key 0. The last query must see the last key.",
            "Where does seqlen_k - seqlen_q appear in your mask and in your first query tile?",
        ),
        Mistake(
            own_key_hidden,
            "The mask hides one key too many: a query sees the key at its own position.",
            "Is it > or >= between j and i + offset?",
        ),
        Mistake(
            dv_scaled,
            "dv was multiplied by the scale. The scale stands between q and k, v never meets it.",
            "o = p v. Is there a scale in it?",
        ),
        Mistake(
            first_tile_top_left,
            "The inner loop starts too late when there are more keys than queries: it takes key start_n to be seen "
            "from query start_n on.",
            "Which is the first query that sees key start_n, with 8 queries and 24 keys?",
        ),
        Mistake(
            diagonal_tile_skipped,
            "The tiles that the diagonal cuts were skipped: the inner loop starts where the last key of the tile is "
            "seen.",
            "Which key of the tile is seen earliest, the first or the last?",
        ),
        Mistake(
            begins_before_row_zero,
            "With more keys than queries start_n - offset is negative, and a slice that begins below 0 counts from the end: "
            "the last queries were taken once more.",
            "What is q[-4:0], and what q[-16:-12]? Where must the loop begin at the earliest?",
        ),
        Mistake(
            offset_upside_down,
            "The offset has the wrong sign, seqlen_q - seqlen_k.",
            "With 8 queries and 24 keys query 0 sees keys 0 to 16. What is 16 here?",
        ),
        Mistake(
            next_key_seen,
            "Every query sees one key too many, the one behind its own.",
            "Is key i + offset itself hidden from query i, and is the next one?",
        ),
        Mistake(
            begins_at_the_last_key,
            "The inner loop starts at the tile where the *last* key of the tile is first seen: queries before it that see "
            "the first keys were skipped.",
            "Which key of the tile is seen earliest, the first or the last?",
        ),
        Mistake(
            sums_not_reset,
            "The sums go on from one key tile to the next: the second tile starts with the gradients of the first.",
            "Inside which loop do b_dk and b_dv start at zero?",
        ),
        Mistake(
            last_query_tile_dropped,
            "The shorter query tile at the end is never visited.",
            "How many times does your inner loop run for 17 queries and BLOCK_M = 8?",
        ),
        Mistake(
            nothing_skipped,
            "The answer is right, but every query tile was worked on for every key tile: causal attention costs "
            "double.",
            "Can query 0 see key 24? From which query tile on is there anything to do?",
        ),
    ),
    keep="Keys outside: dk and dv add up over their queries and are written once. The mask comes after exp.",
)
