"""What one SM holds, by compute capability: the table that occupancy and every GPU's row read.

Sources: NVIDIA, CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (every NVIDIA row); AMD,
CDNA 3 Architecture white paper (the compute unit of an MI300X, kept for its size alone: occupancy is NVIDIA's rules).
"""

from typing import NamedTuple

KIB = 1024


class Limits(NamedTuple):
    """What one SM holds.

    Attributes:
        threads: most resident threads.
        blocks: most resident blocks.
        shared_memory: bytes of shared memory that the resident blocks can have together.
        shared_memory_per_block: bytes that one block may ask for, after opting in to more than 48 KiB.
        reserved_per_block: bytes of shared memory that CUDA takes for itself in every block.
        shared_granularity: bytes that a block's shared memory is rounded up to.
        registers: 32-bit registers.
        warp_size: threads in a warp.
    """

    threads: int
    blocks: int
    shared_memory: int
    shared_memory_per_block: int
    reserved_per_block: int = KIB
    shared_granularity: int = 128
    registers: int = 65536
    warp_size: int = 32


def _nvidia(threads: int, blocks: int, shared_kib: int) -> Limits:
    """From compute capability 8.0 on the only part of shared memory out of a block's reach is the reserved KiB."""
    return Limits(threads, blocks, shared_kib * KIB, (shared_kib - 1) * KIB)


LIMITS = {
    "7.0": Limits(2048, 32, 96 * KIB, 96 * KIB, reserved_per_block=0, shared_granularity=256),
    "7.5": Limits(1024, 16, 64 * KIB, 64 * KIB, reserved_per_block=0, shared_granularity=256),
    "8.0": _nvidia(2048, 32, 164),
    "8.6": _nvidia(1536, 16, 100),
    "8.7": _nvidia(1536, 16, 164),
    "8.9": _nvidia(1536, 24, 100),
    "9.0": _nvidia(2048, 32, 228),
    "10.0": _nvidia(2048, 32, 228),
    "10.3": _nvidia(2048, 32, 228),
    "12.0": _nvidia(1536, 24, 100),
    "12.1": _nvidia(1536, 24, 100),
    "CDNA3": Limits(2048, 32, 64 * KIB, 64 * KIB, reserved_per_block=0, registers=131072, warp_size=64),
}
CUDA = tuple(cc for cc in LIMITS if cc[0].isdigit())
