"""How many ways to split the keys of a decode step: two rules, both pure arithmetic.

A decode step has one block of work for every (batch, kv head), the rows: far fewer than a GPU has SMs when the batch is
small. Cutting the keys into `num_splits` pieces multiplies the blocks; a second pass combines the partial results.

``num_splits`` is FlashAttention-3's rule (Dao-AILab/flash-attention, hopper/heuristics.h, num_splits_heuristic): among the
counts up to 128, the smallest whose last wave is nearly as full as the best one's. ``splits_to_fill`` is the rule this
package's kernels use: as many as fit into one wave, never one more, since a block left over costs a second wave.
"""

from math import ceil
from struct import pack, unpack

from flashlab.hardware.checks import whole

MAX_SPLITS = 128
L2_BYTES = 50 * 2**20  # what FlashAttention-3 assumes
NEARLY_BEST = 0.85
TOO_FEW_KEY_BLOCKS = 4


def num_splits(
    *,
    blocks: int,
    sms: int,
    key_blocks: int,
    max_splits: int = MAX_SPLITS,
    query_blocks: int = 1,
    kv_head_bytes: int = 0,
    causal: bool = True,
) -> int:
    """FlashAttention-3's choice of splits.

    Args:
        blocks: blocks of the launch before splitting, GQA packed: batch * heads_kv * query_blocks.
        sms: streaming multiprocessors.
        key_blocks: tiles of keys in a row, ceil(seqlen_k / BLOCK_N).
        max_splits: most splits to consider.
        query_blocks: tiles of queries in a row.
        kv_head_bytes: K and V of one head; matters only where it exceeds the L2 and queries go over it often.
        causal: causal or local attention, where keys are not read again and again.

    Raises:
        TypeError, ValueError: an argument is not an integer, or is too small.
    """
    whole("blocks", blocks)
    whole("sms", sms)
    whole("key_blocks", key_blocks)
    whole("max_splits", max_splits)
    whole("query_blocks", query_blocks)
    whole("kv_head_bytes", kv_head_bytes, 0)
    if 5 * blocks >= 4 * sms:  # 80% of the GPU is busy already
        if kv_head_bytes > L2_BYTES and query_blocks >= 2 * sms and not causal:
            return min(-(-kv_head_bytes // L2_BYTES), max_splits, key_blocks)
        return 1
    if key_blocks <= TOO_FEW_KEY_BLOCKS:
        return 1
    efficiency = [_efficiency(blocks * splits, sms) for splits in range(1, min(max_splits, sms, key_blocks) + 1)]
    enough = NEARLY_BEST * max(efficiency)
    return 1 + next(i for i, e in enumerate(efficiency) if e >= enough)


def splits_to_fill(rows: int, sms: int, blocks_per_sm: int, key_blocks: int, max_splits: int = MAX_SPLITS) -> int:
    """floor(blocks_per_sm * sms / rows), at least 1 and at most key_blocks and max_splits. Cheap and unchecked: launchers
    call it. rows = batch * heads_kv * query tiles; no rows, one split."""
    return max(1, min(blocks_per_sm * sms // max(rows, 1), key_blocks, max_splits))


def _efficiency(blocks: int, sms: int) -> float:
    """Waves over waves rounded up: how full the launch keeps the GPU. In float32, as there: it decides ties."""
    waves = _float32(blocks / sms)
    return _float32(waves / ceil(waves))


def _float32(value: float) -> float:
    return unpack("f", pack("f", value))[0]
