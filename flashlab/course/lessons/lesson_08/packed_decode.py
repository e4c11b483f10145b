"""08.packed_decode: a decode kernel in Triton. One program a kv head, its query heads as the rows of a tile."""

import contextlib
import warnings

import torch
import triton
import triton.language as tl

from flashlab.course.lessons.data import normal
from flashlab.course.lessons.in_triton import DEVICE, guarded, moves
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(q, k, v, block_n):
    rows = q.unflatten(1, (k.shape[1], -1))  # (batch, heads_kv, GROUP, head_dim): neighbours share a kv head
    p = torch.softmax(rows @ k.mT * q.shape[2] ** -0.5, dim=-1)
    return (p @ v).flatten(1, 2)


@triton.jit
def stub_kernel(p_q, p_k, p_v, p_o, seqlen_k, scale, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr):
    kv_head = tl.program_id(0)  # numbered through all sequences
    dims = tl.arange(0, D)
    rows = kv_head * GROUP + tl.arange(0, GROUP)  # the query heads of this kv head
    b_q = tl.load(p_q + rows[:, None] * D + dims)
    m = tl.full([GROUP], float("-inf"), tl.float32)
    l = tl.zeros([GROUP], tl.float32)
    acc = tl.zeros([GROUP, D], tl.float32)
    ...  # your loop over the keys of this kv head
    tl.store(p_o + rows[:, None] * D + dims, acc / l[:, None])


def stub(q, k, v, block_n):
    """q: (batch, heads_q, head_dim), one token; k, v: (batch, heads_kv, seqlen_k, head_dim). float32, contiguous.

    Returns o like q. heads_q / heads_kv, head_dim and block_n are powers of two; seqlen_k is any number.
    """
    o = torch.full_like(q, float("nan"))  # what no program writes stays NaN
    grid = ...  # how many programs?
    stub_kernel[grid](
        q, k, v, o, k.shape[2], q.shape[2] ** -0.5, GROUP=q.shape[1] // k.shape[1], D=q.shape[2], BLOCK_N=block_n
    )
    return o


@triton.jit
def solution_kernel(p_q, p_k, p_v, p_o, seqlen_k, scale, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr):
    kv_head = tl.program_id(0)  # numbered through all sequences
    dims = tl.arange(0, D)
    rows = kv_head * GROUP + tl.arange(0, GROUP)  # the query heads of this kv head
    b_q = tl.load(p_q + rows[:, None] * D + dims)
    m = tl.full([GROUP], float("-inf"), tl.float32)
    l = tl.zeros([GROUP], tl.float32)
    acc = tl.zeros([GROUP, D], tl.float32)
    for start_n in range(0, seqlen_k, BLOCK_N):
        cols = start_n + tl.arange(0, BLOCK_N)
        inside = cols < seqlen_k
        keys = (kv_head * seqlen_k + cols)[:, None] * D + dims
        b_k = tl.load(p_k + keys, mask=inside[:, None], other=0.0)
        b_v = tl.load(p_v + keys, mask=inside[:, None], other=0.0)
        s = tl.sum(b_q[:, None, :] * b_k[None, :, :], 2) * scale  # GROUP x BLOCK_N
        s = tl.where(inside[None, :], s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        rescale = tl.exp(m - m_new)
        p = tl.exp(s - m_new[:, None])
        l = l * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None] + tl.sum(p[:, :, None] * b_v[None, :, :], 1)
        m = m_new
    tl.store(p_o + rows[:, None] * D + dims, acc / l[:, None])


def solution(q, k, v, block_n):
    """q: (batch, heads_q, head_dim), one token; k, v: (batch, heads_kv, seqlen_k, head_dim). float32, contiguous.

    Returns o like q. heads_q / heads_kv, head_dim and block_n are powers of two; seqlen_k is any number.
    """
    o = torch.full_like(q, float("nan"))  # what no program writes stays NaN
    grid = (q.shape[0] * k.shape[1],)
    solution_kernel[grid](
        q, k, v, o, k.shape[2], q.shape[2] ** -0.5, GROUP=q.shape[1] // k.shape[1], D=q.shape[2], BLOCK_N=block_n
    )
    return o


def _walk(q, k, v, block_n, *, scale=None, exp=torch.exp, rescale_acc=True, rescale_l=True, shared=False):
    """The tile loop in PyTorch, with one part exchanged."""
    rows = q.unflatten(1, (k.shape[1], -1))
    m, l, acc = torch.full_like(rows[..., 0], -torch.inf), torch.zeros_like(rows[..., 0]), torch.zeros_like(rows)
    for start_n in range(0, k.shape[2], block_n):
        tile = slice(start_n, start_n + block_n)
        s = rows @ k[:, :, tile].mT * (q.shape[2] ** -0.5 if scale is None else scale)
        m_new = torch.maximum(m, s.amax(dim=(-2, -1))[..., None] if shared else s.amax(dim=-1))
        factor, p = exp(m - m_new), exp(s - m_new[..., None])
        l = l * (factor if rescale_l else 1) + p.sum(dim=-1)
        acc = acc * (factor[..., None] if rescale_acc else 1) + p @ v[:, :, tile]
        m = m_new
    return (acc / l[..., None]).flatten(1, 2)


@triton.jit
def one_program_a_query_head_kernel(
    p_q, p_k, p_v, p_o, seqlen_k, scale, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr
):
    head, dims = tl.program_id(0), tl.arange(0, D)
    q = tl.load(p_q + head * D + dims)
    m = tl.full([], float("-inf"), tl.float32)
    l = tl.zeros([], tl.float32)
    acc = tl.zeros([D], tl.float32)
    for start_n in range(0, seqlen_k, BLOCK_N):
        cols = start_n + tl.arange(0, BLOCK_N)
        keys = (head // GROUP * seqlen_k + cols)[:, None] * D + dims
        b_k = tl.load(p_k + keys, mask=(cols < seqlen_k)[:, None], other=0.0)
        b_v = tl.load(p_v + keys, mask=(cols < seqlen_k)[:, None], other=0.0)
        s = tl.where(cols < seqlen_k, tl.sum(b_k * q, 1) * scale, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 0))
        p = tl.exp(s - m_new)
        l = l * tl.exp(m - m_new) + tl.sum(p, 0)
        acc = acc * tl.exp(m - m_new) + tl.sum(p[:, None] * b_v, 0)
        m = m_new
    tl.store(p_o + head * D + dims, acc / l)


def one_program_a_query_head(q, k, v, block_n):
    """The right answer by the unpacked grid: every query head loads K and V for itself."""
    o = torch.full_like(q, float("nan"))
    one_program_a_query_head_kernel[(q.shape[0] * q.shape[1],)](
        q, k, v, o, k.shape[2], q.shape[2] ** -0.5, GROUP=q.shape[1] // k.shape[1], D=q.shape[2], BLOCK_N=block_n
    )
    return o


@triton.jit
def loads_not_masked_kernel(
    p_q, p_k, p_v, p_o, seqlen_k, scale, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr
):
    kv_head, dims = tl.program_id(0), tl.arange(0, D)
    rows = kv_head * GROUP + tl.arange(0, GROUP)
    b_q = tl.load(p_q + rows[:, None] * D + dims)
    m = tl.full([GROUP], float("-inf"), tl.float32)
    l = tl.zeros([GROUP], tl.float32)
    acc = tl.zeros([GROUP, D], tl.float32)
    for start_n in range(0, seqlen_k, BLOCK_N):
        cols = start_n + tl.arange(0, BLOCK_N)
        keys = (kv_head * seqlen_k + cols)[:, None] * D + dims
        b_k, b_v = tl.load(p_k + keys), tl.load(p_v + keys)
        s = tl.sum(b_q[:, None, :] * b_k[None, :, :], 2) * scale
        s = tl.where(cols[None, :] < seqlen_k, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        l = l * tl.exp(m - m_new) + tl.sum(p, 1)
        acc = acc * tl.exp(m - m_new)[:, None] + tl.sum(p[:, :, None] * b_v[None, :, :], 1)
        m = m_new
    tl.store(p_o + rows[:, None] * D + dims, acc / l[:, None])


def loads_not_masked(q, k, v, block_n):
    if q.is_cuda:  # nothing guards a GPU's memory
        return _walk(q, k, v, block_n)
    o = torch.full_like(q, float("nan"))
    loads_not_masked_kernel[(q.shape[0] * k.shape[1],)](
        q, k, v, o, k.shape[2], q.shape[2] ** -0.5, GROUP=q.shape[1] // k.shape[1], D=q.shape[2], BLOCK_N=block_n
    )
    return o


def too_many_programs(q, k, v, block_n):
    if q.is_cuda:  # nothing guards a GPU's memory
        return _walk(q, k, v, block_n)
    o = torch.full_like(q, float("nan"))
    solution_kernel[(q.shape[0] * q.shape[1],)](
        q, k, v, o, k.shape[2], q.shape[2] ** -0.5, GROUP=q.shape[1] // k.shape[1], D=q.shape[2], BLOCK_N=block_n
    )
    return o


def keys_of_the_first_head(q, k, v, block_n):
    return _walk(q, k[:1, :1].expand_as(k), v[:1, :1].expand_as(v), block_n)


def group_interleaved(q, k, v, block_n):
    turned = q.unflatten(1, (-1, k.shape[1])).transpose(1, 2)
    o = _walk(turned.flatten(1, 2), k, v, block_n)
    return o.view(turned.shape).transpose(1, 2).flatten(1, 2)


def m_stays(q, k, v, block_n):
    last = (k.shape[2] - 1) // block_n * block_n
    return _walk(q, k[:, :, last:], v[:, :, last:], block_n)


def one_maximum_for_all_rows(q, k, v, block_n):
    return _walk(q, k, v, block_n, shared=True)


def batch_not_in_the_grid(q, k, v, block_n):
    o = torch.full_like(q, float("nan"))
    solution_kernel[(k.shape[1],)](
        q, k, v, o, k.shape[2], q.shape[2] ** -0.5, GROUP=q.shape[1] // k.shape[1], D=q.shape[2], BLOCK_N=block_n
    )
    return o


def grid_of_two_axes(q, k, v, block_n):
    o = torch.full_like(q, float("nan"))
    solution_kernel[(q.shape[0], k.shape[1])](
        q, k, v, o, k.shape[2], q.shape[2] ** -0.5, GROUP=q.shape[1] // k.shape[1], D=q.shape[2], BLOCK_N=block_n
    )
    return o


def kv_head_divided_again(q, k, v, block_n):
    group, heads = q.shape[1] // k.shape[1], torch.arange(k.shape[0] * k.shape[1])
    k, v = (x.flatten(0, 1)[heads // group].view_as(x) for x in (k, v))
    return _walk(q, k, v, block_n)


def padding_scored(q, k, v, block_n):
    more = -k.shape[2] % block_n
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, more)) for x in (k, v))
    return _walk(q, k, v, block_n)


def last_tile_dropped(q, k, v, block_n):
    whole = k.shape[2] // block_n * block_n
    return _walk(q, k[:, :, :whole], v[:, :, :whole], block_n)


def scale_forgotten(q, k, v, block_n):
    return _walk(q, k, v, block_n, scale=1.0)


def acc_not_rescaled(q, k, v, block_n):
    return _walk(q, k, v, block_n, rescale_acc=False)


def l_not_rescaled(q, k, v, block_n):
    return _walk(q, k, v, block_n, rescale_l=False)


def exp2_of_a_natural_score(q, k, v, block_n):
    return _walk(q, k, v, block_n, exp=torch.exp2)


def k_taken_for_v(q, k, v, block_n):
    return _walk(q, k, k, block_n)


def first_tile_again_and_again(q, k, v, block_n):
    where = torch.arange(k.shape[2]) % block_n
    return _walk(q, k[:, :, where], v[:, :, where], block_n)


def problem(seed: int, batch: int, heads_q: int, heads_kv: int, seqlen_k: int, head_dim: int = 16, sharp: float = 1.0):
    """q, k, v in float32, where kernels run; ``sharp`` makes the scores larger."""
    q = sharp * normal(seed, batch, heads_q, head_dim)
    k, v = normal(seed + 1, batch, heads_kv, seqlen_k, head_dim), normal(seed + 2, batch, heads_kv, seqlen_k, head_dim)
    return tuple(x.float().to(DEVICE) for x in (q, k, v))


def _cases(seed: int, *shapes, **options):
    return [
        Case(
            f"batch {batch}, {heads_q} query and {heads_kv} kv heads, {seqlen_k} keys, BLOCK_N {block_n}",
            (*problem(seed, batch, heads_q, heads_kv, seqlen_k, **options), block_n),
            tolerance=2e-5,
        )
        for batch, heads_q, heads_kv, seqlen_k, block_n in shapes
    ]


def _one_tile():
    return _cases(10, (1, 4, 1, 16, 16))


def _tiles():
    return _cases(20, (1, 4, 1, 48, 16), (1, 2, 1, 32, 8), sharp=2.0)


def _ragged():
    return _cases(30, (1, 2, 1, 21, 16), (1, 4, 1, 5, 8))


def _heads_and_batch():
    return _cases(40, (3, 8, 2, 16, 16))


def _sharp_and_mild():
    q, k, v = problem(70, 1, 2, 1, 32)
    k[0, 0, 5] = 200 * q[0, 1]  # the second row has a score in the hundreds, which would leave the first nothing
    q[0, 0] -= (q[0, 0] @ q[0, 1]) / (q[0, 1] @ q[0, 1]) * q[0, 1]
    return [Case("one row with a score in the hundreds beside a mild one, 32 keys, BLOCK_N 16", (q, k, v, 16), 2e-5)]


def _multi_head():
    return _cases(50, (2, 3, 3, 16, 16))


def _traced():
    q, k, v = (x.cpu() for x in problem(60, 2, 8, 2, 32))
    return "batch 2, 8 query heads on 2 kv heads, 32 keys", (q, k, v, 16)


KV_BYTES = 2 * 2 * 32 * 16 * 4  # of K, and of V: batch x heads_kv x keys x head_dim x float32


@contextlib.contextmanager
def _quietly():
    """Guarded, and without numpy's warnings of what a GPU computes in silence."""
    with guarded(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


EXERCISE = Exercise(
    id="08.packed_decode",
    title="A packed decode kernel",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "The grid: one program for each sequence and kv head, grid = (q.shape[0] * k.shape[1],).",
        "The loop: for start_n in range(0, seqlen_k, BLOCK_N). The keys of the tile are cols = start_n + "
        "tl.arange(0, BLOCK_N), and they lie at (kv_head * seqlen_k + cols)[:, None] * D + dims, in K as in V. Mask "
        "what is past the end, in the loads and in the scores.",
        "The scores of GROUP rows: s = tl.sum(b_q[:, None, :] * b_k[None, :, :], 2) * scale, of shape GROUP x BLOCK_N. "
        "Then tl.where(inside[None, :], s, float('-inf')).",
        "The step is lesson 03's: m_new = tl.maximum(m, tl.max(s, 1)), rescale = tl.exp(m - m_new), p = tl.exp(s - "
        "m_new[:, None]), and acc = acc * rescale[:, None] + tl.sum(p[:, :, None] * b_v[None, :, :], 1).",
    ),
    sub_checks=(
        SubCheck("one tile", cases=_one_tile),
        SubCheck("several tiles, whose maximum grows", cases=_tiles),
        SubCheck("a length not divisible by BLOCK_N", cases=_ragged),
        SubCheck("several kv heads and sequences", cases=_heads_and_batch),
        SubCheck("as many kv heads as query heads", cases=_multi_head),
        SubCheck("a sharp row beside a mild one", cases=_sharp_and_mild),
        SubCheck(
            "K and V are loaded once for each kv head, and nothing outside them",
            test=moves(_traced, {"k": KV_BYTES, "v": KV_BYTES}, {}),
        ),
    ),
    mistakes=(
        Mistake(
            one_program_a_query_head,
            "The answer is right, but each query head has a program of its own and loads K and V again: GROUP times "
            "the bytes. Bytes are what a decode step consists of.",
            "How many rows of q does one of your programs load?",
        ),
        Mistake(
            too_many_programs,
            "There are more programs than kv heads: those beyond the last read and write outside the tensors. On a "
            "GPU that is somebody else's memory.",
            "Is your grid counted by query heads or by kv heads?",
        ),
        Mistake(
            keys_of_the_first_head,
            "Every program reads the keys of the first head of the first sequence: kv_head is not in the addresses.",
            "Where in K do the keys of kv head 1 begin?",
        ),
        Mistake(
            group_interleaved,
            "The heads are grouped the wrong way. Query heads 0 to GROUP - 1 share kv head 0: neighbours, not every "
            "heads_kv-th.",
            "Which query heads are your rows?",
        ),
        Mistake(
            m_stays,
            "Only the last tile counts. m is still -inf in every turn, so the rescale is exp(-inf) = 0 and wipes out "
            "what was there.",
            "What happens to m at the end of a turn?",
        ),
        Mistake(
            one_maximum_for_all_rows,
            "One maximum serves all rows of the tile. A row whose scores lie far below it is left with "
            "exp(-hundreds) = 0 everywhere, and 0 / 0 is NaN.",
            "What is the shape of m_new?",
        ),
        Mistake(
            batch_not_in_the_grid,
            "Only the first sequence was written. The rows of the others are still NaN, as the launcher left them: no "
            "program has their number.",
            "How many kv heads are there in all sequences together, and how many programs does your grid have?",
        ),
        Mistake(
            grid_of_two_axes,
            "The grid has two axes, and the kernel asks for the first alone: kv heads past the number of sequences get no "
            "program, the others several. Their rows are still NaN, as the launcher left them.",
            "kv_head is tl.program_id(0), numbered through all sequences. Up to which number must it run?",
        ),
        Mistake(
            kv_head_divided_again,
            "kv_head is divided by GROUP once more, as in the unpacked kernel. There a program was a query head; here it is a kv "
            "head already.",
            "Which keys does program 1 read?",
        ),
        Mistake(
            padding_scored,
            "Keys past the end were loaded as 0 and then scored as 0, like real ones: exp(0 - m) goes into l.",
            "mask= and other= make the loads safe. What makes the scores of those columns vanish?",
        ),
        Mistake(
            loads_not_masked,
            "The scores are masked, the loads are not: the last tile reads past the end, the next head's keys, and "
            "for the last head what lies behind the tensor (NaN here). A weight of 0 times NaN is NaN.",
            "Which of your loads has a mask= and an other=?",
        ),
        Mistake(
            last_tile_dropped,
            "The shorter tile at the end is never visited.",
            "How many times does your loop run for 21 keys and BLOCK_N = 16?",
        ),
        Mistake(
            scale_forgotten,
            "The scores are not multiplied by the scale.",
            "The kernel is given `scale`. Where do you use it?",
        ),
        Mistake(
            acc_not_rescaled,
            "l is rescaled when the maximum grows, acc is not.",
            "Which running sums hold exp(s - m)?",
        ),
        Mistake(
            l_not_rescaled,
            "acc is rescaled when the maximum grows, l is not.",
            "Which running sums hold exp(s - m)?",
        ),
        Mistake(
            exp2_of_a_natural_score,
            "Powers of 2 are taken of scores that were meant for e: exp2 needs scores times log2(e) = 1.4427.",
            "tl.exp or tl.exp2?",
        ),
        Mistake(
            k_taken_for_v,
            "The probabilities were multiplied with K in the place of V.",
            "Which pointer does b_v come from?",
        ),
        Mistake(
            first_tile_again_and_again,
            "Every turn of the loop reads the first tile: start_n is not in the addresses.",
            "Which keys are cols in the second turn?",
        ),
    ),
    within=_quietly,
    keep="One program a kv head: its query heads are rows, K and V come once, and the tile loop is lesson 03's.",
)
