"""What was measured, once: every model of this package is held against these points, and none of them is a promise.

One NVIDIA H200 (132 SMs, 143,771 MiB, PCIe 5.0 x16), 2026-11-30, torch 2.11.0 with CUDA 13.0, triton 3.6.0, medians.
"""

GPU = "H200"
DATE = "2026-11-30"

READ_BYTES_PER_S = 4445e9  # a kernel that only reads; the streaming read below reaches up to 4524e9

# The staircase: the same work in every block. (blocks per SM, blocks in the grid, seconds.) One block per SM comes of
# 115,713 bytes of shared memory a block; one byte less lets two in.
STAIRCASE = (
    (1, 132, 0.415e-3),
    (1, 133, 0.822e-3),
    (1, 264, 0.823e-3),
    (1, 265, 1.230e-3),
    (2, 264, 0.415e-3),
    (2, 265, 0.823e-3),
)

# Underfill: a streaming read by blocks of 256 threads. (blocks in the grid, bytes per second.)
UNDERFILL = (
    (1, 10.5e9),
    (8, 81e9),
    (32, 325e9),
    (132, 1302e9),
    (264, 2420e9),
    (528, 3910e9),
    (1056, 4524e9),
)

# Split decoding: batch 1, 32 query heads on 8 kv heads, head_dim 128, 131,072 keys, bf16; tiles of 64 keys, 4 warps,
# 4 stages, two blocks per SM; dirty L2. (splits, seconds.)
SPLIT_SHAPE = dict(batch=1, heads_q=32, heads_kv=8, head_dim=128, seqlen_k=131072)
SPLIT_CURVE = (
    (1, 1633e-6),
    (2, 815e-6),
    (4, 408e-6),
    (8, 209e-6),
    (12, 150e-6),
    (16, 135e-6),
    (17, 158e-6),
    (24, 153e-6),
    (32, 139e-6),
    (33, 136e-6),
    (49, 152e-6),
    (66, 140e-6),
    (132, 143e-6),
    (264, 146e-6),
)

# Pinned memory over PCIe 5.0 x16. (bytes, host to device, device to host; bytes per second.)
PCIE_PINNED = (
    (64 * 2**10, 12.0e9, 15.3e9),
    (2**20, 44.9e9, 47.6e9),
    (16 * 2**20, 54.6e9, 54.8e9),
    (2**30, 55.3e9, 55.4e9),
)
PCIE_PAGEABLE = ((2**30, 7.3e9, 14.3e9),)
