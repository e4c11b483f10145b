"""What an H200 did, read from the package's records: reading by few blocks, splits, and decode steps without splits."""

import itertools
import math
from functools import cache

from flashlab.bench import records


@cache
def _record(kind: str) -> dict:
    return records.load(kind)


def when(kind: str = "decode") -> str:
    """Where a record comes from: GPU, date, commit, versions."""
    record = _record(kind)
    machine, commit = record["machine"], record["package"]["commit"][:7]
    return (
        f"one {machine['gpu']}, {record['date'][:10]}, commit {commit}, driver {machine['driver']}, torch "
        f"{machine['torch']}, triton {machine['triton']}"
    )


def _curve(name: str) -> list[dict]:
    (curve,) = [curve for curve in _record("launch")["curves"] if curve["name"] == name]
    return curve["series"][0]["points"]


def underfill() -> dict[int, float]:
    """Blocks of 256 threads that only read, and the bytes per second that they reached together."""
    return {point["x"]: point["bytes"] / point["time"]["median_s"] for point in _curve("underfill")}


def block_bytes_per_s() -> float:
    """What one reading block reaches by itself."""
    return underfill()[1]


def gpu_bytes_per_s() -> float:
    """The most that any number of reading blocks reached."""
    return max(underfill().values())


def read_rate(blocks: int) -> float:
    """Bytes per second for any number of blocks: straight lines through the recorded points, both axes logarithmic."""
    points = list(underfill().items())
    if blocks >= points[-1][0]:
        return points[-1][1]
    (x0, y0), (x1, y1) = next((a, b) for a, b in itertools.pairwise(points) if a[0] <= blocks <= b[0])
    part = math.log(blocks / x0) / math.log(x1 / x0)
    return y0 * (y1 / y0) ** part


def splits() -> dict[int, float]:
    """num_splits, and microseconds: batch 1, 32 query heads on 8 kv heads, 131072 keys, bf16."""
    return {point["x"]: point["time"]["median_s"] * 1e6 for point in _curve("splits")}


def decode(batch: int, heads_q: int, heads_kv: int, seqlen_k: int, peer: str = "flashlab") -> float:
    """Microseconds of a recorded bf16 decode step, head_dim 128. Raises KeyError where there is none."""
    wanted = dict(batch=batch, heads_q=heads_q, heads_kv=heads_kv, seqlen_k=seqlen_k, cache="bf16")
    for result in _record("decode")["results"]:
        if wanted.items() <= result["case"].items():
            for entry in result["entries"]:
                if (entry["peer"], entry["mode"], entry["status"]) == (peer, "eager", "ok"):
                    return entry["time"]["median_s"] * 1e6
    raise KeyError(f"{peer} has no record of {wanted}")


def kv_bytes(batch: int, heads_kv: int, seqlen_k: int, head_dim: int = 128) -> int:
    """K and V in bf16."""
    return 2 * batch * heads_kv * seqlen_k * head_dim * 2


def launch(batch: int, heads_q: int, heads_kv: int, seqlen_k: int, part: str = "h200"):
    """(tile, num_splits) that the package's tables and its rule give a bf16 step of head_dim 128 on this GPU."""
    from flashlab.hardware import gpu
    from flashlab.hardware.splits import splits_to_fill
    from flashlab.kernels import configs
    from flashlab.kernels.decode_plan import MOST_SPLITS, choose_tile

    sms, cc = gpu(part).sms, gpu(part).cc.split(".")
    rows = batch * heads_kv
    tile = choose_tile(configs.table_of(*map(int, cc)), "native", 2, 128, heads_q // heads_kv, rows / sms, False)
    return tile, splits_to_fill(rows, sms, tile.blocks_per_sm, -(-seqlen_k // tile.BLOCK_N), MOST_SPLITS)


# Decode steps that were recorded with one split: forced to it (batch 1), or because the rule chose it.
UNSPLIT = (
    (1, 32, 8, 131072, "flashlab-unsplit"),
    (1, 32, 8, 32768, "flashlab-unsplit"),
    (1, 32, 8, 8192, "flashlab-unsplit"),
    (1, 32, 1, 131072, "flashlab-unsplit"),
    (16, 32, 8, 8192, "flashlab"),
    (64, 32, 8, 4096, "flashlab"),
    (128, 32, 8, 1024, "flashlab"),
)
