"""What the attention tests share: poisoned inputs, the oracle beside plain PyTorch, and checks of index values switched on."""

import contextlib
import types

import pytest
import torch

import flashlab.kernels  # noqa: F401  before anything imports Triton, so that it can still interpret
from flashlab import set_checks
from flashlab.reference.compare import assert_close
from flashlab.reference.naive import attention, attention_varlen

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def checks_on():
    """Index values are checked on a GPU too."""
    before = set_checks(True)
    yield
    set_checks(before)


@contextlib.contextmanager
def uninitialised_is_nan():
    """torch.empty gives NaN inside: an element nobody wrote shows."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def poisoned(shape, dtype, generator, *, heads_first=False, factor=1.0):
    """A random tensor (..., tokens, heads, head_dim) that lies inside a larger one full of NaN: a read outside it shows.

    heads_first: tokens and heads are stored the other way round, as a transposed (batch, heads, tokens, head_dim) is.
    """
    *batch, tokens, heads, head_dim = shape
    stored = (*batch, heads, tokens + 3, head_dim + 8) if heads_first else (*batch, tokens + 3, heads, head_dim + 8)
    room = torch.full(stored, float("nan"), dtype=dtype, device=DEVICE)
    view = room.transpose(-2, -3) if heads_first else room
    view = view[..., :tokens, :, :head_dim]
    view.copy_((torch.randn(shape, generator=generator) * factor).to(dtype))
    return view


def differentiate(function, inputs, weights):
    """(outputs, gradients of the weighted sum of the outputs) at detached inputs."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    outputs = function(*leaves)
    total = sum((output * weight.to(output.dtype)).sum() for output, weight in zip(outputs, weights, strict=True))
    return [output.detach() for output in outputs], torch.autograd.grad(total, leaves)


def finite(lse):
    """An LSE whose empty rows add nothing to a weighted sum."""
    return torch.where(torch.isfinite(lse), lse, 0.0)


def compare(ours, oracle, q, k, v, *, softcap=0.0, generator=None, backward=True):
    """Hold ours(q, k, v) -> (out, lse) to oracle(q, k, v, dtype), forward and backward, the gradient of the LSE included."""
    generator = generator or torch.Generator().manual_seed(0)
    factor = 3.0 if softcap else 2.0
    with torch.no_grad():
        ref, ref_lse = oracle(q.double(), k.double(), v.double(), torch.float64)
        low, low_lse = oracle(q, k, v, q.dtype)
        with uninitialised_is_nan():
            out, lse = ours(q, k, v)
    assert out.dtype is q.dtype and lse.dtype is torch.float32
    exact = 1e-6 if q.dtype is torch.float32 else 0.0  # both err by a few units in the last place: luck decides a ratio
    assert_close(out, ref, low, factor=factor, atol=exact, name="out")
    assert_close(lse, ref_lse, low_lse.float(), factor=factor, atol=1e-5, name="lse")
    if not backward:
        return
    weights = [torch.randn(ref.shape, generator=generator), torch.randn(ref_lse.shape, generator=generator)]
    weights = [weight.to(q.device).to(q.dtype) for weight in weights]

    def with_finite_lse(function):
        def outputs(*leaves):
            out, lse = function(*leaves)
            return out, finite(lse)

        return outputs

    _, ref_grads = differentiate(
        with_finite_lse(lambda *leaves: oracle(*leaves, torch.float64)), [q.double(), k.double(), v.double()], weights
    )
    _, low_grads = differentiate(with_finite_lse(lambda *leaves: oracle(*leaves, q.dtype)), [q, k, v], weights)
    with uninitialised_is_nan():
        _, grads = differentiate(with_finite_lse(ours), [q, k, v], weights)
    for name, grad, ref, low in zip(("dq", "dk", "dv"), grads, ref_grads, low_grads, strict=True):
        assert_close(grad, ref, low, factor=3.0, atol=3e-4, name=name)


@pytest.fixture(scope="session")
def bench():
    """The helpers of this file: pytest imports no module of ours but this one."""
    return types.SimpleNamespace(
        DEVICE=DEVICE, poisoned=poisoned, compare=compare, differentiate=differentiate, attention=attention,
        attention_varlen=attention_varlen, uninitialised_is_nan=uninitialised_is_nan,
    )  # fmt: skip
