"""The packed forms: the same bits as the plain functions, on views of what was passed."""

import pytest
import torch

import flashlab
from flashlab import flash_attn_func, flash_attn_varlen_func

OPTIONS = dict(causal=True, softcap=10.0, return_attn_probs=True)


def same(ours, plain, packed):
    """Outputs and the gradient of the packed tensor agree bit for bit."""
    leaves = [packed.detach().clone().requires_grad_() for _ in range(2)]
    outs = [function(leaf)[0] for function, leaf in zip((ours, plain), leaves, strict=True)]
    assert torch.equal(*outs)
    weights = torch.randn_like(outs[0])
    grads = [torch.autograd.grad((out * weights).sum(), leaf)[0] for out, leaf in zip(outs, leaves, strict=True)]
    assert torch.equal(*grads)


@pytest.mark.parametrize("varlen", [False, True])
def test_qkvpacked(bench, varlen):
    qkv = torch.randn(2, 20, 3, 2, 16, device=bench.DEVICE)
    if varlen:
        cu = torch.tensor([0, 12, 20], dtype=torch.int32, device=bench.DEVICE)
        ours = lambda x: flashlab.flash_attn_varlen_qkvpacked_func(x, cu, 12, **OPTIONS)
        plain = lambda x: flash_attn_varlen_func(x[:, 0], x[:, 1], x[:, 2], cu, cu, 12, 12, **OPTIONS)
        same(ours, plain, qkv[0])
    else:
        ours = lambda x: flashlab.flash_attn_qkvpacked_func(x, **OPTIONS)
        same(ours, lambda x: flash_attn_func(x[:, :, 0], x[:, :, 1], x[:, :, 2], **OPTIONS), qkv)


@pytest.mark.parametrize("varlen", [False, True])
def test_kvpacked(bench, varlen):
    q, kv = torch.randn(2, 20, 4, 16, device=bench.DEVICE), torch.randn(2, 20, 2, 2, 16, device=bench.DEVICE)
    if varlen:
        cu = torch.tensor([0, 12, 20], dtype=torch.int32, device=bench.DEVICE)
        ours = lambda x: flashlab.flash_attn_varlen_kvpacked_func(q[0], x, cu, cu, 12, 12, **OPTIONS)
        plain = lambda x: flash_attn_varlen_func(q[0], x[:, 0], x[:, 1], cu, cu, 12, 12, **OPTIONS)
        same(ours, plain, kv[0])
    else:
        ours = lambda x: flashlab.flash_attn_kvpacked_func(q, x, **OPTIONS)
        same(ours, lambda x: flash_attn_func(q, x[:, :, 0], x[:, :, 1], **OPTIONS), kv)


def test_no_copies(bench, monkeypatch):
    """What reaches the kernels points into the tensor that was passed."""
    from flashlab.attention import prefill

    qkv = torch.randn(1, 5, 3, 2, 16, device=bench.DEVICE)
    seen = []
    monkeypatch.setattr(prefill, "_attention", lambda *tensors: (seen.extend(tensors[:3]), (None, None))[1])
    flashlab.flash_attn_qkvpacked_func(qkv)
    assert [x.untyped_storage().data_ptr() for x in seen] == [qkv.untyped_storage().data_ptr()] * 3
