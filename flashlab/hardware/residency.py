"""Occupancy: how many blocks of a kernel one SM holds at once, what stops it from holding more, and the next cliff.

A block takes warps, registers and shared memory; the SM has so much of each and a number of block slots besides, and
the scarcest decides:

    blocks per SM = min(slots, warps / warps per block, register warps / warps per block, shared / shared per block)

- warps: threads / 32, rounded up.
- registers: a warp's are rounded up to 256; the register file is four parts of 16,384, and a warp lives in one of them,
  so an SM has 4 * floor(16384 / registers per warp) register warps. A launch is refused when its warps, rounded up to
  a multiple of four, want more registers than the file has.
- shared memory: the 1 KiB that CUDA keeps in every block (from compute capability 8.0), rounded up to 128 bytes (256
  before 8.0). A block that asks for more than it may opt in to cannot be launched.

Source: NVIDIA, CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; and its cuda_occupancy.h,
which the tests compile and compare with. It allows 256 registers a thread; ptxas hands out 255 at most.
"""

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from flashlab.hardware.checks import whole
from flashlab.hardware.limits import CUDA, LIMITS, Limits

MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 256
REGISTERS_ROUND_TO = 256
PARTS_PER_SM = 4


class Cliff(NamedTuple):
    """How far a resource is from changing the number of blocks, in registers per thread or bytes per block.

    Attributes:
        give_up: fewest to give up for more blocks; None where no saving of this resource alone helps.
        blocks_after: blocks per SM after giving them up; None likewise.
        spare: most to add without losing a block; None where the launch fails already.
    """

    give_up: int | None
    blocks_after: int | None
    spare: int | None


class Cliffs(NamedTuple):
    registers: Cliff
    shared_memory: Cliff


class Occupancy(NamedTuple):
    """What one SM holds of a kernel.

    Attributes:
        blocks_per_sm: resident blocks; 0 where the launch fails.
        warps_per_sm: resident warps.
        percent: resident warps of the most the SM can hold, 0 to 100.
        limits: blocks per SM that each resource alone would allow: blocks, warps, registers, shared_memory; infinity
            where a block takes nothing of it.
        limiter: the resource that decides (the first of the scarcest), or why the launch fails.
        next_cliff: registers per thread and shared memory per block until the number of blocks changes.
    """

    blocks_per_sm: int
    warps_per_sm: int
    percent: float
    limits: dict[str, float]
    limiter: str
    next_cliff: Cliffs


def occupancy(cc: str | float, threads: int, registers: int, shared_memory: int) -> Occupancy:
    """Blocks and warps that one SM holds.

    Args:
        cc: compute capability, "9.0" (or 9.0, or "sm_90").
        threads: threads per block, at least 1.
        registers: registers per thread.
        shared_memory: bytes per block, static and dynamic together, CUDA's own KiB not counted.

    Raises:
        TypeError: threads, registers or shared_memory is not an integer.
        ValueError: cc is not known, or one of the others is out of range.
    """
    sm = limits_of(cc)
    threads = whole("threads", threads)
    registers = whole("registers", registers, 0)
    shared_memory = whole("shared_memory", shared_memory, 0)
    limits = _limits(sm, threads, registers, shared_memory)
    blocks = min(limits.values())
    warps = blocks * _warps(sm, threads)
    return Occupancy(
        blocks_per_sm=blocks,
        warps_per_sm=warps,
        percent=100 * warps * sm.warp_size / sm.threads,
        limits=limits,
        limiter=min(limits, key=limits.get) if blocks else _refusal(sm, threads, registers, shared_memory),
        next_cliff=Cliffs(
            registers=_cliff(
                lambda r: min(_limits(sm, threads, r, shared_memory).values()), registers, MAX_REGISTERS_PER_THREAD
            ),
            shared_memory=_cliff(
                lambda s: min(_limits(sm, threads, registers, s).values()), shared_memory, sm.shared_memory_per_block
            ),
        ),
    )


def limits_of(cc: str | float) -> Limits:
    """What an SM of this compute capability holds. Raises ValueError for one that is not NVIDIA's or not known."""
    text = str(cc).strip().lower().removeprefix("sm").removeprefix("_").rstrip("af")
    if text.isdigit():  # "90" and "103" end in the minor version; "9" and "12" are major versions alone
        text = f"{text}.0" if f"{text}.0" in CUDA else f"{text[:-1]}.{text[-1]}"
    if text not in CUDA:
        raise ValueError(f"cc must be one of {', '.join(CUDA)}, got {cc!r}")
    return LIMITS[text]


def _limits(sm: Limits, threads: int, registers: int, shared_memory: int) -> dict[str, float]:
    """Blocks per SM by each resource alone; 0 where it cannot hold even one."""
    return {
        "blocks": sm.blocks,
        "warps": sm.threads // sm.warp_size // _warps(sm, threads) if threads <= MAX_THREADS_PER_BLOCK else 0,
        "registers": _register_limit(sm, _warps(sm, threads), registers),
        "shared_memory": _shared_limit(sm, shared_memory),
    }


def _warps(sm: Limits, threads: int) -> int:
    return -(-threads // sm.warp_size)


def _register_limit(sm: Limits, warps: int, registers: int) -> float:
    per_warp = _round_up(registers * sm.warp_size, REGISTERS_ROUND_TO)
    if registers > MAX_REGISTERS_PER_THREAD or per_warp * _round_up(warps, PARTS_PER_SM) > sm.registers:
        return 0
    if not per_warp:
        return inf
    return sm.registers // PARTS_PER_SM // per_warp * PARTS_PER_SM // warps


def _shared_limit(sm: Limits, shared_memory: int) -> float:
    if shared_memory > sm.shared_memory_per_block:
        return 0
    taken = _round_up(shared_memory + sm.reserved_per_block, sm.shared_granularity)
    return sm.shared_memory // taken if taken else inf


def _refusal(sm: Limits, threads: int, registers: int, shared_memory: int) -> str:
    """Why not one block fits."""
    if threads > MAX_THREADS_PER_BLOCK:
        return f"threads: a block has at most {MAX_THREADS_PER_BLOCK}"
    if shared_memory > sm.shared_memory_per_block:
        return f"shared_memory: a block may ask for at most {sm.shared_memory_per_block} bytes"
    if registers > MAX_REGISTERS_PER_THREAD:
        return f"registers: a thread has at most {MAX_REGISTERS_PER_THREAD}"
    return f"registers: the block needs more than the {sm.registers} there are (its warps round up to a multiple of 4)"


def _cliff(blocks: Callable[[int], int], now: int, most: int) -> Cliff:
    """The edges of the step that `now` stands on; `blocks` never rises with its argument and is 0 above `most`."""
    here = blocks(now)
    below = _last(lambda x: blocks(x) > here, 0, now)
    return Cliff(
        give_up=None if below is None else now - below,
        blocks_after=None if below is None else blocks(below),
        spare=_last(lambda x: blocks(x) >= here, now, most) - now if here else None,
    )


def _last(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """The last x in [low, high] where `holds`, which turns false once and for good; None where it never holds."""
    if not holds(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _round_up(value: int, to: int) -> int:
    return -(-value // to) * to
