"""The lesson's own kernel, the package's and PyTorch's timed on a GPU: what the notebook adds for yours.

``python -m flashlab.course.lessons.lesson_05.measure`` prints it.
"""

import torch
import torch.nn.functional as F

from flashlab.course.lessons.lesson_01.measure import microseconds

BATCH, HEADS, SEQLEN, HEAD_DIM = 4, 16, 4096, 128
TILE = dict(BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=3)


def tflops(causal: bool = True) -> dict[str, float]:
    """TFLOP/s of each kernel on one shape in bf16. Raises AssertionError where one of them is wrong."""
    from flashlab import flash_attn_func
    from flashlab.course.lessons.lesson_05.flash_attention import launch, solution_kernel

    q, k, v = (torch.randn(BATCH, SEQLEN, HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    runs = {
        "the lesson's kernel": lambda: launch(solution_kernel, q, k, v, causal, **TILE)[0],
        "flashlab": lambda: flash_attn_func(q, k, v, causal=causal),
        "PyTorch": lambda: F.scaled_dot_product_attention(*heads_first, is_causal=causal).transpose(1, 2),
    }
    flop = 4 * BATCH * HEADS * SEQLEN**2 * HEAD_DIM * (0.5 if causal else 1.0)
    expected = runs["PyTorch"]()
    rates = {}
    for name, run in runs.items():
        torch.testing.assert_close(run(), expected, rtol=3e-2, atol=3e-3)
        rates[name] = flop / microseconds(run) / 1e6
    return rates


if __name__ == "__main__":
    import triton

    print(torch.cuda.get_device_name(), torch.__version__, triton.__version__)
    for causal in (False, True):
        print(f"causal={causal}", {name: round(rate) for name, rate in tflops(causal).items()}, flush=True)
