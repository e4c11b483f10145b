"""Everything derived from a record: rates, and ratios to the best rival and to the ceiling. Needs no torch."""

from typing import NamedTuple

from flashlab.bench.cases import Case

CEILING = {"bytes_per_s": "read_bytes_per_s", "flop_per_s": "matmul_flop_per_s"}


class Line(NamedTuple):
    """One row of a table.

    Attributes:
        case: what was measured.
        peer, title, role, mode: who, and whether called ("eager") or replayed ("graph").
        status, reason: "ok", or what came between.
        median_s, p20_s, p80_s, host_s: seconds; None unless ok.
        quantity: "flop_per_s" or "bytes_per_s".
        rate: work over the median.
        to_best_rival: rate over that of the fastest rival in the same mode: above 1 is faster. None without one.
        to_ceiling: rate over that of the GPU's matrix product or read, in the same run.
        to_floor: the time of loads alone over this one's; None where that was not measured.
    """

    case: Case
    peer: str
    title: str
    role: str
    mode: str
    status: str
    reason: str | None
    median_s: float | None
    p20_s: float | None
    p80_s: float | None
    host_s: float | None
    quantity: str
    rate: float | None
    to_best_rival: float | None
    to_ceiling: float | None
    to_floor: float | None


def lines(record: dict) -> list[Line]:
    """A Line for each entry of a record, in its order."""
    return [line for result in record["results"] for line in of_case(record, result)]


def of_case(record: dict, result: dict) -> list[Line]:
    """The lines of one result. Only peers that are right are ranked."""
    case = Case(**result["case"])
    known = {peer["name"]: peer for peer in record["peers"]}
    quantity, work = case.work
    ceiling = record["ceilings"][CEILING[quantity]]
    floor_s = min((s for entry, s in _timed(result) if known[entry["peer"]]["role"] == "floor"), default=None)
    out = []
    for entry in result["entries"]:
        peer = known[entry["peer"]]
        time = entry["time"] or dict.fromkeys(("median_s", "p20_s", "p80_s", "host_s"))
        median_s = time["median_s"]
        shown = (time["median_s"], time["p20_s"], time["p80_s"], time["host_s"])
        best_s = _best_rival(result, known, entry)
        ranked = median_s is not None and peer["role"] != "floor"
        out.append(
            Line(
                case, entry["peer"], peer["title"], peer["role"], entry["mode"], entry["status"], entry["reason"], *shown,
                quantity,
                rate=work / median_s if median_s else None,
                to_best_rival=best_s / median_s if ranked and best_s else None,
                to_ceiling=work / median_s / ceiling if median_s else None,
                to_floor=floor_s / median_s if ranked and floor_s else None,
            )
        )  # fmt: skip
    return out


def ours(record: dict, mode: str = "eager") -> list[Line]:
    """Our own line of each case that was measured."""
    return [line for line in lines(record) if line.role == "ours" and line.mode == mode and line.status == "ok"]


def beaten(record: dict) -> list[tuple[Line, Line]]:
    """(ours, theirs) for each case and mode in which some rival is faster, theirs being the fastest."""
    found = []
    for result in record["results"]:
        rows = [line for line in of_case(record, result) if line.status == "ok"]
        for mine in (line for line in rows if line.role == "ours"):
            rivals = [line for line in rows if line.role == "rival" and line.mode == mine.mode]
            best = min(rivals, key=lambda line: line.median_s, default=None)
            if best and best.median_s < mine.median_s:
                found.append((mine, best))
    return found


class Gain(NamedTuple):
    """A case against another form of itself, timed in turns: ``times`` as fast."""

    case: Case
    median_s: float
    other_s: float
    times: float


def quantised(record: dict) -> list[Gain]:
    """What a quantised cache gains over a bfloat16 one of the same shape."""
    return [Gain(*found) for found in _against(record, "flashlab-bf16")]


def unsplit(record: dict) -> list[Gain]:
    """What splitting the keys gains over one split, where few rows leave the GPU empty."""
    return [Gain(*found) for found in _against(record, "flashlab-unsplit")]


def _against(record: dict, variant: str):
    for result in record["results"]:
        times = {entry["peer"]: s for entry, s in _timed(result) if entry["mode"] == "eager"}
        if "flashlab" in times and variant in times:
            yield Case(**result["case"]), times["flashlab"], times[variant], times[variant] / times["flashlab"]


def _timed(result):
    return [(entry, entry["time"]["median_s"]) for entry in result["entries"] if entry["status"] == "ok"]


def _best_rival(result, known, entry) -> float | None:
    """The fastest rival's seconds in the entry's mode, the entry itself aside."""
    times = [
        s
        for other, s in _timed(result)
        if other is not entry and other["mode"] == entry["mode"] and known[other["peer"]]["role"] == "rival"
    ]
    return min(times, default=None)
