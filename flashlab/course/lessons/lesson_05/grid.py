"""When the programs of a causal grid run: each free place of the GPU takes the next program of the grid."""

import heapq
from typing import NamedTuple

from flashlab.course.lessons.lesson_05.loop_bounds import solution as loop_bounds


class Run(NamedTuple):
    """One program's time on a place, in key tiles."""

    begin: int
    end: int


def walk(tile: int, block_m: int, block_n: int, seqlen: int, causal: bool = True) -> int:
    """Key tiles that the program of a query tile visits."""
    _, stop = loop_bounds(tile, block_m, block_n, seqlen, seqlen, causal)
    return -(-stop // block_n)


def grid_walks(seqlen: int, heads: int, block_m: int, block_n: int, long_first: bool, together: int = 4) -> list[int]:
    """The walks of a causal grid's programs in launch order: the tiles of ``together`` heads run side by side, as in
    flashlab.kernels.common.tile_of_program."""
    tiles = range(-(-seqlen // block_m))
    order = reversed(tiles) if long_first else tiles
    one_group = [walk(tile, block_m, block_n, seqlen) for tile in order for _ in range(together)]
    return one_group * (heads // together)


def schedule(walks: list[int], places: int) -> list[Run]:
    """When each program runs; a key tile takes one unit of time, wherever it is worked on."""
    free = [0] * places
    runs = []
    for steps in walks:
        begin = heapq.heappop(free)
        runs.append(Run(begin, begin + steps))
        heapq.heappush(free, begin + steps)
    return runs


def finish(runs: list[Run]) -> int:
    """When the last program ends."""
    return max(run.end for run in runs)


def busy(runs: list[Run]) -> list[int]:
    """How many places are at work in each unit of time."""
    change = [0] * (finish(runs) + 1)
    for run in runs:
        change[run.begin] += 1
        change[run.end] -= 1
    total, counts = 0, []
    for step in change[:-1]:
        total += step
        counts.append(total)
    return counts
