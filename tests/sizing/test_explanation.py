"""The formula with its numbers, and the wrong ones beside it."""

import math
import re

import pytest

from flashlab.sizing import CacheSpec, Layer, explain

NAMES = ["llama-2-7b", "llama-3-8b", "qwen3-4b", "gemma-3-27b", "deepseek-v3", "qwen3-next-80b-a3b", "gpt-oss-20b"]


def wrong(told):
    return {one.name: one for one in told.wrong}


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "q8_0", "int4"])
@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_in_each_line_multiply_to_its_bytes(spec, name, dtype):
    told = explain(spec(name, dtype=dtype), batch=3, input=3000, output=500)
    total = 0
    for line in told.formula[:-1]:
        size = int(re.search(r"([\d,]+) bytes(, |$)", line)[1].replace(",", ""))
        total += size
        if not line.startswith(("linear", "scales")):
            line = re.sub(r"min\((\d+), window (\d+)\)", lambda m: str(min(int(m[1]), int(m[2]))), line.split(" = ")[0])
            line = re.sub(r"\(.*?\)", "", line)
            assert math.prod(float(x) for x in re.findall(r"(?<![a-z])\d+\.?\d*", line)) == pytest.approx(size)
    assert total == told.bytes == spec(name, dtype=dtype).bytes(3, 3500)
    assert told.formula[-1].startswith(f"total: {told.bytes:,} bytes")


def test_the_last_token_is_written_and_never_read(spec):
    llama = spec("llama-2-7b")
    told = explain(llama, batch=2, input=10, output=5)
    assert (told.bytes, told.needed_bytes) == (llama.bytes(2, 15), llama.bytes(2, 14))


def test_the_articles_formula(spec):
    """Llama-2-7B with 1024 in and 1024 out takes 1 GiB; 4 n m h says 16. At 64 and 64 they happen to agree."""
    told = explain(spec("llama-2-7b"), 1, 1024, 1024)
    assert told.bytes == 2**30 and wrong(told)["4 n m h"].bytes == 16 * 2**30 and wrong(told)["4 n m h"].ratio == 16
    assert "4 n m h" not in wrong(explain(spec("llama-2-7b"), 1, 64, 64))


@pytest.mark.parametrize("model, name, ratio", [
    ("llama-3-8b", "kv heads ignored", 4),
    ("llama-3-8b", "K without V", 0.5),
    ("qwen2.5-7b", "bits taken for bytes", 8),
    ("qwen3-4b", "hidden / heads for head_dim", 80 / 128),
    ("mistral-small-24b", "hidden / heads for head_dim", 160 / 128),
    ("gpt-oss-20b", "hidden / heads for head_dim", 45 / 64),
    ("deepseek-v3", "latent counted as full heads", 2 * 7168 / 576),
    ("deepseek-v3", "K and V counted apart", 2),
    ("gpt-oss-20b", "windows ignored", 2 * 2048 / (2048 + 128)),
    ("gpt-oss-20b", "sliding layers dropped", 2048 / (2048 + 128)),
    ("qwen3-next-80b-a3b", "linear layers counted as attention", 48 * 2048 * 2048 / (36 * 2146304 + 12 * 2048 * 2048)),
])  # fmt: skip
def test_known_wrong_formulas(spec, model, name, ratio):
    told = explain(spec(model))
    assert wrong(told)[name].ratio == pytest.approx(ratio) == wrong(told)[name].bytes / told.bytes


def test_a_wrong_formula_that_agrees_is_not_shown(spec):
    assert not {"kv heads ignored", "hidden / heads for head_dim", "windows ignored"} & wrong(explain(spec("llama-2-7b"))).keys()


def test_it_reads(spec):
    text = str(explain(spec("llama-3-8b"), 1, 1024, 1024))
    assert "1 x 32 layers x 2048 tokens x 2 (K and V) x 8 kv heads x 128 head_dim x 2 bytes (bf16) = 268,435,456 bytes" in text
    assert "268.435 MB (256.000 MiB)" in text and "wrong (kv heads ignored): 32 heads instead of 8" in text


def test_a_spec_made_by_hand_and_a_shard(spec):
    assert set(wrong(explain(CacheSpec([Layer("full", 8, 128, 64)])))) == {"K without V", "bits taken for bytes"}
    assert "total on one GPU of 8: " in explain(spec("llama-3-70b", tp=8)).formula[-1]


def test_nothing_to_explain(spec):
    with pytest.raises(ValueError, match=r"input \+ output must be at least 1"):
        explain(spec("llama-3-8b"), 1, 0, 0)


def test_half_of_an_uneven_cache_is_its_k():
    assert wrong(explain(CacheSpec([Layer("full", 8, 128, 64)])))["K without V"].ratio == pytest.approx(128 / 192)
    assert wrong(explain(CacheSpec([Layer("full", 8, 128, 128)], "q8_0")))["K without V"].ratio == 0.5


def test_linear_layers_as_attention_have_scales_too(spec):
    told = explain(spec("qwen3-next-80b-a3b", dtype="fp8"), 2, 1000, 24)
    assert wrong(told)["linear layers counted as attention"].bytes == 48 * (2 * 1024 * 2 * 2 * 256 + 2 * 4)
