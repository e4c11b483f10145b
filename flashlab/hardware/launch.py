"""What a launch does to a GPU: its grid of blocks, the waves they run in, and how much of the GPU they use.

A GPU holds sms * blocks_per_sm blocks at once. A grid of more runs in waves; the last wave, the tail, is rarely full, and
the launch takes as long as if it were: efficiency = waves / ceil(waves).
"""

from typing import NamedTuple

from flashlab.hardware.checks import heads, whole


class Grid(NamedTuple):
    """The blocks of an attention launch.

    Attributes:
        blocks: all of them: rows * num_splits.
        rows: independent rows of work: batch * heads * query_blocks.
        heads: heads that get blocks of their own: query heads, or kv heads when GQA is packed.
        query_blocks: tiles of queries in a row; packed, the query heads of a kv head count as queries.
        key_blocks: tiles of keys in a row.
        num_splits: pieces the keys of a row are cut into.
    """

    blocks: int
    rows: int
    heads: int
    query_blocks: int
    key_blocks: int
    num_splits: int


class Waves(NamedTuple):
    """How a grid fills a GPU.

    Attributes:
        blocks: blocks of the grid.
        capacity: blocks that run at once.
        waves: blocks / capacity.
        rounds: waves rounded up: how many block-times the launch takes.
        tail: blocks in the last wave.
        idle: places that stay empty in the last wave.
        efficiency: waves / rounds, 0 to 1.
    """

    blocks: int
    capacity: int
    waves: float
    rounds: int
    tail: int
    idle: int
    efficiency: float


class Underuse(NamedTuple):
    """The share of the SMs, 0 to 1, that a decode step without splits has work for, three ways of counting.

    "Batch 1 uses less than 1% of an A100" is the first; kernels launch the second, or the third when they pack GQA.
    """

    batch_alone: float
    per_query_head: float
    gqa_packed: float


def prefill_grid(
    *,
    batch: int,
    heads_q: int,
    heads_kv: int,
    seqlen_q: int,
    seqlen_k: int | None = None,
    block_m: int = 128,
    block_n: int = 128,
    pack_gqa: bool = False,
) -> Grid:
    """One block for every tile of BLOCK_M queries of every query head. Raises TypeError, ValueError on bad sizes."""
    seqlen_k = seqlen_q if seqlen_k is None else seqlen_k
    return _grid(batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, 1, pack_gqa)


def decode_grid(
    *,
    batch: int,
    heads_q: int,
    heads_kv: int,
    seqlen_k: int,
    seqlen_q: int = 1,
    block_m: int = 64,
    block_n: int = 128,
    num_splits: int = 1,
    pack_gqa: bool = True,
) -> Grid:
    """One block for every kv head (packed) or query head, times the splits. Raises TypeError, ValueError on bad sizes."""
    return _grid(batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, num_splits, pack_gqa)


def waves(*, blocks: int, sms: int, blocks_per_sm: int = 1) -> Waves:
    """The waves of a grid. Raises TypeError, ValueError where an argument is not a whole number of at least 1."""
    capacity = whole("sms", sms) * whole("blocks_per_sm", blocks_per_sm)
    rounds = -(-whole("blocks", blocks) // capacity)
    tail = blocks - (rounds - 1) * capacity
    count = blocks / capacity
    return Waves(blocks, capacity, count, rounds, tail, capacity - tail, count / rounds)


def underuse(*, batch: int, heads_q: int, heads_kv: int, sms: int, block_m: int = 64) -> Underuse:
    """Blocks over SMs for one query token, never above 1. Raises TypeError, ValueError on bad sizes."""
    whole("sms", sms)
    packed = decode_grid(batch=batch, heads_q=heads_q, heads_kv=heads_kv, seqlen_k=1, block_m=block_m).rows
    return Underuse(*(min(1.0, blocks / sms) for blocks in (batch, batch * heads_q, packed)))


def _grid(
    batch: int,
    heads_q: int,
    heads_kv: int,
    seqlen_q: int,
    seqlen_k: int,
    block_m: int,
    block_n: int,
    num_splits: int,
    pack_gqa: bool,
) -> Grid:
    group = heads(heads_q, heads_kv)
    key_blocks = -(-whole("seqlen_k", seqlen_k) // whole("block_n", block_n))
    if whole("num_splits", num_splits) > key_blocks:
        raise ValueError(f"num_splits must be at most the {key_blocks} tiles of keys, got {num_splits}")
    queries = whole("seqlen_q", seqlen_q) * (group if pack_gqa else 1)
    query_blocks = -(-queries // whole("block_m", block_m))
    own_blocks = heads_kv if pack_gqa else heads_q
    rows = whole("batch", batch) * own_blocks * query_blocks
    return Grid(rows * num_splits, rows, own_blocks, query_blocks, key_blocks, num_splits)
