"""A launch table for the GPU present: every candidate runs, the wrong ones and the failing ones fall out, the fastest stays.

Only this module measures launch configurations, and only when asked: what it writes is a table that
flashlab.kernels.configs reads, chosen from by shape. Candidates are put before a table's rows in this process alone.
"""

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import torch

from flashlab.bench import inputs, machine, timing
from flashlab.bench.cases import Case
from flashlab.bench.oracle import Oracle
from flashlab.kernels import configs

KERNELS = ("forward", "dkdv", "dq", "decode")
SHIPPED = Path(str(resources.files("flashlab.kernels"))) / "launch_tables"
HEAD_DIMS = (64, 128, 256)
PREFILL_TILES = {
    "forward": tuple(itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4))),
    "dkdv": tuple(itertools.product((32, 64, 128), (64, 128), (4, 8), (1, 2, 3))),
    "dq": tuple(itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3))),
}
DECODE_TILES = tuple(
    (*tile, axis)
    for axis in (0, 1)
    for tile in (
        (16, 1, 3, 4), (16, 1, 3, 6), (32, 1, 3, 2), (32, 1, 3, 3), (32, 1, 3, 4), (32, 4, 4, 2), (64, 2, 3, 2), (64, 2, 3, 6),
        (64, 4, 4, 1), (64, 4, 4, 2), (128, 4, 3, 1), (128, 8, 3, 1),
    )
)  # fmt: skip
DECODE_QUERIES = 16  # rows of a kv head that one tensor core instruction takes
DECODE_ROWS_PER_SM = (0.3, 0.75, 1.0, None)
QUICK = timing.Plan(rounds=2, round_s=0.005, least=3, most=12)


def steps(kernels: list[str]) -> int:
    """How often ``tune`` calls its progress."""
    prefill = sum(len(HEAD_DIMS) for kernel in kernels if kernel != "decode")
    return prefill + ("decode" in kernels) * (len(DECODE_ROWS_PER_SM) + 3)


def tune(kernels: list[str], directory: str | Path, progress: Callable[[str], None] = lambda text: None) -> list[Path]:
    """Measure, and write ``<table>.json`` and ``decode_<table>.json`` as far as asked. Returns what was written.

    Rows that were not tuned are kept from the shipped table, behind those that were.
    """
    name = configs.table_of_device(torch.cuda.current_device())
    timer = timing.EventTimer()
    written = []
    prefill = [kernel for kernel in kernels if kernel != "decode"]
    if prefill:
        rows = [row for kernel in prefill for row in _tune_prefill(name, kernel, timer, progress)]
        written.append(_write(directory, name, rows))
    if "decode" in kernels:
        written.append(_write(directory, f"decode_{name}", _tune_decode(f"decode_{name}", timer, progress)))
    return written


@contextlib.contextmanager
def trial(table: str, row: dict) -> Iterator[None]:
    """The row stands first in a table, for this process and this block."""
    rows = configs.read_table(table)["rows"]
    rows.insert(0, row)
    _forget()
    try:
        yield
    finally:
        rows.remove(row)
        _forget()


def _forget() -> None:
    """What was chosen from the tables before."""
    from flashlab.attention import decode

    configs.forget()
    decode._plan.cache_clear()


def _tune_prefill(table: str, kernel: str, timer, progress) -> list[dict]:
    rows = []
    for head_dim in HEAD_DIMS:
        progress(f"{kernel}, head_dim {head_dim}")
        candidates = [
            {"kernel": kernel, "itemsize": 2, "head_dim": head_dim,
             "launch": {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps, "num_stages": stages}}
            for m, n, warps, stages in PREFILL_TILES[kernel]
        ]  # fmt: skip
        case = Case("prefill" if kernel == "forward" else "train", 4, 16, 16, 2048, 2048, head_dim, causal=True)
        best = _fastest(table, candidates, case, timer)
        if best:
            rows.append(best)
    return rows


def _tune_decode(table: str, timer, progress) -> list[dict]:
    sms = torch.cuda.get_device_properties().multi_processor_count
    rows = []
    for cache in ("fp8", "int4"):
        progress(f"decode, {cache}")
        rows += _decode_row(table, {"format": cache, "head_dim": 128}, 1, 131072, cache, timer)
    progress("decode, int8: as fp8")
    rows += [{**row, "format": "int8"} for row in rows if row["format"] == "fp8"]
    for limit in DECODE_ROWS_PER_SM:
        progress(f"decode, up to {limit} rows an SM" if limit else "decode, more rows than that")
        batch = max(1, round((limit or 4.0) * sms / 8))
        match = {"format": "native", "itemsize": 2, "head_dim": 128, "queries": DECODE_QUERIES}
        match |= {"rows_per_sm": limit} if limit else {}
        rows += _decode_row(table, match, batch, max(2048, 262144 // batch), "bf16", timer)
    return rows


def _decode_row(table, match, batch, seqlen_k, cache, timer) -> list[dict]:
    names = ("BLOCK_N", "num_warps", "num_stages", "blocks_per_sm", "AXIS")
    candidates = [{**match, "tile": dict(zip(names, tile, strict=True))} for tile in DECODE_TILES]
    best = _fastest(table, candidates, Case("decode", batch, 32, 8, 1, seqlen_k, 128, cache=cache), timer)
    return [best] if best else []


def _fastest(table: str, candidates: list[dict], case: Case, timer) -> dict | None:
    """The candidate whose case runs fastest, of those that are right; None where none is."""
    tensors = inputs.make(case, "cuda", 0)
    oracle = Oracle(case, tensors, 0)
    best, best_s = None, math.inf
    for row in candidates:
        with trial(table, row), contextlib.suppress(Exception):  # too much shared memory, most likely: no candidate then
            call = _call(case, tensors)
            if oracle.judge(call()).reason:
                continue
            found = timing.measure({0: timing.Runner(call)}, timer, QUICK)[0]
            if isinstance(found, timing.Timing) and found.median_s < best_s:
                best, best_s = row, found.median_s
    return best


def _call(case: Case, tensors: inputs.Inputs) -> Callable[[], object]:
    """The launchers behind a case, below any choice between kernels."""
    from flashlab.bench.peers.ours import Flashlab
    from flashlab.kernels.backward import backward
    from flashlab.kernels.forward import forward

    if case.kind == "decode":
        return Flashlab().prepare(case, tensors).call
    q, k, v = tensors.q, tensors.k, tensors.v
    numbers = case.seqlen_q, case.seqlen_k, case.head_dim**-0.5, -1, 0 if case.causal else -1, 0.0
    if case.kind == "prefill":
        return lambda: forward(q, k, v, None, None, None, None, *numbers)[0]
    o, lse = forward(q, k, v, None, None, None, None, *numbers)
    return lambda: (o, *backward(tensors.do, None, q, k, v, o, lse, None, None, None, *numbers))


def _write(directory: str | Path, name: str, rows: list[dict]) -> Path:
    shipped = configs.read_table(name)
    about = machine.describe()
    told = f"flashlab bench tune, torch {about['torch']}, triton {about['triton']}, driver {about['driver']}"
    kept = [row for row in shipped["rows"] if not any(_covers(new, row) for new in rows)]
    path = Path(directory) / f"{name}.json"
    path.write_text(table_text({"gpu": about["gpu"], "provenance": told, "rows": rows + kept}))
    return path


def _covers(new: dict, old: dict) -> bool:
    """Whether two rows serve the same shapes."""
    return {k: v for k, v in new.items() if k not in ("launch", "tile")} == {
        k: v for k, v in old.items() if k not in ("launch", "tile")
    }


def table_text(table: dict) -> str:
    """As the shipped tables are written: a row a line."""
    rows = ",\n".join(f"    {json.dumps(row)}" for row in table["rows"])
    head = ",\n".join(f"  {json.dumps(key)}: {json.dumps(table[key])}" for key in ("gpu", "provenance"))
    return f'{{\n{head},\n  "rows": [\n{rows}\n  ]\n}}\n'
