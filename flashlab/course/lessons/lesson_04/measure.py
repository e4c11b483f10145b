"""A read of memory by few programs, on your own GPU: what the recorded curve holds."""

import torch

from flashlab.bench.loads import reader
from flashlab.course.lessons.lesson_01.measure import microseconds

BYTES_A_PROGRAM, MOST = 2**23, 2**28


def read_rates(programs: tuple[int, ...]) -> dict[int, float]:
    """Programs -> bytes per second that they read together."""
    rates = {}
    for n in programs:
        memory = torch.zeros(min(n * BYTES_A_PROGRAM, MOST) // 4, dtype=torch.int32, device="cuda")
        rates[n] = memory.nbytes / microseconds(reader(memory, n, 4096).call) * 1e6
    return rates
