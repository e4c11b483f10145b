"""One run: for each case make fresh inputs, check every peer against float64, time those that are right, write the record.

A peer that raises, is wrong or refuses costs the run nothing but its own row. The record is written after every case, and
when the time is up the cases left are marked as not run.
"""

import contextlib
import dataclasses
import datetime
import gc
import os
import random
import time
from collections.abc import Callable, Iterable

from flashlab.bench import inputs, machine, records, timing
from flashlab.bench.cases import Case
from flashlab.bench.oracle import Oracle
from flashlab.bench.peers import Peer, Refused

ROLES_GRAPHED = ("ours", "rival")


def skeleton(kind: str, which: str, seed: int, plan: timing.Plan, flush_bytes: int, about: dict, ceilings: dict) -> dict:
    """A record with nothing in it yet. about: machine.describe()."""
    now = datetime.datetime.now(datetime.UTC)
    return {
        "schema": 1,
        "kind": kind,
        "set": which,
        "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seed": seed,
        "complete": False,
        "package": machine.package(),
        "machine": {**about, "under_load": about["at_rest"]},
        "method": {
            "rounds": plan.rounds,
            "round_s": plan.round_s,
            "flush_bytes": flush_bytes,
            "heat_s": timing.HEAT_S,
        },
        "ceilings": ceilings,
        "peers": [],
        "results": [],
        "curves": [],
    }


def fresh_seed() -> int:
    return random.SystemRandom().randrange(2**31)


def peer_rows(peers: Iterable[Peer]) -> list[dict]:
    """What the record says of each peer, those that are absent too."""
    rows = []
    for peer in peers:
        absent = _absent(peer)
        version = None if absent else peer.version()
        rows.append(dict(name=peer.name, title=peer.title, role=peer.role, version=version, absent=absent))
    return rows


def run_cases(
    record: dict,
    cases: Iterable[Case],
    peers: list[Peer],
    timer: timing.Timer,
    *,
    device: str = "cuda",
    graph: bool = False,
    plan: timing.Plan = timing.STANDARD,
    seconds: float = float("inf"),
    save: Callable[[dict], None] = lambda record: None,
    progress: Callable[[str], None] = lambda text: None,
) -> dict:
    """Fill a record with the results of the cases, and return it.

    Args:
        graph: also time each call as a CUDA graph.
        seconds: once they have passed, cases are marked "not run".
        save: called with the record after every case.
        progress: called with a case's label before it is measured.
    """
    until = time.monotonic() + seconds
    record["peers"] = peer_rows(peers)
    for number, case in enumerate(cases):
        progress(case.label)
        if time.monotonic() > until:
            entries = [_entry(peer.name, "not run", "the time given was up") for peer in peers]
        else:
            entries = _run_case(case, peers, timer, device, graph, plan, record["seed"] + number)
        record["results"].append({"case": dataclasses.asdict(case), "entries": entries})
        save(record)
        _tidy(device)
    record["complete"] = all(e["status"] != "not run" for result in record["results"] for e in result["entries"])
    return record


def _run_case(case, peers, timer, device, graph, plan, seed) -> list[dict]:
    try:
        tensors = inputs.make(case, device, seed)
        oracle = Oracle(case, tensors, seed)
    except RuntimeError as error:  # out of memory, most likely
        return [_entry(peer.name, **_failure(error)) for peer in peers]
    rows: dict[tuple[str, str], dict] = {}
    contenders: dict[tuple[str, str], timing.Runner] = {}
    for peer in peers:
        why_not = _absent(peer)
        if why_not:
            rows[peer.name, "eager"] = _entry(peer.name, "absent", why_not)
            continue
        why_not = peer.refuses(case)
        if why_not:
            rows[peer.name, "eager"] = _entry(peer.name, "refused", why_not)
            continue
        row, runner = _checked(peer, case, tensors, oracle)
        rows[peer.name, "eager"] = row
        if runner is None:
            continue
        contenders[peer.name, "eager"] = runner
        if graph and peer.role in ROLES_GRAPHED:
            row, runner = _checked_graph(peer, runner, oracle)
            rows[peer.name, "graph"] = row
            if runner is not None:
                contenders[peer.name, "graph"] = runner
    for (name, mode), found in timing.measure(contenders, timer, plan).items():
        if isinstance(found, Exception):
            rows[name, mode] = _entry(name, mode=mode, **_failure(found))
        else:
            rows[name, mode]["time"] = kept(found)
    return list(rows.values())


def _checked(peer, case, tensors, oracle):
    """(row, runner): runner is None unless the peer is right, or has nothing to be right about."""
    try:
        runner = peer.prepare(case, tensors)
        return _verdict(peer.name, "eager", runner, oracle)
    except Exception as error:  # a peer's own failure, whatever it is, is its row
        return _entry(peer.name, **_failure(error)), None


def _checked_graph(peer, runner, oracle):
    try:
        replay = timing.graphed(runner)
        return _verdict(peer.name, "graph", replay, oracle)
    except Exception as error:
        return _entry(peer.name, mode="graph", **_failure(error)), None


def _verdict(name, mode, runner, oracle):
    with runner.scope():
        result = runner.call()
    row = _entry(name, "ok", None, mode)
    if not runner.checked:
        return row | dict(error=0.0, allowed=0.0), runner
    verdict = oracle.judge(result)
    if verdict.reason:
        finite = verdict.error if verdict.error < float("inf") else None
        return _entry(name, "wrong", verdict.reason, mode) | dict(error=finite, allowed=verdict.allowed), None
    return row | dict(error=verdict.error, allowed=verdict.allowed), runner


def _entry(peer: str, status: str, reason: str | None, mode: str = "eager") -> dict:
    return dict(peer=peer, mode=mode, status=status, reason=reason, error=None, allowed=None, time=None)


def _failure(error: Exception) -> dict:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return dict(status="refused" if isinstance(error, Refused) else "failed", reason=text[:300])


def kept(found: timing.Timing) -> dict:
    """A timing as a record holds it, to a nanosecond: the events' own resolution is coarser. The summary is that of what is written."""
    samples = [round(s, 9) for s in found.samples_s]
    return timing.summary(samples, round(found.host_s, 8))._asdict()


def _absent(peer: Peer) -> str | None:
    try:
        return peer.absent()
    except Exception as error:  # a broken installation is as good as none
        return f"{type(error).__name__}: {error}"


def _tidy(device: str) -> None:
    gc.collect()
    if device == "cuda":
        import torch

        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def saver(path: str | os.PathLike | None) -> Callable[[dict], None]:
    """Writes the record to a file each time; nothing without one."""
    return (lambda record: None) if path is None else (lambda record: records.write(record, path))
