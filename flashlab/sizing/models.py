"""From a config.json to the layers of a model's cache, by architecture.

Each reader below says what its architecture's own code does with its own fields; a default stands here only where that
architecture's configuration class in Hugging Face transformers (5.x; the same in 4.x) documents it. Whatever is not
listed in MODEL_TYPES is refused.
"""

from collections.abc import Callable
from typing import NamedTuple

from flashlab.sizing.config import REQUIRED, Config, load_config
from flashlab.sizing.layers import Layer

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"

# The longest context where published configs leave it to the class's default.
_CONTEXT = {"gemma3": 131_072, "falcon": 2048}


class Model(NamedTuple):
    """What a config says of the cache. max_context is max_position_embeddings, None where the config has none."""

    model_type: str
    layers: tuple[Layer, ...]
    heads_q: int
    hidden_size: int
    max_context: int | None
    config: Config
    outer: dict

    def half_dtype(self) -> str:
        """The 16-bit dtype to run in: fp16 where the config names that for its weights, else bf16."""
        places = (self.config.data, self.outer)
        named = {str(data.get(key)).removeprefix("torch.") for data in places for key in ("dtype", "torch_dtype")}
        return "fp16" if "float16" in named else "bf16"


def read_model(source) -> Model:
    """Read a config.json (path, dict, or an object with to_dict()). ValueError names what is wrong or unknown."""
    outer = load_config(source)
    model_type = outer.get("model_type")
    if model_type is None:
        raise ValueError("config: model_type is missing; it must be one of " + ", ".join(MODEL_TYPES))
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise ValueError(f"config: model_type {model_type!r} is not known; it must be one of " + ", ".join(MODEL_TYPES))
    config = Config(outer, model_type)
    if model_type == "gemma3":
        config = _text_of_gemma3(config)
    layers, heads_q, hidden = MODEL_TYPES[config.model_type](config)
    name = "n_positions" if model_type == "gpt2" else "max_position_embeddings"
    context = config.count(name, "tokens", _CONTEXT.get(model_type))
    return Model(model_type, tuple(layers), heads_q, hidden, context, config, outer)


def _text_of_gemma3(config: Config) -> Config:
    text = config.data.get("text_config")
    if not isinstance(text, dict):
        raise config.refused("text_config", f"is {text!r}", "an object")
    if text.get("model_type", "gemma3_text") != "gemma3_text":
        raise config.refused("text_config.model_type", f"is {text['model_type']!r}", "gemma3_text")
    return Config(text, "gemma3_text")


def _attention(config: Config, kv_default=REQUIRED, heads_default=REQUIRED, head_dim_default=None):
    """Layers, query heads, kv heads, head_dim and hidden size under their usual names."""
    layers, hidden = config.count("num_hidden_layers", "layers"), config.count("hidden_size", "dim")
    heads_q, heads_kv = config.heads("num_attention_heads", "num_key_value_heads", heads_default, kv_default)
    if head_dim_default is None:
        head_dim = config.head_dim("hidden_size", heads_q)
    else:
        head_dim = config.count("head_dim", "dim", head_dim_default)
    return layers, heads_q, heads_kv, head_dim, hidden


def _layers(types: list[str], kv_heads: int, head_dim: int, window: int | None = None, linear: Layer | None = None):
    made = {FULL: Layer("full", kv_heads, head_dim, head_dim), LINEAR: linear}
    if window is not None:
        made[SLIDING] = Layer("sliding", kv_heads, head_dim, head_dim, window)
    return [made[name] for name in types]


def _one_kind(config: Config, kv_default=REQUIRED, head_dim_default=None):
    """Full attention in every layer, or a window in every layer where the caller allows one."""
    layers, heads_q, heads_kv, head_dim, hidden = _attention(config, kv_default, head_dim_default=head_dim_default)
    window = config.count("sliding_window", "tokens", None)
    types = [FULL if window is None else SLIDING] * layers
    if config.layer_types(layers, types) != types:
        raise config.refused("layer_types", "mixes kinds", "absent: this architecture's layers are all alike")
    return _layers(types, heads_kv, head_dim, window), heads_q, hidden


def _full(config: Config):
    config.refuse_fields("sliding_window")
    return _one_kind(config)


def _full_heads_default(config: Config):
    """num_key_value_heads defaults to num_attention_heads."""
    config.refuse_fields("sliding_window")
    return _one_kind(config, kv_default=None)


def _gemma(config: Config):
    config.refuse_fields("sliding_window")
    return _one_kind(config, head_dim_default=REQUIRED)


def _mistral(config: Config):
    """A window in every layer: 4096 where the key is absent, none where it is null (v0.2 and later)."""
    if "sliding_window" not in config.data:
        config = Config({**config.data, "sliding_window": 4096}, config.model_type)
    return _one_kind(config)


def _phi3(config: Config):
    return _one_kind(config, kv_default=None)


def _mixed(config: Config, default: Callable[[int], str], **attention):
    """Layers by layer_types, or by the architecture's own rule where that is absent."""
    layers, heads_q, heads_kv, head_dim, hidden = _attention(config, **attention)
    types = config.layer_types(layers, [default(i) for i in range(layers)])
    if LINEAR in types:
        raise config.refused("layer_types", "holds linear_attention", "made of full_attention and sliding_attention")
    if SLIDING in types and config.data.get("use_sliding_window") is False:
        raise config.refused("layer_types", "holds sliding_attention", "without it, as use_sliding_window is false")
    window = config.count("sliding_window", "tokens") if SLIDING in types else None
    return _layers(types, heads_kv, head_dim, window), heads_q, hidden


def _qwen2(config: Config, **attention):
    """The first max_window_layers layers are full, the ones after them slide, and only with use_sliding_window.

    transformers' configuration class fills in false for use_sliding_window and 28 for max_window_layers.
    """
    slides = config.flag("use_sliding_window", False)
    first = config.index("max_window_layers", 28) if slides else 0
    return _mixed(config, lambda i: SLIDING if slides and i >= first else FULL, **attention)


def _qwen3(config: Config):
    return _qwen2(config, head_dim_default=REQUIRED)


def _qwen_moe(config: Config, **attention):
    """Which layers would slide differs between implementations, so a window needs explicit layer_types."""
    if config.flag("use_sliding_window", False) and not config.has("layer_types"):
        raise config.refused("use_sliding_window", "is true", "false, or come with layer_types")
    return _mixed(config, lambda i: FULL, **attention)


def _qwen3_moe(config: Config):
    return _qwen_moe(config, head_dim_default=REQUIRED)


def _qwen3_next(config: Config):
    """Every full_attention_interval-th layer is full; the others keep a gated delta rule's state.

    The state is one head_k x head_v matrix a value head, and kernel - 1 past inputs of the convolution over q, k and v
    (arXiv 2412.06464; the shapes are those vLLM allocates, MambaStateShapeCalculator.gated_delta_net_state_shape).
    """
    layers, heads_q, heads_kv, head_dim, hidden = _attention(config, head_dim_default=REQUIRED)
    interval = config.count("full_attention_interval", "layers", 4)
    types = config.layer_types(layers, [FULL if (i + 1) % interval == 0 else LINEAR for i in range(layers)])
    if SLIDING in types or FULL not in types:
        raise config.refused("layer_types", f"is {types!r}", "made of linear_attention and some full_attention")
    values, keys = config.heads("linear_num_value_heads", "linear_num_key_heads")
    dim_k, dim_v = config.count("linear_key_head_dim", "dim"), config.count("linear_value_head_dim", "dim")
    past = config.count("linear_conv_kernel_dim", "dim") - 1
    conv = past * (2 * keys * dim_k + values * dim_v)
    linear = Layer("linear", keys, conv_elements=conv, recurrent_elements=values * dim_k * dim_v)
    return _layers(types, heads_kv, head_dim, linear=linear), heads_q, hidden


def _alternating(config: Config):
    """Sliding first, then full, and so on (Gemma 2, gpt-oss)."""
    return _mixed(config, lambda i: FULL if i % 2 else SLIDING, head_dim_default=REQUIRED)


def _gemma3(config: Config):
    """Five sliding layers, then a full one. The 4B config leaves its heads to the class's defaults: 8, 4 and 256."""
    if config.flag("use_bidirectional_attention", False):
        raise config.refused("use_bidirectional_attention", "is true", "false: an encoder keeps no KV cache")
    pattern = config.count("sliding_window_pattern", "layers", 6)
    default = lambda i: SLIDING if (i + 1) % pattern else FULL
    return _mixed(config, default, heads_default=8, kv_default=4, head_dim_default=256)


def _cohere2(config: Config):
    """Three sliding layers, then a full one."""
    pattern = config.count("sliding_window_pattern", "layers", 4)
    return _mixed(config, lambda i: SLIDING if (i + 1) % pattern else FULL, kv_default=None)


def _falcon(config: Config):
    """One kv head under multi_query, whatever num_kv_heads says; num_kv_heads in the new decoder architecture.

    The names of the first releases (RefinedWebModel, RefinedWeb: n_layer, n_head, n_head_kv) are read too.
    """
    config.refuse_fields("head_dim", "layer_types", "sliding_window")
    old_names = config.model_type != "falcon"
    query, kv = ("n_head", "n_head_kv") if old_names else ("num_attention_heads", "num_kv_heads")
    layers = config.count("n_layer" if old_names else "num_hidden_layers", "layers")
    if falcon_is_new(config):
        heads_q, heads_kv = config.heads(query, kv, kv_default=REQUIRED if old_names else None)
    else:
        heads_q = config.count(query, "heads")
        heads_kv = 1 if config.flag("multi_query", True) else heads_q
    head_dim = config.head_dim("hidden_size", heads_q)
    return _layers([FULL] * layers, heads_kv, head_dim), heads_q, config.count("hidden_size", "dim")


def falcon_is_new(config: Config) -> bool:
    """Whether a Falcon has the 40B's decoder architecture; RefinedWeb, the 40B's first name, means that it has."""
    return config.model_type == "RefinedWeb" or config.flag("new_decoder_architecture", False)


def _multi_head(layers: str, heads: str, hidden: str):
    """Plain multi-head attention, under this architecture's names for its fields."""

    def read(config: Config):
        config.refuse_fields("head_dim", "layer_types", "sliding_window")
        heads_q = config.count(heads, "heads")
        head_dim = config.head_dim(hidden, heads_q)
        types = [FULL] * config.count(layers, "layers")
        return _layers(types, heads_q, head_dim), heads_q, config.count(hidden, "dim")

    return read


def _latent(config: Config):
    """Multi-head latent attention: one compressed vector and one rotary key a token (arXiv 2405.04434)."""
    config.refuse_fields("layer_types", "sliding_window")
    layers, hidden = config.count("num_hidden_layers", "layers"), config.count("hidden_size", "dim")
    heads_q = config.count("num_attention_heads", "heads")
    vector = config.count("kv_lora_rank", "dim") + config.count("qk_rope_head_dim", "dim")
    return [Layer("latent", 1, vector)] * layers, heads_q, hidden


_usual_multi_head = _multi_head("num_hidden_layers", "num_attention_heads", "hidden_size")

MODEL_TYPES = {
    "llama": _full_heads_default,
    "mistral": _mistral,
    "mixtral": _one_kind,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": _qwen3_next,
    "gemma": _gemma,
    "gemma2": _alternating,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "falcon": _falcon,
    "RefinedWeb": _falcon,
    "RefinedWebModel": _falcon,
    "gpt2": _multi_head("n_layer", "n_head", "n_embd"),
    "opt": _usual_multi_head,
    "gpt_neox": _usual_multi_head,
    "gpt_oss": _alternating,
    "deepseek_v2": _latent,
    "deepseek_v3": _latent,
    "cohere": _full_heads_default,
    "cohere2": _cohere2,
    "olmo2": _full_heads_default,
}
