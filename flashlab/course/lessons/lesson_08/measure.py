"""Decode steps with one split and with the rule's choice, timed on your own GPU.

``python -m flashlab.course.lessons.lesson_08.measure`` prints them.
"""

import torch

from flashlab.attention import flash_attn_with_kvcache
from flashlab.course.lessons.lesson_01.measure import microseconds

BATCHES = (1, 4, 16, 64)
TOKENS = 65536  # of all sequences together: the bytes stay, the blocks grow
HEADS_Q, HEADS_KV, HEAD_DIM = 32, 8, 128


def underfill_us(batches: tuple[int, ...] = BATCHES, tokens: int = TOKENS) -> dict[int, tuple[float, float]]:
    """batch -> (microseconds with one split, with the rule's splits). K and V take 4 KiB a token."""
    part = torch.cuda.get_device_properties()
    dtype = torch.bfloat16 if part.major >= 8 else torch.float16
    times = {}
    for batch in batches:
        cache = (torch.randn(batch, tokens // batch, HEADS_KV, HEAD_DIM, dtype=dtype, device="cuda") for _ in range(2))
        k, v = cache
        q = torch.randn(batch, 1, HEADS_Q, HEAD_DIM, dtype=dtype, device="cuda")
        times[batch] = tuple(
            microseconds(lambda q=q, k=k, v=v, n=n: flash_attn_with_kvcache(q, k, v, num_splits=n)) for n in (1, 0)
        )
    return times


def total_bytes(tokens: int = TOKENS) -> int:
    """K and V of all sequences."""
    return 2 * tokens * HEADS_KV * HEAD_DIM * 2


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), torch.__version__)
    for batch, (one, chosen) in underfill_us().items():
        print(f"batch {batch:3}: one split {one:7.1f} us, the rule's {chosen:7.1f} us", flush=True)
