"""09.split_kernel: the split kernel, its inner loop given."""

import math

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.lessons.lesson_09.problems import DEVICE, even_splits, room
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.kernels import backend
from flashlab.reference.algebra import Partial, merge

backend.prepare()  # before Triton is imported

import triton  # noqa: E402
import triton.language as tl  # noqa: E402


def spec(q, k, v, lengths, num_splits, block_n):
    s = q @ k.mT * q.shape[2] ** -0.5
    outs, lses = torch.zeros(num_splits, *q.shape), torch.full((num_splits, *q.shape[:2]), -math.inf)
    for row, length in enumerate(lengths.tolist()):
        for split, (a, b) in enumerate(even_splits(length, block_n, num_splits)):
            part = Partial.of(s[row, :, a:b], v[row, a:b])
            outs[split, row], lses[split, row] = part.out, part.lse
    return outs, lses


def stub(q, k, v, lengths, num_splits, block_n):
    """q: (rows, group, head_dim) float32. k, v: (rows, capacity, head_dim); row r has lengths[r] keys, int32.

    Returns outs (num_splits, rows, group, head_dim) and lses (num_splits, rows, group), natural logarithms. A split
    without keys stores lse -inf; its out may stay as it is, or become 0, but not NaN.
    """

    @triton.jit
    def split_kernel(
        p_q, p_k, p_v, p_lengths, p_outs, p_lses, rows, capacity, num_splits, unit,
        GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):
        row, split = tl.program_id(0), tl.program_id(1)
        heads, dims = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
        is_head = heads < GROUP  # the group, padded to what the tensor core multiplies
        b_q = tl.load(p_q + (row * GROUP + heads[:, None]) * HEAD_DIM + dims, mask=is_head[:, None], other=0.0)
        m = tl.full([BLOCK_M], float("-inf"), tl.float32)
        l = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)

        length = ...  # of this row
        first_tile = ...  # the tiles of this split
        last_tile = ...

        for tile in range(first_tile, last_tile):
            cols = tile * BLOCK_N + tl.arange(0, BLOCK_N)
            is_key = cols < length
            at = (row * capacity + cols[:, None]) * HEAD_DIM + dims
            b_k = tl.load(p_k + at, mask=is_key[:, None], other=0.0)
            b_v = tl.load(p_v + at, mask=is_key[:, None], other=0.0)
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * unit  # unit: exp2 in place of exp
            b_s = tl.where(is_key[None, :], b_s, float("-inf"))
            m_new = tl.maximum(m, tl.max(b_s, 1))
            rescale = tl.exp2(m - m_new)
            b_p = tl.exp2(b_s - m_new[:, None])
            l = l * rescale + tl.sum(b_p, 1)
            acc = acc * rescale[:, None] + tl.dot(b_p, b_v, input_precision="ieee")
            m = m_new

        ...  # store out and lse of this split, heads below GROUP only

    q, k, v, lengths = (x.to(DEVICE) for x in (q, k, v, lengths))
    rows, group, head_dim = q.shape
    outs, lses = room(0.0, num_splits, rows, group, head_dim), room(math.nan, num_splits, rows, group)
    split_kernel[(rows, num_splits)](
        q, k, v, lengths, outs, lses, rows, k.shape[1], num_splits, head_dim**-0.5 * math.log2(math.e),
        GROUP=group, HEAD_DIM=head_dim, BLOCK_M=16, BLOCK_N=block_n,
    )
    return outs, lses


def solution(q, k, v, lengths, num_splits, block_n):
    """q: (rows, group, head_dim) float32. k, v: (rows, capacity, head_dim); row r has lengths[r] keys, int32.

    Returns outs (num_splits, rows, group, head_dim) and lses (num_splits, rows, group), natural logarithms. A split
    without keys stores lse -inf; its out may stay as it is, or become 0, but not NaN.
    """

    @triton.jit
    def split_kernel(
        p_q, p_k, p_v, p_lengths, p_outs, p_lses, rows, capacity, num_splits, unit,
        GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):
        row, split = tl.program_id(0), tl.program_id(1)
        heads, dims = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
        is_head = heads < GROUP  # the group, padded to what the tensor core multiplies
        b_q = tl.load(p_q + (row * GROUP + heads[:, None]) * HEAD_DIM + dims, mask=is_head[:, None], other=0.0)
        m = tl.full([BLOCK_M], float("-inf"), tl.float32)
        l = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)

        length = tl.load(p_lengths + row)
        tiles = tl.cdiv(length, BLOCK_N)
        first_tile = split * tiles // num_splits
        last_tile = (split + 1) * tiles // num_splits

        for tile in range(first_tile, last_tile):
            cols = tile * BLOCK_N + tl.arange(0, BLOCK_N)
            is_key = cols < length
            at = (row * capacity + cols[:, None]) * HEAD_DIM + dims
            b_k = tl.load(p_k + at, mask=is_key[:, None], other=0.0)
            b_v = tl.load(p_v + at, mask=is_key[:, None], other=0.0)
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * unit  # unit: exp2 in place of exp
            b_s = tl.where(is_key[None, :], b_s, float("-inf"))
            m_new = tl.maximum(m, tl.max(b_s, 1))
            rescale = tl.exp2(m - m_new)
            b_p = tl.exp2(b_s - m_new[:, None])
            l = l * rescale + tl.sum(b_p, 1)
            acc = acc * rescale[:, None] + tl.dot(b_p, b_v, input_precision="ieee")
            m = m_new

        at = (split * rows + row) * GROUP + heads
        l = tl.where(l == 0.0, 1.0, l)  # no key: out becomes 0 / 1, and lse -inf + 0
        tl.store(p_outs + at[:, None] * HEAD_DIM + dims, acc / l[:, None], mask=is_head[:, None])
        tl.store(p_lses + at, (m + tl.log2(l)) * 0.6931471805599453, mask=is_head)  # ln 2: from base 2 to natural

    q, k, v, lengths = (x.to(DEVICE) for x in (q, k, v, lengths))
    rows, group, head_dim = q.shape
    outs, lses = room(0.0, num_splits, rows, group, head_dim), room(math.nan, num_splits, rows, group)
    split_kernel[(rows, num_splits)](
        q, k, v, lengths, outs, lses, rows, k.shape[1], num_splits, head_dim**-0.5 * math.log2(math.e),
        GROUP=group, HEAD_DIM=head_dim, BLOCK_M=16, BLOCK_N=block_n,
    )
    return outs, lses


LN2 = math.log(2)


def _variant(q, k, v, lengths, num_splits, block_n, tiles=None, edges=None, slot=None, finish=None):
    """What a kernel like the solution leaves behind, one thing changed. A tile of masked keys alone makes NaN."""
    rows, group, head_dim = q.shape
    outs, lses = torch.zeros(num_splits * rows, group, head_dim), torch.full((num_splits * rows, group), math.nan)
    for row in range(rows):
        length = int(lengths[row])
        count = -(-length // block_n) if tiles is None else tiles(length)
        for split in range(num_splits):
            if edges is None:
                first, last = split * count // num_splits, (split + 1) * count // num_splits
            else:
                first, last = edges(count, split)
            keys = slice(min(first * block_n, length), min(last * block_n, length))
            s = q[row] @ k[row, keys].T * (head_dim**-0.5 / LN2)
            if first < last:
                m = s.amax(1) if s.shape[1] else torch.full((group,), math.nan)
            else:
                m = torch.full((group,), -math.inf)
            p = torch.exp2(s - m[:, None])
            l, acc = p.sum(1) + 0 * torch.where(m.isnan(), m, 0.0), p @ v[row, keys]
            at = split * rows + row if slot is None else slot(row, split)
            safe = torch.where(l == 0, 1.0, l)
            outs[at], lses[at] = (acc / safe[:, None], (m + torch.log2(safe)) * LN2) if finish is None else finish(acc, m, l)
            outs[at] += 0 * torch.where(m.isnan(), m, 0.0)[:, None]
    return outs.view(num_splits, rows, group, head_dim), lses.view(num_splits, rows, group)


def cut_from_capacity(q, k, v, lengths, num_splits, block_n):
    return _variant(q, k, v, lengths, num_splits, block_n, tiles=lambda length: -(-k.shape[1] // block_n))


def capacity_for_length(q, k, v, lengths, num_splits, block_n):
    return solution_like(q, k, v, torch.full_like(lengths, k.shape[1]), num_splits, block_n)


def one_length_for_all(q, k, v, lengths, num_splits, block_n):
    return solution_like(q, k, v, lengths[:1].expand(len(lengths)), num_splits, block_n)


def solution_like(q, k, v, lengths, num_splits, block_n):
    """The solution's result, without a kernel."""
    return _variant(q, k, v, lengths, num_splits, block_n)


def last_splits_starve(q, k, v, lengths, num_splits, block_n):
    def edges(tiles, split):
        each = -(-tiles // num_splits)
        return min(split * each, tiles), min((split + 1) * each, tiles)

    return _variant(q, k, v, lengths, num_splits, block_n, edges=edges)


def tiles_left_over(q, k, v, lengths, num_splits, block_n):
    edges = lambda tiles, split: (split * (tiles // num_splits), (split + 1) * (tiles // num_splits))
    return _variant(q, k, v, lengths, num_splits, block_n, edges=edges)


def short_tile_dropped(q, k, v, lengths, num_splits, block_n):
    return _variant(q, k, v, lengths, num_splits, block_n, tiles=lambda length: length // block_n)


def overlap_by_one(q, k, v, lengths, num_splits, block_n):
    edges = lambda tiles, split: (split * tiles // num_splits, (split + 1) * tiles // num_splits + 1)
    return _variant(q, k, v, lengths, num_splits, block_n, edges=edges)


def slots_row_first(q, k, v, lengths, num_splits, block_n):
    slot = lambda row, split: row * num_splits + split
    return _variant(q, k, v, lengths, num_splits, block_n, slot=slot)


def slot_without_split(q, k, v, lengths, num_splits, block_n):
    return _variant(q, k, v, lengths, num_splits, block_n, slot=lambda row, split: row)


def never_divided(q, k, v, lengths, num_splits, block_n):
    finish = lambda acc, m, l: (acc, (m + torch.log2(torch.where(l == 0, 1.0, l))) * LN2)
    return _variant(q, k, v, lengths, num_splits, block_n, finish=finish)


def base_two(q, k, v, lengths, num_splits, block_n):
    outs, lses = solution_like(q, k, v, lengths, num_splits, block_n)
    return outs, lses / LN2


def bases_mixed(q, k, v, lengths, num_splits, block_n):
    safe = lambda l: torch.where(l == 0, 1.0, l)
    finish = lambda acc, m, l: (acc / safe(l)[:, None], m + torch.log(safe(l)))
    return _variant(q, k, v, lengths, num_splits, block_n, finish=finish)


def lse_without_its_maximum(q, k, v, lengths, num_splits, block_n):
    safe = lambda l: torch.where(l == 0, 1.0, l)
    finish = lambda acc, m, l: (acc / safe(l)[:, None], torch.log(safe(l)))
    return _variant(q, k, v, lengths, num_splits, block_n, finish=finish)


def empty_is_nan(q, k, v, lengths, num_splits, block_n):
    finish = lambda acc, m, l: (acc / l[:, None], (m + torch.log2(l)) * LN2)
    return _variant(q, k, v, lengths, num_splits, block_n, finish=finish)


def padding_stored(q, k, v, lengths, num_splits, block_n):
    """Every program stores 16 heads, in the order in which the interpreter runs them."""
    rows, group, head_dim = q.shape
    padded = torch.zeros(rows, 16, head_dim)
    padded[:, :group] = q
    all_outs, all_lses = solution_like(padded, k, v, lengths, num_splits, block_n)
    outs = torch.zeros(num_splits * rows * group + 16, head_dim)
    lses = torch.full((num_splits * rows * group + 16,), math.nan)
    for row in range(rows):
        for split in range(num_splits):
            at = (split * rows + row) * group
            outs[at : at + 16], lses[at : at + 16] = all_outs[split, row], all_lses[split, row]
    shape = (num_splits, rows, group)
    return outs[:-16].view(*shape, head_dim), lses[:-16].view(shape)


TOLERANCE = 2e-5  # float32


def _case(seed, lengths, num_splits, group=4, capacity=None, sharp=1.0, block_n=16, head_dim=16):
    capacity = max(lengths) if capacity is None else capacity
    q = normal(seed, len(lengths), group, head_dim).float() * sharp
    k, v = (torch.full((len(lengths), capacity, head_dim), math.nan) for _ in range(2))
    for row, length in enumerate(lengths):
        k[row, :length] = normal(seed + 1 + row, length, head_dim).float()
        v[row, :length] = normal(seed + 50 + row, length, head_dim).float()
    held = f"{', '.join(map(str, lengths))} keys" + (f" in caches of {capacity}" if capacity > max(lengths) else "")
    label = f"{held}, tiles of {block_n}, {num_splits} split{'s' if num_splits > 1 else ''}"
    return Case(label, (q, k, v, torch.tensor(lengths, dtype=torch.int32), num_splits, block_n), TOLERANCE)


def _one():
    return [_case(100, [48], 1)]


def _several():
    return [_case(200, [64], 4), _case(300, [80, 80], 2)]


def _ragged():
    return [_case(400, [41], 2), _case(500, [80], 3)]


def _mixed():
    return [_case(600, [80, 17, 48], 3, capacity=96)]


def _empty():
    return [_case(700, [33, 0, 16], 4)]


def _large():
    return [_case(800, [48], 3, sharp=60.0)]


def _merge(split_kernel):
    q, k, v, lengths, *_ = _case(900, [70, 5], 5, group=3, capacity=96).args
    outs, lses = (x.cpu() for x in split_kernel(q, k, v, lengths, 5, 16))
    found = merge(*(Partial(out, lse) for out, lse in zip(outs, lses, strict=True))).out
    for row, length in enumerate(lengths.tolist()):
        expected = torch.softmax(q[row] @ k[row, :length].T * 0.25, dim=1) @ v[row, :length]
        off = float((found[row] - expected).abs().max())
        if not off <= TOLERANCE * 10:
            return f"rows of 70 and 5 keys, 5 splits, 3 heads: row {row}, merged, is off by {off:.4g}"


EXERCISE = Exercise(
    id="09.split_kernel",
    title="The split kernel",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "length = tl.load(p_lengths + row). The two tiles are split_range once more, with tl.cdiv(length, BLOCK_N) for the "
        "number of tiles.",
        "Where does split, row, head stand in lses? It is (num_splits, rows, group), so at "
        "(split * rows + row) * GROUP + heads. In outs each of these places is HEAD_DIM numbers long: "
        "at[:, None] * HEAD_DIM + dims.",
        "out is acc / l, lse is m + log2(l) in base 2: times ln 2 = 0.6931471805599453 it is natural. A split without keys "
        "has l = 0: divide by 1 there, tl.where(l == 0.0, 1.0, l).",
        "Store with mask=is_head and mask=is_head[:, None].",
    ),
    sub_checks=(
        SubCheck("one row, one split", cases=_one),
        SubCheck("equal splits", cases=_several),
        SubCheck("lengths and tiles that do not divide", cases=_ragged),
        SubCheck("rows of different lengths", cases=_mixed),
        SubCheck("splits and rows without keys", cases=_empty),
        SubCheck("large scores", cases=_large),
        SubCheck("merged, they are the answer", test=_merge),
    ),
    mistakes=(
        Mistake(
            cut_from_capacity,
            "The splits were cut from the cache's capacity. Those past the row's real length find nothing but masked keys: "
            "here they even become NaN, since -inf - -inf is NaN. (Elsewhere the answer was right and merely slow: "
            "FlashAttention, issue 1000.)",
            "Which number do you hand to tl.cdiv?",
        ),
        Mistake(
            capacity_for_length,
            "Keys past the row's real length were read. There is no key there: here it is NaN.",
            "What does p_lengths hold, and for which row?",
        ),
        Mistake(
            one_length_for_all,
            "Every row was given the first row's length.",
            "Which element of p_lengths does program (row, split) load?",
        ),
        Mistake(
            last_splits_starve,
            "Each split took cdiv(tiles, num_splits) tiles, so that the last ones find less or nothing. The text wants edges "
            "at floor(split * tiles / num_splits).",
            "How are the edges of split_range rounded?",
        ),
        Mistake(
            tiles_left_over,
            "Each split took tiles // num_splits tiles: what is left over at the end belongs to nobody.",
            "5 tiles in 3 splits: which tile does the last split end with?",
        ),
        Mistake(
            short_tile_dropped,
            "The short tile at the end of a row is missing: the tiles were counted by rounding down.",
            "How many tiles of 16 do 41 keys need?",
        ),
        Mistake(
            overlap_by_one,
            "Every split goes one tile too far: its keys count in the next split too.",
            "Is last_tile itself visited by range(first_tile, last_tile)?",
        ),
        Mistake(
            slots_row_first,
            "The partials are there, but in each other's places: stored as (rows, num_splits, ...), asked for as "
            "(num_splits, rows, ...).",
            "Which index of outs moves slowest?",
        ),
        Mistake(
            slot_without_split,
            "All splits of a row stored to the same place, and the last one stayed. The other places were never written.",
            "Where is split in the address that you store to?",
        ),
        Mistake(
            never_divided,
            "outs are the weighted sums, not divided by l.",
            "What is acc, and what is out?",
        ),
        Mistake(
            base_two,
            "lses are to base 2: m and l were kept with exp2.",
            "Which number times log2(x) is log(x)?",
        ),
        Mistake(
            bases_mixed,
            "lses mix two bases: m is in base 2, and tl.log(l) is natural.",
            "Put both into one base first, then convert the sum.",
        ),
        Mistake(
            lse_without_its_maximum,
            "lses hold log(l) alone: l was measured against m.",
            "What is the logarithm of 2**m * l?",
        ),
        Mistake(
            empty_is_nan,
            "Right wherever a split has keys. Where it has none l is 0, and out became 0 / 0.",
            "Which number may stand for l there?",
        ),
        Mistake(
            padding_stored,
            "The padding was stored too: 16 heads where GROUP are meant, over the places of other rows and splits.",
            "Which mask belongs to your two stores?",
        ),
    ),
    keep="One more program id and two edges: the inner loop never knew how many keys there are. out and lse go to HBM.",
)
