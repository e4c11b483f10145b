"""Reading memory and nothing else: the ceiling of a decode step, and what few blocks reach of it."""

from flashlab.kernels import backend  # first: it decides where kernels run, and Triton asks when it is imported

# isort: split
import torch
import triton
import triton.language as tl

from flashlab.bench.timing import Runner

READ_WARPS = 8


@triton.jit
def read_kernel(p_in, p_out, tiles, TILE: tl.constexpr):
    """Each program reads a run of tiles of 8-byte words; p_out is written only so that the reading is not left out."""
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    first, last = tiles * program // programs, tiles * (program + 1) // programs
    words = tl.arange(0, TILE)
    total = tl.zeros([TILE], tl.int64)
    for tile in range(first, last):
        total ^= tl.load(p_in + tile * TILE + words)
    tl.store(p_out + program, tl.sum(total))


def reader(tensor: torch.Tensor, blocks: int, tile_bytes: int = 8192) -> Runner:
    """Read all of a tensor with so many blocks of 256 threads and do nothing with it."""
    words = tensor.flatten().view(torch.int64)
    out = torch.empty(blocks, dtype=torch.int64, device=tensor.device)
    tile = tile_bytes // 8
    if words.numel() % tile:
        raise ValueError(f"tensor has {tensor.nbytes} bytes: must be a multiple of {tile_bytes}")
    tiles = words.numel() // tile

    def call():
        with backend.on_device_of(tensor):
            read_kernel[(blocks,)](words, out, tiles, tile, num_warps=READ_WARPS)

    return Runner(call)
