"""Where the launch and link curves are measured. Standard library only."""

from flashlab.bench.cases import Case

UNDERFILL_BLOCKS = (1, 2, 4, 8, 16, 32, 64, 132, 198, 264, 396, 528, 792, 1056, 2112)
UNDERFILL_MOST = 2**30  # bytes

SPLIT_CASE = Case("decode", 1, 32, 8, 1, 131072, 128)
SPLITS = (1, 2, 4, 8, 12, 16, 17, 24, 32, 33, 49, 64, 66, 96, 128)

LINK_SIZES = tuple(4096 * 4**n for n in range(10))  # 4 KiB to 1 GiB


def staircase_grids(sms: int, per_sm: int) -> list[int]:
    """One block, the blocks around each of the first full waves, and halves between."""
    capacity = sms * per_sm
    around = {n for rounds in (1, 2) for n in (rounds * capacity, rounds * capacity + 1)}
    return sorted({1, capacity // 2, capacity - 1, 3 * capacity // 2, 2 * capacity - 1, 3 * capacity} | around)


def underfill_bytes(blocks: int) -> int:
    """8 MiB a block, from 16 MiB to UNDERFILL_MOST: even one block is done within milliseconds."""
    return min(UNDERFILL_MOST, max(2**24, blocks * 2**23))
