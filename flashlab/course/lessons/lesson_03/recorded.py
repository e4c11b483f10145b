"""Tiled attention timed on a real GPU, bf16, head_dim 128, no mask: microseconds, medians.

The loop orders and the block sizes by measure.py beside this file; the production kernels in runs of the same day, and
naive attention by lesson 01's measure.py.
"""

from flashlab.course.lessons.lesson_01.recorded import PREFILL

WHEN = "one NVIDIA H200, 2026-11-30, driver 580.159, torch 2.11.0+cu130, triton 3.6.0"
COPY_BYTES_PER_S = 4284e9  # read + written, the best copy
MATMUL_FLOPS = 690e12  # the best bf16 product, 8192 cubed

# Plain kernels in tiles of 128 x 64, 4 warps; (batch * heads, seqlen) -> microseconds.
LOOP_ORDERS = {
    (256, 4096): {"keys outside": 16893.8, "queries outside": 4296.3},
    (16, 16384): {"keys outside": 162294.2, "queries outside": 4069.2},
}

# Queries outside, 256 heads of 4096, BLOCK_N = 64: BLOCK_M -> microseconds, the better of 2 and 4 warps.
BLOCK_M_US = {16: 13363.2, 32: 9049.7, 64: 5155.6, 128: 4296.3}

# Batch 1, 16 heads, 16384 queries and keys: TFLOP/s of production kernels, and the time that makes.
FLOP = 4 * 16 * 16384**2 * 128
PRODUCTION_TFLOPS = {"FlashAttention-2": 355, "cuDNN": 611, "FlashAttention-4": 685}
NAIVE_US = {step: PREFILL[1, 16, 16, 16384, 16384, 128][step] for step in ("scores", "softmax", "output")}


def production_us(kernel: str) -> float:
    return FLOP / PRODUCTION_TFLOPS[kernel] / 1e6
