"""06.dkdv: the kernel with keys outside, in Triton. Causal, grouped heads, any strides of the output's gradient."""

import torch
import triton
import triton.language as tl

from flashlab.course.lessons.data import normal
from flashlab.course.lessons.in_triton import DEVICE, guarded, moves
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.reference.tiling import Tiling

TOLERANCE = 2e-5
HEAD_DIM = 16


def spec(q, k, v, do, lse, delta, block_m, block_n):
    scale, group, shift = q.shape[-1] ** -0.5, q.shape[0] // k.shape[0], k.shape[1] - q.shape[1]
    i, j = torch.arange(q.shape[1], device=q.device)[:, None], torch.arange(k.shape[1], device=q.device)
    wide_k, wide_v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    p = torch.exp(q @ wide_k.mT * scale - lse[..., None]).masked_fill(j > i + shift, 0.0)
    ds = p * (do @ wide_v.mT - delta[..., None])
    dk, dv = (x.unflatten(0, (-1, group)).sum(dim=1) for x in (ds.mT @ q * scale, p.mT @ do))
    return dk, dv


@triton.jit
def stub_kernel(
    p_q, p_k, p_v, p_do, p_lse, p_delta, p_dk, p_dv,
    stride_doh, stride_dot, stride_dod, seqlen_q, seqlen_k, scale,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dk and dv of BLOCK_N keys of one kv head. All tensors but do are contiguous."""
    start_n, kv_head = tl.program_id(0) * BLOCK_N, tl.program_id(1)
    dims, cols = tl.arange(0, D), start_n + tl.arange(0, BLOCK_N)
    keys = (kv_head * seqlen_k + cols)[:, None] * D + dims[None, :]  # where this program's tile of k, v, dk and dv lies
    inside = (cols < seqlen_k)[:, None]
    b_k, b_v = tl.load(p_k + keys, mask=inside, other=0.0), tl.load(p_v + keys, mask=inside, other=0.0)
    dk, dv = tl.zeros((BLOCK_N, D), tl.float32), tl.zeros((BLOCK_N, D), tl.float32)
    ...  # your loops: over the GROUP query heads of this kv head, and over their query tiles
    tl.store(p_dk + keys, dk * scale, mask=inside)
    tl.store(p_dv + keys, dv, mask=inside)


def stub(q, k, v, do, lse, delta, block_m, block_n):
    """q, do: (heads_q, seqlen_q, D), k, v: (heads_kv, seqlen_k, D), lse, delta: (heads_q, seqlen_q), all float32.

    Contiguous but for do, which may have any strides. Causal, aligned at the bottom right. Returns dk and dv.
    """
    dk, dv = (torch.full(x.shape, float("nan"), device=x.device) for x in (k, v))
    grid = (triton.cdiv(k.shape[1], block_n), k.shape[0])
    stub_kernel[grid](
        q, k, v, do, lse, delta, dk, dv, *do.stride(), q.shape[1], k.shape[1], q.shape[2] ** -0.5,
        GROUP=q.shape[0] // k.shape[0], D=q.shape[2], BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return dk, dv


@triton.jit
def solution_kernel(
    p_q, p_k, p_v, p_do, p_lse, p_delta, p_dk, p_dv,
    stride_doh, stride_dot, stride_dod, seqlen_q, seqlen_k, scale,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dk and dv of BLOCK_N keys of one kv head. All tensors but do are contiguous."""
    start_n, kv_head = tl.program_id(0) * BLOCK_N, tl.program_id(1)
    dims, cols = tl.arange(0, D), start_n + tl.arange(0, BLOCK_N)
    keys = (kv_head * seqlen_k + cols)[:, None] * D + dims[None, :]  # where this program's tile of k, v, dk and dv lies
    inside = (cols < seqlen_k)[:, None]
    b_k, b_v = tl.load(p_k + keys, mask=inside, other=0.0), tl.load(p_v + keys, mask=inside, other=0.0)
    dk, dv = tl.zeros((BLOCK_N, D), tl.float32), tl.zeros((BLOCK_N, D), tl.float32)
    offset = seqlen_k - seqlen_q
    first = tl.maximum(start_n - offset, 0) // BLOCK_M * BLOCK_M
    for member in range(GROUP):
        head = kv_head * GROUP + member
        for start_m in range(first, seqlen_q, BLOCK_M):
            rows = start_m + tl.arange(0, BLOCK_M)
            valid = rows < seqlen_q
            stats = head * seqlen_q + rows
            b_q = tl.load(p_q + stats[:, None] * D + dims[None, :], mask=valid[:, None], other=0.0)
            at = head * stride_doh + rows[:, None] * stride_dot + dims[None, :] * stride_dod
            b_do = tl.load(p_do + at, mask=valid[:, None], other=0.0)
            lse = tl.load(p_lse + stats, mask=valid, other=0.0)
            delta = tl.load(p_delta + stats, mask=valid, other=0.0)
            s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale
            p = tl.where(cols[None, :] <= rows[:, None] + offset, tl.exp(s - lse[:, None]), 0.0)
            dp = tl.dot(b_do, tl.trans(b_v), input_precision="ieee")
            ds = p * (dp - delta[:, None])
            dv += tl.dot(tl.trans(p), b_do, input_precision="ieee")
            dk += tl.dot(tl.trans(ds), b_q, input_precision="ieee")
    tl.store(p_dk + keys, dk * scale, mask=inside)
    tl.store(p_dv + keys, dv, mask=inside)


def solution(q, k, v, do, lse, delta, block_m, block_n):
    """q, do: (heads_q, seqlen_q, D), k, v: (heads_kv, seqlen_k, D), lse, delta: (heads_q, seqlen_q), all float32.

    Contiguous but for do, which may have any strides. Causal, aligned at the bottom right. Returns dk and dv.
    """
    dk, dv = (torch.full(x.shape, float("nan"), device=x.device) for x in (k, v))
    grid = (triton.cdiv(k.shape[1], block_n), k.shape[0])
    solution_kernel[grid](
        q, k, v, do, lse, delta, dk, dv, *do.stride(), q.shape[1], k.shape[1], q.shape[2] ** -0.5,
        GROUP=q.shape[0] // k.shape[0], D=q.shape[2], BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return dk, dv


MISTAKES = (
    "nothing_added", "dk_not_added", "rows_not_masked", "before_row_zero", "dv_from_ds", "dv_scaled",
    "ds_not_transposed", "own_key_hidden", "rows_of_the_kv_head", "do_read_as_contiguous", "first_of_the_group",
    "last_of_the_group", "group_interleaved", "scale_forgotten_in_s", "scale_twice", "delta_forgotten",
    "exp2_of_a_natural_lse", "mask_forgotten", "mask_top_left", "mask_by_product", "mask_before_exp",
    "last_query_tile_dropped", "first_tile_top_left", "nothing_skipped",
    "neither_transposed", "p_not_transposed", "features_taken_as_contiguous", "rows_of_the_kv_head_everywhere",
    "stats_of_the_first_head", "do_not_masked", "heads_seqlen_k_apart",
)  # fmt: skip


@triton.jit
def _wrong_kernel(
    p_q, p_k, p_v, p_do, p_lse, p_delta, p_dk, p_dv,
    stride_doh, stride_dot, stride_dod, seqlen_q, seqlen_k, scale,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WHICH: tl.constexpr,
):  # fmt: skip
    """The solution with one of the mistakes."""
    start_n, kv_head = tl.program_id(0) * BLOCK_N, tl.program_id(1)
    dims, cols = tl.arange(0, D), start_n + tl.arange(0, BLOCK_N)
    keys = (kv_head * seqlen_k + cols)[:, None] * D + dims[None, :]  # where this program's tile of k, v, dk and dv lies
    inside = (cols < seqlen_k)[:, None]
    b_k, b_v = tl.load(p_k + keys, mask=inside, other=0.0), tl.load(p_v + keys, mask=inside, other=0.0)
    dk, dv = tl.zeros((BLOCK_N, D), tl.float32), tl.zeros((BLOCK_N, D), tl.float32)
    offset = seqlen_k - seqlen_q
    shift = 0 if WHICH == 18 else offset - 1 if WHICH == 7 else offset
    begin = start_n if WHICH == 22 else 0 if WHICH == 23 else start_n - offset
    begin = begin if WHICH == 3 else tl.maximum(begin, 0)
    end = seqlen_q // BLOCK_M * BLOCK_M if WHICH == 21 else seqlen_q
    heads = 0 if WHICH == 0 else 1 if WHICH == 10 else GROUP
    for member in range(heads):
        head = member * tl.num_programs(1) + kv_head if WHICH == 12 else kv_head * GROUP + member
        head = kv_head if WHICH == 27 else head
        if WHICH == 11:
            dk, dv = tl.zeros((BLOCK_N, D), tl.float32), tl.zeros((BLOCK_N, D), tl.float32)
        for start_m in range(begin // BLOCK_M * BLOCK_M, end, BLOCK_M):
            rows = start_m + tl.arange(0, BLOCK_M)
            valid = rows == rows if WHICH == 2 else rows < seqlen_q
            stats = (kv_head if WHICH == 8 else head) * seqlen_q + rows
            at_q = stats + head * (seqlen_k - seqlen_q) if WHICH == 30 else stats
            b_q = tl.load(p_q + at_q[:, None] * D + dims[None, :], mask=valid[:, None], other=0.0)
            at = head * stride_doh + rows[:, None] * stride_dot + dims[None, :] * stride_dod
            if WHICH == 9:
                at = stats[:, None] * D + dims[None, :]
            elif WHICH == 26:
                at = head * stride_doh + rows[:, None] * stride_dot + dims[None, :]
            b_do = tl.load(p_do + at) if WHICH == 29 else tl.load(p_do + at, mask=valid[:, None], other=0.0)
            stats = rows if WHICH == 28 else stats
            lse = tl.load(p_lse + stats, mask=valid, other=0.0)
            delta = tl.load(p_delta + stats, mask=valid, other=0.0)
            s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
            s = s if WHICH == 13 else s * scale
            seen = cols[None, :] <= rows[:, None] + shift
            s = tl.where(seen, s, float("-inf")) if WHICH == 20 else s
            p = tl.exp2(s - lse[:, None]) if WHICH == 16 else tl.exp(s - lse[:, None])
            if WHICH == 19:
                p = p * seen.to(tl.float32)
            elif WHICH != 17 and WHICH != 20:
                p = tl.where(seen, p, 0.0)
            dp = tl.dot(b_do, tl.trans(b_v), input_precision="ieee")
            ds = p * dp if WHICH == 15 else p * (dp - delta[:, None])
            p_turned = p if WHICH == 24 or WHICH == 25 else tl.trans(ds if WHICH == 4 else p)
            dv += tl.dot(p_turned, b_do, input_precision="ieee")
            if WHICH != 1:
                dk += tl.dot(ds if WHICH == 6 or WHICH == 24 else tl.trans(ds), b_q, input_precision="ieee")
    dk = dk * scale if WHICH == 14 else dk
    dv = dv * scale if WHICH == 5 else dv
    tl.store(p_dk + keys, dk * scale, mask=inside)
    tl.store(p_dv + keys, dv, mask=inside)


def _wrong(which: str):
    """The launcher that makes this mistake."""

    def launch(q, k, v, do, lse, delta, block_m, block_n):
        dk, dv = (torch.full(x.shape, float("nan"), device=x.device) for x in (k, v))
        _wrong_kernel[(triton.cdiv(k.shape[1], block_n), k.shape[0])](
            q, k, v, do, lse, delta, dk, dv, *do.stride(), q.shape[1], k.shape[1], q.shape[2] ** -0.5,
            q.shape[0] // k.shape[0], q.shape[2], block_m, block_n, MISTAKES.index(which),
        )  # fmt: skip
        return dk, dv

    launch.__name__ = which
    return launch


def problem(seed: int, heads_q: int, heads_kv: int, seqlen_q: int, seqlen_k: int) -> tuple[torch.Tensor, ...]:
    """q, k, v and do of a causal forward pass, float64."""
    q, do = normal(seed, heads_q, seqlen_q, HEAD_DIM), normal(seed + 1, heads_q, seqlen_q, HEAD_DIM)
    return q, normal(seed + 2, heads_kv, seqlen_k, HEAD_DIM), normal(seed + 3, heads_kv, seqlen_k, HEAD_DIM), do


def _finished(q, k, v, do, device: str = DEVICE) -> tuple[torch.Tensor, ...]:
    """The kernel's inputs in float32: q, k, v, do (its strides kept), lse and delta, computed in float64."""
    group = q.shape[0] // k.shape[0]
    i, j = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])
    s = q @ k.repeat_interleave(group, dim=0).mT * q.shape[-1] ** -0.5
    s = s.masked_fill(j > i + k.shape[1] - q.shape[1], -torch.inf)
    o = torch.softmax(s, dim=-1).nan_to_num(0.0) @ v.repeat_interleave(group, dim=0)
    lse, delta = torch.logsumexp(s, dim=-1), (do * o).sum(dim=-1)
    storage = torch.empty(0, dtype=do.dtype).set_(do.untyped_storage()).float().to(device)
    strided = storage.as_strided(do.shape, do.stride())
    q, k, v, lse, delta = (x.float().to(device) for x in (q, k, v, lse, delta))
    return q, k, v, strided, lse, delta


def _case(label: str, parts, block_m: int = 16, block_n: int = 16) -> Case:
    return Case(f"{label}, tiles of {block_m} x {block_n}", (*_finished(*parts), block_m, block_n), TOLERANCE)


def _one_head():
    return [_case("16 queries, 16 keys", problem(10, 1, 1, 16, 16))]


def _block_sizes():
    return [_case("32 queries, 32 keys", problem(15, 1, 1, 32, 32), 16, 32)]


def _chunk():
    return [_case("16 queries, 32 keys", problem(20, 1, 1, 16, 32))]


def _ragged():
    return [_case("9 queries, 27 keys", problem(30, 1, 1, 9, 27))]


def _grouped():
    return [
        _case("4 query heads on 2, 16 x 16", problem(40, 4, 2, 16, 16)),
        _case("4 query heads on 2, 16 queries, 32 keys", problem(45, 4, 2, 16, 32)),
    ]


def _empty_rows():
    return [_case("20 queries, 9 keys", problem(50, 1, 1, 20, 9))]


def _hidden_giant():
    q, k, v, do = problem(70, 1, 1, 16, 16)
    k[0, 9] = 100 * q[0, 2]  # hidden from row 2
    return [_case("16 x 16, a hidden score in the hundreds", (q, k, v, do))]


def _strided():
    q, k, v, do = problem(60, 2, 2, 16, 16)
    heads, tokens, dims = do.shape
    sent = do[0, 0, 0].clone().expand(1, tokens, dims)  # as out.sum().backward() sends it
    turned = do.as_strided(do.shape, (dims, heads * dims, 1))
    return [
        _case("a do of stride 0", (q[:1], k[:1], v[:1], sent)),
        _case("a do whose heads lie inside its tokens", (q, k, v, turned)),
    ]


SEQLEN = 24


def _arguments():
    parts = _finished(*problem(80, 1, 1, SEQLEN, SEQLEN), device="cpu")
    return f"{SEQLEN} queries and keys, tiles of 16 x 16", (*parts, 16, 16)


def _bytes():
    """Loaded and stored: each key tile loads the query tiles that see it."""
    tiling = Tiling(SEQLEN, SEQLEN, 16, 16, causal=True)
    rows = sum(rows.stop - rows.start for rows in tiling.q_tiles for keys in tiling.k_tiles if tiling.sees(rows, keys))
    once = SEQLEN * HEAD_DIM * 4
    walked = rows * HEAD_DIM * 4
    return {"k": once, "v": once, "q": walked, "do": walked}, {"dk": once, "dv": once}


EXERCISE = Exercise(
    id="06.dkdv",
    title="dK and dV in Triton",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Two loops: for member in range(GROUP), with head = kv_head * GROUP + member; inside it for start_m in "
        "range(first, seqlen_q, BLOCK_M), with first from tiled_dkdv (tl.maximum for max).",
        "Loads: rows = start_m + tl.arange(0, BLOCK_M), valid = rows < seqlen_q. q lies at (head * seqlen_q + "
        "rows)[:, None] * D + dims[None, :]; lse and delta at head * seqlen_q + rows. All with mask=valid (valid[:, "
        "None] for tiles) and other=0.0.",
        "do has strides of its own: p_do + head * stride_doh + rows[:, None] * stride_dot + dims[None, :] * "
        "stride_dod.",
        's = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale; '
        "p = tl.where(cols[None, :] <= rows[:, None] + seqlen_k - "
        "seqlen_q, tl.exp(s - lse[:, None]), 0.0); dp, ds, and then dv += tl.dot(tl.trans(p), b_do, ...), dk += "
        "tl.dot(tl.trans(ds), b_q, ...).",
    ),
    sub_checks=(
        SubCheck("one head", cases=_one_head),
        SubCheck("tiles that are not square", cases=_block_sizes),
        SubCheck("more keys than queries: aligned at the bottom right", cases=_chunk),
        SubCheck("lengths not divisible by the block", cases=_ragged),
        SubCheck("grouped heads add up", cases=_grouped),
        SubCheck("rows that see no key add nothing", cases=_empty_rows),
        SubCheck("a large score that is hidden adds nothing", cases=_hidden_giant),
        SubCheck("do with strides of its own", cases=_strided),
        SubCheck(
            "keys once, queries only from where they see them, and nothing outside", test=moves(_arguments, *_bytes())
        ),
    ),
    mistakes=(
        Mistake(
            _wrong("nothing_added"),
            "dk and dv are zero everywhere: nothing was added to them.",
            "Does your loop run at all, and do dk and dv change in it (dk += ..., not a new name)?",
        ),
        Mistake(
            _wrong("dk_not_added"),
            "dv is right and dk is zero: nothing was added to dk.",
            "Does dk itself change in your loop (dk += ..., not a new name)?",
        ),
        Mistake(
            _wrong("rows_not_masked"),
            "The last query tile reaches past the last row, and it was loaded without a mask. What lies there, of "
            "another head or of nobody, was taken for queries.",
            "Which of your four loads say mask=valid (or valid[:, None]) and other=0.0?",
        ),
        Mistake(
            _wrong("before_row_zero"),
            "With more keys than queries start_n - offset is negative, and the loop begins before row 0: it reads "
            "what lies before the tensors.",
            "What does max(0, ...) become in Triton?",
        ),
        Mistake(
            _wrong("neither_transposed"),
            "p and ds were used as they stand, (queries, keys). dv and dk need them the other way round; square tiles hide "
            "it from the shapes.",
            "dv has one row for each key. Over what does it sum?",
        ),
        Mistake(
            _wrong("p_not_transposed"),
            "p was used as it stands, (queries, keys), where dv needs (keys, queries). Square tiles hide it from the "
            "shapes.",
            "dv has one row for each key. Over what does it sum?",
        ),
        Mistake(
            _wrong("features_taken_as_contiguous"),
            "Two strides of do are used, the third is not: the features are taken to lie side by side.",
            "What is do.stride() in the failing case, and where is stride_dod in your pointers?",
        ),
        Mistake(
            _wrong("rows_of_the_kv_head_everywhere"),
            "q, do, lse and delta were all taken from head number kv_head, GROUP times the same one.",
            "Which query heads read kv head 1, with GROUP = 2?",
        ),
        Mistake(
            _wrong("stats_of_the_first_head"),
            "lse and delta are those of the first head, whichever head is worked on.",
            "lse is (heads_q, seqlen_q). Where does the row of another head begin?",
        ),
        Mistake(
            _wrong("do_not_masked"),
            "do was loaded without a mask: what lies behind the last query, of another head or of nobody, goes into dv and "
            "dk.",
            "Which of your four loads say mask=valid (or valid[:, None]) and other=0.0?",
        ),
        Mistake(
            _wrong("heads_seqlen_k_apart"),
            "The heads of q were taken to lie seqlen_k rows apart. q has seqlen_q rows a head.",
            "What are the three sizes of q?",
        ),
        Mistake(
            _wrong("dv_from_ds"),
            "dv was made from ds. ds is the gradient of the scores, and no score depends on v.",
            "o = p v. Which matrix multiplies v there?",
        ),
        Mistake(
            _wrong("dv_scaled"),
            "dv was multiplied by the scale. The scale stands between q and k, v never meets it.",
            "o = p v. Is there a scale in it?",
        ),
        Mistake(
            _wrong("ds_not_transposed"),
            "ds was used as it stands, (queries, keys), where dk needs (keys, queries). Square tiles hide it from "
            "the shapes.",
            "dk has one row for each key. Over what does it sum?",
        ),
        Mistake(
            _wrong("own_key_hidden"),
            "The mask hides one key too many: a query sees the key at its own position.",
            "Is it < or <= between cols and rows + offset?",
        ),
        Mistake(
            _wrong("rows_of_the_kv_head"),
            "q, lse and delta were read at kv_head, but they have a row for each query head.",
            "How many heads do q, lse and delta have, and which number counts them?",
        ),
        Mistake(
            _wrong("do_read_as_contiguous"),
            "do was read as if it were contiguous. What out.sum().backward() sends is one number with stride 0; a "
            "kernel that ignores the strides reads whatever lies behind it.",
            "Which of your pointers uses stride_doh, stride_dot and stride_dod?",
        ),
        Mistake(
            _wrong("first_of_the_group"),
            "Only the first query head of each group was added.",
            "How many query heads read this kv head, and which loop visits them?",
        ),
        Mistake(
            _wrong("last_of_the_group"),
            "Only the last query head of each group is left: dk and dv start anew for each of them.",
            "Inside which loop are dk and dv set to zero?",
        ),
        Mistake(
            _wrong("group_interleaved"),
            "The heads were grouped the wrong way: query head h reads kv head h // GROUP, so kv head 0 has the query "
            "heads 0 to GROUP - 1.",
            "Which head number do member and kv_head make?",
        ),
        Mistake(
            _wrong("scale_forgotten_in_s"),
            "p is wrong: its scores were not multiplied by the scale, while lse was taken over scores that were.",
            "What does tl.dot of q and k have to be multiplied by before exp?",
        ),
        Mistake(
            _wrong("scale_twice"),
            "dv is right and dk was scaled twice: the store multiplies it already.",
            "Look at the last lines of the stub. What do they do to dk?",
        ),
        Mistake(
            _wrong("delta_forgotten"),
            "dv is right, dk is what comes out without delta: ds = p * dp.",
            "What does softmax_gradient take off dp?",
        ),
        Mistake(
            _wrong("exp2_of_a_natural_lse"),
            "p is 2 to the power of (s - lse), but lse is a natural logarithm here.",
            "exp2 needs its argument times 1.4427. Is yours?",
        ),
        Mistake(
            _wrong("mask_forgotten"),
            "The hidden entries of the tiles on the diagonal were not set to 0.",
            "Which of cols may a row see, and where does your kernel say so?",
        ),
        Mistake(
            _wrong("mask_top_left"),
            "The mask is aligned at the top left: query 0 at key 0. The last query must see the last key.",
            "Where does seqlen_k - seqlen_q appear in your mask?",
        ),
        Mistake(
            _wrong("mask_by_product"),
            "The mask was multiplied in. exp of a hidden score can overflow to inf, and inf * 0 is NaN.",
            "tl.where chooses, a product computes. Which one forgets what was there?",
        ),
        Mistake(
            _wrong("mask_before_exp"),
            "The scores were masked with -inf before exp. Where a row sees no key, lse is -inf too, and -inf - -inf "
            "is NaN.",
            "What would happen to a hidden entry if it were set to 0 after exp?",
        ),
        Mistake(
            _wrong("last_query_tile_dropped"),
            "The shorter query tile at the end is never visited.",
            "How many times does your loop run for 9 queries and BLOCK_M = 16?",
        ),
        Mistake(
            _wrong("first_tile_top_left"),
            "The loop over query tiles starts too late when there are more keys than queries: it takes key start_n "
            "to be seen from query start_n on.",
            "Which is the first query that sees key start_n, with 16 queries and 32 keys?",
        ),
        Mistake(
            _wrong("nothing_skipped"),
            "dk and dv are right, but every key tile loads all queries: causal attention costs double.",
            "Can query 0 see key 16? From which row on is there anything to do for a tile?",
        ),
    ),
    keep="One program owns a tile of keys, walks past the queries of its whole group, and stores once: no atomics.",
    within=guarded,
)
