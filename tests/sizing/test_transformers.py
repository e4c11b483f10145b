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

TINY = {"vocab_size": 64, "max_position_embeddings": 64, "intermediate_size": 32, "num_hidden_layers": 4}
USUAL = TINY | {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
MODELS = {
    "llama": USUAL,
    "mistral": USUAL | {"head_dim": 20, "sliding_window": 8},
    "mixtral": USUAL | {"num_local_experts": 4},
    "qwen2": USUAL | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3},
    "qwen3": USUAL | {"head_dim": 20},
    "qwen3_moe": USUAL | {"head_dim": 20} | EXPERTS,
    "qwen3_next": USUAL | {"head_dim": 16} | EXPERTS | {
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4, "full_attention_interval": 4},  # fmt: skip
    "gemma2": USUAL | {"head_dim": 20, "sliding_window": 8},
    "gemma3_text": USUAL | {"head_dim": 20, "sliding_window": 8, "num_hidden_layers": 7},
    "phi3": USUAL | {"sliding_window": 8, "pad_token_id": 0},
    "falcon": TINY | {"hidden_size": 48, "num_attention_heads": 4, "num_kv_heads": 4, "multi_query": True},
    "gpt2": {"vocab_size": 64, "n_positions": 64, "n_embd": 48, "n_head": 4, "n_layer": 3},
    "opt": TINY | {"hidden_size": 48, "num_attention_heads": 4, "ffn_dim": 32, "word_embed_proj_dim": 48},
    "gpt_neox": TINY | {"hidden_size": 48, "num_attention_heads": 4},
    "gpt_oss": USUAL | {"head_dim": 20, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "cohere": USUAL,
    "cohere2": USUAL | {"sliding_window": 8},
    "olmo2": USUAL,
}


def real_cache(model, tokens):
    """The tensors that each layer of transformers' own cache holds after `tokens` tokens."""
    ids = torch.randint(1, 64, (1, tokens))
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
    for layer in cache.layers:
        if getattr(layer, "keys", None) is not None:
            yield [layer.keys, layer.values]
        else:
            yield [layer.conv_states[0], layer.recurrent_states[0]]


@pytest.mark.parametrize("model_type", MODELS)
def test_a_cache_that_transformers_filled(model_type):
    """Tensor for tensor in fp32. transformers keeps window - 1 past tokens, and one convolution input more than needed."""
    config = transformers.AutoConfig.for_model(model_type, **MODELS[model_type])
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    spec = CacheSpec.from_config(config, dtype="fp32")
    for tokens in (5, 20):
        for layer, tensors in zip(spec.layers, real_cache(model, tokens), strict=True):
            real = sum(tensor.numel() for tensor in tensors)
            if layer.kind == "linear":
                assert real == layer.recurrent_elements + layer.conv_elements * 4 // 3
            else:
                kept = layer.tokens(tokens) - (layer.kind == "sliding" and tokens >= layer.window)
                assert real * 4 == kept * layer.token_bytes(spec.format)
