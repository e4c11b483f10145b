"""Where kernels run: compiled on an NVIDIA GPU, or in Triton's interpreter on a CPU.

Triton reads TRITON_INTERPRET when it is first imported, so the choice is made here, before that, once a process.
"""

import contextlib
import importlib.util
import os
import sys

import torch

MISSING = (
    "flashlab's kernels need Triton, which is not installed here. Triton ships for Linux: pip install triton. "
    "flashlab.reference, flashlab.hardware and flashlab.sizing work without it."
)
TOO_LATE = (
    "triton was imported before flashlab, so its interpreter can no longer be turned on and there is no GPU here. "
    "Import flashlab.kernels first, or set TRITON_INTERPRET=1 before Python starts; in a notebook, restart the kernel."
)


def prepare() -> None:
    """Turn the interpreter on where there is no GPU, unless TRITON_INTERPRET is set already (0 compiles without a GPU).

    Raises:
        ImportError: Triton is not installed.
        RuntimeError: there is no GPU and Triton was imported before the interpreter could be turned on.
    """
    if importlib.util.find_spec("triton") is None:
        raise ImportError(MISSING)
    if torch.cuda.is_available() or "TRITON_INTERPRET" in os.environ:
        return
    if "triton" in sys.modules:
        raise RuntimeError(TOO_LATE)
    os.environ["TRITON_INTERPRET"] = "1"


def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter (on CPU tensors) rather than on a GPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as the interpreter can compute with it: bfloat16 becomes float32, which is silently wrong there.

    Every launcher passes its bfloat16 inputs through here when interpreting; on a GPU this is never called.
    """
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


def on_device_of(tensor: torch.Tensor):
    """A context in which Triton launches on the tensor's GPU; it launches on the current one otherwise."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(tensor.device)
