"""Sees what a PyTorch function does with its inputs: which tiles it multiplies, and how large its tensors get."""

import torch
from torch.overrides import TorchFunctionMode

_MATMULS = (torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.mm, torch.einsum)


class Watch(TorchFunctionMode):
    """``with Watch(k) as seen:`` notes the first row of every view of k that goes into a matrix product.

    Attributes:
        rows: those rows, in the order of the products. Empty where the function works on a copy of k.
        largest: the number of elements of the largest tensor that was made.
    """

    def __init__(self, x: torch.Tensor):
        super().__init__()
        self.x, self.rows, self.largest = x, [], 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.numel())
        if func in _MATMULS:
            for operand in args:
                if isinstance(operand, torch.Tensor) and operand.untyped_storage().data_ptr() == self.storage:
                    self.rows.append(operand.storage_offset() // self.x.stride(0))
        return result

    @property
    def storage(self):
        return self.x.untyped_storage().data_ptr()

    def came_back(self) -> int | None:
        """The first row of a tile that was left and came back later, or None."""
        runs = [row for i, row in enumerate(self.rows) if i == 0 or row != self.rows[i - 1]]
        return next((row for i, row in enumerate(runs) if row in runs[:i]), None)
