"""Transfers between host and GPU by size, from memory the host has pinned and from memory it has not.

Pageable memory goes through a pinned buffer of the driver's, which the host's processor fills: what is measured then is the
host as much as the link, and the clock is the host's.
"""

import time

import torch

from flashlab.bench.curves import LINK_SIZES
from flashlab.bench.session import kept
from flashlab.bench.timing import Samples, summary

SECONDS_A_POINT = 0.25
MOST, LEAST = 50, 3


def transfers(sizes: tuple[int, ...] = LINK_SIZES) -> dict:
    """Seconds a transfer by size: pinned and pageable, to the device and back."""
    series = []
    for pinned in (True, False):
        host = torch.empty(max(sizes), dtype=torch.uint8, pin_memory=pinned).fill_(1)
        there = torch.empty(max(sizes), dtype=torch.uint8, device="cuda").fill_(2)
        for direction in ("host to device", "device to host"):
            points = []
            for size in sizes:
                source, target = host[:size], there[:size]
                if direction == "device to host":
                    source, target = target, source
                samples = _samples(source, target, pinned)
                points.append(dict(x=size, bytes=size, time=kept(summary(samples.device_s, samples.host_s))))
            series.append(dict(label=f"{'pinned' if pinned else 'pageable'}, {direction}", points=points))
        del host
    return dict(name="link", x="bytes", quantity="bytes_per_s", series=series)


def _samples(source, target, pinned: bool) -> Samples:
    def once() -> float:
        if not pinned:
            torch.cuda.synchronize()
            begun = time.perf_counter()
            target.copy_(source)
            torch.cuda.synchronize()
            return time.perf_counter() - begun
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(200_000)  # the host gets ahead
        start.record()
        target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3

    once()
    first = once()
    count = min(MOST, max(LEAST, int(SECONDS_A_POINT / max(first, 1e-6))))
    return Samples([once() for _ in range(count)], 0.0)
