"""What got slower between two records, beyond noise.

A change counts when the two samples do not overlap, 20th to 80th percentile, and the medians differ by more than NOISE: the
same code on the same GPU, hot, comes back within 3%.
"""

from typing import NamedTuple

from flashlab.bench.cases import Case

NOISE = 0.03


class Change(NamedTuple):
    """before_s and after_s: medians. ratio: after over before, above 1 is slower. verdict: "slower", "faster", "same",
    "broken" (timed before; wrong or failing after), "gone" (timed before only) or "new" (timed after only)."""

    what: str
    peer: str
    mode: str
    before_s: float | None
    after_s: float | None
    ratio: float | None
    verdict: str


def compare(before: dict, after: dict) -> list[Change]:
    """A Change for everything timed in either record, in the order of the first. Raises ValueError for different kinds."""
    if before["kind"] != after["kind"]:
        raise ValueError(f"a {before['kind']} record and a {after['kind']} record have nothing to compare")
    old, new = _times(before), _times(after)
    changes = [_change(key, old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new])]
    broken = _broken(after)
    return [c._replace(verdict="broken") if c.verdict == "gone" and (c.what, c.peer, c.mode) in broken else c for c in changes]


def cautions(before: dict, after: dict) -> list[str]:
    """What differs between the two machines or methods and may explain a change."""
    found = []
    for name in ("gpu", "driver", "torch", "triton", "cudnn", "power_limit_w"):
        a, b = before["machine"][name], after["machine"][name]
        if a != b:
            found.append(f"{name} was {a} and is {b}")
    for name, a in before["ceilings"].items():
        b = after["ceilings"][name]
        if abs(b / a - 1) > NOISE:
            found.append(f"{name} was {a:.4g} and is {b:.4g}: the GPU itself changed by {b / a - 1:+.1%}")
    return found


def _change(key, old, new) -> Change:
    what, peer, mode = key
    if old is None or new is None:
        return Change(what, peer, mode, old and old["median_s"], new and new["median_s"], None, "gone" if new is None else "new")
    ratio = new["median_s"] / old["median_s"]
    apart = new["p20_s"] > old["p80_s"] or new["p80_s"] < old["p20_s"]
    verdict = "same"
    if apart and ratio > 1 + NOISE:
        verdict = "slower"
    elif apart and ratio < 1 / (1 + NOISE):
        verdict = "faster"
    return Change(what, peer, mode, old["median_s"], new["median_s"], ratio, verdict)


def _broken(record: dict) -> set[tuple[str, str, str]]:
    """What gave a wrong answer or none. A peer that fails when it is called has no row for its graph: both modes are broken."""
    found = set()
    for result in record["results"]:
        for entry in result["entries"]:
            if entry["status"] in ("wrong", "failed"):
                modes = ("eager", "graph") if entry["mode"] == "eager" else ("graph",)
                found |= {(Case(**result["case"]).label, entry["peer"], mode) for mode in modes}
    return found


def _times(record: dict) -> dict[tuple[str, str, str], dict]:
    found = {}
    for result in record["results"]:
        for entry in result["entries"]:
            if entry["status"] == "ok":
                found[Case(**result["case"]).label, entry["peer"], entry["mode"]] = entry["time"]
    for curve in record["curves"]:
        for series in curve["series"]:
            for point in series["points"]:
                found[f"{curve['name']}, {point['x']} {curve['x']}", series["label"], "eager"] = point["time"]
    return found
