"""09.split_decode: the split kernel, its inner loop given."""

import math

import torch
import triton
import triton.language as tl

from flashlab.course.lessons.data import normal
from flashlab.course.lessons.in_triton import DEVICE, guarded, moves
from flashlab.course.lessons.lesson_09.problems import even_splits
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.reference.algebra import Partial, merge

TOLERANCE = 2e-5  # float32
LN2 = tl.constexpr(math.log(2))


def spec(q, k, v, lengths, num_splits, block_n):
    s = q @ k.mT * q.shape[2] ** -0.5
    outs, lses = torch.zeros(num_splits, *q.shape), torch.full((num_splits, *q.shape[:2]), -math.inf)
    for row, length in enumerate(lengths.tolist()):
        for split, (a, b) in enumerate(even_splits(length, block_n, num_splits)):
            part = Partial.of(s[row, :, a:b], v[row, a:b])
            outs[split, row], lses[split, row] = part.out, part.lse
    return outs, lses


@triton.jit
def stub_kernel(
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
    first_tile = ...  # the tiles of this split: first_tile to last_tile - 1
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

    ...  # store out and lse of this split


def stub(q, k, v, lengths, num_splits, block_n):
    """q: (rows, group, head_dim) float32. k, v: (rows, capacity, head_dim); row r has lengths[r] keys, int32.

    Returns outs (num_splits, rows, group, head_dim) and lses (num_splits, rows, group), natural logarithms. A split
    without keys stores lse -inf; its out may stay as it is, or become 0, but not NaN.
    """
    rows, group, head_dim = q.shape
    outs = torch.zeros(num_splits, rows, group, head_dim, device=q.device)
    lses = torch.full((num_splits, rows, group), math.nan, device=q.device)
    stub_kernel[(rows, num_splits)](
        q, k, v, lengths, outs, lses, rows, k.shape[1], num_splits, head_dim**-0.5 * math.log2(math.e),
        GROUP=group, HEAD_DIM=head_dim, BLOCK_M=16, BLOCK_N=block_n,
    )
    return outs, lses


@triton.jit
def solution_kernel(
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


def solution(q, k, v, lengths, num_splits, block_n):
    """q: (rows, group, head_dim) float32. k, v: (rows, capacity, head_dim); row r has lengths[r] keys, int32.

    Returns outs (num_splits, rows, group, head_dim) and lses (num_splits, rows, group), natural logarithms. A split
    without keys stores lse -inf; its out may stay as it is, or become 0, but not NaN.
    """
    rows, group, head_dim = q.shape
    outs = torch.zeros(num_splits, rows, group, head_dim, device=q.device)
    lses = torch.full((num_splits, rows, group), math.nan, device=q.device)
    solution_kernel[(rows, num_splits)](
        q, k, v, lengths, outs, lses, rows, k.shape[1], num_splits, head_dim**-0.5 * math.log2(math.e),
        GROUP=group, HEAD_DIM=head_dim, BLOCK_M=16, BLOCK_N=block_n,
    )
    return outs, lses


@triton.jit
def _wrong_kernel(
    p_q, p_k, p_v, p_lengths, p_outs, p_lses, rows, capacity, num_splits, unit,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    WHICH: tl.constexpr,
):
    """The solution with one mistake."""
    row, split = tl.program_id(0), tl.program_id(1)
    heads, dims = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    is_head = heads < GROUP  # the group, padded to what the tensor core multiplies
    b_q = tl.load(p_q + (row * GROUP + heads[:, None]) * HEAD_DIM + dims, mask=is_head[:, None], other=0.0)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)

    length = tl.load(p_lengths + row)
    if WHICH == "capacity_for_length":
        length = capacity
    if WHICH == "one_length_for_all":
        length = tl.load(p_lengths)
    tiles = tl.cdiv(length, BLOCK_N)
    if WHICH == "cut_from_capacity":
        tiles = tl.cdiv(capacity, BLOCK_N)
    if WHICH == "short_tile_dropped":
        tiles = length // BLOCK_N
    first_tile = split * tiles // num_splits
    last_tile = (split + 1) * tiles // num_splits
    if WHICH == "overlap_by_one":
        last_tile += 1
    if WHICH == "last_splits_starve":
        first_tile = tl.minimum(split * tl.cdiv(tiles, num_splits), tiles)
        last_tile = tl.minimum((split + 1) * tl.cdiv(tiles, num_splits), tiles)
    if WHICH == "past_the_last_tile":
        first_tile = split * tl.cdiv(tiles, num_splits)
        last_tile = (split + 1) * tl.cdiv(tiles, num_splits)
    if WHICH == "keys_not_tiles":
        first_tile = split * length // num_splits
        last_tile = (split + 1) * length // num_splits
    if WHICH == "tiles_left_over":
        first_tile = split * (tiles // num_splits)
        last_tile = (split + 1) * (tiles // num_splits)

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
    if WHICH == "slots_row_first":
        at = (row * num_splits + split) * GROUP + heads
    if WHICH == "padded_places":
        at = (split * rows + row) * BLOCK_M + heads
    if WHICH == "slot_without_split":
        at = row * GROUP + heads
    if WHICH != "empty_is_nan":
        l = tl.where(l == 0.0, 1.0, l)
    out = acc if WHICH == "never_divided" else acc / l[:, None]
    lse = (m + tl.log2(l)) * LN2
    if WHICH == "base_two":
        lse = m + tl.log2(l)
    if WHICH == "bases_mixed":
        lse = m + tl.log(l)
    if WHICH == "lse_without_its_maximum":
        lse = tl.log(l)
    if WHICH == "half_converted":
        lse = m * LN2 + tl.log2(l)
    if WHICH == "converted_the_wrong_way":
        lse = (m + tl.log2(l)) / LN2
    if WHICH == "lse_is_the_largest":
        lse = m * LN2
    if WHICH == "sum_for_lse":
        lse = tl.where(m == float("-inf"), 0.0, l)
    if WHICH == "out_packed_like_lse":
        tl.store(p_outs + at[:, None] + dims, out, mask=is_head[:, None])
        tl.store(p_lses + at, lse, mask=is_head)
    elif WHICH == "mask_along_dims":
        tl.store(p_outs + at[:, None] * HEAD_DIM + dims, out, mask=(tl.arange(0, HEAD_DIM) < GROUP)[None, :])
        tl.store(p_lses + at, lse, mask=is_head)
    elif WHICH == "lse_padding_stored":
        tl.store(p_outs + at[:, None] * HEAD_DIM + dims, out, mask=is_head[:, None])
        tl.store(p_lses + at, lse)
    elif WHICH == "padding_stored":
        tl.store(p_outs + at[:, None] * HEAD_DIM + dims, out)
        tl.store(p_lses + at, lse)
    else:
        tl.store(p_outs + at[:, None] * HEAD_DIM + dims, out, mask=is_head[:, None])
        tl.store(p_lses + at, lse, mask=is_head)


def _launch(q, k, v, lengths, num_splits, block_n, which):
    """The wrong kernel. Its results have room behind them, so that on a GPU padding lands on nobody's memory."""
    rows, group, head_dim = q.shape
    places = num_splits * rows * group
    outs = torch.zeros(16 * places + 16, head_dim, device=q.device)[:places].view(num_splits, rows, group, head_dim)
    lses = torch.full((16 * places + 16,), math.nan, device=q.device)[:places].view(num_splits, rows, group)
    _wrong_kernel[(rows, num_splits)](
        q, k, v, lengths, outs, lses, rows, k.shape[1], num_splits, head_dim**-0.5 * math.log2(math.e),
        GROUP=group, HEAD_DIM=head_dim, BLOCK_M=16, BLOCK_N=block_n, WHICH=which,
    )
    return outs, lses


def cut_from_capacity(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "cut_from_capacity")


def capacity_for_length(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "capacity_for_length")


def one_length_for_all(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "one_length_for_all")


def last_splits_starve(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "last_splits_starve")


def tiles_left_over(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "tiles_left_over")


def keys_not_tiles(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "keys_not_tiles")


def out_packed_like_lse(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "out_packed_like_lse")


def short_tile_dropped(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "short_tile_dropped")


def overlap_by_one(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "overlap_by_one")


def slots_row_first(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "slots_row_first")


def slot_without_split(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "slot_without_split")


def never_divided(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "never_divided")


def base_two(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "base_two")


def bases_mixed(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "bases_mixed")


def lse_without_its_maximum(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "lse_without_its_maximum")


def empty_is_nan(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "empty_is_nan")


def padding_stored(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "padding_stored")


def past_the_last_tile(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "past_the_last_tile")


def padded_places(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "padded_places")


def half_converted(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "half_converted")


def converted_the_wrong_way(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "converted_the_wrong_way")


def lse_is_the_largest(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "lse_is_the_largest")


def sum_for_lse(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "sum_for_lse")


def mask_along_dims(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "mask_along_dims")


def lse_padding_stored(q, k, v, lengths, num_splits, block_n):
    return _launch(q, k, v, lengths, num_splits, block_n, "lse_padding_stored")


def _case(seed, lengths, num_splits, group=4, capacity=None, sharp=1.0, block_n=16, head_dim=16, device=DEVICE):
    capacity = max(lengths) if capacity is None else capacity
    q = normal(seed, len(lengths), group, head_dim).float() * sharp
    k, v = (torch.full((len(lengths), capacity, head_dim), math.nan) for _ in range(2))
    for row, length in enumerate(lengths):
        k[row, :length] = normal(seed + 1 + row, length, head_dim).float()
        v[row, :length] = normal(seed + 50 + row, length, head_dim).float()
    held = f"{', '.join(map(str, lengths))} keys" + (f" in caches of {capacity}" if capacity > max(lengths) else "")
    label = f"{held}, tiles of {block_n}, {num_splits} split{'s' if num_splits > 1 else ''}"
    tensors = (x.to(device) for x in (q, k, v, torch.tensor(lengths, dtype=torch.int32)))
    return Case(label, (*tensors, num_splits, block_n), TOLERANCE)


def _one():
    return [_case(100, [32], 1)]


def _several():
    return [_case(200, [48], 3)]


def _ragged():
    return [_case(400, [41], 2)]


def _mixed():
    return [_case(600, [64, 20], 2, capacity=80)]


def _empty():
    return [_case(700, [16, 0], 2)]


def _large():
    return [_case(800, [32], 2, sharp=60.0)]


def _merge(split_decode):
    q, k, v, lengths, *_ = _case(900, [50], 3, group=3, capacity=64).args
    outs, lses = (x.cpu() for x in split_decode(q, k, v, lengths, 3, 16))
    q, k, v = q[0].cpu(), k[0, :50].cpu(), v[0, :50].cpu()
    found = merge(*(Partial(out[0], lse[0]) for out, lse in zip(outs, lses, strict=True))).out
    off = float((found - torch.softmax(q @ k.T * 0.25, dim=1) @ v).abs().max())
    if not off <= TOLERANCE * 10:
        return f"50 keys in a cache of 64, 3 splits, 3 heads: merged, they are off by {off:.4g}"


def _bytes():
    case = _case(1000, [32, 25], 2, capacity=48, device="cpu")
    return case.label, case.args


_KEYS = (32 + 25) * 16 * 4  # bytes of K, and of V
_PARTS = 2 * 2 * 4 * 4  # bytes of lses


EXERCISE = Exercise(
    id="09.split_decode",
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
        SubCheck(
            "each key is read once, and each part written once",
            test=moves(_bytes, {"k": _KEYS, "v": _KEYS}, {"outs": 16 * _PARTS, "lses": _PARTS}),
        ),
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
            "The edges were rounded up: cdiv(tiles, num_splits) tiles for each split, or cdiv at the edges. The last splits "
            "then find less, or nothing. The text rounds down: floor(split * tiles / num_splits).",
            "How are the edges of split_range rounded?",
        ),
        Mistake(
            past_the_last_tile,
            "The last split goes past the last tile: nothing but masked keys there, which count as a key or become NaN.",
            "16 keys in tiles of 16, 2 splits: which tiles does your second split visit?",
        ),
        Mistake(
            tiles_left_over,
            "Each split took tiles // num_splits tiles: what is left over at the end belongs to nobody.",
            "5 tiles in 3 splits: which tile does the last split end with?",
        ),
        Mistake(
            keys_not_tiles,
            "The keys were shared out, and their numbers taken for numbers of tiles.",
            "In which unit does the loop count?",
        ),
        Mistake(
            out_packed_like_lse,
            "lses are right. The outs were stored one element apart, over each other: a place in outs is HEAD_DIM long.",
            "How far apart in outs are two heads?",
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
            half_converted,
            "lses mix two bases: m was made natural, and tl.log2(l) was not.",
            "Put both into one base first, then convert the sum.",
        ),
        Mistake(
            converted_the_wrong_way,
            "lses were multiplied by log2(e). That leads from a natural logarithm to base 2, and m is in base 2 already.",
            "Which number times log2(x) is log(x)?",
        ),
        Mistake(
            lse_is_the_largest,
            "lses hold m alone: that says nothing of how many keys there were.",
            "What is the logarithm of 2**m * l?",
        ),
        Mistake(
            sum_for_lse,
            "lses hold l, the sum of weights, not its logarithm.",
            "What is the logarithm of 2**m * l?",
        ),
        Mistake(
            padded_places,
            "A row took BLOCK_M places in outs and lses. They have GROUP places for a row; the padding has none.",
            "How far apart in lses are two rows of the same split?",
        ),
        Mistake(
            mask_along_dims,
            "lses are right. The mask of outs lies along the wrong dimension: it lets through the first GROUP numbers of "
            "every head, and the padding's too.",
            "is_head has shape (BLOCK_M,). Which shape makes it a column?",
        ),
        Mistake(
            empty_is_nan,
            "Right wherever a split has keys. Where it has none l is 0, and out became 0 / 0.",
            "Which number may stand for l there?",
        ),
        Mistake(
            lse_padding_stored,
            "outs are right. The padding's lse was stored too: 16 heads where GROUP are meant, over other rows and splits.",
            "Which mask belongs to each of your two stores?",
        ),
        Mistake(
            padding_stored,
            "The padding was stored too: 16 heads where GROUP are meant, over the places of other rows and splits.",
            "Which mask belongs to your two stores?",
        ),
    ),
    keep="One more program id and two edges: the inner loop never knew how many keys there are. out and lse go to HBM.",
    within=guarded,
)
