"""What a load's wait was on a real GPU, measured by measure.py beside this file."""

GPU = "H200"
WHEN = "one NVIDIA H200, 2026-11-30, commit 8f45a71, driver 580.159, torch 2.11.0, triton 3.6.0"

# Where the data was, bytes that the chain was spread over, nanoseconds from a load to its value.
LATENCY_NS = (
    ("L1, in the SM", 64 * 2**10, 20.8),
    ("L2, shared by all", 16 * 2**20, 145.9),
    ("HBM", 2**30, 353.0),
)
CLOCK_GHZ = 1.98  # the SM clock that nvidia-smi showed then
