"""The split curve on your own GPU, with the package's kernel. ``python -m flashlab.course.lessons.lesson_09.measure``."""

import torch

from flashlab.attention import flash_attn_with_kvcache
from flashlab.course.lessons.lesson_01.measure import microseconds

SPLITS = (1, 2, 4, 8, 16, 17, 32, 33, 64, 128)


def sweep(heads_q: int = 32, heads_kv: int = 8, seqlen: int = 131072, head_dim: int = 128) -> dict[int, float]:
    """Splits -> microseconds of one decode step, one sequence. Half the keys as long as K and V want over half the memory."""
    free, _ = torch.cuda.mem_get_info()
    while 4 * seqlen * heads_kv * head_dim > free // 2:
        seqlen //= 2
    dtype = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    make = lambda n, heads: torch.randn(1, n, heads, head_dim, dtype=dtype, device="cuda")
    q, k, v = make(1, heads_q), make(seqlen, heads_kv), make(seqlen, heads_kv)
    return {n: microseconds(lambda n=n: flash_attn_with_kvcache(q, k, v, num_splits=n)) for n in SPLITS}


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), torch.__version__)
    print({splits: round(us, 1) for splits, us in sweep().items()})
