"""Bad input raises before anything is launched, naming the argument, what it got and what is allowed."""

import subprocess
import sys

import pytest
import torch

from flashlab import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    set_checks,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tensor(*shape, dtype=torch.float16):
    return torch.randn(shape, device=DEVICE).to(dtype)


Q, K = tensor(1, 4, 6, 16), tensor(1, 5, 2, 16)


@pytest.mark.parametrize(
    "arguments, options, error, message",
    [
        (([1], K, K), {}, TypeError, "q is a list: must be a tensor"),
        ((Q[0], K, K), {}, ValueError, r"q has shape \(4, 6, 16\): must have 4 dimensions"),
        ((Q.to(torch.int32), K, K), {}, TypeError, "q has dtype torch.int32: must be float16, bfloat16 or float32"),
        ((Q, K.bfloat16(), K), {}, TypeError, "k has dtype torch.bfloat16: must be q's, torch.float16"),
        ((Q, K, K.bfloat16()), {}, TypeError, "v has dtype torch.bfloat16: must be q's, torch.float16"),
        ((Q, K.to("meta"), K), {}, ValueError, "k is on meta: must be on q's device"),
        ((Q, K, K[:, :4]), {}, ValueError, r"v has shape \(1, 4, 2, 16\): must be k's, \(1, 5, 2, 16\)"),
        ((Q, K[..., :8], K[..., :8]), {}, ValueError, "k has head_dim 8: must be q's, 16"),
        ((Q[:, :, :5], K, K), {}, ValueError, "heads_q must be a multiple of heads_kv"),
        ((Q, K[:, :, :0], K[:, :, :0]), {}, ValueError, "heads_q must be a multiple of heads_kv"),
        ((Q, K.expand(2, -1, -1, -1), K.expand(2, -1, -1, -1)), {}, ValueError, "k has batch 2: must be q's, 1"),
        ((tensor(1, 1, 1, 257),) * 3, {}, ValueError, "q has head_dim 257: must be from 1 to 256"),
        ((Q, K, K), dict(dropout_p=0.1), NotImplementedError, "dropout_p 0.1: dropout is not built yet"),
        ((Q, K, K), dict(softmax_scale=0.0), ValueError, "softmax_scale 0.0: must be positive and finite"),
        ((Q, K, K), dict(softmax_scale=float("nan")), ValueError, "softmax_scale nan: must be positive and finite"),
        ((Q, K, K), dict(softcap=-1.0), ValueError, "softcap -1.0: must be 0.0"),
        ((Q, K, K), dict(window_size=3), ValueError, r"window_size 3: must be \(left, right\)"),
        ((Q, K, K), dict(window_size=[1, 2, 3]), ValueError, r"window_size \(1, 2, 3\): must be \(left, right\)"),
        ((Q, K, K), dict(alibi_slopes=torch.ones(2, device=DEVICE)), ValueError, r"alibi_slopes has shape \(2,\)"),
        ((Q, K, K), dict(alibi_slopes=torch.ones(6, device=DEVICE).half()), TypeError, "alibi_slopes has dtype"),
    ],
)  # fmt: skip
def test_bad_arguments(arguments, options, error, message):
    for _ in range(2):  # what raised once raises again: only what passed is remembered
        with pytest.raises(error, match=message):
            flash_attn_func(*arguments, **options)


CU = torch.tensor([0, 2, 4], dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize(
    "cu_q, cu_k, options, error, message",
    [
        (CU.long(), CU, {}, TypeError, "cu_seqlens_q has dtype torch.int64: must be int32"),
        (CU, CU[:2], {}, ValueError, r"cu_seqlens_k has shape \(2,\): must be \(3\)"),
        (CU, CU[None], {}, ValueError, "cu_seqlens_k has shape"),
        (CU.to("meta"), CU, {}, ValueError, "cu_seqlens_q is on meta"),
        ([0, 4], CU, {}, TypeError, "cu_seqlens_q is a list: must be a tensor"),
    ],
)
def test_bad_index_tensors(cu_q, cu_k, options, error, message):
    q = tensor(4, 2, 16)
    with pytest.raises(error, match=message):
        flash_attn_varlen_func(q, q, q, cu_q, cu_k, 2, 2, **options)


def test_bad_packed_tensors():
    with pytest.raises(ValueError, match=r"qkv has shape \(1, 4, 2, 2, 16\): dimension 2 must be 3"):
        flash_attn_qkvpacked_func(tensor(1, 4, 2, 2, 16))
    with pytest.raises(ValueError, match="kv has shape"):
        flash_attn_kvpacked_func(Q, tensor(1, 4, 2, 16))


def test_set_checks_returns_what_it_was():
    before = set_checks(False)
    assert set_checks(True) is False
    assert set_checks(before) is True


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is only one device here")
def test_cpu_tensors_beside_a_gpu():
    with pytest.raises(ValueError, match="q is on cpu: kernels run on cuda here"):
        flash_attn_func(*(torch.randn(1, 2, 1, 16),) * 3)


def test_without_triton_only_calling_raises():
    code = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'triton' else find(name, *a)\n"
        "sys.modules['triton'] = None\n"
        "import torch, flashlab, flashlab.attention\n"
        "from flashlab import flash_attn_func, flash_attn_varlen_func, set_checks\n"
        "try: flash_attn_func(*(torch.randn(1, 2, 1, 16),) * 3)\n"
        "except ImportError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "need Triton" in run.stdout, run.stderr
