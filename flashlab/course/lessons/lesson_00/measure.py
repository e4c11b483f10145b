"""How long one load waits: a pointer chase over working sets that fit the L1, the L2, and neither.

Each load's address is the value of the load before it, so no two are ever under way together and time / steps is the
latency. ``python -m flashlab.course.lessons.lesson_00.measure`` prints it for your GPU.
"""

import torch

LINE = 32  # int32 entries in a 128-byte line
WORKING_SETS = {"L1": 64 * 1024, "L2": 16 * 1024**2, "HBM": 1024**3}  # bytes


def latency_ns(working_set: int) -> float:
    """Nanoseconds from a load to its value, with the chain's lines spread over ``working_set`` bytes."""
    import triton
    import triton.language as tl

    @triton.jit
    def chase(p_next, p_last, steps):
        i = tl.load(p_next)
        for _ in range(steps):
            i = tl.load(p_next + i)
        tl.store(p_last, i)

    chain = _random_cycle(working_set // 4 // LINE).cuda()
    steps = max(200_000, chain.numel() // LINE)  # every line once at least: fewer would come back to the same few
    last = torch.zeros(1, dtype=torch.int32, device="cuda")
    times = []
    for _ in range(4):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        chase[(1,)](chain, last, steps, num_warps=1)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e6 / steps)
    return min(times[1:])  # the first run compiles and warms the caches


def _random_cycle(lines: int) -> torch.Tensor:
    """int32 (lines * LINE,): following the entries visits every line once, in random order."""
    order = torch.randperm(lines, generator=torch.Generator().manual_seed(0)).int()
    chain = torch.zeros(lines * LINE, dtype=torch.int32)
    chain[order.long() * LINE] = order.roll(-1) * LINE
    return chain


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), torch.__version__)
    for name, size in WORKING_SETS.items():
        print(f"{name:4} {size / 1024**2:8.2f} MiB  {latency_ns(size):7.1f} ns a load")
