"""Parameter counts against models that Hugging Face transformers built.

parameters.csv holds, for each config, the sum of p.numel() over the model that transformers 5.24.0 builds from it on
torch's meta device. Where transformers is installed, test_transformers.py builds them again.
"""

import csv
from pathlib import Path

import pytest

from flashlab.sizing import CacheSpec
from flashlab.sizing.parameters import count_parameters

HERE = Path(__file__).parent
COUNTS = {row["config"]: int(row["parameters"]) for row in csv.DictReader((HERE / "parameters.csv").open())}


def count(config):
    return count_parameters(CacheSpec.from_config(config).model)


def test_every_config_is_counted():
    assert set(COUNTS) == {path.stem for path in HERE.glob("configs/*.json")}


@pytest.mark.parametrize("name", COUNTS)
def test_parameters(config, name):
    assert count(config(name)) == COUNTS[name]


@pytest.mark.parametrize("name, field", [
    ("llama-3-8b", "vocab_size"), ("llama-3-8b", "intermediate_size"), ("mixtral-8x7b", "num_local_experts"),
    ("qwen3-30b-a3b", "num_experts"), ("deepseek-v3", "moe_intermediate_size"), ("opt-13b", "ffn_dim"),
])  # fmt: skip
def test_what_cannot_be_counted_is_refused_by_name(config, name, field):
    with pytest.raises(ValueError, match=f"{field} is missing"):
        count(config(name, **{field: ...}))


def test_dense_layers_among_experts(config):
    mixed = config("qwen3-30b-a3b", mlp_only_layers=[0, 5], decoder_sparse_step=2)
    sparse = sum(i not in (0, 5) and (i + 1) % 2 == 0 for i in range(48))
    experts, dense = 128 * (3 * 2048 * 768 + 2048), 3 * 2048 * 6144
    assert COUNTS["qwen3-30b-a3b"] - count(mixed) == (48 - sparse) * (experts - dense)
