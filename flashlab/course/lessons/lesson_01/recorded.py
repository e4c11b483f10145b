"""Naive attention timed on a real GPU by measure.py beside this file: microseconds, medians of 20, L2 flushed."""

GPU = "H200"
WHEN = "one NVIDIA H200, 2026-11-30, driver 580.159, torch 2.11.0+cu130, bf16"

# (batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim). "scaling" is one more pass over the scores, not part of the
# three steps; "fused" is PyTorch's FlashAttention-2.
PREFILL = {
    (32, 16, 16, 512, 512, 128): dict(scores=113.9, scaling=128.6, softmax=211.0, output=106.4, fused=226.0),
    (16, 16, 16, 1024, 1024, 128): dict(scores=186.1, scaling=253.7, softmax=455.5, output=175.3, fused=413.4),
    (8, 16, 16, 2048, 2048, 128): dict(scores=329.4, scaling=503.3, softmax=1472.1, output=307.7, fused=794.9),
    (4, 16, 16, 4096, 4096, 128): dict(scores=665.1, scaling=1006.9, softmax=3698.8, output=571.5, fused=1603.6),
    (2, 16, 16, 8192, 8192, 128): dict(scores=1375.9, scaling=2011.4, softmax=9269.0, output=1095.3, fused=3525.2),
    (1, 16, 16, 16384, 16384, 128): dict(scores=2845.0, scaling=4022.9, softmax=10307.6, output=2155.2, fused=6473.2),
}
DECODE = {
    (1, 32, 8, 1, 8192, 128): dict(scores=11.3, scaling=4.1, softmax=10.4, output=15.8, fused=29.3),
    (1, 32, 8, 1, 32768, 128): dict(scores=27.8, scaling=4.8, softmax=21.6, output=47.5, fused=57.6),
    (1, 32, 8, 1, 131072, 128): dict(scores=77.1, scaling=8.0, softmax=82.5, output=172.9, fused=155.4),
}
