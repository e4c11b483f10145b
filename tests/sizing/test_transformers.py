"""The same questions put to transformers itself, where it is installed: parameters, layer kinds and a cache's real bytes."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flashlab.sizing import CacheSpec  # noqa: E402
from flashlab.sizing.parameters import count_parameters  # noqa: E402

CONFIGS = sorted(Path(__file__).parent.glob("configs/*.json"))


def real_config(path, **changes):
    data = json.loads(path.read_text()) | changes
    data = {key: value for key, value in data.items() if key not in ("_source", "quantization_config")}
    return transformers.AutoConfig.for_model(data.pop("model_type"), **data)


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_parameters_and_layers(path):
    config = real_config(path)
    nested = config.model_type == "gemma3"
    auto = transformers.AutoModelForImageTextToText if nested else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
    spec = CacheSpec.from_config(config)
    assert count_parameters(spec.model) == sum(p.numel() for p in model.parameters())
    assert spec.layers == CacheSpec.from_config(path).layers
