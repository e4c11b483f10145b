"""Three curves of what a launch does to a GPU, measured: the staircase, underfill, and splitting a decode step.

    staircase    every block does the same work; as many blocks as the GPU holds take as long as one, and one more takes twice
                 as long. How many an SM holds is set by shared memory: at the edge one byte more a block halves it.
    underfill    a read of memory by few blocks: an SM can pull only so much by itself
    splits       one decode step, its keys cut over more and more programs

The staircase's kernel is CUDA C, compiled while it runs, since shared memory must be chosen to the byte; its chain of
dependent additions keeps few warps waiting, so blocks that share an SM do not slow one another.
"""

from functools import partial

import torch

from flashlab.bench.curves import SPLIT_CASE, SPLITS, UNDERFILL_BLOCKS, UNDERFILL_MOST, staircase_grids, underfill_bytes
from flashlab.bench.inputs import make
from flashlab.bench.loads import reader
from flashlab.bench.session import kept
from flashlab.bench.timing import STANDARD, EventTimer, Plan, Runner, Timing, measure
from flashlab.hardware.limits import LIMITS

WORK = r"""
extern "C" __global__ void work(float* out, int steps) {
    float x = threadIdx.x;
    for (int i = 0; i < steps; i++) x = x * 0.999f + 1.0f;
    if (x == -1.0f) out[blockIdx.x] = x;  // never: it only keeps the loop
}
"""
STEPS = 200_000
THREADS = 128
READ_TILE_BYTES = 4096  # one 16-byte load a thread


def staircase(timer: EventTimer, plan: Plan = STANDARD) -> dict:
    """One block an SM, two, and two blocks asking for one byte too much: seconds by number of blocks."""
    part = torch.cuda.get_device_properties()
    sms = part.multi_processor_count
    limits = LIMITS[f"{part.major}.{part.minor}"]
    half = limits.shared_memory // 2 - limits.reserved_per_block
    kernel = torch.cuda._compile_kernel(WORK, "work")
    kernel.set_shared_memory_config(half + 1)
    out = torch.zeros(4 * sms, device="cuda")

    def runner(blocks, shared):
        return Runner(lambda: kernel(grid=(blocks, 1, 1), block=(THREADS, 1, 1), args=[out, STEPS], shared_mem=shared))

    series = []
    for shared, per_sm in ((half, 2), (half + 1, 1)):
        label = f"{shared:,} bytes of shared memory a block: {per_sm} an SM"
        series.append(_series(label, {n: runner(n, shared) for n in staircase_grids(sms, per_sm)}, timer, plan))
    return dict(name="staircase", x="blocks", quantity="time_s", series=series)


def underfill(timer: EventTimer, plan: Plan = STANDARD) -> dict:
    """A read of up to a gibibyte by so many blocks of 256 threads: bytes per second. Fewer blocks read less."""
    memory = torch.randint(0, 2**31, (UNDERFILL_MOST // 4,), dtype=torch.int32, device="cuda")
    sizes = {blocks: underfill_bytes(blocks) for blocks in UNDERFILL_BLOCKS}
    points = {blocks: reader(memory[: size // 4], blocks, READ_TILE_BYTES) for blocks, size in sizes.items()}
    series = _series("blocks of 256 threads", points, timer, plan, sizes)
    return dict(name="underfill", x="blocks", quantity="bytes_per_s", series=[series])


def splits(timer: EventTimer, plan: Plan = STANDARD) -> dict:
    """SPLIT_CASE by num_splits, with flashlab's own decode kernel."""
    from flashlab.attention import flash_attn_with_kvcache

    tensors = make(SPLIT_CASE, "cuda", seed=0)
    call = partial(flash_attn_with_kvcache, tensors.q, tensors.k, tensors.v)
    points = {n: Runner(partial(call, num_splits=n)) for n in SPLITS}
    series = _series(SPLIT_CASE.label, points, timer, plan, dict.fromkeys(SPLITS, SPLIT_CASE.bytes))
    return dict(name="splits", x="num_splits", quantity="time_s", series=[series])


CURVES = {"staircase": staircase, "underfill": underfill, "splits": splits}


def _series(label: str, points: dict[int, Runner], timer, plan, sizes: dict[int, int] | None = None) -> dict:
    out = []
    for x, found in measure(points, timer, plan).items():
        if not isinstance(found, Timing):
            raise found
        out.append(dict(x=x, bytes=sizes[x] if sizes else None, time=kept(found)))
    return dict(label=label, points=out)
