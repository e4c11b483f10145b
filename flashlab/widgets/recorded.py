"""What was recorded on a real GPU, found for the shape a widget shows; with the GPU and the date, never without."""

from typing import NamedTuple

from flashlab.hardware import measured
from flashlab.hardware.links import DIRECTIONS

PROVENANCE = f"{measured.GPU}, {measured.DATE}"


class Point(NamedTuple):
    """x (splits, blocks or bytes), y (seconds or bytes per second), and where it comes from: "H200, 2026-11-30"."""

    x: int
    y: float
    provenance: str


def split_times(gpu: str, blocks_per_sm: int, **shape) -> list[Point]:
    """Seconds of a decode step by number of splits; empty for shapes and GPUs that were not recorded."""
    if gpu != measured.GPU or shape != measured.SPLIT_SHAPE or blocks_per_sm != 2:
        return []
    return [Point(splits, seconds, PROVENANCE) for splits, seconds in measured.SPLIT_CURVE]


def staircase(blocks: int) -> dict[int, Point]:
    """Blocks per SM -> seconds of a grid of so many equal blocks."""
    return {k: Point(blocks, seconds, PROVENANCE) for k, grid, seconds in measured.STAIRCASE if grid == blocks}


def pcie_rates(gen: int, lanes: int, direction: str, pinned: bool) -> list[Point]:
    """Bytes per second by size of a transfer; recorded for PCIe 5.0 x16."""
    if (gen, lanes) != (5, 16):
        return []
    points = measured.PCIE_PINNED if pinned else measured.PCIE_PAGEABLE
    return [Point(size, rates[DIRECTIONS.index(direction)], PROVENANCE) for size, *rates in points]
