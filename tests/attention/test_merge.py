"""merge_attn_states: what merging must be whatever is merged."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab import merge_attn_states
from flashlab.reference.compare import assert_close
from flashlab.reference.naive import attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def partials(count, shape=(2, 3, 4, 24), dtype=torch.float32, seed=0, empty=()):
    """count random partials; the rows of those in ``empty`` saw no key and hold NaN."""
    generator = torch.Generator().manual_seed(seed)
    batch, seqlen, heads, _ = shape
    outs = torch.randn(count, *shape, generator=generator).to(dtype)
    lses = torch.randn(count, batch, heads, seqlen, generator=generator) * 5
    for i in empty:
        outs[i], lses[i] = math.nan, -math.inf
    return outs.to(DEVICE), lses.to(DEVICE)


def close(a, b, dtype=torch.float32):
    rtol = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(a[0].float(), b[0].float(), rtol=rtol, atol=rtol)
    torch.testing.assert_close(a[1], b[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cut", [0, 1, 57, 130])
def test_attention_over_two_pieces_is_attention_over_all(dtype, cut):
    generator = torch.Generator().manual_seed(cut)
    q, k, v = (torch.randn(2, n, 4, 40, generator=generator).to(dtype) for n in (3, 130, 130))
    ref, ref_lse = attention(q, k, v)
    low, _ = attention(q, k, v, dtype=dtype)
    pieces = [attention(q, k[:, s], v[:, s]) for s in (slice(0, cut), slice(cut, None))]
    (out_a, lse_a), (out_b, lse_b) = ((o.to(dtype).to(DEVICE), lse.float().to(DEVICE)) for o, lse in pieces)
    out, lse = merge_attn_states(out_a, lse_a, out_b, lse_b)
    assert out.dtype is dtype
    assert_close(out.cpu(), ref, low, atol=1e-6)
    torch.testing.assert_close(lse.cpu().double(), ref_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_order_and_grouping_do_not_matter(dtype):
    (a, b, c), (la, lb, lc) = partials(3, dtype=dtype)
    stacked = merge_attn_states(torch.stack([a, b, c]), torch.stack([la, lb, lc]))
    close(merge_attn_states(a, la, b, lb), merge_attn_states(b, lb, a, la), dtype)
    close(merge_attn_states(*merge_attn_states(a, la, b, lb), c, lc), stacked, dtype)
    close(merge_attn_states(a, la, *merge_attn_states(b, lb, c, lc)), stacked, dtype)


def test_an_empty_partial_changes_nothing_and_two_are_empty():
    outs, lses = partials(2, empty=[1])
    for order in ([0, 1], [1, 0]):
        first, second = order
        out, lse = merge_attn_states(outs[first], lses[first], outs[second], lses[second])
        torch.testing.assert_close(out, outs[0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(lse, lses[0], rtol=1e-6, atol=1e-6)
    outs, lses = partials(3, empty=[0, 1, 2])
    for out, lse in (merge_attn_states(outs[0], lses[0], outs[1], lses[1]), merge_attn_states(outs, lses)):
        assert (out == 0).all() and (lse == -math.inf).all()


def test_the_same_keys_twice_weigh_twice():
    outs, lses = partials(1)
    out, lse = merge_attn_states(outs[0], lses[0], outs[0], lses[0])
    torch.testing.assert_close(out, outs[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse, lses[0] + math.log(2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 5, 130, 300])
def test_any_number_of_partials(count):
    outs, lses = partials(count, shape=(1, 2, 1, 33), empty=range(0, count - 1, 3))
    out, lse = merge_attn_states(outs, lses)
    weight = torch.softmax(lses.double(), 0).transpose(2, 3)[..., None]
    torch.testing.assert_close(out.double(), (weight * outs.double().nan_to_num(0)).sum(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), torch.logsumexp(lses.double(), 0), rtol=1e-5, atol=1e-5)


def test_far_apart_lses_do_not_overflow():
    outs, _ = partials(2)
    lses = torch.tensor([9e3, -9e3], device=DEVICE)[:, None, None, None].expand(2, 2, 4, 3)
    out, lse = merge_attn_states(outs[0], lses[0], outs[1], lses[1])
    torch.testing.assert_close(out, outs[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(lse, lses[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("size", [1e30, 3e38])
def test_lses_as_large_as_float32_holds(count, size):
    outs, _ = partials(count)
    signs = torch.tensor([1.0, -1.0, -1.0], device=DEVICE)[:count]
    for sign in (1, -1):
        lses = (sign * size * signs)[:, None, None, None].expand(count, 2, 4, 3)
        out, lse = merge_attn_states(outs, lses)
        pair = merge_attn_states(outs[0], lses[0], outs[1], lses[1])
        assert torch.isfinite(out).all() and (lse == size).all() and (pair[1] == size).all()
        if sign == 1:
            assert torch.equal(out, outs[0]) and torch.equal(pair[0], outs[0])
        else:
            torch.testing.assert_close(out, outs[1:].mean(0))
            assert torch.equal(pair[0], outs[1])


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.integers(0, 99))
def test_any_shape_and_strides(batch, seqlen, heads, head_dim, seed):
    outs, lses = partials(2, (batch, seqlen, heads, head_dim), seed=seed)
    expected = merge_attn_states(outs[0], lses[0], outs[1], lses[1])
    a = outs[0].permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3)
    b = torch.stack([outs[1], outs[1]], -1)[..., 0]
    lse = lses[0].permute(2, 0, 1).contiguous().permute(1, 2, 0)
    close(merge_attn_states(a, lse, b, lses[1]), expected)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(lse_b=None), "lse_b is None"),
        (dict(out_b=torch.zeros(1, 1, 1, 8)), "out_b has shape"),
        (dict(lse_a=torch.zeros(2, 3, 4)), "lse_a has shape"),
        (dict(lse_a=torch.zeros(2, 4, 3, dtype=torch.float64)), "lse_a has dtype"),
        (dict(out_a=torch.zeros(2, 3, 4, 24, dtype=torch.int32)), "out_a has dtype"),
    ],
)
def test_bad_arguments_are_named(change, message):
    outs, lses = partials(2)
    arguments = dict(out_a=outs[0], lse_a=lses[0], out_b=outs[1], lse_b=lses[1]) | {
        name: None if value is None else value.to(DEVICE) for name, value in change.items()
    }
    with pytest.raises((TypeError, ValueError), match=message):
        merge_attn_states(**arguments)


def test_opcheck_and_compile():
    outs, lses = partials(2)
    torch.library.opcheck(torch.ops.flashlab.merge_attn_states.default, ([outs[0], outs[1]], [lses[0], lses[1]]))
    torch.library.opcheck(torch.ops.flashlab.merge_attn_states.default, ([outs], [lses]))
    compiled = torch.compile(merge_attn_states, fullgraph=True, backend="aot_eager")
    close(compiled(outs[0], lses[0], outs[1], lses[1]), merge_attn_states(outs[0], lses[0], outs[1], lses[1]))
