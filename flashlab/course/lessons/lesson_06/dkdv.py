"""06.dkdv: the kernel with keys outside, in Triton. Causal, grouped heads, any strides of the output's gradient."""

import contextlib
import warnings

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck

with contextlib.suppress(ImportError):  # no Triton on this system: the lesson can be read, its kernel cannot run
    from flashlab.kernels import backend  # noqa: I001  first of all: it decides where kernels run
    import triton
    import triton.language as tl

# exp of a hidden score may be inf. A GPU says nothing then; the interpreter computes with numpy, which warns.
warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.runtime\.interpreter")


def spec(q, k, v, do, lse, delta, block_m, block_n):
    scale, group, shift = q.shape[-1] ** -0.5, q.shape[0] // k.shape[0], k.shape[1] - q.shape[1]
    i, j = torch.arange(q.shape[1], device=q.device)[:, None], torch.arange(k.shape[1], device=q.device)
    wide_k, wide_v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    p = torch.exp(q @ wide_k.mT * scale - lse[..., None]).masked_fill(j > i + shift, 0.0)
    ds = p * (do @ wide_v.mT - delta[..., None])
    dk, dv = (x.unflatten(0, (-1, group)).sum(dim=1) for x in (ds.mT @ q * scale, p.mT @ do))
    return dk, dv


def stub(q, k, v, do, lse, delta, block_m, block_n):
    """q, do: (heads_q, seqlen_q, head_dim), k, v: (heads_kv, seqlen_k, head_dim), float32, contiguous but for do.

    lse, delta: (heads_q, seqlen_q). Causal, bottom right. Returns dk and dv. head_dim and the blocks are powers of two.
    """

    @triton.jit
    def kernel(
        p_q, p_k, p_v, p_do, p_lse, p_delta, p_dk, p_dv, stride_doh, stride_dot, stride_dod, seqlen_q, seqlen_k, scale,
        GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        start_n, kv_head = tl.program_id(0) * BLOCK_N, tl.program_id(1)
        dims, cols = tl.arange(0, D), start_n + tl.arange(0, BLOCK_N)
        keys = (kv_head * seqlen_k + cols)[:, None] * D + dims  # element offsets of this program's tile
        inside = cols[:, None] < seqlen_k
        b_k, b_v = tl.load(p_k + keys, mask=inside, other=0.0), tl.load(p_v + keys, mask=inside, other=0.0)
        dk, dv = tl.zeros([BLOCK_N, D], tl.float32), tl.zeros([BLOCK_N, D], tl.float32)
        ...  # your loops: over the GROUP query heads of this kv head, and over their query tiles
        tl.store(p_dk + keys, dk * scale, mask=inside)
        tl.store(p_dv + keys, dv, mask=inside)

    dk, dv = torch.empty_like(k), torch.empty_like(v)
    grid = (triton.cdiv(k.shape[1], block_n), k.shape[0])
    kernel[grid](
        q, k, v, do, lse, delta, dk, dv, *do.stride(), q.shape[1], k.shape[1], q.shape[2] ** -0.5,
        GROUP=q.shape[0] // k.shape[0], D=q.shape[2], BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return dk, dv


def solution(q, k, v, do, lse, delta, block_m, block_n):
    """q, do: (heads_q, seqlen_q, head_dim), k, v: (heads_kv, seqlen_k, head_dim), float32, contiguous but for do.

    lse, delta: (heads_q, seqlen_q). Causal, bottom right. Returns dk and dv. head_dim and the blocks are powers of two.
    """

    @triton.jit
    def kernel(
        p_q, p_k, p_v, p_do, p_lse, p_delta, p_dk, p_dv, stride_doh, stride_dot, stride_dod, seqlen_q, seqlen_k, scale,
        GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        start_n, kv_head = tl.program_id(0) * BLOCK_N, tl.program_id(1)
        dims, cols = tl.arange(0, D), start_n + tl.arange(0, BLOCK_N)
        keys = (kv_head * seqlen_k + cols)[:, None] * D + dims  # element offsets of this program's tile
        inside = cols[:, None] < seqlen_k
        b_k, b_v = tl.load(p_k + keys, mask=inside, other=0.0), tl.load(p_v + keys, mask=inside, other=0.0)
        dk, dv = tl.zeros([BLOCK_N, D], tl.float32), tl.zeros([BLOCK_N, D], tl.float32)
        offset = seqlen_k - seqlen_q
        first = tl.maximum(start_n - offset, 0) // BLOCK_M * BLOCK_M
        for member in range(GROUP):
            head = kv_head * GROUP + member
            for start_m in range(first, seqlen_q, BLOCK_M):
                rows = start_m + tl.arange(0, BLOCK_M)
                valid = rows < seqlen_q
                stats = head * seqlen_q + rows
                b_q = tl.load(p_q + stats[:, None] * D + dims, mask=valid[:, None], other=0.0)
                b_do = tl.load(
                    p_do + head * stride_doh + rows[:, None] * stride_dot + dims * stride_dod, mask=valid[:, None], other=0.0
                )
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

    dk, dv = torch.empty_like(k), torch.empty_like(v)
    grid = (triton.cdiv(k.shape[1], block_n), k.shape[0])
    kernel[grid](
        q, k, v, do, lse, delta, dk, dv, *do.stride(), q.shape[1], k.shape[1], q.shape[2] ** -0.5,
        GROUP=q.shape[0] // k.shape[0], D=q.shape[2], BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return dk, dv


def _reference(
    q, k, v, do, lse, delta, *, scale=None, exp=torch.exp, hide=None, gather=None, heads=None, unseen=None,
    transposed=(True, True),
):  # fmt: skip
    """The spec with one part exchanged. heads: the kv head that each query head is taken to read."""
    inner, group = q.shape[-1] ** -0.5, q.shape[0] // k.shape[0]
    i, j = torch.arange(q.shape[1], device=q.device)[:, None], torch.arange(k.shape[1], device=q.device)
    hidden = j > i + k.shape[1] - q.shape[1] if unseen is None else unseen(i, j)
    hide = hide or (lambda p, hidden: p.masked_fill(hidden, 0.0))
    heads = torch.arange(q.shape[0], device=q.device) // group if heads is None else heads
    p = hide(exp(q @ k[heads].mT * inner - lse[..., None]), hidden)
    ds = p * (do @ v[heads].mT - delta[..., None])
    flip = lambda x, wanted: x.mT if wanted else x
    parts = flip(ds, transposed[0]) @ q * (inner if scale is None else scale), flip(p, transposed[1]) @ do
    gather = gather or (lambda x: torch.stack([x[heads == h].sum(dim=0) for h in range(k.shape[0])]))
    return tuple(gather(x) for x in parts)


def do_read_as_contiguous(q, k, v, do, lse, delta, block_m, block_n):
    do = do.as_strided(do.shape, (do.shape[1] * do.shape[2], do.shape[2], 1))
    return _reference(q, k, v, do, lse, delta)


def first_of_the_group(q, k, v, do, lse, delta, block_m, block_n):
    return _reference(q, k, v, do, lse, delta, gather=lambda x: x.unflatten(0, (k.shape[0], -1))[:, 0])


def last_of_the_group(q, k, v, do, lse, delta, block_m, block_n):
    return _reference(q, k, v, do, lse, delta, gather=lambda x: x.unflatten(0, (k.shape[0], -1))[:, -1])


def group_interleaved(q, k, v, do, lse, delta, block_m, block_n):
    return _reference(q, k, v, do, lse, delta, heads=torch.arange(q.shape[0], device=q.device) % k.shape[0])


def scale_forgotten_in_s(q, k, v, do, lse, delta, block_m, block_n):
    unscaled = q * q.shape[-1] ** 0.5
    dk, dv = _reference(unscaled, k, v, do, lse, delta)
    return dk * q.shape[-1] ** -0.5, dv


def scale_twice(q, k, v, do, lse, delta, block_m, block_n):
    return _reference(q, k, v, do, lse, delta, scale=q.shape[-1] ** -1.0)


def delta_forgotten(q, k, v, do, lse, delta, block_m, block_n):
    return _reference(q, k, v, do, lse, torch.zeros_like(delta))


def exp2_of_a_natural_lse(q, k, v, do, lse, delta, block_m, block_n):
    return _reference(q, k, v, do, lse, delta, exp=torch.exp2)


def mask_forgotten(q, k, v, do, lse, delta, block_m, block_n):
    tile = lambda i, j: i < (j // block_n * block_n - k.shape[1] + q.shape[1]).clamp(min=0) // block_m * block_m
    return _reference(q, k, v, do, lse, delta, unseen=tile)


def mask_top_left(q, k, v, do, lse, delta, block_m, block_n):
    return _reference(q, k, v, do, lse, delta, unseen=lambda i, j: j > i)


def mask_by_product(q, k, v, do, lse, delta, block_m, block_n):
    return _reference(q, k, v, do, lse, delta, hide=lambda p, hidden: p * ~hidden)


def mask_before_exp(q, k, v, do, lse, delta, block_m, block_n):
    nan = lambda p, hidden: p.masked_fill(hidden, 0.0).masked_fill(hidden & (lse == -torch.inf)[..., None], torch.nan)
    return _reference(q, k, v, do, lse, delta, hide=nan)


def last_query_tile_dropped(q, k, v, do, lse, delta, block_m, block_n):
    whole = q.shape[1] // block_m * block_m
    seen = lambda i, j: (j > i + k.shape[1] - q.shape[1]) | (i >= whole)
    return _reference(q, k, v, do, lse, delta, unseen=seen)


def first_tile_top_left(q, k, v, do, lse, delta, block_m, block_n):
    late = lambda i, j: (j > i + k.shape[1] - q.shape[1]) | (i < j // block_n * block_n // block_m * block_m)
    return _reference(q, k, v, do, lse, delta, unseen=late)


def nothing_added(q, k, v, do, lse, delta, block_m, block_n):
    return torch.zeros_like(k), torch.zeros_like(v)


def device() -> str:
    """Where kernels run."""
    return "cpu" if backend.interpreting() or not torch.cuda.is_available() else "cuda"


def problem(seed: int, heads_q: int, heads_kv: int, seqlen_q: int, seqlen_k: int, head_dim: int = 16) -> tuple[torch.Tensor, ...]:
    """q, k, v, do, lse, delta of a causal forward pass: float32, computed in float64, where kernels run."""
    q, do = normal(seed, heads_q, seqlen_q, head_dim), normal(seed + 1, heads_q, seqlen_q, head_dim)
    k, v = normal(seed + 2, heads_kv, seqlen_k, head_dim), normal(seed + 3, heads_kv, seqlen_k, head_dim)
    return _finished(q, k, v, do)


def _finished(q, k, v, do):
    group = q.shape[0] // k.shape[0]
    i, j = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])
    s = q @ k.repeat_interleave(group, dim=0).mT * q.shape[-1] ** -0.5
    s = s.masked_fill(j > i + k.shape[1] - q.shape[1], -torch.inf)
    o = torch.softmax(s, dim=-1).nan_to_num(0.0) @ v.repeat_interleave(group, dim=0)
    numbers = torch.logsumexp(s, dim=-1), (do * o).sum(dim=-1)
    return tuple(x.float().to(device()) for x in (q, k, v, do, *numbers))


def _case(label: str, parts, block_m: int = 16, block_n: int = 16) -> Case:
    return Case(f"{label}, tiles of {block_m} x {block_n}", (*parts, block_m, block_n), tolerance=2e-5)


def _one_head():
    return [_case("one head, 32 x 32", problem(10, 1, 1, 32, 32)), _case("one head, 32 x 32", problem(10, 1, 1, 32, 32), 16, 32)]


def _chunk():
    return [_case("16 queries, 48 keys", problem(20, 1, 1, 16, 48))]


def _ragged():
    return [_case("21 queries, 27 keys", problem(30, 1, 1, 21, 27))]


def _grouped():
    return [_case("6 query heads on 2, 16 x 16", problem(40, 6, 2, 16, 16))]


def _empty_rows():
    return [_case("20 queries, 9 keys: rows that see no key", problem(50, 1, 1, 20, 9))]


def _hidden_giant():
    q, k, v, do, _, _ = (x.cpu().double() for x in problem(70, 1, 1, 16, 16))
    k[0, 9] = 100 * q[0, 2]  # hidden from row 2
    return [_case("16 x 16, a hidden score in the hundreds", _finished(q, k, v, do))]


def _strided():
    q, k, v, do, _, _ = (x.cpu().double() for x in problem(60, 2, 2, 16, 16))
    summed = do.as_strided(do.shape, (0, 0, 0))  # as out.sum().backward() sends it
    turned = do.transpose(0, 1).contiguous().transpose(0, 1)  # heads inside tokens
    cases = []
    for label, strided in (("a do of stride 0", summed), ("a do whose heads lie inside its tokens", turned)):
        q_, k_, v_, _, lse, delta = _finished(q, k, v, strided)
        storage = do.float().to(device()) if strided is summed else do.float().transpose(0, 1).contiguous().to(device())
        cases.append(_case(label, (q_, k_, v_, storage.as_strided(do.shape, strided.stride()), lse, delta)))
    return cases


EXERCISE = Exercise(
    id="06.dkdv",
    title="dK and dV in Triton",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Two loops: for member in range(GROUP), with head = kv_head * GROUP + member; inside it for start_m in range(first, "
        "seqlen_q, BLOCK_M), with first from tiled_dkdv (tl.maximum for max).",
        "Loads: rows = start_m + tl.arange(0, BLOCK_M), valid = rows < seqlen_q. q lies at (head * seqlen_q + rows)[:, None] * D + "
        "dims; lse and delta at head * seqlen_q + rows. All with mask=valid (valid[:, None] for tiles) and other=0.0.",
        "do has strides of its own: p_do + head * stride_doh + rows[:, None] * stride_dot + dims * stride_dod.",
        "s = tl.dot(b_q, tl.trans(b_k), input_precision=\"ieee\") * scale; p = tl.where(cols[None, :] <= rows[:, None] + seqlen_k - "
        "seqlen_q, tl.exp(s - lse[:, None]), 0.0); dp, ds, and then dv += tl.dot(tl.trans(p), b_do, ...), dk += "
        "tl.dot(tl.trans(ds), b_q, ...).",
    ),
    sub_checks=(
        SubCheck("one head, and the block size does not matter", cases=_one_head),
        SubCheck("more keys than queries: aligned at the bottom right", cases=_chunk),
        SubCheck("lengths not divisible by the block", cases=_ragged),
        SubCheck("grouped heads add up", cases=_grouped),
        SubCheck("rows that see no key add nothing", cases=_empty_rows),
        SubCheck("a large score that is hidden adds nothing", cases=_hidden_giant),
        SubCheck("do with strides of its own", cases=_strided),
    ),
    mistakes=(
        Mistake(
            nothing_added,
            "dk and dv are zero everywhere: nothing was added to them.",
            "Does your loop run at all, and do dk and dv change in it (dk += ..., not a new name)?",
        ),
        Mistake(
            do_read_as_contiguous,
            "do was read as if it were contiguous. What out.sum().backward() sends is one number with stride 0; a kernel that "
            "ignores the strides reads whatever lies behind it.",
            "Which of your pointers uses stride_doh, stride_dot and stride_dod?",
        ),
        Mistake(
            first_of_the_group,
            "Only the first query head of each group was added.",
            "How many query heads read this kv head, and which loop visits them?",
        ),
        Mistake(
            last_of_the_group,
            "Only the last query head of each group is left: dk and dv start anew for each of them.",
            "Inside which loop are dk and dv set to zero?",
        ),
        Mistake(
            group_interleaved,
            "The heads were grouped the wrong way: query head h reads kv head h // GROUP, so kv head 0 has the query heads 0 to "
            "GROUP - 1.",
            "Which head number do member and kv_head make?",
        ),
        Mistake(
            scale_forgotten_in_s,
            "p is wrong: its scores were not multiplied by the scale, while lse was taken over scores that were.",
            "What does tl.dot of q and k have to be multiplied by before exp?",
        ),
        Mistake(
            scale_twice,
            "dv is right and dk was scaled twice: the store multiplies it already.",
            "Look at the last lines of the stub. What do they do to dk?",
        ),
        Mistake(
            delta_forgotten,
            "dv is right, dk is what comes out without delta: ds = p * dp.",
            "What does softmax_gradient take off dp?",
        ),
        Mistake(
            exp2_of_a_natural_lse,
            "p is 2 to the power of (s - lse), but lse is a natural logarithm here.",
            "exp2 needs its argument times 1.4427. Is yours?",
        ),
        Mistake(
            mask_forgotten,
            "The hidden entries of the tiles on the diagonal were not set to 0.",
            "Which of cols may a row see, and where does your kernel say so?",
        ),
        Mistake(
            mask_top_left,
            "The mask is aligned at the top left: query 0 at key 0. The last query must see the last key.",
            "Where does seqlen_k - seqlen_q appear in your mask?",
        ),
        Mistake(
            mask_by_product,
            "The mask was multiplied in. exp of a hidden score can overflow to inf, and inf * 0 is NaN.",
            "tl.where chooses, a product computes. Which one forgets what was there?",
        ),
        Mistake(
            mask_before_exp,
            "The scores were masked with -inf before exp. Where a row sees no key, lse is -inf too, and -inf - -inf is NaN.",
            "What would happen to a hidden entry if it were set to 0 after exp?",
        ),
        Mistake(
            last_query_tile_dropped,
            "The shorter query tile at the end is never visited.",
            "How many times does your loop run for 21 queries and BLOCK_M = 16?",
        ),
        Mistake(
            first_tile_top_left,
            "The loop over query tiles starts too late when there are more keys than queries: it takes key start_n to be seen from "
            "query start_n on.",
            "Which is the first query that sees key start_n, with 16 queries and 48 keys?",
        ),
    ),
    keep="One program owns a tile of keys, walks past the queries of its whole group, and stores once: no atomics.",
)
