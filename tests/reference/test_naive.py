import itertools
import math
import random

import pytest
import torch
import torch.nn.functional as F

from flashlab.reference.mask import allowed
from flashlab.reference.naive import attention, attention_varlen


def inputs(batch=2, sq=5, sk=7, heads_q=6, heads_kv=2, d=8, dtype=torch.float64):
    return (
        torch.randn(batch, sq, heads_q, d, dtype=dtype),
        torch.randn(batch, sk, heads_kv, d, dtype=dtype),
        torch.randn(batch, sk, heads_kv, d, dtype=dtype),
    )


def spelled_out(q, k, v, *, causal, window_size, softcap, slopes, seqlens_q, seqlens_k):
    """The formula in Python numbers, one query at a time, over exactly the keys that it may see."""
    batch, sq, heads_q, d = q.shape
    group = heads_q // k.shape[2]
    out = torch.zeros_like(q)
    lse = torch.full((batch, heads_q, sq), -math.inf, dtype=q.dtype)
    for b, h, i in itertools.product(range(batch), range(heads_q), range(sq)):
        nq, nk = seqlens_q[b], seqlens_k[b]
        keys = [j for j in range(nk) if allowed(i, j, nq, nk, causal=causal, window_size=window_size)]
        if not keys:
            continue
        scores = []
        for j in keys:
            pair = zip(q[b, i, h].tolist(), k[b, j, h // group].tolist(), strict=True)
            s = sum(x * y for x, y in pair) / math.sqrt(d)
            s = softcap * math.tanh(s / softcap) if softcap else s
            scores.append(s - float(slopes[b, h]) * abs(i + nk - nq - j))
        total = sum(math.exp(s) for s in scores)
        lse[b, h, i] = math.log(total)
        out[b, i, h] = sum(math.exp(s) / total * v[b, j, h // group] for s, j in zip(scores, keys, strict=True))
    return out, lse


@pytest.mark.parametrize("heads", [(6, 6), (6, 2), (6, 1), (9, 3), (5, 1)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window_size", [(-1, -1), (2, 0), (1, 2)])
def test_agrees_with_the_formula_spelled_out(heads, causal, window_size):
    seqlens_q, seqlens_k = [5, 0, 3], [0, 7, 2]
    q, k, v = inputs(3, 5, 7, *heads, d=4)
    softcap, slopes = random.choice([0.0, 15.0]), torch.rand(3, heads[0]).double()
    options = {"causal": causal, "window_size": window_size, "softcap": softcap}
    out, lse = attention(
        q, k, v, alibi_slopes=slopes, seqlens_q=torch.tensor(seqlens_q), seqlens_k=torch.tensor(seqlens_k), **options
    )
    ref = spelled_out(q, k, v, slopes=slopes, seqlens_q=seqlens_q, seqlens_k=seqlens_k, **options)
    torch.testing.assert_close((out, lse), ref, rtol=0, atol=1e-13)


def test_agrees_with_pytorch_where_both_speak():
    q, k, v = inputs(heads_kv=6, sq=7)
    ours = attention(q, k, v, causal=True)[0]
    theirs = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)


def test_softmax_scale_replaces_the_default():
    q, k, v = inputs()
    torch.testing.assert_close(attention(q, k, v, softmax_scale=1.0), attention(q * 8**0.5, k, v))


def test_one_slope_a_head_is_the_same_for_every_row():
    q, k, v = inputs()
    slopes = torch.rand(6)
    one, each = (attention(q, k, v, alibi_slopes=s) for s in (slopes, slopes.expand(2, 6)))
    assert torch.equal(one[0], each[0]) and torch.equal(one[1], each[1])


def test_an_empty_row_is_zero_and_minus_infinity():
    q, k, v = inputs(sq=4, sk=2)
    out, lse = attention(q, k, v, causal=True)
    assert (out[:, :2] == 0).all() and (lse[..., :2] == -math.inf).all()
    assert torch.isfinite(out).all() and torch.isfinite(lse[..., 2:]).all()
    out, lse = attention(q, k[:, :0], v[:, :0])
    assert (out == 0).all() and (lse == -math.inf).all()


@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_padding_cannot_leak_forward_or_backward(garbage):
    q, k, v = inputs(batch=3)
    seqlens_q, seqlens_k = torch.tensor([5, 0, 2]), torch.tensor([1, 7, 0])
    clean = attention(q, k, v, seqlens_q=seqlens_q, seqlens_k=seqlens_k)
    for b in range(3):
        q[b, seqlens_q[b] :] = garbage
        k[b, seqlens_k[b] :] = garbage
        v[b, seqlens_k[b] :] = garbage
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out, lse = attention(*leaves, seqlens_q=seqlens_q, seqlens_k=seqlens_k)
    assert torch.equal(out, clean[0]) and torch.equal(lse, clean[1])
    for x in torch.autograd.grad(out.square().sum(), leaves):
        assert torch.isfinite(x).all()


def test_nan_in_a_real_slot_is_not_hidden():
    q, k, v = inputs()
    v[0, 3, 0] = math.nan
    assert torch.isnan(attention(q, k, v)[0][0, :, :3]).all()


def test_gradients_by_finite_differences():
    leaves = [x.requires_grad_() for x in inputs(1, 3, 4, 3, 1, 2)]
    seqlens_k = torch.tensor([3])
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, causal=True, seqlens_k=seqlens_k)[0], leaves)


def test_softcap_survives_large_scores():
    q = torch.ones(1, 1, 1, 1)
    k = torch.tensor([4400.0, 5000.0, 1e4, -1e4]).view(1, 4, 1, 1)
    out, lse = attention(q, k, torch.eye(4)[None, :, None], softcap=50.0)
    torch.testing.assert_close(out.flatten(), torch.tensor([1.0, 1.0, 1.0, 0.0]).double() / 3)
    torch.testing.assert_close(lse.flatten(), torch.tensor([50 + math.log(3)]).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_is_near_the_oracle_and_worse(dtype):
    q, k, v = inputs(dtype=dtype)
    ref, lse = attention(q, k, v)
    low, low_lse = attention(q, k, v, dtype=dtype)
    assert (low.dtype, low_lse.dtype) == (dtype, torch.float32)
    error = (low.double() - ref).abs().max()
    assert 0 < error < 32 * torch.finfo(dtype).eps
    torch.testing.assert_close(low_lse.double(), lse, rtol=0, atol=32 * torch.finfo(dtype).eps)


def test_packed_equals_padded():
    q, k, v = inputs(batch=4)
    seqlens_q, seqlens_k = [0, 1, 0, 5], [0, 3, 0, 5]
    slopes = torch.rand(4, 6)
    options = {"causal": True, "window_size": (2, 0), "softcap": 15.0}
    padded = attention(
        q, k, v, seqlens_q=torch.tensor(seqlens_q), seqlens_k=torch.tensor(seqlens_k), alibi_slopes=slopes, **options
    )
    cu_q, cu_k = (torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32) for n in (seqlens_q, seqlens_k))
    pack = lambda x, lengths: torch.cat([x[b, :n] for b, n in enumerate(lengths)])
    out, lse = attention_varlen(
        pack(q, seqlens_q), pack(k, seqlens_k), pack(v, seqlens_k), cu_q, cu_k, alibi_slopes=slopes, **options
    )
    torch.testing.assert_close(out, pack(padded[0], seqlens_q))
    torch.testing.assert_close(lse, pack(padded[1].transpose(1, 2), seqlens_q).T)


def test_wrong_shapes_are_named():
    q, k, v = inputs()
    with pytest.raises(ValueError, match="heads_q must be a multiple"):
        attention(q[:, :, :5], k, v)
    with pytest.raises(ValueError, match=r"v has shape .* expected"):
        attention(q, k, v[:, :3])
    with pytest.raises(ValueError, match="q has shape"):
        attention(q[0], k, v)
    with pytest.raises(ValueError, match="seqlens_k holds .* between 0 and 7"):
        attention(q, k, v, seqlens_k=torch.tensor([3, 8]))
    with pytest.raises(ValueError, match="alibi_slopes has shape"):
        attention(q, k, v, alibi_slopes=torch.rand(2))
    with pytest.raises(ValueError, match="cu_seqlens_q holds 2"):
        attention_varlen(q[0], k[0], v[0], torch.tensor([0, 5]), torch.tensor([0, 3, 7]))
