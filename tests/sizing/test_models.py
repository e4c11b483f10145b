"""Each architecture's traps: what its own fields mean, and what is refused rather than guessed."""

from pathlib import Path

import pytest

from flashlab.sizing import MODEL_TYPES, CacheSpec

CONFIGS = sorted(Path(__file__).parent.glob("configs/*.json"))


def shapes(spec):
    """{kind: (layers, kv_heads, head_dim)}"""
    return {layer.kind: (n, layer.kv_heads, layer.head_dim_k) for layer, n in spec.groups()}


def test_every_model_type_has_a_config_here(config):
    read = {config(path.stem)["model_type"] for path in CONFIGS}
    assert set(MODEL_TYPES) - read == {"RefinedWeb", "RefinedWebModel"}  # Falcon's first names, below


@pytest.mark.parametrize(
    "name, dim, guess",
    [("qwen3-4b", 128, 80), ("mistral-small-24b", 128, 160), ("gpt-oss-20b", 64, 45), ("qwen3-30b-a3b", 128, 64)],
)
def test_head_dim_is_not_hidden_over_heads(config, spec, name, dim, guess):
    data = config(name)
    assert data["hidden_size"] // data["num_attention_heads"] == guess
    assert {layer.head_dim_k for layer in spec(name).layers} == {dim}


def test_head_dim_defaults_to_hidden_over_heads_only_where_it_divides(config):
    assert shapes(CacheSpec.from_config(config("llama-3-8b", head_dim=None)))["full"] == (32, 8, 128)
    with pytest.raises(ValueError, match="hidden_size is 4097"):
        CacheSpec.from_config(config("llama-3-8b", hidden_size=4097))


@pytest.mark.parametrize("name", ["qwen3-4b", "qwen3-30b-a3b", "gpt-oss-20b", "gemma-2-9b", "qwen3-next-80b-a3b"])
def test_head_dim_is_required_where_hidden_over_heads_would_be_wrong(config, name):
    with pytest.raises(ValueError, match="head_dim is missing"):
        CacheSpec.from_config(config(name, head_dim=...))


def test_kv_heads_count_and_not_query_heads(config, spec):
    assert CacheSpec.from_config(config("llama-3-8b", num_key_value_heads=...)).bytes_per_token() == 4 * 131072
    assert spec("llama-3-8b").bytes_per_token() == 131072


def test_latent_attention(spec):
    """Counting K and V of the hidden size would give 24.9 times as much."""
    assert shapes(spec("deepseek-v3")) == {"latent": (61, 1, 576)}
    assert shapes(spec("deepseek-v2-lite")) == {"latent": (27, 1, 576)}
    assert spec("deepseek-v2-lite").bytes_per_token() == 27 * 576 * 2
    assert round(61 * 2 * 7168 * 2 / spec("deepseek-v3").bytes_per_token(), 1) == 24.9


def windows(spec):
    return ["f" if layer.kind == "full" else layer.window for layer in spec.layers]


def test_gemma_2_alternates_and_starts_with_a_window(spec):
    assert windows(spec("gemma-2-9b")) == [4096, "f"] * 21


@pytest.mark.parametrize("name, layers, window", [("gemma-3-27b", 62, 1024), ("gemma-3-4b", 34, 1024), ("gemma-3-1b", 26, 512)])
def test_gemma_3_has_five_windows_to_one_full_layer(spec, name, layers, window):
    assert windows(spec(name)) == ([window] * 5 + ["f"]) * (layers // 6) + [window] * (layers % 6)


def test_gemma_3_4b_leaves_its_heads_to_the_defaults(spec):
    assert shapes(spec("gemma-3-4b")) == {"sliding": (29, 4, 256), "full": (5, 4, 256)}


def test_gemma_3_nested_and_text_are_the_same(config):
    nested = config("gemma-3-27b")
    assert CacheSpec.from_config(nested["text_config"]).layers == CacheSpec.from_config(nested).layers


def test_cohere_2_has_three_windows_to_one_full_layer(spec):
    assert windows(spec("command-r7b")) == [4096, 4096, 4096, "f"] * 8


def test_gpt_oss_without_layer_types_alternates(config, spec):
    assert CacheSpec.from_config(config("gpt-oss-20b", layer_types=...)).layers == spec("gpt-oss-20b").layers
    assert windows(spec("gpt-oss-20b")) == [128, "f"] * 12


def test_mistral_window(config):
    assert windows(CacheSpec.from_config(config("mistral-7b-v0.1"))) == [4096] * 32
    assert windows(CacheSpec.from_config(config("mistral-7b-v0.1", sliding_window=None))) == ["f"] * 32
    assert windows(CacheSpec.from_config(config("mistral-7b-v0.1", sliding_window=...))) == [4096] * 32


def test_qwen_2_slides_after_max_window_layers_and_only_if_told(config):
    on = {"use_sliding_window": True, "sliding_window": 1000, "max_window_layers": 20}
    assert windows(CacheSpec.from_config(config("qwen2.5-7b", **on))) == ["f"] * 20 + [1000] * 8
    assert windows(CacheSpec.from_config(config("qwen2.5-7b", **on | {"max_window_layers": 0}))) == [1000] * 28
    assert windows(CacheSpec.from_config(config("qwen2.5-7b", **on | {"use_sliding_window": False}))) == ["f"] * 28
    with pytest.raises(ValueError, match="sliding_window is missing"):
        CacheSpec.from_config(config("qwen2.5-7b", **on | {"sliding_window": None}))


def test_explicit_layer_types_win(config):
    types = ["full_attention"] * 10 + ["sliding_attention"] * 32
    assert windows(CacheSpec.from_config(config("gemma-2-9b", layer_types=types))) == ["f"] * 10 + [4096] * 32


def test_falcon_old_and_new(config, spec):
    assert shapes(spec("falcon-7b")) == {"full": (32, 1, 64)}  # although num_kv_heads says 71
    assert shapes(spec("falcon-40b")) == {"full": (60, 8, 64)}
    assert shapes(spec("falcon-rw-1b")) == {"full": (24, 32, 64)}
    assert CacheSpec.from_config(config("falcon-7b", multi_query=...)).layers == spec("falcon-7b").layers
    new = {"model_type": "RefinedWeb", "n_layer": 60, "n_head": 128, "n_head_kv": 8, "hidden_size": 8192}
    old = {"model_type": "RefinedWebModel", "n_layer": 32, "n_head": 71, "multi_query": True, "hidden_size": 4544}
    assert CacheSpec.from_config(new).layers == spec("falcon-40b").layers
    assert CacheSpec.from_config(old).layers == spec("falcon-7b").layers


def test_linear_layers_keep_a_state_and_nothing_a_token(spec):
    qwen = spec("qwen3-next-80b-a3b")
    assert [layer.kind for layer in qwen.layers] == ["linear", "linear", "linear", "full"] * 12
    assert qwen.bytes_per_token() == 12 * 2 * 2 * 256 * 2
    recurrent, conv = 32 * 128 * 128 * 4, 3 * (2 * 16 * 128 + 32 * 128) * 2
    assert qwen.bytes(1, 0) == 36 * (recurrent + conv)
    assert spec("qwen3-next-80b-a3b", state_dtype="bf16").bytes(1, 0) == 36 * (recurrent // 2 + conv)


def test_gpt_2_names(spec):
    assert shapes(spec("gpt2")) == {"full": (12, 12, 64)} and spec("gpt2").max_context == 1024


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_path_dict_folder_and_object_agree(path, config, tmp_path):
    class Object:
        def to_dict(self):
            return config(path.stem)

    (tmp_path / "config.json").write_text(path.read_text())
    layers = CacheSpec.from_config(str(path)).layers
    assert all(CacheSpec.from_config(source).layers == layers for source in (path, config(path.stem), Object(), tmp_path))


def test_the_half_dtype_is_the_configs(config, spec):
    assert spec("opt-13b").format.name == "fp16" and spec("llama-3-8b").format.name == "bf16"
    assert spec("olmo-2-7b").format.name == spec("gpt2").format.name == "bf16"  # fp32 weights, and none named
    assert CacheSpec.from_config(config("llama-3-8b", torch_dtype=..., dtype="float16")).format.name == "fp16"


@pytest.mark.parametrize("name", ["mamba2", "t5", "deepseek_v32", "qwen3.5", "LLAMA", "", 7, True])
def test_unknown_architectures_are_refused_by_name(config, name):
    with pytest.raises(ValueError, match=f"model_type {name!r} is not known; it must be one of llama, mistral"):
        CacheSpec.from_config(config("llama-3-8b", model_type=name))


def test_a_model_type_that_is_no_string_is_refused(config):
    with pytest.raises(ValueError, match="is not known"):
        CacheSpec.from_config(config("llama-3-8b", model_type=["llama"]))


def test_a_config_without_model_type_is_refused(config):
    with pytest.raises(ValueError, match="model_type is missing"):
        CacheSpec.from_config(config("llama-3-8b", model_type=...))


ABSURD = [-1, 0, "32", 32.0, True, [32], 10**18, {}]


@pytest.mark.parametrize("value", ABSURD, ids=repr)
@pytest.mark.parametrize("field", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "sliding_window"])
def test_absurd_fields_are_refused_by_name(config, field, value):
    with pytest.raises(ValueError, match=f"config of gpt_oss: {field} is .*must be a whole number"):
        CacheSpec.from_config(config("gpt-oss-20b", **{field: value}))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_missing_fields_are_refused_by_name(path, config):
    """Every field that names layers, heads or widths is either required or has a documented default."""
    whole = config(path.stem)
    base = whole.get("text_config", whole)
    for field in ("num_hidden_layers", "hidden_size", "n_layer", "n_embd", "n_head", "kv_lora_rank", "qk_rope_head_dim"):
        if field in base:
            rest = {key: value for key, value in base.items() if key != field}
            broken = whole | {"text_config": rest} if base is not whole else rest
            with pytest.raises(ValueError, match=f"{field} is missing"):
                CacheSpec.from_config(broken)


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("llama-3-8b", {"num_key_value_heads": 5}, "num_key_value_heads is 5; it must be a divisor"),
        ("llama-3-8b", {"sliding_window": 4096}, "sliding_window is 4096; it must be absent"),
        ("llama-3-8b", {"layer_types": ["sliding_attention"] * 32}, "layer_types mixes kinds"),
        ("gemma-2-9b", {"layer_types": ["full_attention"] * 41}, "layer_types"),
        ("gemma-2-9b", {"layer_types": ["chunked_attention"] * 42}, "layer_types holds 'chunked_attention'"),
        ("gemma-2-9b", {"layer_types": ["linear_attention"] * 42}, "layer_types holds linear_attention"),
        ("gemma-2-9b", {"layer_types": "full_attention"}, "layer_types"),
        ("gemma-2-9b", {"sliding_window": None}, "sliding_window is missing"),
        ("qwen2.5-7b", {"use_sliding_window": "yes"}, "use_sliding_window is 'yes'; it must be true or false"),
        ("qwen2.5-7b", {"layer_types": ["sliding_attention"] * 28}, "layer_types holds sliding_attention; .*use_sliding_window"),
        ("qwen3-30b-a3b", {"use_sliding_window": True, "sliding_window": 4096}, "use_sliding_window is true"),
        ("gemma-3-1b", {"use_bidirectional_attention": True}, "an encoder keeps no KV cache"),
        ("gemma-3-27b", {"text_config": ...}, "text_config is None"),
        ("gemma-3-27b", {"text_config": {"model_type": "llama"}}, "text_config.model_type is 'llama'"),
        ("qwen3-next-80b-a3b", {"linear_num_value_heads": 24}, "linear_num_key_heads is 16"),
        ("qwen3-next-80b-a3b", {"layer_types": ["linear_attention"] * 48}, "and some full_attention"),
        ("qwen3-next-80b-a3b", {"layer_types": ["full_attention", "sliding_attention"] * 24}, "and some full_attention"),
        ("qwen3-next-80b-a3b", {"linear_conv_kernel_dim": ...}, "linear_conv_kernel_dim is missing"),
        ("falcon-40b", {"num_kv_heads": 7}, "num_kv_heads is 7"),
        ("gpt2", {"head_dim": 80}, "head_dim is 80; it must be absent"),
        ("mixtral-8x7b", {"num_key_value_heads": ...}, "num_key_value_heads is missing"),
    ],
)
def test_contradictions_are_refused_by_name(config, name, changes, message):
    with pytest.raises(ValueError, match=message):
        CacheSpec.from_config(config(name, **changes))


@pytest.mark.parametrize(
    "content, message",
    [(b"{", "not JSON"), (b"[]", "holds a list"), (b"\xff", "not JSON"), (b"[" * 100_000, "not JSON"), (b"{}", "model_type")],
)
def test_files_that_are_no_config(tmp_path, content, message):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        CacheSpec.from_config(file)


def test_sources_that_are_no_config(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        CacheSpec.from_config(tmp_path / "absent.json")
    for source in (7, None, ["model_type"]):
        with pytest.raises(TypeError, match="must be a path, a dict or a transformers config"):
            CacheSpec.from_config(source)


def test_a_byte_order_mark_is_no_fault(config, tmp_path):
    """As Windows' editors write it."""
    file = tmp_path / "config.json"
    file.write_bytes(b"\xef\xbb\xbf" + CONFIGS[0].read_bytes())
    assert CacheSpec.from_config(file).layers == CacheSpec.from_config(CONFIGS[0]).layers


def test_an_empty_dtype_is_not_the_default(config):
    with pytest.raises(ValueError, match="dtype '': must be one of"):
        CacheSpec.from_config(config("llama-3-8b"), dtype="")
