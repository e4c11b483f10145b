"""04.attention_head: attention of one head, a tile of queries a program, the keys streamed past it."""

import torch
import triton
import triton.language as tl

from flashlab.course.lessons.in_triton import guarded, matrix, moves, unwritten
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck

TOLERANCE = 2e-5
HEAD_DIM = 16


def spec(q, k, v, block_m, block_n):
    return torch.softmax(q @ k.T * q.shape[1] ** -0.5, dim=1) @ v


@triton.jit
def stub_kernel(
    p_q, p_k, p_v, p_o, stride_q, stride_k, stride_v, stride_o, seqlen_q, seqlen_k, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attention of BLOCK_M queries over all keys. Rows are D long and contiguous, stride_q (...) apart."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    b_q = tl.load(p_q + rows[:, None] * stride_q + dims[None, :], mask=(rows < seqlen_q)[:, None], other=0.0)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    for start_n in range(0, seqlen_k, BLOCK_N):
        cols = start_n + tl.arange(0, BLOCK_N)
        ...  # your lines: load b_k and b_v, scores, one step of the online softmax
    ...  # your lines: divide and store


def stub(q, k, v, block_m, block_n):
    """q: (seqlen_q, D), k and v: (seqlen_k, D), float32, rows contiguous. Returns o: (seqlen_q, D)."""
    o = torch.full(q.shape, float("nan"), device=q.device)
    grid = (triton.cdiv(q.shape[0], block_m),)
    stub_kernel[grid](
        q, k, v, o, q.stride(0), k.stride(0), v.stride(0), o.stride(0), q.shape[0], k.shape[0], q.shape[1] ** -0.5,
        D=q.shape[1], BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return o


@triton.jit
def solution_kernel(
    p_q, p_k, p_v, p_o, stride_q, stride_k, stride_v, stride_o, seqlen_q, seqlen_k, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attention of BLOCK_M queries over all keys. Rows are D long and contiguous, stride_q (...) apart."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    b_q = tl.load(p_q + rows[:, None] * stride_q + dims[None, :], mask=(rows < seqlen_q)[:, None], other=0.0)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    for start_n in range(0, seqlen_k, BLOCK_N):
        cols = start_n + tl.arange(0, BLOCK_N)
        inside = (cols < seqlen_k)[:, None]
        b_k = tl.load(p_k + cols[:, None] * stride_k + dims[None, :], mask=inside, other=0.0)
        b_v = tl.load(p_v + cols[:, None] * stride_v + dims[None, :], mask=inside, other=0.0)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale
        b_s = tl.where((cols < seqlen_k)[None, :], b_s, float("-inf"))
        m_new = tl.maximum(m, tl.max(b_s, axis=1))
        rescale = tl.exp(m - m_new)
        b_p = tl.exp(b_s - m_new[:, None])
        l = l * rescale + tl.sum(b_p, axis=1)
        acc = acc * rescale[:, None] + tl.dot(b_p, b_v, input_precision="ieee")
        m = m_new
    tl.store(p_o + rows[:, None] * stride_o + dims[None, :], acc / l[:, None], mask=(rows < seqlen_q)[:, None])


def solution(q, k, v, block_m, block_n):
    """q: (seqlen_q, D), k and v: (seqlen_k, D), float32, rows contiguous. Returns o: (seqlen_q, D)."""
    o = torch.full(q.shape, float("nan"), device=q.device)
    grid = (triton.cdiv(q.shape[0], block_m),)
    solution_kernel[grid](
        q, k, v, o, q.stride(0), k.stride(0), v.stride(0), o.stride(0), q.shape[0], k.shape[0], q.shape[1] ** -0.5,
        D=q.shape[1], BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return o


MISTAKES = (
    "padding_gets_weight", "v_not_masked", "k_not_masked", "acc_not_rescaled", "scale_forgotten", "last_keys_dropped",
    "store_not_masked", "stride_of_k_for_v", "not_divided", "k_not_transposed",
    "l_not_rescaled", "m_not_kept", "rescale_along_features", "l_along_features", "divided_in_the_loop", "rows_of_o_as_of_q",
    "stored_in_the_loop", "maximum_of_the_tile", "rescale_upside_down", "v_without_other", "one_key_too_many",
)  # fmt: skip


@triton.jit
def _wrong_kernel(
    p_q, p_k, p_v, p_o, stride_q, stride_k, stride_v, stride_o, seqlen_q, seqlen_k, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WHICH: tl.constexpr,
):  # fmt: skip
    """The solution with one of the mistakes."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    b_q = tl.load(p_q + rows[:, None] * stride_q + dims[None, :], mask=(rows < seqlen_q)[:, None], other=0.0)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    end = seqlen_k // BLOCK_N * BLOCK_N if WHICH == 5 else seqlen_k
    for start_n in range(0, end, BLOCK_N):
        cols = start_n + tl.arange(0, BLOCK_N)
        exists = cols <= seqlen_k if WHICH == 20 else cols < seqlen_k
        inside = exists[:, None]
        pointers_k = p_k + cols[:, None] * stride_k + dims[None, :]
        pointers_v = p_v + cols[:, None] * (stride_k if WHICH == 7 else stride_v) + dims[None, :]
        b_k = tl.load(pointers_k) if WHICH == 2 else tl.load(pointers_k, mask=inside, other=0.0)
        if WHICH == 1:
            b_v = tl.load(pointers_v)
        elif WHICH == 19:
            b_v = tl.load(pointers_v, mask=inside)
        else:
            b_v = tl.load(pointers_v, mask=inside, other=0.0)
        b_s = tl.dot(b_q, b_k if WHICH == 9 else tl.trans(b_k), input_precision="ieee")
        b_s = b_s if WHICH == 4 else b_s * scale
        b_s = b_s if WHICH == 0 else tl.where(exists[None, :], b_s, float("-inf"))
        m_new = tl.max(b_s, axis=1) if WHICH == 17 else tl.maximum(m, tl.max(b_s, axis=1))
        rescale = tl.exp(m_new - m) if WHICH == 18 else tl.exp(m - m_new)
        b_p = tl.exp(b_s - m_new[:, None])
        l = (l if WHICH == 10 else l * rescale) + tl.sum(b_p, axis=1)
        kept = acc if WHICH == 3 else acc * (rescale if WHICH == 12 else rescale[:, None])
        acc = kept + tl.dot(b_p, b_v, input_precision="ieee")
        acc = acc / l[:, None] if WHICH == 14 else acc
        m = m if WHICH == 11 else m_new
        if WHICH == 16:
            tl.store(
                p_o + rows[:, None] * stride_o + dims[None, :], acc / l[:, None], mask=(rows < seqlen_q)[:, None]
            )
    o = acc if WHICH == 8 or WHICH == 14 else acc / (l if WHICH == 13 else l[:, None])
    pointers_o = p_o + rows[:, None] * (stride_q if WHICH == 15 else stride_o) + dims[None, :]
    if WHICH == 6:
        tl.store(pointers_o, o)
    elif WHICH != 16:
        tl.store(pointers_o, o, mask=(rows < seqlen_q)[:, None])


def _launch(which, q, k, v, block_m, block_n):
    o = unwritten(*q.shape, device=q.device)
    _wrong_kernel[(triton.cdiv(q.shape[0], block_m),)](
        q, k, v, o, q.stride(0), k.stride(0), v.stride(0), o.stride(0), q.shape[0], k.shape[0], q.shape[1] ** -0.5,
        q.shape[1], block_m, block_n, MISTAKES.index(which),
    )  # fmt: skip
    return o


def padding_gets_weight(q, k, v, block_m, block_n):
    return _launch("padding_gets_weight", q, k, v, block_m, block_n)


def v_not_masked(q, k, v, block_m, block_n):
    return _launch("v_not_masked", q, k, v, block_m, block_n)


def k_not_masked(q, k, v, block_m, block_n):
    return _launch("k_not_masked", q, k, v, block_m, block_n)


def acc_not_rescaled(q, k, v, block_m, block_n):
    return _launch("acc_not_rescaled", q, k, v, block_m, block_n)


def scale_forgotten(q, k, v, block_m, block_n):
    return _launch("scale_forgotten", q, k, v, block_m, block_n)


def last_keys_dropped(q, k, v, block_m, block_n):
    return _launch("last_keys_dropped", q, k, v, block_m, block_n)


def store_not_masked(q, k, v, block_m, block_n):
    return _launch("store_not_masked", q, k, v, block_m, block_n)


def stride_of_k_for_v(q, k, v, block_m, block_n):
    return _launch("stride_of_k_for_v", q, k, v, block_m, block_n)


def not_divided(q, k, v, block_m, block_n):
    return _launch("not_divided", q, k, v, block_m, block_n)


def k_not_transposed(q, k, v, block_m, block_n):
    return _launch("k_not_transposed", q, k, v, block_m, block_n)


def l_not_rescaled(q, k, v, block_m, block_n):
    return _launch("l_not_rescaled", q, k, v, block_m, block_n)


def m_not_kept(q, k, v, block_m, block_n):
    return _launch("m_not_kept", q, k, v, block_m, block_n)


def rescale_along_features(q, k, v, block_m, block_n):
    return _launch("rescale_along_features", q, k, v, block_m, block_n)


def l_along_features(q, k, v, block_m, block_n):
    return _launch("l_along_features", q, k, v, block_m, block_n)


def divided_in_the_loop(q, k, v, block_m, block_n):
    return _launch("divided_in_the_loop", q, k, v, block_m, block_n)


def rows_of_o_as_of_q(q, k, v, block_m, block_n):
    return _launch("rows_of_o_as_of_q", q, k, v, block_m, block_n)


def stored_in_the_loop(q, k, v, block_m, block_n):
    return _launch("stored_in_the_loop", q, k, v, block_m, block_n)


def maximum_of_the_tile(q, k, v, block_m, block_n):
    return _launch("maximum_of_the_tile", q, k, v, block_m, block_n)


def rescale_upside_down(q, k, v, block_m, block_n):
    return _launch("rescale_upside_down", q, k, v, block_m, block_n)


def v_without_other(q, k, v, block_m, block_n):
    return _launch("v_without_other", q, k, v, block_m, block_n)


def one_key_too_many(q, k, v, block_m, block_n):
    return _launch("one_key_too_many", q, k, v, block_m, block_n)


def problem(seed, seqlen_q, seqlen_k, sharp=1.0, gaps=(0, 0, 0), **where):
    """q, k and v of one head; ``sharp`` makes the scores larger. Behind the last row of each lies NaN."""
    gap_q, gap_k, gap_v = gaps
    q = matrix(seed, seqlen_q, HEAD_DIM, gap_q, **where).mul_(sharp)
    return q, matrix(seed + 1, seqlen_k, HEAD_DIM, gap_k, **where), matrix(seed + 2, seqlen_k, HEAD_DIM, gap_v, **where)


def _cases(seed, *shapes, tolerance=TOLERANCE, **options):
    return [
        Case(f"{sq} queries, {sk} keys in tiles of {m} x {n}", (*problem(seed, sq, sk, **options), m, n), tolerance)
        for sq, sk, m, n in shapes
    ]


def _arguments():
    return "20 queries, 40 keys in tiles of 16 x 16", (*problem(60, 20, 40, device="cpu"), 16, 16)


ROW = HEAD_DIM * 4  # bytes

EXERCISE = Exercise(
    id="04.attention_head",
    title="Attention of one head",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "It is tiled_forward of lesson 03 with the outer loop gone: a program is a query tile, and the grid is the "
        "loop.",
        "Load b_k and b_v as b_q is loaded, with cols in place of rows, and the mask (cols < seqlen_k)[:, None].",
        'Scores: tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale, then tl.where((cols < seqlen_k)[None, :], '
        'b_s, float("-inf")): a key that does not exist has a score of 0 otherwise, and that is a weight.',
        "Then the five lines of tile_step with tl in place of torch: m_new, rescale, b_p, l, acc. At the end of the "
        "loop's body m = m_new.",
        "After the loop: tl.store(p_o + rows[:, None] * stride_o + dims[None, :], acc / l[:, None], mask=(rows < "
        "seqlen_q)[:, None]).",
    ),
    sub_checks=(
        SubCheck("one tile equals the naive formula", cases=lambda: _cases(10, (16, 16, 16, 16))),
        SubCheck("several tiles of keys", cases=lambda: _cases(20, (16, 64, 16, 16), (32, 64, 16, 32), sharp=2.0)),
        SubCheck("lengths not divisible by the block", cases=lambda: _cases(30, (17, 33, 16, 16), (31, 15, 16, 16))),
        SubCheck("large scores do not overflow",
                 cases=lambda: _cases(40, (16, 48, 16, 16), sharp=100.0, tolerance=2e-4)),
        SubCheck("rows that lie farther apart than they are long",
                 cases=lambda: _cases(50, (16, 32, 16, 16), gaps=(2, 5, 9))),
        SubCheck("q once, keys once for each query tile, and nothing outside",
                 test=moves(_arguments, {"q": 20 * ROW, "k": 2 * 40 * ROW, "v": 2 * 40 * ROW}, {"o": 20 * ROW})),
    ),  # fmt: skip
    mistakes=(
        Mistake(
            padding_gets_weight,
            "The keys behind the end get weight: their score is 0, not -inf, and exp(0 - m) is a weight like any "
            "other.",
            "other=0.0 makes b_k zero there. What does that make of b_s, and what should b_s be?",
        ),
        Mistake(
            v_not_masked,
            "V is loaded without a mask. The weights there are 0, but 0 times NaN is NaN: one such entry spoils "
            "every row.",
            "What does lie behind the last row of v, and what is 0 times that?",
        ),
        Mistake(
            k_not_masked,
            "The results are right, because those scores are set to -inf, but keys are loaded that are not there.",
            "tl.where throws the score away. Who keeps the load from happening?",
        ),
        Mistake(
            acc_not_rescaled,
            "This is what comes out when acc is not rescaled as the maximum grows.",
            "l got the factor rescale. Which other sum holds exp(s - m)?",
        ),
        Mistake(
            scale_forgotten,
            "The scores are not multiplied by scale.",
            "Compare your b_s with the first half of the spec.",
        ),
        Mistake(
            last_keys_dropped,
            "The shorter tile of keys at the end is never visited.",
            "How many times does your loop run for 33 keys and BLOCK_N = 16?",
        ),
        Mistake(
            store_not_masked,
            "The last program stores rows of o that do not exist.",
            "17 queries in tiles of 16: how many rows does program 1 have to store?",
        ),
        Mistake(
            stride_of_k_for_v,
            "The rows of v are taken to lie as far apart as those of k.",
            "The kernel is given four strides. Where is each used?",
        ),
        Mistake(
            k_not_transposed,
            "b_k is multiplied as it lies. With BLOCK_N = head_dim that is silently wrong; otherwise the shapes do "
            "not fit.",
            "b_q is (BLOCK_M, D) and b_k is (BLOCK_N, D). Which product has the shape of the scores, (BLOCK_M, "
            "BLOCK_N)?",
        ),
        Mistake(
            not_divided,
            "This is acc, not yet divided by l.",
            "What is left to do with a row once all keys have passed?",
        ),
        Mistake(
            l_not_rescaled,
            "This is what comes out when l is not rescaled as the maximum grows.",
            "acc got the factor rescale. Which other sum holds exp(s - m)?",
        ),
        Mistake(
            m_not_kept,
            "m stays at -inf: each step takes the rescale of the first, exp(-inf) = 0, and forgets all keys before it.",
            "Which line at the end of the loop's body carries the maximum into the next step?",
        ),
        Mistake(
            rescale_along_features,
            "acc was multiplied by rescale along its features: (BLOCK_M,) beside (BLOCK_M, D) is taken for a row. "
            "BLOCK_M = D hides it from the shapes.",
            "rescale has one number for each query. Which index makes a column of it?",
        ),
        Mistake(
            l_along_features,
            "acc was divided by l along its features: (BLOCK_M,) beside (BLOCK_M, D) is taken for a row. BLOCK_M = D "
            "hides it from the shapes.",
            "l has one number for each query. Which index makes a column of it?",
        ),
        Mistake(
            divided_in_the_loop,
            "acc is divided by l after each tile. What was divided is then added to what was not.",
            "How often is a row divided in FlashAttention-2, and when?",
        ),
        Mistake(
            rows_of_o_as_of_q,
            "The rows of o are taken to lie as far apart as those of q.",
            "The kernel is given four strides. Where is each used?",
        ),
        Mistake(
            stored_in_the_loop,
            "The results are right, but o is stored after each tile of keys, and only the last store counts.",
            "How far is your tl.store indented?",
        ),
        Mistake(
            rescale_upside_down,
            "rescale is upside down, exp(m_new - m): with m = -inf in the first step it is inf, and inf * 0 is NaN.",
            "acc holds exp(s - m) and should hold exp(s - m_new). What is their quotient?",
        ),
        Mistake(
            v_without_other,
            "V is masked, but other= is missing: a lane that is off holds anything, and 0 times NaN is NaN. The checks put "
            "NaN there, so that it shows.",
            "What should your load of b_v put where a key does not exist?",
        ),
        Mistake(
            one_key_too_many,
            "One key too many: key number seqlen_k, behind the last, is loaded and gets weight.",
            "The keys are 0, 1, ..., and the last one is?",
        ),
        Mistake(
            maximum_of_the_tile,
            "m is the maximum of this tile alone, and rescale then grows without bound when it falls.",
            "m_new must be at least m. Which function of two tiles gives that?",
        ),
    ),
    keep="The outer loop became the grid: a program is a tile of queries, and no program waits for another.",
    within=guarded,
)
