"""One decode step on your own GPU, timed in four ways, three of which lie.

``python -m flashlab.course.lessons.lesson_07.measure`` prints them.
"""

import statistics
import time

import torch

from flashlab.attention import flash_attn_with_kvcache
from flashlab.bench.timing import EventTimer, Runner

TOKENS = 8192  # of one sequence: K and V are 32 MiB, which fit into the L2 of a large GPU
SAMPLES = 20


def decode_step(tokens: int = TOKENS):
    """A call of a decode step: batch 1, 32 query heads on 8 kv heads of 128."""
    dtype = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16
    q = torch.randn(1, 1, 32, 128, dtype=dtype, device="cuda")
    k, v = (torch.randn(1, tokens, 8, 128, dtype=dtype, device="cuda") for _ in range(2))
    return lambda: flash_attn_with_kvcache(q, k, v)


def four_ways_us(call) -> dict[str, float]:
    """Microseconds: the first call, and medians by the host's clock without waiting, with the L2 hot, and as the package does it."""
    first = time.perf_counter()
    call()
    torch.cuda.synchronize()
    times = {"the first call": (time.perf_counter() - first) * 1e6}
    host = []
    for _ in range(SAMPLES):
        begun = time.perf_counter()
        call()
        host.append((time.perf_counter() - begun) * 1e6)
        torch.cuda.synchronize()
    times["the host's clock, not waiting"] = statistics.median(host)
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(SAMPLES)]
    torch.cuda._sleep(10_000_000)  # the host runs ahead, so that only the L2 differs from the last way
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    times["events, the L2 hot"] = statistics.median(start.elapsed_time(end) * 1e3 for start, end in events)
    times["flashlab.bench"] = statistics.median(EventTimer().samples(Runner(call), SAMPLES).device_s) * 1e6
    return times


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), torch.__version__)
    for way, us in four_ways_us(decode_step()).items():
        print(f"{way:30} {us:10.1f} us", flush=True)
