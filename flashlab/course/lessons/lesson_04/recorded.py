"""This lesson's view of the shipped record of launches (flashlab.bench.records): a read of memory by few programs."""

from functools import cache

from flashlab.bench import records


@cache
def _record() -> dict:
    return records.load("launch")


def when() -> str:
    """The machine, the day, the versions and the commit of the record."""
    machine, package = _record()["machine"], _record()["package"]
    return (
        f"one {machine['gpu']}, {_record()['date'][:10]}, driver {machine['driver']}, torch {machine['torch']}, "
        f"triton {machine['triton']}, commit {package['commit'][:7]}"
    )


@cache
def read_rates() -> dict[int, float]:
    """Programs (of 256 threads) -> bytes per second that they read together."""
    (curve,) = [curve for curve in _record()["curves"] if curve["name"] == "underfill"]
    (series,) = curve["series"]
    return {point["x"]: point["bytes"] / point["time"]["median_s"] for point in series["points"]}


def sms() -> int:
    """Streaming multiprocessors of that GPU."""
    return _record()["machine"]["sms"]


def ceiling() -> float:
    """Bytes per second: the best read of that GPU's memory."""
    return _record()["ceilings"]["read_bytes_per_s"]
