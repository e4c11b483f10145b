"""One call for each kind of run, on the GPU present."""

import time
from collections.abc import Callable

from flashlab.bench import machine, peers, session, timing
from flashlab.bench.cases import KINDS, SETS, cases

CEILINGS_PLAN = timing.Plan(rounds=3, round_s=0.02)
LOAD_S = 1.0  # nvidia-smi takes a while to answer


def run(
    kind: str,
    which: str = "full",
    *,
    names: list[str] | None = None,
    seconds: float = float("inf"),
    seed: int | None = None,
    graph: bool | None = None,
    path: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> dict:
    """Measure one kind and return the record, writing it to ``path`` as it grows.

    Args:
        kind: a key of cases.KINDS.
        which: "quick" or "full"; curves are always whole.
        names: peers to compare with, besides ours; all by default.
        seconds: the time it may take; what is left then is marked as not run.
        seed: of the inputs; a fresh one by default.
        graph: also time CUDA graphs; by default where calls are short, that is for decode.
        progress: told what is done next.

    Raises:
        ValueError: an unknown kind, set or peer.
        RuntimeError: there is no GPU.
    """
    import torch

    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}: must be one of {', '.join(KINDS)}")
    chosen = peers.choose(kind, names) if kind in SETS else []
    if not torch.cuda.is_available():
        raise RuntimeError("no GPU: speeds are measured on an NVIDIA GPU only")
    until = time.monotonic() + seconds
    from flashlab.bench.ceilings import ceilings

    progress("the GPU's own ceilings")
    about = machine.describe()
    timer, plan = timing.EventTimer(), timing.STANDARD
    seed = session.fresh_seed() if seed is None else seed
    found = ceilings(timer, CEILINGS_PLAN)
    record = session.skeleton(kind, which, seed, plan, timer.flush_bytes, about, found)
    record["machine"]["under_load"] = under_load(timer)
    save = session.saver(path)
    if chosen:
        session.run_cases(
            record, cases(kind, which), chosen, timer, graph=kind == "decode" if graph is None else graph, plan=plan,
            seconds=until - time.monotonic(), save=save, progress=progress,
        )  # fmt: skip
    else:
        _run_curves(record, kind, timer, plan, save, progress)
    save(record)
    return record


def under_load(timer: timing.EventTimer) -> dict:
    """Clocks and power while matrix products run: queued first, read while they last."""
    import torch

    timer.heat()
    sample = timer.samples(timing.Runner(timer.product), 3)
    for _ in range(int(LOAD_S / min(sample.device_s))):
        timer.product()
    state = machine.state()
    torch.cuda.synchronize()
    return state


def _run_curves(record, kind, timer, plan, save, progress) -> None:
    from flashlab.bench import launch, link

    curves = launch.CURVES if kind == "launch" else {"link": lambda timer, plan: link.transfers()}
    failures = []
    for name, measure in curves.items():
        progress(name)
        try:
            record["curves"].append(measure(timer, plan))
        except Exception as error:  # one curve lost is no reason to lose the others
            failures.append(f"{name}: {type(error).__name__}: {error}")
        save(record)
    record["complete"] = not failures
    if not record["curves"]:
        raise RuntimeError("; ".join(failures))
    for failure in failures:
        progress(f"FAILED {failure}")
