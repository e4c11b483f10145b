"""Quantised caches in the decode kernel: as attention over the dequantised cache, and as far from the unquantised as stated."""

import itertools

import pytest
import torch

from flashlab import flash_attn_with_kvcache
from flashlab.kvcache import quantize as qz
from flashlab.reference.compare import assert_close
from flashlab.reference.naive import attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def quantised(format, per, lengths, heads_kv, dim, page_size=0, seed=0, dtype=torch.float32):
    """(arguments, dequantised k and v, original k and v), every unused slot holding the code of NaN or the largest scale."""
    generator = torch.Generator().manual_seed(seed)
    capacity = -(-max(lengths) // 64) * 64
    originals = [torch.randn(len(lengths), capacity, heads_kv, dim, generator=generator) for _ in range(2)]
    arguments, exact = {}, []
    unused = torch.arange(capacity) >= torch.tensor(lengths)[:, None]
    for name, x in zip("kv", originals, strict=True):
        codes, scale = qz.quantize(x, format, per=per)
        exact.append(qz.dequantize(codes, scale))
        codes.view(torch.uint8)[unused] = 0x7F
        if per == "token":
            scale[unused] = float("nan")
        exact[-1][unused] = float("nan")
        scale = scale.to(dtype)
        if page_size:
            codes, scale = (
                t if t.dim() == 1 else t.reshape(-1, page_size, *t.shape[2:]) for t in (codes.view(torch.uint8), scale)
            )
            codes = codes.view(qz.CODE_DTYPES[format])
        arguments |= {f"{name}_cache": codes.to(DEVICE), f"{name}_scale": scale.to(DEVICE)}
    if page_size:
        columns = capacity // page_size
        arguments["block_table"] = torch.arange(len(lengths) * columns).reshape(-1, columns).int().to(DEVICE)
    arguments["cache_seqlens"] = torch.tensor(lengths, dtype=torch.int32).to(DEVICE)
    return arguments, exact, originals


CASES = [
    dict(format=format, per=per, dim=dim, page_size=page, dtype=dtype, seqlen_q=seqlen_q)
    for (format, per), (dim, page, dtype, seqlen_q) in zip(
        itertools.product(qz.CODE_DTYPES, ["token", "head"] * 3),
        itertools.cycle([
            (128, 0, torch.float16, 1), (64, 16, torch.bfloat16, 1), (40, 64, torch.float16, 3), (256, 0, torch.float32, 2),
            (72, 64, torch.bfloat16, 1),
        ]),
    )
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_as_the_dequantised_cache(case):
    lengths = [130, 0, 33]
    arguments, (k, v), _ = quantised(case["format"], case["per"], lengths, 2, case["dim"], case["page_size"])
    q = torch.randn(3, case["seqlen_q"], 6, case["dim"]).to(case["dtype"])
    options = dict(causal=case["seqlen_q"] > 1)
    out, lse = flash_attn_with_kvcache(q.to(DEVICE), **arguments, **options, return_softmax_lse=True)
    seqlens = torch.tensor(lengths)
    ref, ref_lse = attention(q, k, v, seqlens_k=seqlens, **options)
    low, _ = attention(q, k, v, seqlens_k=seqlens, dtype=case["dtype"], **options)
    assert_close(out.cpu(), ref, low, atol=1e-5 if case["dtype"] is torch.float32 else 0.0)
    torch.testing.assert_close(lse.cpu().double(), ref_lse, rtol=1e-4, atol=4e-3)


@pytest.mark.parametrize("format", qz.CODE_DTYPES)
def test_everything_at_once(format):
    """Window, softcap, ALiBi and splits over a quantised, paged cache."""
    arguments, (k, v), _ = quantised(format, "token", [200, 90], 1, 32, 16)
    q, slopes = torch.randn(2, 2, 3, 32).half(), torch.rand(3)
    options = dict(window_size=(70, 0), softcap=20.0, alibi_slopes=slopes)
    out = flash_attn_with_kvcache(q.to(DEVICE), **arguments, **options | dict(alibi_slopes=slopes.to(DEVICE)), num_splits=3)
    seqlens = torch.tensor([200, 90])
    ref, _ = attention(q, k, v, seqlens_k=seqlens, **options)
    low, _ = attention(q, k, v, seqlens_k=seqlens, dtype=q.dtype, **options)
    assert_close(out.cpu(), ref, low, factor=3.0)


@pytest.mark.parametrize("scale_dtype", [torch.float16, torch.bfloat16])
def test_scales_of_half_precision(scale_dtype):
    arguments, _, _ = quantised("int8", "token", [60, 64], 2, 32, dtype=scale_dtype)
    k, v = (qz.dequantize(arguments[f"{n}_cache"].cpu(), arguments[f"{n}_scale"].float().cpu()) for n in "kv")
    q = torch.randn(2, 1, 4, 32).half()
    out = flash_attn_with_kvcache(q.to(DEVICE), **arguments)
    seqlens = torch.tensor([60, 64])
    ref, _ = attention(q, k, v, seqlens_k=seqlens)
    assert_close(out.cpu(), ref, attention(q, k, v, seqlens_k=seqlens, dtype=q.dtype)[0])


@pytest.mark.parametrize("format", qz.CODE_DTYPES)
def test_small_values_do_not_vanish(format):
    """Values of 1e-3 times probabilities of 1e-3 lie below float16's normal range, unless kept clear of it."""
    generator = torch.Generator().manual_seed(0)
    k, v = torch.zeros(1, 1000, 1, 32), 1e-3 * (1 + 0.1 * torch.randn(1, 1000, 1, 32, generator=generator))
    (kc, ks), (vc, vs) = (qz.quantize(x, format) for x in (k, v))
    q = torch.randn(1, 1, 1, 32, generator=generator)
    out = flash_attn_with_kvcache(*(t.to(DEVICE) for t in (q.half(), kc, vc)), k_scale=ks.to(DEVICE), v_scale=vs.to(DEVICE))
    ref, _ = attention(q.half(), k, qz.dequantize(vc, vs))
    torch.testing.assert_close(out.cpu().double(), ref, rtol=3e-3, atol=0)


@pytest.mark.parametrize("per", ["token", "head"])
@pytest.mark.parametrize("format", qz.CODE_DTYPES)
def test_distance_from_the_unquantised_cache_is_within_the_stated_bound(format, per):
    arguments, _, (k, v) = quantised(format, per, [64, 64], 2, 64)
    q = torch.randn(2, 1, 4, 64)
    out = flash_attn_with_kvcache(q.to(DEVICE), **arguments).cpu().double()
    ref, _ = attention(q, k, v)
    err_k, err_v = (float(x.abs().max()) / qz.HALF_STEPS[format] for x in (k, v))
    e = 64**-0.5 * q.double().abs().sum(-1, keepdim=True) * err_k
    bound = (torch.exp(2 * e) - 1) * v.abs().max() + err_v
    assert ((out - ref).abs() <= bound + 1e-5).all()
    assert (out - ref).abs().max() > 1e-6  # it is quantised


def test_scales_default_to_one():
    codes = torch.randint(-5, 6, (1, 32, 1, 16), dtype=torch.int8)
    q = torch.randn(1, 1, 1, 16)
    out = flash_attn_with_kvcache(q.to(DEVICE), codes.to(DEVICE), codes.to(DEVICE))
    ref, _ = attention(q, codes.float(), codes.float())
    torch.testing.assert_close(out.cpu().double(), ref, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("format", qz.CODE_DTYPES)
def test_a_cache_filled_by_append_decodes(format):
    generator = torch.Generator().manual_seed(0)
    (kc, ks), (vc, vs) = (qz.new_cache(2, 32, 2, 16, format, device=DEVICE) for _ in range(2))
    k, v = (torch.randn(2, 20, 2, 16, generator=generator) for _ in range(2))
    for t in range(0, 20, 5):
        qz.append(*(x[:, t : t + 5].to(DEVICE) for x in (k, v)), kc, vc, ks, vs, torch.full((2,), t, device=DEVICE))
    q = torch.randn(2, 1, 4, 16, generator=generator)
    out = flash_attn_with_kvcache(q.to(DEVICE), kc, vc, cache_seqlens=20, k_scale=ks, v_scale=vs)
    ref, _ = attention(q, *(qz.dequantize(*qz.quantize(x, format)) for x in (k, v)))
    torch.testing.assert_close(out.cpu().double(), ref, rtol=1e-3, atol=1e-4)
