"""What a case does, counted: tiles, bytes and programs. No speed: that needs a GPU.

The loops are flashlab.reference.tiled's and the bytes its closed forms (flashlab.reference.traffic), for every batch row and
head; the grid is flashlab.hardware.launch's; tiles and splits are those the launch tables give the named GPU. The bytes are
what programs ask for; what caches answer is not subtracted.
"""

import math
from typing import NamedTuple

from flashlab.bench.cases import CACHES, SCALE_BYTES, Case
from flashlab.hardware import decode_grid, gpu, prefill_grid, splits_to_fill, waves
from flashlab.hardware.gpus import GPU

NO_SPEED = "Counted, not measured: a CPU says nothing about a GPU's speed. Run this on a machine with an NVIDIA GPU."
LAUNCHES = {"prefill": ("forward",), "train": ("forward", "dkdv", "dq")}
PRODUCTS = {"forward": 2, "dkdv": 4, "dq": 3}  # of matrices, for each pair of tiles (flashlab.kernels.backward)


class Count(NamedTuple):
    """One launch of a case.

    Attributes:
        launch: forward, dkdv, dq, decode or combine.
        block_m, block_n: its tile of queries and of keys; 0 for combine.
        num_splits: pieces the keys are cut into.
        programs: blocks in the grid.
        waves: programs over what the GPU holds, at the blocks an SM the table says (1 where it does not).
        tiles: pairs of tiles worked on.
        bytes: read and written; None for the backward launches, which the reference does not model.
        flop: of the products it does, those it computes again included; None for combine.
    """

    launch: str
    block_m: int
    block_n: int
    num_splits: int
    programs: int
    waves: float
    tiles: int
    bytes: int | None
    flop: float | None


def count(case: Case, part: str | GPU = "h200") -> list[Count]:
    """The launches of a case on a GPU. Raises ValueError for a GPU the table lacks, ImportError without Triton."""
    part = gpu(part)
    if case.kind == "decode":
        return _decode(case, part)
    from flashlab.reference import traffic

    counts = []
    for launch in LAUNCHES[case.kind]:
        block_m, block_n = _tile(launch, case, part)
        seen = _tiles(case, block_m, block_n)
        rows = case.batch * case.heads_q
        programs = prefill_grid(
            batch=case.batch, heads_q=case.heads_q, heads_kv=case.heads_kv, seqlen_q=case.seqlen_q, block_m=block_m
        ).blocks
        if launch == "dkdv":  # a program a tile of keys of each kv head, all its query heads past it
            programs = case.batch * case.heads_kv * math.ceil(case.seqlen_k / block_n)
        moved = None
        if launch == "forward":
            shape = (case.seqlen_q, case.seqlen_k, case.head_dim, block_m, block_n)
            moved = rows * traffic.flash_attention_2(*shape, causal=case.causal).total
        flop = case.alike(kind="prefill").flop * PRODUCTS[launch] / PRODUCTS["forward"]
        filled = waves(blocks=programs, sms=part.sms).waves
        counts.append(Count(launch, block_m, block_n, 1, programs, filled, rows * seen, moved, flop))
    return counts


def _tile(launch: str, case: Case, part: GPU) -> tuple[int, int]:
    from flashlab.kernels import configs

    longest = case.seqlen_k if launch == "dkdv" else case.seqlen_q
    config = configs.lookup(configs.table_of(*_capability(part)), launch, 2, case.head_dim, longest, case.causal)
    return config.BLOCK_M, config.BLOCK_N


def _capability(part: GPU) -> tuple[int, ...]:
    try:
        return tuple(int(n) for n in part.cc.split("."))
    except ValueError:
        raise ValueError(f"gpu {part.name!r}: the kernels are for NVIDIA GPUs, this is {part.cc}") from None


def _tiles(case: Case, block_m: int, block_n: int) -> int:
    """Pairs of tiles of one head that a causal mask leaves."""
    from flashlab.reference.tiling import Tiling

    tiling = Tiling(case.seqlen_q, case.seqlen_k, block_m, block_n, case.causal)
    return sum(tiling.sees(rows, keys) for rows in tiling.q_tiles for keys in tiling.k_tiles)


def _decode(case: Case, part: GPU) -> list[Count]:
    """One program a kv head and split, all its query heads together, and the combine."""
    from flashlab.kernels import configs, decode_plan
    from flashlab.reference import traffic

    group = case.heads_q // case.heads_kv
    format = case.cache.split()[0].replace("bf16", "native")
    heads = case.batch * case.heads_kv
    tile = decode_plan.choose_tile(configs.table_of(*_capability(part)), format, 2, case.head_dim, group, heads / part.sms, False)
    key_blocks = math.ceil(case.seqlen_k / tile.BLOCK_N)
    num_splits = splits_to_fill(heads, part.sms, tile.blocks_per_sm, key_blocks, decode_plan.MOST_SPLITS)
    block_m = min(decode_plan.MOST_QUERIES[tile.AXIS], max(decode_plan.LEAST_QUERIES[tile.AXIS], 1 << (group - 1).bit_length()))
    grid = decode_grid(
        batch=case.batch, heads_q=case.heads_q, heads_kv=case.heads_kv, seqlen_k=case.seqlen_k, block_m=block_m,
        block_n=tile.BLOCK_N, num_splits=num_splits,
    )  # fmt: skip
    moved = traffic.split_kv(group, case.seqlen_k, case.head_dim, block_m, tile.BLOCK_N, num_splits)
    if num_splits == 1:
        moved = traffic.flash_attention_2(group, case.seqlen_k, case.head_dim, block_m, tile.BLOCK_N)
    partials = ("o_partial", "lse_partial")
    results = ("o", "lse")
    split_bytes = sum(moved.reads.get(name, 0) for name in "q") + _cache_bytes(case)
    split_bytes += sum(moved.writes[name] for name in (partials if num_splits > 1 else results))
    filled = waves(blocks=grid.blocks, sms=part.sms, blocks_per_sm=tile.blocks_per_sm).waves
    counts = [
        Count("decode", block_m, tile.BLOCK_N, num_splits, grid.blocks, filled, heads * key_blocks,
              heads * split_bytes, case.flop)
    ]  # fmt: skip
    if num_splits > 1:
        merged = sum(moved.reads[name] for name in partials) + sum(moved.writes[name] for name in results)
        rows = case.batch * case.heads_q
        counts.append(Count("combine", 0, 0, num_splits, rows, waves(blocks=rows, sms=part.sms).waves, 0, heads * merged, None))
    return counts


def _cache_bytes(case: Case) -> int:
    """K and V of one kv head of one sequence, with scales."""
    scales = 0 if case.cache == "bf16" else SCALE_BYTES
    return int(2 * case.seqlen_k * (case.head_dim * CACHES[case.cache] + scales))


class Point(NamedTuple):
    """A point of a curve as it would be measured: programs and waves where there is a grid, bytes where they are moved."""

    curve: str
    at: str
    programs: int | None
    waves: float | None
    bytes: int | None


def points(kind: str, part: str | GPU = "h200") -> list[Point]:
    """The points of the launch or link curves on a GPU. Raises ValueError for one that is not NVIDIA's."""
    from flashlab.bench import curves

    part = gpu(part)
    _capability(part)
    if kind == "link":
        return [Point("link", f"{size:,} bytes", None, None, size) for size in curves.LINK_SIZES]
    found = [
        Point("staircase", f"{per_sm} an SM", n, waves(blocks=n, sms=part.sms, blocks_per_sm=per_sm).waves, None)
        for per_sm in (2, 1)
        for n in curves.staircase_grids(part.sms, per_sm)
    ]
    found += [
        Point("underfill", "blocks of 256 threads", n, n / part.sms, curves.underfill_bytes(n)) for n in curves.UNDERFILL_BLOCKS
    ]
    case = curves.SPLIT_CASE
    rows = case.batch * case.heads_kv
    return found + [
        Point("splits", f"{n} splits", n * rows, waves(blocks=n * rows, sms=part.sms).waves, case.bytes) for n in curves.SPLITS
    ]
