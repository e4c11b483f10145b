"""Launching a kernel that is already compiled.

A call through Triton's jit binds, specialises and looks up its arguments each time: some 20 us of Python. A decode step is
shorter than that. So a launcher that knows which calls are alike (same dtypes, strides, flags: its key) keeps what the
first of them compiled, and launches that as jit does, less the looking up.

What else Triton specialises on is looked at here: whether pointers are multiples of 16 bytes. A call with a pointer that
is not goes through jit, always.
"""

import torch
from triton import knobs

from flashlab.kernels import backend

MOST_KEPT = 4096
ALIGNMENT = 16


class Kept:
    """A jit kernel and what it compiled to, by key. ``key`` must fix every dtype, constant, stride and the device, or as
    much of them as the owner of this object leaves open."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.compiled = {}

    def __call__(self, key, grid: tuple[int, int, int], tensors: tuple, numbers: tuple, **options) -> None:
        """Launch on ``tensors`` (None where there is none), then ``numbers``: all arguments in the kernel's order.

        Numbers the kernel specialises on, and its constants, belong in the key. ``options`` are Triton's (num_warps, ...).
        The current device must be the tensors' (backend.on_device_of).
        """
        pointers, together = [], 0
        for tensor in tensors:
            if tensor is None:
                pointers.append(None)
            else:
                pointer = tensor.data_ptr()
                together |= pointer
                pointers.append(pointer)
        compiled = None if together % ALIGNMENT else self.compiled.get(key)
        if compiled is None:
            compiled = self.kernel[grid](*tensors, *numbers, **options)
            if together % ALIGNMENT == 0 and not backend.interpreting():
                if len(self.compiled) >= MOST_KEPT:
                    self.compiled.clear()
                self.compiled[key] = compiled
        elif knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls:  # a profiler listens
            compiled[grid](*pointers, *numbers)
        else:
            stream = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
            compiled.run(
                *grid, stream, compiled.function, compiled.packed_metadata, None, None, None, *pointers, *numbers
            )


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n. Triton's own takes microseconds."""
    return 1 << max(n - 1, 0).bit_length()
