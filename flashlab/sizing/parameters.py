"""How many parameters a model has, from its config alone, counted matrix by matrix.

Each function writes down one architecture as its reference code in Hugging Face transformers builds it; tests hold the
counts against models that transformers really built. Multi-token-prediction heads, which transformers leaves out, are
not counted. A config that lacks a field needed here is refused by that field's name.
"""

from flashlab.sizing.config import Config
from flashlab.sizing.models import Model, falcon_is_new


def count_parameters(model: Model) -> int:
    """Parameters of the model as transformers builds it for generation. ValueError where the config does not tell."""
    config = model.config
    total = _COUNTS[config.model_type](config, model)
    vision = model.outer.get("vision_config") if model.model_type == "gemma3" else None
    return total if vision is None else total + _siglip(vision, model)


def _linear(inputs: int, outputs: int, bias: bool = False) -> int:
    return (inputs + bias) * outputs


def _shape(config: Config, model: Model):
    """Hidden size, query heads and the first attention layer's kv heads and head_dim."""
    attention = next(layer for layer in model.layers if layer.kind in ("full", "sliding"))
    return model.hidden_size, model.heads_q, attention.kv_heads, attention.head_dim_k


def _attention(config: Config, model: Model, bias_qkv=False, bias_o=False, gate=False, norms="") -> int:
    """q, k, v and o projections. norms: "head" (a weight of head_dim for q and for k), "all" (one over all heads)."""
    hidden, heads_q, heads_kv, dim = _shape(config, model)
    q, kv = heads_q * dim, heads_kv * dim
    norm = {"": 0, "head": 2 * dim, "all": q + kv}[norms]
    qkv = _linear(hidden, q * (1 + gate), bias_qkv) + 2 * _linear(hidden, kv, bias_qkv)
    return qkv + _linear(q, hidden, bias_o) + norm


def _gated_mlp(hidden: int, inner: int, bias: bool = False) -> int:
    return 2 * _linear(hidden, inner, bias) + _linear(inner, hidden, bias)


def _inner(config: Config) -> int:
    return config.count("intermediate_size", "dim")


def _vocabulary(config: Config, hidden: int, tied: bool) -> int:
    """The embedding, and the output matrix unless it is the same one."""
    return config.count("vocab_size", "entries") * hidden * (1 if config.flag("tie_word_embeddings", tied) else 2)


def _decoder(config: Config, model: Model, attention: int, mlp: int, norms: int = 2, tied: bool = False) -> int:
    """A stack of equal layers with `norms` weight-only norms each, a final norm, and the vocabulary."""
    hidden = model.hidden_size
    layers = len(model.layers) * (attention + mlp + norms * hidden)
    return _vocabulary(config, hidden, tied) + layers + hidden


def _llama(config, model):
    bias = config.flag("attention_bias", False)
    mlp = _gated_mlp(model.hidden_size, _inner(config), config.flag("mlp_bias", False))
    return _decoder(config, model, _attention(config, model, bias, bias), mlp)


def _mistral(config, model):
    return _decoder(config, model, _attention(config, model), _gated_mlp(model.hidden_size, _inner(config)))


def _mixtral(config, model):
    experts = config.count("num_local_experts", "entries")
    mlp = experts * (_gated_mlp(model.hidden_size, _inner(config)) + model.hidden_size)
    return _decoder(config, model, _attention(config, model), mlp)


def _qwen2(config, model):
    return _decoder(config, model, _attention(config, model, True), _gated_mlp(model.hidden_size, _inner(config)))


def _qwen3(config, model):
    bias = config.flag("attention_bias", False)
    attention = _attention(config, model, bias, bias, norms="head")
    return _decoder(config, model, attention, _gated_mlp(model.hidden_size, _inner(config)))


def _sparse_mlps(config: Config, model: Model, shared: bool) -> int:
    """Qwen's experts in every decoder_sparse_step-th layer that mlp_only_layers does not name, dense MLPs elsewhere."""
    hidden, layers = model.hidden_size, len(model.layers)
    step, dense = config.count("decoder_sparse_step", "layers", 1), set(config.indices("mlp_only_layers"))
    sparse = sum(i not in dense and (i + 1) % step == 0 for i in range(layers))
    # transformers 5 writes num_local_experts where the published configs say num_experts.
    experts = config.count("num_local_experts" if config.has("num_local_experts") else "num_experts", "entries")
    mlp = experts * (_gated_mlp(hidden, config.count("moe_intermediate_size", "dim")) + hidden)
    if shared:
        mlp += _gated_mlp(hidden, config.count("shared_expert_intermediate_size", "dim")) + hidden
    return sparse * mlp + (layers - sparse) * (_gated_mlp(hidden, _inner(config)) if sparse < layers else 0)


def _qwen2_moe(config, model):
    attention = _attention(config, model, config.flag("qkv_bias", True))
    return _decoder(config, model, attention, 0) + _sparse_mlps(config, model, shared=True)


def _qwen3_moe(config, model):
    bias = config.flag("attention_bias", False)
    attention = _attention(config, model, bias, bias, norms="head")
    return _decoder(config, model, attention, 0) + _sparse_mlps(config, model, shared=False)


def _qwen3_next(config, model):
    hidden, layers = model.hidden_size, len(model.layers)
    bias = config.flag("attention_bias", False)
    full = sum(layer.kind == "full" for layer in model.layers)
    values, keys = config.heads("linear_num_value_heads", "linear_num_key_heads")
    dim_v = config.count("linear_value_head_dim", "dim")
    key, value = keys * config.count("linear_key_head_dim", "dim"), values * dim_v
    conv = (2 * key + value) * config.count("linear_conv_kernel_dim", "dim")
    projections = _linear(hidden, 2 * key + 2 * value) + _linear(hidden, 2 * values) + _linear(value, hidden)
    linear = projections + conv + 2 * values + dim_v
    attention = full * _attention(config, model, bias, bias, gate=True, norms="head") + (layers - full) * linear
    return _decoder(config, model, 0, 0) + attention + _sparse_mlps(config, model, shared=True)


def _gemma(config, model, norms=2, qk=""):
    bias = config.flag("attention_bias", False)
    mlp = _gated_mlp(model.hidden_size, _inner(config))
    return _decoder(config, model, _attention(config, model, bias, bias, norms=qk), mlp, norms, tied=True)


def _gemma2(config, model):
    return _gemma(config, model, norms=4)


def _gemma3(config, model):
    if not config.has("vocab_size"):  # the nested configs leave it to the class's default
        config = Config({**config.data, "vocab_size": 262208}, config.model_type)
    return _gemma(config, model, norms=4, qk="head")


def _siglip(vision: dict, model: Model) -> int:
    """Gemma 3's vision tower (SigLIP without its pooling head) and the projector into the text model."""
    if not isinstance(vision, dict):
        raise Config(model.outer, "gemma3").refused("vision_config", f"is {vision!r}", "an object")
    tower = Config(vision, "gemma3 vision_config")
    if vision.get("model_type") != "siglip_vision_model":
        raise tower.refused("model_type", f"is {vision.get('model_type')!r}", "siglip_vision_model")
    hidden, inner = tower.count("hidden_size", "dim"), tower.count("intermediate_size", "dim")
    patch, image = tower.count("patch_size", "dim"), tower.count("image_size", "dim")
    norm = 2 * hidden
    block = 4 * _linear(hidden, hidden, True) + _linear(hidden, inner, True) + _linear(inner, hidden, True) + 2 * norm
    patches = _linear(tower.count("num_channels", "dim", 3) * patch**2, hidden, True) + (image // patch) ** 2 * hidden
    if tower.flag("vision_use_head", True):
        raise tower.refused("vision_use_head", "is not false", "false, as in every published Gemma 3")
    projector = _linear(hidden, model.hidden_size) + hidden
    return patches + tower.count("num_hidden_layers", "layers") * block + norm + projector


def _falcon(config, model):
    hidden, heads_q, heads_kv, dim = _shape(config, model)
    bias, new = config.flag("bias", False), falcon_is_new(config)
    parallel = config.flag("parallel_attn", True)
    norms = config.count("num_ln_in_parallel_attn", "layers", 2) if new else (1 if parallel else 2)
    inner = config.count("ffn_hidden_size", "dim", 4 * hidden)
    attention = _linear(hidden, (heads_q + 2 * heads_kv) * dim, bias) + _linear(hidden, hidden, bias)
    mlp = _linear(hidden, inner, bias) + _linear(inner, hidden, bias)
    layers = len(model.layers) * (attention + mlp + norms * 2 * hidden)
    return _vocabulary(config, hidden, True) + layers + 2 * hidden


def _classic_layer(hidden: int, inner: int, bias: bool = True, norm: bool = True) -> int:
    """The layer of GPT-2, OPT and GPT-NeoX: four square projections, an MLP, two norms with bias."""
    mlp = _linear(hidden, inner, bias) + _linear(inner, hidden, bias)
    return 4 * _linear(hidden, hidden, bias) + mlp + 4 * hidden * norm


def _gpt2(config, model):
    hidden = model.hidden_size
    layer = _classic_layer(hidden, config.count("n_inner", "dim", 4 * hidden))
    positions = config.count("n_positions", "tokens") * hidden
    return _vocabulary(config, hidden, True) + positions + len(model.layers) * layer + 2 * hidden


def _opt(config, model):
    hidden, width = model.hidden_size, config.count("word_embed_proj_dim", "dim", model.hidden_size)
    norm = config.flag("layer_norm_elementwise_affine", True)
    layer = _classic_layer(hidden, config.count("ffn_dim", "dim"), config.flag("enable_bias", True), norm)
    final = config.flag("do_layer_norm_before", True) and not config.flag("_remove_final_layer_norm", False)
    positions = (config.count("max_position_embeddings", "tokens") + 2) * hidden
    around = 2 * _linear(width, hidden) if width != hidden else 0
    stack = positions + around + len(model.layers) * layer + 2 * hidden * (final and norm)
    return _vocabulary(config, width, True) + stack


def _gpt_neox(config, model):
    hidden, inner = model.hidden_size, _inner(config)
    biasless = 0 if config.flag("attention_bias", True) else 4 * hidden
    layer = _classic_layer(hidden, inner) - biasless
    return _vocabulary(config, hidden, False) + len(model.layers) * layer + 2 * hidden


def _gpt_oss(config, model):
    hidden, bias = model.hidden_size, config.flag("attention_bias", True)
    inner, experts = _inner(config), config.count("num_local_experts", "entries")
    sinks, router = model.heads_q, _linear(hidden, experts, True)
    mlp = experts * (_linear(hidden, 2 * inner, True) + _linear(inner, hidden, True)) + router
    return _decoder(config, model, _attention(config, model, bias, bias) + sinks, mlp)


def _deepseek(config, model):
    hidden, heads, layers = model.hidden_size, model.heads_q, len(model.layers)
    bias, rank = config.flag("attention_bias", False), config.count("kv_lora_rank", "dim")
    rope, nope = config.count("qk_rope_head_dim", "dim"), config.count("qk_nope_head_dim", "dim")
    value, query = config.count("v_head_dim", "dim"), config.count("q_lora_rank", "dim", None)
    width = heads * (nope + rope)
    q = _linear(hidden, width) if query is None else _linear(hidden, query, bias) + query + _linear(query, width)
    kv = _linear(hidden, rank + rope, bias) + rank + _linear(rank, heads * (nope + value))
    attention = q + kv + _linear(heads * value, hidden, bias)
    dense = min(config.index("first_k_dense_replace", 0), layers)
    if config.count("moe_layer_freq", "layers", 1) != 1:
        raise config.refused("moe_layer_freq", f"is {config.data['moe_layer_freq']}", "1")
    experts, inner = config.count("n_routed_experts", "entries"), config.count("moe_intermediate_size", "dim")
    shared = config.count("n_shared_experts", "entries")
    sparse = experts * (_gated_mlp(hidden, inner) + hidden) + _gated_mlp(hidden, inner * shared)
    mlps = dense * _gated_mlp(hidden, _inner(config)) + (layers - dense) * sparse
    return _decoder(config, model, attention, 0) + mlps


def _cohere(config, model):
    """Attention and MLP run side by side after one norm; use_qk_norm weighs every head on its own."""
    bias = config.flag("attention_bias", False)
    norms = "all" if config.flag("use_qk_norm", False) else ""
    mlp = _gated_mlp(model.hidden_size, _inner(config))
    return _decoder(config, model, _attention(config, model, bias, bias, norms=norms), mlp, norms=1, tied=True)


def _olmo2(config, model):
    bias = config.flag("attention_bias", False)
    mlp = _gated_mlp(model.hidden_size, _inner(config))
    return _decoder(config, model, _attention(config, model, bias, bias, norms="all"), mlp)


_COUNTS = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": _qwen3_next,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _mistral,
    "falcon": _falcon,
    "RefinedWeb": _falcon,
    "RefinedWebModel": _falcon,
    "gpt2": _gpt2,
    "opt": _opt,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "cohere": _cohere,
    "cohere2": _cohere,
    "olmo2": _olmo2,
}
