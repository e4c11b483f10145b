"""Bytes of a stored vector, with the scales that each layout needs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlab.sizing import FORMATS, CacheSpec, Layer, kv_format

CHOICES = [None, "tensor", "head", "token_head", "block:16", "block:64"]


@pytest.mark.parametrize(
    "name, scales, size",
    [
        ("fp32", None, 512),
        ("fp16", None, 256),
        ("bf16", None, 256),
        ("fp8", None, 128),
        ("int8", "token_head", 128 + 4),
        ("int8", "block:64", 128 + 2 * 2),
        ("int4", None, 64 + 4),
        ("int4", "tensor", 64),
        ("int4", "block:32", 64 + 4 * 2),
        ("q8_0", None, 4 * 34),
        ("q4_0", None, 4 * 18),
        ("nvfp4", None, 64 + 8),
    ],
)
def test_a_vector_of_128(name, scales, size):
    assert kv_format(name, scales).vector_bytes(128) == size


def test_scales_that_do_not_grow_are_counted_once():
    layer = Layer("full", kv_heads=8, head_dim_k=128, head_dim_v=128)
    for dtype, scales, constant in [("fp8", "tensor", 8), ("fp8", "head", 64), ("int8", "token_head", 0), ("nvfp4", None, 8)]:
        spec = CacheSpec([layer] * 3, dtype, scales)
        assert spec.bytes(0, 0) == spec.constant_bytes == 3 * constant
        assert spec.bytes(5, 100) - spec.bytes(4, 100) == spec.sequence_bytes(100)


def test_a_latent_has_one_tensor_to_scale():
    assert CacheSpec([Layer("latent", 1, 576)], "fp8").constant_bytes == 4


def test_int4_rounds_an_odd_head_up_to_a_byte():
    assert kv_format("int4", "tensor").vector_bytes(65) == 33


def test_blocks_must_divide_the_head():
    with pytest.raises(ValueError, match="q8_0: blocks of 32 do not divide head_dim 80"):
        CacheSpec([Layer("full", 4, 80, 80)], "q8_0")


@pytest.mark.parametrize("alias, name", [("torch.bfloat16", "bf16"), ("float16", "fp16"), ("FP8_E4M3", "fp8"), ("float", "fp32")])
def test_other_names(alias, name):
    assert kv_format(alias) is FORMATS[name]


@pytest.mark.parametrize("dtype", ["int3", "", "bf 16", None, 16, "fp8 "])
def test_unknown_formats_are_refused(dtype):
    with pytest.raises(ValueError, match="must be one of fp32, fp16, bf16"):
        kv_format(dtype)


@pytest.mark.parametrize("dtype, scales", [("bf16", "tensor"), ("q8_0", "tensor"), ("int8", "row"), ("int8", "block"),
                                           ("int8", "block:0"), ("int8", "block:-4"), ("int8", "block:x"), ("fp8", "")])  # fmt: skip
def test_impossible_scales_are_refused(dtype, scales):
    with pytest.raises(ValueError, match=f"scales '{scales}'"):
        kv_format(dtype, scales)


def test_a_recurrent_state_keeps_its_precision():
    with pytest.raises(ValueError, match="state_dtype int8"):
        CacheSpec([Layer("linear", 1, recurrent_elements=8)], state_dtype="int8")


@given(st.sampled_from(["fp8", "int8", "int4"]), st.sampled_from(CHOICES), st.integers(1, 32))
def test_scales_are_never_free_and_never_double_the_vector(name, scales, sixteens):
    form, dim = kv_format(name, scales), 64 * sixteens
    bare = dim * form.bits // 8
    assert bare <= form.vector_bytes(dim) <= 2 * bare
    assert form.vector_bytes(dim) + form.constant_bytes(1) > bare
