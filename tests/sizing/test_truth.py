"""Published numbers: bytes per token (kv_bytes_per_token.csv) and totals (kv_totals.csv), each row with its source."""

import csv
from pathlib import Path

import pytest

from flashlab.sizing import CacheSpec, GiB, concurrency, kv_format

HERE = Path(__file__).parent


def rows(name):
    with open(HERE / f"{name}.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("row", rows("kv_bytes_per_token"), ids=lambda row: row["config"])
def test_bytes_per_token(row):
    spec = CacheSpec.from_config(HERE / "configs" / f"{row['config']}.json", dtype=row["dtype"])
    [(layer, count)] = spec.groups()
    assert (layer.kind, count, layer.kv_heads, layer.head_dim_k) == (
        row["kind"], int(row["layers"]), int(row["kv_heads"]), int(row["head_dim"]))  # fmt: skip
    assert spec.bytes_per_token() == int(row["bytes_per_token"])


def opt(layers, hidden):
    config = {"model_type": "opt", "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": 96}
    return CacheSpec.from_config(config, dtype="fp16")


def of(name, **options):
    return CacheSpec.from_config(HERE / "configs" / f"{name}.json", **options)


def pool(tokens, request):
    """Requests of `request` tokens in a pool that holds `tokens` of a Llama's, in pages of 16."""
    spec = of("llama-3-8b")
    return concurrency(spec, tokens * spec.bytes_per_token(), [(request - 1, 1)], page_size=16).own


TOTALS = [
    lambda: opt(96, 12288).bytes(batch=512, tokens=512 + 32),
    lambda: opt(96, 12288).bytes(batch=64, tokens=512 + 32),
    lambda: of("gemma-3-27b").bytes(1, 131072) / GiB,
    lambda: of("deepseek-v3").bytes(1, 163840) / GiB,
    lambda: kv_format("q8_0").vector_bytes(128) / 128,
    lambda: kv_format("q4_0").vector_bytes(128) / 128,
    lambda: kv_format("fp8", "token_head").vector_bytes(128) / kv_format("bf16").vector_bytes(128),
    lambda: kv_format("nvfp4").vector_bytes(128) / kv_format("bf16").vector_bytes(128),
    lambda: pool(1381 * 16, 2048),
    lambda: pool(366400, 40960),
    lambda: of("llama-3-70b", tp=16).bytes_per_token(),
]


@pytest.mark.parametrize("row, ours", list(zip(rows("kv_totals"), TOTALS, strict=True)))
def test_totals(row, ours):
    decimals = len(row["value"].partition(".")[2])
    assert round(ours(), decimals) == float(row["value"])


def test_q8_0_and_q4_0_blocks_are_34_and_18_bytes():
    assert kv_format("q8_0").vector_bytes(32) == 34 and kv_format("q4_0").vector_bytes(32) == 18
