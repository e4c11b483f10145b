"""What a run leaves behind: one JSON file, held to a schema and to its own samples. Needs no torch.

    load("decode")                 the shipped H200 record of a kind
    load("some/file.json")         one of your own
    validate(record)               raise RecordError unless it keeps to schema.json and does not contradict itself

The schema holds the shape and the units, which every key carries. What a schema cannot say is said here: the summary is
that of the samples, a wrong or absent peer has no time, and nothing is faster than the machine. What is loaded was held to both.
"""

import json
import math
import os
from functools import cache
from pathlib import Path

from flashlab.bench import shape
from flashlab.bench.cases import Case
from flashlab.bench.timing import summary
from flashlab.hardware.gpus import matches
from flashlab.hardware.links import link

HOME = Path(__file__).parent
SHIPPED_GPU = "h200"
ROOM_ABOVE_DATASHEET = 1.05
L2_SHARE = 2.0  # a cache that fits into L2 is read faster than memory allows; no more than this faster


class RecordError(ValueError):
    """A record that breaks the schema or contradicts itself."""


def shipped() -> list[str]:
    """Names of the shipped records: ``h200_decode`` and so on."""
    return sorted(path.stem for path in (HOME / "records").glob("*.json"))


def load(name: str | os.PathLike) -> dict:
    """A record: a kind ("decode": the H200's), a shipped name ("h200_decode") or a path.

    Raises:
        FileNotFoundError: no such record; the shipped ones are named.
        RecordError: the file is no record of this format.
    """
    tried = [HOME / "records" / f"{SHIPPED_GPU}_{name}.json", HOME / "records" / f"{name}.json", Path(name)]
    path = next((path for path in tried if path.is_file()), None)
    if path is None:
        raise FileNotFoundError(f"record {str(name)!r}: no such file, and the shipped ones are {', '.join(shipped())}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: not JSON: {error}") from None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    if not isinstance(record, dict) or record.get("schema") != 1:
        raise RecordError(f"{path}: not a record of flashlab bench (schema 1)")
    try:
        validate(record)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None
    return record


def _no_number(text: str):
    raise ValueError(f"{text} is no number")


def write(record: dict, path: str | os.PathLike) -> None:
    """Write a record whole or not at all, so that an interrupted run leaves the last whole one."""
    path = Path(path)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, separators=(",", ":")).replace('{"case"', '\n{"case"') + "\n")
    part.replace(path)


@cache
def schema() -> dict:
    return json.loads((HOME / "schema.json").read_text())


def validate(record: dict) -> None:
    """Raise RecordError for the first thing that is wrong."""
    fault = shape.fault(record, schema())
    if fault:
        raise RecordError(fault)
    coherent(record)


def coherent(record: dict) -> None:
    """Raise RecordError where a record of the right shape contradicts itself or the machine it says it comes from."""
    peers = {peer["name"]: peer for peer in record["peers"]}
    for result in record["results"]:
        case = Case(**result["case"])
        seen = set()
        for entry in result["entries"]:
            where = f"{case.label}, {entry['peer']}, {entry['mode']}"
            if (entry["peer"], entry["mode"]) in seen:
                raise RecordError(f"{where}: stands there twice")
            seen.add((entry["peer"], entry["mode"]))
            _entry(record, case, entry, where, peers)
    for curve in record["curves"]:
        for series in curve["series"]:
            for point in series["points"]:
                _point(record["machine"]["gpu"], curve, series, point)


def _entry(record: dict, case: Case, entry: dict, where: str, peers: dict) -> None:
    if case.kind != record["kind"]:
        raise RecordError(f"{where}: a {case.kind} case in a {record['kind']} record")
    if entry["peer"] not in peers:
        raise RecordError(f"{where}: peer is not among the record's peers")
    if (entry["status"] == "ok") != (entry["time"] is not None):
        raise RecordError(f"{where}: status {entry['status']!r} and {'no ' * (entry['time'] is None)}time")
    if entry["status"] != "ok":
        return
    absent = peers[entry["peer"]]["absent"]
    if absent is not None:
        raise RecordError(f"{where}: timed, and yet the peer is absent: {absent}")
    if entry["error"] > entry["allowed"]:
        raise RecordError(f"{where}: error {entry['error']:.2e} is above {entry['allowed']:.2e} and yet called ok")
    _time(where, entry["time"])
    quantity, work = case.work
    _possible(where, work / entry["time"]["median_s"], quantity, record["machine"]["gpu"], _most)


def _point(gpu: str, curve: dict, series: dict, point: dict) -> None:
    where = f"{curve['name']}, {series['label']}, {point['x']} {curve['x']}"
    _time(where, point["time"])
    if point["bytes"] is None:
        if curve["quantity"] == "bytes_per_s":
            raise RecordError(f"{where}: bytes is null on a curve of bytes_per_s")
        return
    most = _most_of_link if curve["name"] == "link" else _most
    _possible(where, point["bytes"] / point["time"]["median_s"], "bytes_per_s", gpu, most)


def _possible(where: str, rate: float, quantity: str, gpu: str, most_of) -> None:
    most = most_of(gpu, quantity)
    if rate > most:
        raise RecordError(f"{where}: {rate:.3g} {quantity} is more than {gpu} can, {most:.3g}")


def _time(where: str, time: dict) -> None:
    again = summary(time["samples_s"])
    for name in ("median_s", "p20_s", "p80_s"):
        if not math.isclose(time[name], getattr(again, name), rel_tol=1e-6):
            raise RecordError(f"{where}: {name} is {time[name]:.4g} and its samples say {getattr(again, name):.4g}")


def _most(name: str, quantity: str) -> float:
    """The datasheet's rate, with room for a part that boosts; infinite for a GPU outside the table."""
    found = matches(name)
    if not found:
        return math.inf
    if quantity == "flop_per_s":
        return found[0].dense_16bit_flops * ROOM_ABOVE_DATASHEET
    return found[0].hbm_bytes_per_s * L2_SHARE


def _most_of_link(name: str, quantity: str) -> float:
    """What the port to the host carries one way; infinite for a GPU outside the table."""
    found = matches(name)
    if not found or not (found[0].pcie_gen or found[0].c2c_bytes_per_s):
        return math.inf
    part = found[0]
    wire = link(gen=part.pcie_gen).wire_bytes_per_s if part.pcie_gen else 0
    return max(wire, part.c2c_bytes_per_s) * ROOM_ABOVE_DATASHEET
