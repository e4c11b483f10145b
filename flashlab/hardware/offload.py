"""Fetch a prefix's KV cache from the host, or compute it again: which is sooner, and how fast a link would have to be.

    fetch     = tokens * bytes per token over the link
    recompute = (2 * parameters * tokens + attention) / (dense rate * efficiency)

The first term is a forward pass's two FLOP per parameter and token (Kaplan et al., arXiv 2001.08361, section 2.1); attention
is 4 * heads_q * head_dim FLOP for each layer and pair of query and key under the causal mask.
"""

from typing import NamedTuple

from flashlab.hardware.checks import positive, whole
from flashlab.hardware.gpus import GPU, gpu, known
from flashlab.hardware.links import Transfer

EFFICIENCY = 0.5


class OffloadChoice(NamedTuple):
    """Both ways to have a prefix's KV cache on the GPU.

    Attributes:
        fetch_s: over the link.
        recompute_s: by a prefill.
        sooner: "fetch" or "recompute".
        speedup: the slower time over the sooner one.
        break_even_bytes_per_s: the bandwidth at which both take the same time.
    """

    fetch_s: float
    recompute_s: float
    sooner: str
    speedup: float
    break_even_bytes_per_s: float


def offload_or_recompute(
    part: str | GPU,
    over: Transfer,
    *,
    tokens: int,
    bytes_per_token: float,
    parameters: float,
    layers: int = 0,
    heads_q: int = 0,
    head_dim: int = 0,
    efficiency: float = EFFICIENCY,
) -> OffloadChoice:
    """Compare the two.

    Args:
        part: the GPU that would compute.
        over: any transfer over the link, ``link("pcie", gen=5)``; its start and rate count, its size does not.
        tokens: of the prefix.
        bytes_per_token: of KV cache, all layers.
        parameters: that a token passes through (active ones, for a mixture of experts).
        layers, heads_q, head_dim: for the attention's own work, which grows with tokens squared; 0 leaves it out.
        efficiency: share of the dense rate that a prefill reaches, above 0 and at most 1.

    Raises:
        TypeError, ValueError: an argument is out of range, or the GPU or its rate is not known.
    """
    part = gpu(part)
    if not isinstance(over, Transfer):
        raise TypeError(f"over must be a Transfer such as link('pcie', gen=5), got {over!r}")
    whole("tokens", tokens)
    positive("bytes_per_token", bytes_per_token)
    positive("parameters", parameters)
    positive("efficiency", efficiency, 1)
    for name, value in (("layers", layers), ("heads_q", heads_q), ("head_dim", head_dim)):
        whole(name, value, 0)
    kv_bytes = tokens * bytes_per_token
    attention = 4 * layers * heads_q * head_dim * tokens * (tokens + 1) / 2
    recompute_s = (2 * parameters * tokens + attention) / (known(part, "dense_16bit_flops") * efficiency)
    fetch_s = over.start_s + over.retimer_s + kv_bytes / over.rate_bytes_per_s
    slow, quick = max(fetch_s, recompute_s), min(fetch_s, recompute_s)
    sooner = "fetch" if fetch_s <= recompute_s else "recompute"
    return OffloadChoice(fetch_s, recompute_s, sooner, slow / quick, kv_bytes / recompute_s)
