"""How long a launch takes: two small models, both held against measured points.

Fixed work in every block (a matrix product, a spin): time = start + rounds * block time, the staircase.

Reading memory, which is what a decode step does: the bytes a block can have in flight, over the latency of memory, bound
its own rate (Little's law); an SM bounds the rate of its blocks together, and memory that of all SMs. A bound is
approached smoothly, rate = demand / (1 + (demand / bound)^p)^(1/p). Blocks are dealt to the SMs in turn, so an SM has one
block more or less than another; those with more finish later, alone, and cannot use all of the bandwidth by themselves:
that is the cliff one split past a full wave.

The time of a split decode step is this reading time, the combine's traffic, and a fixed start.
"""

from math import ceil
from typing import NamedTuple

from flashlab.hardware import measured
from flashlab.hardware.checks import positive, whole
from flashlab.hardware.gpus import GPU, gpu, known
from flashlab.hardware.launch import decode_grid, waves

SHARPNESS = 3.5
READ_SHARE = 0.926  # of the datasheet's bandwidth: 4445 of an H200's 4800 GB/s


class Reader(NamedTuple):
    """How a kernel reads memory. On other GPUs than the measured one the first two rates and the start are taken to be the
    same, unmeasured: one block alone is slower where memory answers later. Only the last term scales with the GPU.

    Attributes:
        block_bytes_per_s: one block by itself.
        sm_bytes_per_s: what one SM can pull, however many blocks it holds.
        start_s: launch, and whatever else comes once.
        gpu_share: of the datasheet's bandwidth that all SMs together can reach.
    """

    block_bytes_per_s: float
    sm_bytes_per_s: float
    start_s: float
    gpu_share: float = READ_SHARE


# Fitted to measured.UNDERFILL and measured.SPLIT_CURVE; the errors are in against_measured(). The decode tile's start holds
# about 9 us of write-back of the dirty L2 lines that the benchmark's zeroing leaves.
STREAM = Reader(block_bytes_per_s=10.1e9, sm_bytes_per_s=69e9, start_s=0, gpu_share=0.96)
DECODE_TILE = Reader(block_bytes_per_s=44.5e9, sm_bytes_per_s=69e9, start_s=9e-6)
STAIR_BLOCK_S = 0.4075e-3
STAIR_START_S = 0.0075e-3


class DecodeTime(NamedTuple):
    """A predicted decode step.

    Attributes:
        time_s: read_s + combine_s + start_s.
        read_s: reading K and V.
        combine_s: writing and reading the partial results; 0 for one split.
        start_s: once a step.
        bytes: of K and V, rounded up to a whole one.
        bandwidth_bytes_per_s: bytes / time_s.
        blocks: of the split launch.
        waves: blocks over the blocks that run at once.
    """

    time_s: float
    read_s: float
    combine_s: float
    start_s: float
    bytes: int
    bandwidth_bytes_per_s: float
    blocks: int
    waves: float


def staircase_time(
    *,
    blocks: int,
    sms: int,
    blocks_per_sm: int = 1,
    block_s: float = STAIR_BLOCK_S,
    start_s: float = STAIR_START_S,
) -> float:
    """Seconds for a grid whose blocks all take block_s, whoever shares their SM. Raises TypeError, ValueError."""
    positive("block_s", block_s)
    return start_s + waves(blocks=blocks, sms=sms, blocks_per_sm=blocks_per_sm).rounds * block_s


def read_rate(blocks: int, part: str | GPU = measured.GPU, *, reader: Reader = STREAM) -> float:
    """Bytes per second that so many blocks, all resident, read together."""
    part = gpu(part)
    whole("blocks", blocks)
    return _bandwidth(_dealt(blocks, part.sms), part, reader)


def read_time(total_bytes: float, blocks: int, part: str | GPU, *, blocks_per_sm: int = 1, reader: Reader) -> float:
    """Seconds for `blocks` blocks to read equal shares of total_bytes, at most blocks_per_sm of them on an SM at a time."""
    part = gpu(part)
    each = positive("total_bytes", total_bytes) / whole("blocks", blocks)
    queues = _dealt(blocks, part.sms)
    full_rounds = max(0, min(n for _, n in queues) // whole("blocks_per_sm", blocks_per_sm) - 1)
    full = [(sms, blocks_per_sm) for sms, _ in queues]
    full_bytes = full_rounds * blocks_per_sm * each * sum(sms for sms, _ in full)
    rest = [(sms, n - full_rounds * blocks_per_sm) for sms, n in queues]
    return full_bytes / _bandwidth(full, part, reader) + _drain(rest, each, blocks_per_sm, part, reader)


def decode_time(
    part: str | GPU,
    *,
    batch: int,
    heads_q: int,
    heads_kv: int,
    head_dim: int,
    seqlen_k: int,
    num_splits: int,
    element_bytes: float = 2,
    blocks_per_sm: int = 1,
    block_n: int = 64,
    pack_gqa: bool = True,
    reader: Reader = DECODE_TILE,
) -> DecodeTime:
    """Seconds for one query token a sequence, keys cut into num_splits. Only packed GQA was measured.

    Raises:
        TypeError, ValueError: bad sizes, an unknown GPU, or one whose bandwidth is not known.
    """
    part = gpu(part)
    shape = dict(batch=batch, heads_q=heads_q, heads_kv=heads_kv, seqlen_k=seqlen_k, block_n=block_n)
    grid = decode_grid(**shape, num_splits=num_splits, pack_gqa=pack_gqa)
    positive("element_bytes", element_bytes, 8)
    kv_bytes = ceil(2 * batch * heads_kv * seqlen_k * whole("head_dim", head_dim) * element_bytes)
    # The query tiles (unpacked: heads) of one kv head each read its keys, side by side: memory delivers once, L2 again.
    tiles = grid.rows // (batch * heads_kv)
    shared = reader._replace(gpu_share=tiles * reader.gpu_share)
    read_s = read_time(tiles * kv_bytes, grid.blocks, part, blocks_per_sm=blocks_per_sm, reader=shared)
    partial_bytes = batch * heads_q * num_splits * (head_dim + 1) * 4 if num_splits > 1 else 0
    combine_s = 2 * partial_bytes / _most(part, reader)
    time_s = read_s + combine_s + reader.start_s
    count = waves(blocks=grid.blocks, sms=part.sms, blocks_per_sm=blocks_per_sm).waves
    return DecodeTime(time_s, read_s, combine_s, reader.start_s, kv_bytes, kv_bytes / time_s, grid.blocks, count)


def against_measured() -> dict[str, list[tuple[str, float, float]]]:
    """For each model every measured point: (what, predicted, measured), in seconds or bytes per second."""
    sms = gpu(measured.GPU).sms
    return {
        "staircase": [
            (f"{grid} blocks, {k} per SM", staircase_time(blocks=grid, sms=sms, blocks_per_sm=k), seconds)
            for k, grid, seconds in measured.STAIRCASE
        ],
        "underfill": [(f"{n} blocks", read_rate(n), rate) for n, rate in measured.UNDERFILL],
        "split": [
            (
                f"{splits} splits",
                decode_time(measured.GPU, num_splits=splits, blocks_per_sm=2, **measured.SPLIT_SHAPE).time_s,
                seconds,
            )
            for splits, seconds in measured.SPLIT_CURVE
        ],
    }


def _dealt(blocks: int, sms: int) -> list[tuple[int, int]]:
    """Blocks dealt to SMs in turn: (SMs, blocks on each), the fuller ones first, idle SMs left out."""
    each, over = divmod(blocks, sms)
    return [(count, n) for count, n in ((over, each + 1), (sms - over, each)) if count and n]


def _drain(queues: list[tuple[int, int]], each: float, blocks_per_sm: int, part: GPU, reader: Reader) -> float:
    """Seconds until every SM has read its blocks of `each` bytes: step from one change of the resident blocks to the next."""
    seconds = 0.0
    left = [
        [sms, n, min(blocks_per_sm, n) * each] for sms, n in queues
    ]  # SMs, blocks, bytes the resident ones still want
    while left:
        resident = [(sms, min(blocks_per_sm, n)) for sms, n, _ in left]
        demands = [_sm_demand(n, reader) for _, n in resident]
        slowed = _bandwidth(resident, part, reader) / sum(
            sms * d for (sms, _), d in zip(resident, demands, strict=True)
        )
        step = min(wanted / (slowed * d) for (_, _, wanted), d in zip(left, demands, strict=True))
        seconds += step
        for queue, demand in zip(left, demands, strict=True):
            queue[2] -= slowed * demand * step
            if queue[2] <= 1e-9 * each:
                queue[1] -= min(blocks_per_sm, queue[1])
                queue[2] = min(blocks_per_sm, queue[1]) * each
        left = [queue for queue in left if queue[1]]
    return seconds


def _bandwidth(resident: list[tuple[int, int]], part: GPU, reader: Reader) -> float:
    return _bounded(sum(sms * _sm_demand(n, reader) for sms, n in resident), _most(part, reader))


def _sm_demand(blocks: int, reader: Reader) -> float:
    return _bounded(blocks * reader.block_bytes_per_s, reader.sm_bytes_per_s)


def _most(part: GPU, reader: Reader) -> float:
    return known(part, "hbm_bytes_per_s") * reader.gpu_share


def _bounded(demand: float, bound: float) -> float:
    return demand / (1 + (demand / bound) ** SHARPNESS) ** (1 / SHARPNESS)
