"""Quantised caches: what rounding costs is at most what is stated, and appending writes what quantising makes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab.kvcache import quantize as qz

FORMATS = list(qz.CODE_DTYPES)


def tensor(*shape, seed=0, spread=3.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator) * torch.exp(spread * torch.randn(shape[:-1], generator=generator))[..., None]


@pytest.mark.parametrize("per", ["token", "head"])
@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), spread=st.floats(0, 6))
def test_error_stays_within_the_stated_bound(format, per, seed, spread):
    x = tensor(2, 5, 3, 16, seed=seed, spread=spread)
    codes, scale = qz.quantize(x, format, per=per)
    amax = x.abs().amax(-1, keepdim=True) if per == "token" else x.abs().amax((0, 1, 3), keepdim=True)
    error = (qz.dequantize(codes, scale) - x).abs()
    assert (error <= amax / qz.HALF_STEPS[format] * (1 + 1e-5)).all()
    if format == "fp8":  # relative, above the subnormals
        normal = x.abs() > scale.reshape(*scale.shape, 1) * 2.0**-6
        assert (error[normal] <= x.abs()[normal] / 16 * (1 + 1e-5)).all()


@pytest.mark.parametrize("format", FORMATS)
def test_the_bound_is_not_slack(format):
    """Some value comes close to it: a bound twice as tight would fail."""
    x = torch.linspace(-1, 1, 4096).reshape(1, 1, 1, -1)
    error = (qz.dequantize(*qz.quantize(x, format)) - x).abs().max()
    assert error > 0.9 / qz.HALF_STEPS[format]


@pytest.mark.parametrize("format", FORMATS)
def test_every_code_survives_a_round_trip(format):
    codes = torch.arange(256, dtype=torch.uint8)
    if format == "fp8":
        codes = codes[(codes & 0x7F) != 0x7F]  # NaN
    elif format == "int8":
        codes = codes[codes != 0x80]  # -128 is never made
    else:
        codes = codes[((codes & 15) != 0) & ((codes >> 4) != 0)]  # -8 is never made
    codes = codes[: len(codes) // 2 * 2].reshape(1, 1, 1, -1).view(qz.CODE_DTYPES[format])
    one = torch.ones(1, 1, 1)
    again, _ = qz.quantize(qz.dequantize(codes, one), format, scale=one)
    values = [qz.dequantize(c, one) for c in (codes, again)]
    assert torch.equal(*values)
    assert again.dtype is codes.dtype and again.shape == codes.shape


@pytest.mark.parametrize("format", FORMATS)
def test_zeros_stay_zero_and_saturation_does_not_wrap(format):
    codes, scale = qz.quantize(torch.zeros(1, 2, 2, 8), format)
    assert (qz.dequantize(codes, scale) == 0).all() and torch.isfinite(scale).all()
    codes, _ = qz.quantize(torch.full((1, 1, 1, 8), 1e6), format, scale=torch.ones(1))
    assert (qz.dequantize(codes, torch.ones(1)) == qz.LARGEST_CODE[format]).all()
    codes, scale = qz.new_cache(1, 2, 3, 8, format)
    assert (qz.dequantize(codes, scale) == 0).all()


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("per", ["token", "head"])
@pytest.mark.parametrize("format", FORMATS)
def test_append_writes_what_quantize_makes_and_nothing_else(format, per, paged):
    lengths, new, heads, dim, page = torch.tensor([0, 15, 16]), 3, 2, 8, 16
    rows, tokens = (7, page) if paged else (4, 32)
    caches = [qz.new_cache(rows, tokens, heads, dim, format, per=per) for _ in range(2)]
    (k_cache, k_scale), (v_cache, v_scale) = caches
    if per == "head":
        k_scale.fill_(0.5)
    k, v = tensor(3, new, heads, dim, spread=0.5), tensor(3, new, heads, dim, seed=1, spread=0.5)
    where = dict(block_table=torch.tensor([[6, 1], [0, 5], [2, 3]])) if paged else dict(cache_batch_idx=torch.tensor([3, 0, 1]))
    before = qz.dequantize(k_cache, k_scale).clone()
    qz.append(k, v, k_cache, v_cache, k_scale, v_scale, lengths, **where)
    expected = qz.dequantize(*qz.quantize(k, format, scale=k_scale if per == "head" else None))
    held = qz.dequantize(k_cache, k_scale)
    written = torch.zeros(rows, tokens, dtype=torch.bool)
    for b in range(3):
        for t in range(new):
            position = int(lengths[b]) + t
            row, slot = (
                (int(where["block_table"][b, position // page]), position % page)
                if paged else (int(where["cache_batch_idx"][b]), position)
            )  # fmt: skip
            assert torch.equal(held[row, slot], expected[b, t])
            written[row, slot] = True
    assert torch.equal(held[~written], before[~written])


def test_bad_arguments_are_named():
    x = torch.zeros(1, 1, 1, 6)
    with pytest.raises(ValueError, match="format 'fp4'"):
        qz.quantize(x, "fp4")
    with pytest.raises(ValueError, match="head_dim 6: int4"):
        qz.quantize(x, "int4")
    with pytest.raises(ValueError, match="per 'page'"):
        qz.quantize(x, "int8", per="page")
    with pytest.raises(ValueError, match="codes have dtype"):
        qz.format_of(x)
    with pytest.raises(TypeError, match="x is a list"):
        qz.quantize([1.0], "int8")
    with pytest.raises(ValueError, match="x has shape"):
        qz.quantize(x[0], "int8")
    with pytest.raises(ValueError, match=r"scale has shape \(2,\)"):
        qz.quantize(x, "int8", scale=torch.ones(2))


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(cache_seqlens=[-1, 0]), "cache_seqlens from -1"), (dict(cache_seqlens=[14, 0]), "cache_seqlens from 0 to 14, 3 new"),
        (dict(block_table=[[0], [2]]), r"block_table\[1, 0\] is 2"), (dict(cache_batch_idx=[0, 2]), "cache_batch_idx"),
        (dict(cache_batch_idx=[0, -1]), "cache_batch_idx"), (dict(v=torch.zeros(2, 2, 2, 8)), "v has shape"),
        (dict(v=torch.zeros(2, 3, 2, 8, dtype=torch.int32)), "v is torch.int32"), (dict(v_scale=torch.ones(3)), "v_scale has shape"),
        (dict(v_scale=None), "v_scale"), (dict(cache_seqlens=[0]), "cache_seqlens has shape"), (dict(k=None), "k is a NoneType"),
    ],
)  # fmt: skip
def test_a_refused_append_changes_nothing(change, message):
    (kc, ks), (vc, vs) = (qz.new_cache(2, 16, 2, 8, "int8") for _ in range(2))
    k = torch.randn(2, 3, 2, 8)
    given = dict(k=k, v=k, k_cache=kc, v_cache=vc, k_scale=ks, v_scale=vs, cache_seqlens=torch.zeros(2, dtype=torch.int32)) | {
        name: torch.tensor(value, dtype=torch.int32) if isinstance(value, list) else value for name, value in change.items()
    }
    with pytest.raises((TypeError, ValueError), match=message):
        qz.append(**given)
    assert not kc.any() and not vc.any() and (ks == 1).all() and (vs == 1).all()


@pytest.mark.parametrize("format", ["fp8", "int8", "int4"])
@pytest.mark.parametrize("scale_dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_appended_codes_fit_the_scales_as_stored(format, scale_dtype, size):
    (kc, ks), (vc, vs) = (qz.new_cache(1, 16, 2, 32, format) for _ in range(2))
    ks, vs = ks.to(scale_dtype), vs.to(scale_dtype)
    k = torch.randn(1, 16, 2, 32, generator=torch.Generator().manual_seed(0)) * size
    qz.append(k, k, kc, vc, ks, vs, torch.zeros(1, dtype=torch.int32))
    error = (qz.dequantize(kc, ks.float()) - k).abs().amax(-1)
    step = torch.finfo(scale_dtype).eps + torch.finfo(scale_dtype).smallest_normal * torch.finfo(scale_dtype).eps / ks.float()
    assert (error <= k.abs().amax(-1) * (1 / qz.HALF_STEPS[format] * (1 + step))).all()


@pytest.mark.parametrize("per", ["token", "head"])
@pytest.mark.parametrize("format", ["fp8", "int8", "int4"])
def test_no_tokens_are_no_codes(format, per):
    codes, scale = qz.quantize(torch.zeros(1, 0, 2, 8), format, per=per)
    assert codes.shape == (1, 0, 2, 4 if format == "int4" else 8) and scale.shape == ((1, 0, 2) if per == "token" else (2,))
