"""What exercises in Triton share: inputs with poison around them, and a test that watches the memory a kernel touches.

An exercise's functions are launchers. Beside each stands its kernel, called ``<launcher>_kernel`` (``stub_kernel``
beside ``stub``): the notebook shows the two together, under the reader's name.
"""

import math
from collections.abc import Callable

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.trace import NothingTraced, guarded, trace
from flashlab.kernels import backend

DEVICE = "cpu" if backend.interpreting() else "cuda"  # where kernels run in this process
TOLERANCE = 1e-5  # of float32, on a CPU and on a GPU

__all__ = ["DEVICE", "TOLERANCE", "guarded", "matrix", "moves", "unwritten"]


def matrix(
    seed: int, rows: int, cols: int, gap: int = 3, device: str = DEVICE, between: float = float("nan")
) -> torch.Tensor:
    """Normal float32 numbers (rows, cols), each row followed by ``gap`` times ``between``, the whole between NaN.

    Where one NaN makes all of a result NaN, every mistake looks alike: a finite ``between`` tells them apart.
    """
    held = torch.full((rows + 2, cols + gap), float("nan"), device=device)
    held[1:-1, cols:] = between
    view = held[1:-1, :cols]
    view.copy_(normal(seed, rows, cols))
    return view


def unwritten(*shape: int, device) -> torch.Tensor:
    """NaN for a mistake to write into, with room behind it: on a GPU nothing keeps a wrong store from happening."""
    size = math.prod(shape)
    return torch.full((size + 4096,), float("nan"), device=device)[:size].view(shape)


def _holds_nan(result) -> bool:
    parts = result if isinstance(result, tuple) else (result,)
    return any(isinstance(part, torch.Tensor) and bool(part.isnan().any()) for part in parts)


def moves(arguments: Callable[[], tuple[str, tuple]], loaded: dict[str, int], stored: dict[str, int]) -> Callable:
    """A test of a launcher: no program leaves its tensors, the bytes that move are these, and nothing hangs on what a
    lane holds that is off.

    Args:
        arguments: gives a label and the launcher's arguments, on the CPU.
        loaded, stored: bytes by the kernel's argument; those that are not named may move as they like.
    """

    def test(launcher: Callable) -> str | None:
        label, given = arguments()
        try:
            seen = trace(lambda: launcher(*given), guard=True)
        except NothingTraced:
            return f"{label}: no Triton kernel was launched"
        if seen.outside:
            return f"{label}: {seen.outside[0]}"
        for done, counted, expected in (("loaded", seen.loaded, loaded), ("stored", seen.stored, stored)):
            for name, size in expected.items():
                if counted.get(name, 0) != size:
                    return f"{label}: {counted.get(name, 0)} bytes of {name} were {done}, {size} are needed"
        if _holds_nan(seen.result) and not _holds_nan(trace(lambda: launcher(*given)).result):
            return f"{label}: a lane that is off and has no `other` was given NaN, and NaN is in the result"
        return None

    return test
