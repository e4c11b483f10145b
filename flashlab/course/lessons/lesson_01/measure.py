"""Naive attention on a GPU, step by step: what recorded.py holds, and what the notebook adds for your own GPU.

``python -m flashlab.course.lessons.lesson_01.measure`` prints the record.
"""

import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

FLUSH_BYTES = 256 * 1024**2  # more than any L2, so that no step finds its input there by luck


def microseconds(step, repeats: int = 20) -> float:
    """Median time of ``step()``, each run after a warm-up and with a flushed L2."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for _ in range(3):
        step()
    times = []
    for _ in range(repeats):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def naive_steps(batch: int, heads_q: int, heads_kv: int, seqlen_q: int, seqlen_k: int, head_dim: int) -> dict[str, float]:
    """Microseconds of each step of naive bf16 attention, of a separate scaling pass, and of torch's fused kernel.

    The query heads that share a KV head are rows of one matrix, so K and V are read once for the group.
    """
    group = heads_q // heads_kv
    make = lambda heads, rows: torch.randn(batch * heads, rows, head_dim, dtype=torch.bfloat16, device="cuda")
    q, k, v = make(heads_kv, group * seqlen_q), make(heads_kv, seqlen_k), make(heads_kv, seqlen_k)
    q = q * head_dim**-0.5
    s = torch.bmm(q, k.mT)
    p, o = torch.softmax(s, dim=-1), torch.empty_like(q)
    times = {
        "scores": microseconds(lambda: torch.bmm(q, k.mT, out=s)),
        "scaling": microseconds(lambda: s.mul_(1.0)),
        "softmax": microseconds(lambda: torch.softmax(s, dim=-1, out=p)),
        "output": microseconds(lambda: torch.bmm(p, v, out=o)),
    }
    heads_first = lambda x, rows: x.view(batch, -1, rows, head_dim)
    q, k, v = heads_first(q, seqlen_q), heads_first(k, seqlen_k), heads_first(v, seqlen_k)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        times["fused"] = microseconds(lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=group > 1))
    return times


PREFILL = [(2**14 // n, 16, 16, n, n, 128) for n in (512, 1024, 2048, 4096, 8192, 16384)]
DECODE = [(1, 32, 8, 1, n, 128) for n in (8192, 32768, 131072)]

if __name__ == "__main__":
    print(torch.cuda.get_device_name(), torch.__version__)
    for shape in PREFILL + DECODE:
        print(shape, {name: round(us, 1) for name, us in naive_steps(*shape).items()}, flush=True)
