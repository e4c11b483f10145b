"""How close is close enough: a kernel may err about as much as plain PyTorch does in the same precision.

    max|out - ref| <= factor * max|low - ref| + 2 * max|(ref + 0.3 - 0.3) - ref| + atol

ref is the float64 oracle and low the same formula in the input's precision. The middle term, worked out in that
precision, is the rounding which low may have escaped by luck. The rule is that of the flash-attn package's own tests
(factor 2; 3 with softcap; 3 and atol 3e-4 for gradients).
"""

import torch


def tolerance(ref: torch.Tensor, low: torch.Tensor, *, factor: float = 2.0, atol: float = 0.0) -> float:
    """The largest |out - ref| that passes. ref is float64, low holds the same values in the precision on trial.

    Entries that are not finite in ref (the -inf of an empty row) have no distance and are left out.
    """
    finite = torch.isfinite(ref)
    exact, rounded = ref[finite], ref[finite].to(low.dtype)
    if exact.numel() == 0:
        return atol
    error = (low[finite].to(exact.dtype) - exact).abs().max()
    rounding = ((rounded + 0.3 - 0.3) - rounded).abs().max()
    return factor * float(error) + 2 * float(rounding) + atol


def assert_close(
    out: torch.Tensor,
    ref: torch.Tensor,
    low: torch.Tensor,
    *,
    factor: float = 2.0,
    atol: float = 0.0,
    name: str = "out",
) -> None:
    """Raise AssertionError, saying where and by how much, unless ``out`` lies within ``tolerance`` of ``ref``.

    NaN on either side fails. An infinity in ref must be the same infinity in out, and the other way round.
    """
    assert out.shape == ref.shape, f"{name} has shape {tuple(out.shape)}, expected {tuple(ref.shape)}"
    assert not torch.isnan(ref).any(), f"{name}: the reference itself holds NaN"
    out = out.to(ref.dtype)
    assert not torch.isnan(out).any(), f"{name} holds NaN, first at {_first(torch.isnan(out))}"
    wrong = torch.where(torch.isfinite(ref) & torch.isfinite(out), torch.zeros_like(ref, dtype=torch.bool), out != ref)
    assert not wrong.any(), f"{name} is {_at(out, wrong)} where the reference is {_at(ref, wrong)}, at {_first(wrong)}"
    error = torch.where(torch.isfinite(ref), (out - ref).abs(), torch.zeros_like(ref))
    limit = tolerance(ref, low, factor=factor, atol=atol)
    far = error > limit
    assert not far.any(), (
        f"{name} is {_at(out, far)} where the reference is {_at(ref, far)}, at {_first(far)}; "
        f"largest error {float(error.max()):.3e}, allowed {limit:.3e}, {int(far.sum())} of {far.numel()} off"
    )


def _first(where):
    return tuple(where.nonzero()[0].tolist())


def _at(x, where):
    return f"{float(x[_first(where)]):.6g}"
