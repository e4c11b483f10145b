"""What the GPU of this very machine says, measured with flashlab bench's own timers: for widgets that stand beside one."""

import shutil
from functools import partial

from flashlab.hardware import gpu
from flashlab.hardware.links import DIRECTIONS
from flashlab.widgets.state import require

SPLITS = tuple(2**k for k in range(8))


def here() -> str | None:
    """The GPU of this machine, None where there is none. Imports torch only where a driver is installed."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        return gpu("live").name
    except (RuntimeError, OSError):
        return None


def present(wanted: str) -> str:
    """The GPU that is here. Raises ValueError where it is not the wanted one."""
    found = here()
    require(found == wanted, "gpu", wanted, f"the one in this machine, {found}" if found else "none: this machine has no GPU")
    return found


def decode(part: str, num_splits: int, most_splits: int, **case) -> tuple[tuple[int, float], ...]:
    """Seconds of flashlab's decode step by number of splits: those of SPLITS up to the most, and num_splits."""
    present(part)
    from flashlab.attention import flash_attn_with_kvcache
    from flashlab.bench.cases import Case
    from flashlab.bench.inputs import make
    from flashlab.bench.timing import EventTimer, Runner, Timing, measure

    tensors = make(Case("decode", seqlen_q=1, **case), "cuda", seed=0)
    call = partial(flash_attn_with_kvcache, tensors.q, tensors.k, tensors.v)
    wanted = sorted({n for n in SPLITS if n <= most_splits} | {num_splits})
    found = measure({n: Runner(partial(call, num_splits=n)) for n in wanted}, EventTimer())
    return tuple((n, timing.median_s) for n, timing in found.items() if isinstance(timing, Timing))


def transfers(part: str, direction: str, pinned: bool) -> tuple[tuple[int, float], ...]:
    """Bytes per second between this machine's host and GPU by size."""
    present(part)
    from flashlab.bench.link import transfers as measured

    require(direction in DIRECTIONS, "direction", direction, ", ".join(DIRECTIONS))
    label = f"{'pinned' if pinned else 'pageable'}, {direction.replace('_', ' ')}"
    series = next(series for series in measured()["series"] if series["label"] == label)
    return tuple((point["x"], point["x"] / point["time"]["median_s"]) for point in series["points"])
