"""What the shipped records of flashlab bench say of the shape a widget shows; with the GPU and the date, never without."""

from functools import cache
from typing import NamedTuple

from flashlab.bench import records
from flashlab.bench.cases import Case
from flashlab.bench.curves import SPLIT_CASE
from flashlab.hardware import gpu

OURS, UNSPLIT = "flashlab", "flashlab-unsplit"


class Point(NamedTuple):
    """x (splits, blocks or bytes), y (seconds or bytes per second), where and when ("H200, 2026-11-30"), and of what."""

    x: int
    y: float
    where: str
    versions: str


class Decode(NamedTuple):
    """A decode step on record: by number of splits, and at the number that the kernel chose itself (x is 0 then)."""

    by_splits: tuple[Point, ...] = ()
    own_choice: Point | None = None


@cache
def decode(part: str, cache: str = "bf16", **shape) -> Decode:
    """flashlab's own kernel on this step; empty for shapes, caches and GPUs without a record. shape: Case's fields."""
    case = Case("decode", seqlen_q=1, cache=cache, **shape)
    points, own = {}, None
    record, stamp = _record("decode", part)
    for result in record["results"] if record else ():
        if Case(**result["case"]) == case:
            for entry in result["entries"]:
                if entry["status"] == "ok" and entry["mode"] == "eager":
                    point = Point(int(entry["peer"] == UNSPLIT), entry["time"]["median_s"], *stamp)
                    if entry["peer"] == UNSPLIT:
                        points[1] = point
                    elif entry["peer"] == OURS:
                        own = point
    if case == SPLIT_CASE:
        points |= {point.x: point for point in _curve("launch", part, "splits")}
    return Decode(tuple(points[x] for x in sorted(points)), own)


@cache
def link_rates(gen: int, lanes: int, direction: str, pinned: bool) -> tuple[Point, ...]:
    """Bytes per second by the size of a transfer; on record for the port of the GPU that was measured."""
    record, _ = _record("link", None)
    if (gen, lanes) != (gpu(record["machine"]["gpu"]).pcie_gen, 16):
        return ()
    label = f"{'pinned' if pinned else 'pageable'}, {direction.replace('_', ' ')}"
    return tuple(point._replace(y=point.x / point.y) for point in _curve("link", None, "link", label))


def _curve(kind: str, part: str | None, name: str, label: str = "") -> list[Point]:
    record, stamp = _record(kind, part)
    return [
        Point(point["x"], point["time"]["median_s"], *stamp)
        for curve in (record["curves"] if record else ())
        for series in curve["series"]
        if curve["name"] == name and series["label"].endswith(label)
        for point in series["points"]
    ]


@cache
def _record(kind: str, part: str | None) -> tuple[dict | None, tuple[str, str]]:
    """The shipped record of a kind and its stamp; no record where it is another GPU's."""
    record = records.load(kind)
    machine = record["machine"]
    name = gpu(machine["gpu"]).name
    versions = f"commit {record['package']['commit'][:7]}, torch {machine['torch'].split('+')[0]}, triton {machine['triton']}"
    stamp = (f"{name}, {record['date'][:10]}", versions)
    return (record if part in (None, name) else None), stamp
