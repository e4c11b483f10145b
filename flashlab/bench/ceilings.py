"""What the GPU itself can do, measured in the same run: copy, read and multiply.

    copy    a gibibyte to another place; bytes read and written
    read    kernels that only load, at the grid that does best
    matmul  8192 x 8192 x 8192 in bfloat16, hot: 2 * 8192^3 FLOP
"""

import torch

from flashlab.bench.loads import reader
from flashlab.bench.timing import PRODUCT_SIDE, STANDARD, EventTimer, Plan, Runner, Timing, measure

BUFFER_BYTES = 2**30
READ_BLOCKS_PER_SM = (4, 8, 16)


def ceilings(timer: EventTimer, plan: Plan = STANDARD) -> dict[str, float]:
    """{"copy_bytes_per_s", "read_bytes_per_s", "matmul_flop_per_s"} of the present GPU, by medians."""
    source = torch.randint(0, 2**31, (BUFFER_BYTES // 4,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    sms = torch.cuda.get_device_properties().multi_processor_count
    contenders = {"copy": Runner(lambda: target.copy_(source)), "matmul": Runner(timer.product)}
    contenders |= {n: reader(source, n * sms) for n in READ_BLOCKS_PER_SM}
    timings = measure(contenders, timer, plan)
    for error in timings.values():
        if not isinstance(error, Timing):
            raise error
    return {
        "copy_bytes_per_s": 2 * BUFFER_BYTES / timings["copy"].median_s,
        "read_bytes_per_s": BUFFER_BYTES / min(timings[n].median_s for n in READ_BLOCKS_PER_SM),
        "matmul_flop_per_s": 2 * PRODUCT_SIDE**3 / timings["matmul"].median_s,
    }
