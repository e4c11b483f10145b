"""Attention's forward and backward by the formula, one head: this lesson's worked example. Its FLOP are counted."""

import torch
from torch.overrides import TorchFunctionMode


def forward(q, k, v):
    """(o, lse)."""
    s = q @ k.T * q.shape[1] ** -0.5
    lse = torch.logsumexp(s, dim=1)
    return torch.exp(s - lse[:, None]) @ v, lse


def backward(q, k, v, o, lse, do):
    """(dq, dk, dv): five products of matrices, the first of them the forward's own, done again."""
    scale = q.shape[1] ** -0.5
    p = torch.exp(q @ k.T * scale - lse[:, None])
    dv = p.T @ do
    dp = do @ v.T
    ds = p * (dp - (do * o).sum(dim=1, keepdim=True))
    return ds @ k * scale, ds.T @ q * scale, dv


class Products(TorchFunctionMode):
    """``with Products() as seen:`` adds up the FLOP of every ``a @ b`` of two matrices: 2 M N K."""

    def __init__(self):
        super().__init__()
        self.flop, self.count = 0, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.__matmul__, torch.Tensor.matmul, torch.matmul):
            (m, k), (_, n) = args[0].shape, args[1].shape
            self.flop, self.count = self.flop + 2 * m * n * k, self.count + 1
        return func(*args, **(kwargs or {}))


def products(function, *arguments) -> Products:
    """The matrix products that a call makes: .count of them, .flop together."""
    with Products() as seen:
        function(*arguments)
    return seen
