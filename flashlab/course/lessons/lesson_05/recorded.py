"""The forward pass on a recorded H200, read from flashlab.bench.records; and what docs/kernels-notes.md holds of tiles."""

from functools import cache
from typing import NamedTuple

from flashlab.bench import records
from flashlab.bench.cases import Case

OURS, FA2, CUDNN, FLEX = "flashlab", "torch-flash", "torch-cudnn", "torch-flex"
PEERS = {OURS: "flashlab", FA2: "FlashAttention-2", FLEX: "FlexAttention", CUDNN: "cuDNN"}

# Forward, B4 H16 S4096 D128 bf16, TFLOP/s (full, causal), by tile: BLOCK_M, BLOCK_N, num_warps, num_stages. Two loops, four
# heads side by side; one H200, 2026-11-30 (docs/kernels-notes.md).
TILES = {(128, 64, 8, 3): (501, 466), (64, 64, 4, 3): (507, 483)}


class Row(NamedTuple):
    """One shape: seconds by peer, the median of the record's samples."""

    case: Case
    seconds: dict[str, float]

    def tflops(self, peer: str = OURS) -> float:
        return self.case.flop / self.seconds[peer] / 1e12


@cache
def record() -> dict:
    return records.load("prefill")


@cache
def prefill() -> dict[str, Row]:
    """Every recorded shape by its label: ``B4 H16 S4096 D128 causal``."""
    rows = {}
    for result in record()["results"]:
        case = Case(**result["case"])
        times = {e["peer"]: e["time"]["median_s"] for e in result["entries"] if e["peer"] in PEERS and e["time"]}
        rows[case.label] = Row(case, times)
    return rows


def matmul_flops() -> float:
    """The best bf16 matrix product in the same run, FLOP/s."""
    return record()["ceilings"]["matmul_flop_per_s"]


def when() -> str:
    """GPU, date, versions and commit."""
    machine, package = record()["machine"], record()["package"]
    versions = f"torch {machine['torch']}, triton {machine['triton']}, cuDNN {machine['cudnn']}"
    return f"one {machine['gpu']}, {record()['date'][:10]}, {versions}, flashlab commit {package['commit']}"
