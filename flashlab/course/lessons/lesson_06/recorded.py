"""This lesson's view of the shipped H200 records (flashlab.bench.records): forward, and forward + backward."""

from functools import cache

from flashlab.bench import records
from flashlab.bench.cases import Case

OURS, AHEAD = "flashlab", "cuDNN (torch)"
FULL = Case("train", 4, 16, 16, 4096, 4096, 128)  # the shape of this lesson
CASES = tuple(shape.alike(causal=causal) for shape in (FULL, FULL.alike(batch=2, seqlen_q=8192, seqlen_k=8192))
              for causal in (False, True))  # fmt: skip

# FULL's backward kernels by themselves, milliseconds, same machine, day and versions (docs/kernels-notes.md,
# "Backward"), and how many products of matrices they do.
KERNELS_MS = {"preprocess": 0.050, "dkdv": 1.94, "dq": 1.23}
PRODUCTS = {"dkdv": 4, "dq": 3}
TINY_HOST_US = {
    "flashlab": 413,
    "PyTorch's sdpa": 179,
}  # forward + backward of 16 tokens, 2 heads (same notes, "Where it stands")
HEAD_DIM_256_TFLOPS = {"dkdv": 311, "dq": 468}  # without a mask (same notes, "Backward")


@cache
def _record(kind: str) -> dict:
    return records.load(kind)


def when(kind: str = "train") -> str:
    """The machine, the day, the versions and the commit of the record."""
    record = _record(kind)
    machine, package = record["machine"], record["package"]
    return (
        f"{machine['gpu']}, {record['date'][:10]}, driver {machine['driver']}, torch {machine['torch']}, "
        f"triton {machine['triton']}, commit {package['commit']}"
    )


def copy_bytes_per_s() -> float:
    """The GPU's best copy, bytes read and written, in the run of the training record."""
    return _record("train")["ceilings"]["copy_bytes_per_s"]


def matmul_flop_per_s() -> float:
    """The GPU's best bf16 product in the same run."""
    return _record("train")["ceilings"]["matmul_flop_per_s"]


def milliseconds(case: Case) -> dict[str, float]:
    """Kernel title -> median milliseconds of a case as recorded, eager; forward + backward where its kind is train."""
    return {kernel: time["median_s"] * 1e3 for kernel, time in _times(case).items()}


def host_ms(case: Case, kernel: str = OURS) -> float:
    """Milliseconds that the host takes to issue the call."""
    return _times(case)[kernel]["host_s"] * 1e3


def _times(case: Case) -> dict[str, dict]:
    record = _record(case.kind)
    titles = {peer["name"]: peer["title"] for peer in record["peers"]}
    (result,) = [result for result in record["results"] if Case(**result["case"]) == case]
    entries = [entry for entry in result["entries"] if entry["status"] == "ok" and entry["mode"] == "eager"]
    return {titles[entry["peer"]]: entry["time"] for entry in entries}


def preprocess_floor_ms(case: Case) -> float:
    """Reading o and do, bf16, at the best copy's rate."""
    return 2 * case.batch * case.seqlen_q * case.heads_q * case.head_dim * 2 / copy_bytes_per_s() * 1e3


def forward_ms(case: Case, kernel: str = OURS) -> float:
    """The forward pass alone, from the prefill record."""
    return milliseconds(case.alike(kind="prefill"))[kernel]


def backward_ms(case: Case, kernel: str = OURS) -> float:
    """Forward + backward less the forward: two records of one day."""
    return milliseconds(case)[kernel] - forward_ms(case, kernel)
