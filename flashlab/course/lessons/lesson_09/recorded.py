"""What was recorded on one H200, read from the package's records, and what was published about an A100.

Times are microseconds, medians; PUBLISHED is the table of the Flash-Decoding post (pytorch.org/blog/flash-decoding).
"""

import functools

from flashlab.bench import records
from flashlab.hardware import gpu, measured

GPU = measured.GPU
SMS = gpu(GPU).sms


@functools.cache
def _record(kind: str) -> dict:
    return records.load(kind)


def when(kind: str = "decode") -> str:
    """GPU, day, commit and versions of a record."""
    record = _record(kind)
    machine = record["machine"]
    return (
        f"one {machine['gpu']}, {record['date'][:10]}, commit {record['package']['commit'][:7]}, "
        f"torch {machine['torch']}, triton {machine['triton']}"
    )


def read_bytes_per_s() -> float:
    """The fastest read of memory in the same run as the decode times."""
    return _record("decode")["ceilings"]["read_bytes_per_s"]


def decode(peer: str, mode: str = "eager", time: str = "median_s", **shape: int) -> float:
    """Microseconds of one decode case, bf16: peer as in the record, shape as in its cases. KeyError where there is none."""
    wanted = dict(batch=1, heads_q=32, heads_kv=8, seqlen_k=131072, cache="bf16") | shape
    for result in _record("decode")["results"]:
        if all(result["case"][key] == value for key, value in wanted.items()):
            for entry in result["entries"]:
                if entry["peer"] == peer and entry["mode"] == mode and entry["time"]:
                    return entry["time"][time] * 1e6
    raise KeyError(f"{peer}, {mode}, {wanted}")


@functools.cache
def sweep() -> dict[int, float]:
    """Splits -> microseconds: the package's kernel at batch 1, 32 / 8 heads, 131072 keys, in tiles of 32 keys, one warp."""
    (curve,) = [c for c in _record("launch")["curves"] if c["name"] == "splits"]
    return {point["x"]: point["time"]["median_s"] * 1e6 for point in curve["series"][0]["points"]}


LARGE_TILES = {splits: seconds * 1e6 for splits, seconds in measured.SPLIT_CURVE}  # tiles of 64 keys, 4 warps, another run

# FlashAttention-4 (flash-attn-4 4.0.0b36) took no more than one split on this GPU: batch 1, 32 / 8 heads, 131072 keys,
# another run of 2026-11-30, dirty L2. It is the fastest kernel without a split that was seen.
FA4_UNSPLIT_US = 1331.0

# (batch, seqlen): PyTorch's plain operators, FlashAttention 2.0.9 and Flash-Decoding. A100, fp16, one query token,
# 16 query heads on 2 kv heads, head_dim 128.
PUBLISHED = {
    (256, 256): dict(eager=3058.6, flash2=390.5, split=63.4),
    (128, 512): dict(eager=3151.4, flash2=366.3, split=67.7),
    (64, 1024): dict(eager=3160.4, flash2=364.8, split=77.7),
    (32, 2048): dict(eager=3158.3, flash2=352.0, split=58.5),
    (16, 4096): dict(eager=3157.0, flash2=401.7, split=57.0),
    (8, 8192): dict(eager=3173.1, flash2=529.2, split=56.4),
    (4, 16384): dict(eager=3223.0, flash2=582.7, split=58.2),
    (2, 32768): dict(eager=3224.1, flash2=1156.1, split=60.3),
    (1, 65536): dict(eager=1335.6, flash2=2300.6, split=64.4),
    (1, 131072): dict(eager=2664.0, flash2=4592.2, split=106.6),
}

# A batch of 64 rows in a paged cache, 63 of 1024 keys and one of 131072 (docs/decode-notes.md, one H200, 2026-11-30).
UNEVEN_US = {
    "one split": 3844.0,
    "as many programs a row as the longest row wants": 618.6,
    "16 splits for every row": 372.0,
    "splits in proportion to real lengths": 200.4,
}
UNEVEN_READ_US = 181.0  # a kernel that only reads the same keys
