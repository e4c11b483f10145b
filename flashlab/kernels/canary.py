"""A small kernel that uses what the real ones use (masks, exp, a dot) and is compared with float64.

A Triton that is broken, a numpy it does not get on with, or an interpreter that returns zeros shows up here by name
instead of in the middle of a lesson.
"""

import torch
import triton
import triton.language as tl

from flashlab.kernels import backend


@triton.jit
def _canary(p_x, p_y, p_out, n, stride, BLOCK: tl.constexpr):
    """out = softmax(x, over rows' n entries) @ y, for one (n, n) matrix, n <= BLOCK."""
    rows = tl.arange(0, BLOCK)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    inside = (rows < n) & (cols < n)
    x = tl.load(p_x + rows * stride + cols, mask=inside, other=0.0)
    y = tl.load(p_y + rows * stride + cols, mask=inside, other=0.0)
    scores = tl.where(cols < n, x.to(tl.float32), float("-inf"))
    p = tl.exp(scores - tl.max(scores, 1)[:, None])
    p = p / tl.sum(p, 1)[:, None]
    out = tl.dot(p.to(y.dtype), y, input_precision="ieee")
    tl.store(p_out + rows * stride + cols, out.to(p_out.dtype.element_ty), mask=inside)


def largest_error(dtype: torch.dtype, n: int = 27, stride: int = 40, seed: int = 0, widen: bool = True) -> float:
    """Run the canary in dtype and return max|out - float64 reference|; inf if NaN came out or padding was written.

    The (n, stride) inputs hold NaN beyond column n, so a mask that does not work shows too. ``widen=False`` shows
    what the interpreter itself makes of bfloat16, without the launchers' detour through float32.
    """
    device = "cpu" if backend.interpreting() else "cuda"
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, n, stride, generator=generator).to(dtype)
    x[:, n:] = float("nan")
    y[:, n:] = float("nan")
    out = torch.full((n, stride), 7.0, dtype=dtype)
    inputs = [t.to(device) for t in (x, y, out)]
    if widen and backend.interpreting():
        inputs = [backend.widen(t) for t in inputs]
    _canary[(1,)](*inputs, n, stride, BLOCK=32)
    result = inputs[2].double().cpu()
    expected = torch.softmax(x[:, :n].double(), 1) @ y[:, :n].double()
    error = (result[:, :n] - expected).abs().max().item()
    untouched = bool((result[:, n:] == 7.0).all())
    return error if untouched and error == error else float("inf")
