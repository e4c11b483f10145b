"""Naive attention timed on a real GPU by measure.py beside this file: microseconds, medians of 20, L2 flushed."""

GPU = "H200"
WHEN = "one NVIDIA H200, 2026-11-30, commit 3e0e5e6, driver 580.159, torch 2.11.0+cu130, bf16"

# (batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim). "scaling" is one more pass over the scores, not part of the
# three steps; "fused" is PyTorch's FlashAttention-2.
PREFILL = {
    (32, 16, 16, 512, 512, 128): dict(scores=113.4, scaling=128.3, softmax=198.1, output=106.4, fused=226.5),
    (16, 16, 16, 1024, 1024, 128): dict(scores=184.1, scaling=253.9, softmax=399.0, output=175.6, fused=412.8),
    (8, 16, 16, 2048, 2048, 128): dict(scores=328.2, scaling=503.7, softmax=1133.1, output=307.2, fused=789.8),
    (4, 16, 16, 4096, 4096, 128): dict(scores=665.0, scaling=1004.8, softmax=3349.4, output=571.4, fused=1559.5),
    (2, 16, 16, 8192, 8192, 128): dict(scores=1375.0, scaling=2011.0, softmax=7923.2, output=1094.7, fused=3276.9),
    (1, 16, 16, 16384, 16384, 128): dict(scores=2843.4, scaling=4024.9, softmax=7585.3, output=2166.4, fused=6378.0),
}
DECODE = {
    (1, 32, 8, 1, 8192, 128): dict(scores=11.6, scaling=4.2, softmax=7.1, output=15.9, fused=29.2),
    (1, 32, 8, 1, 32768, 128): dict(scores=27.8, scaling=4.8, softmax=12.9, output=47.2, fused=58.2),
    (1, 32, 8, 1, 131072, 128): dict(scores=76.7, scaling=7.9, softmax=36.2, output=169.2, fused=156.3),
}
