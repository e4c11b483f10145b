"""From a kernel's factor to a token's: everything but attention stays as it was.

A token takes at least the time to read the weights, plus attention once a layer:

    t = weights / bandwidth + layers * t_attention
"""

from flashlab.course.lessons.lesson_09 import recorded
from flashlab.hardware import gpu
from flashlab.sizing.models import read_model
from flashlab.sizing.parameters import count_parameters

CODELLAMA_34B = dict(
    model_type="llama", vocab_size=32000, hidden_size=8192, intermediate_size=22016, num_hidden_layers=48,
    num_attention_heads=64, num_key_value_heads=8, max_position_embeddings=16384, tie_word_embeddings=False,
)  # fmt: skip
LLAMA_3_8B = dict(
    model_type="llama", vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
    num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072, tie_word_embeddings=False,
)  # fmt: skip


def weights_us(config: dict, bytes_per_s: float, gpus: int = 1) -> float:
    """Microseconds to read a GPU's share of the weights, 16 bits each."""
    return 2 * count_parameters(read_model(config)) / gpus / bytes_per_s * 1e6


def token_factor(config: dict, bytes_per_s: float, unsplit_us: float, split_us: float, gpus: int = 1) -> float:
    """How many times faster a token gets when attention goes from unsplit_us to split_us in every layer."""
    rest, layers = weights_us(config, bytes_per_s, gpus), config["num_hidden_layers"]
    return (rest + layers * unsplit_us) / (rest + layers * split_us)


def published_token_factor(seqlen: int = 65536, part: str = "A100-SXM-80GB") -> float:
    """CodeLlama-34B on four A100s, one sequence, from the published kernel times and the datasheet's bandwidth."""
    us = recorded.PUBLISHED[1, seqlen]
    return token_factor(CODELLAMA_34B, gpu(part).hbm_bytes_per_s, us["flash2"], us["split"], gpus=4)


def recorded_token_factor(seqlen: int) -> float:
    """A model of Llama-3-8B's shape on one H200, one sequence, from recorded kernel times."""
    times = (recorded.decode(peer, seqlen_k=seqlen) for peer in ("flashlab-unsplit", "flashlab"))
    return token_factor(LLAMA_3_8B, recorded.read_bytes_per_s(), *times)
