"""The roofline of attention: how many FLOP each step does for a byte it moves, and what rate a GPU can then reach.

    attainable FLOP/s = min(dense rate, intensity * bandwidth)        intensity = FLOP / bytes of HBM

(Williams, Waterman, Patterson, "Roofline", CACM 2009.) For every (batch, query head), with p pairs of query and key that
the mask lets through (p = seqlen_q * seqlen_k without one):

    QK^T      2 p d FLOP; reads q and k, writes the scores
    softmax   5 p FLOP (maximum, subtract, exp, add, divide); reads the scores, writes the probabilities
    PV        2 p d FLOP; reads the probabilities and v, writes o
    fused     all of them; reads q, k and v, writes o: the scores never leave the chip

Every tensor is counted once, as if caches were perfect: k and v once for all query heads that share them. The softmax's
arithmetic does not run on tensor cores; its intensity is so low that the bandwidth alone decides.
"""

from typing import NamedTuple

from flashlab.hardware.checks import heads, positive, whole
from flashlab.hardware.gpus import GPU, gpu, known

SOFTMAX_FLOP = 5


class Step(NamedTuple):
    """One step of attention on one GPU.

    Attributes:
        name: qk, softmax, pv or fused.
        flop: floating-point operations of all batches and heads.
        bytes: moved to and from HBM.
        intensity: FLOP per byte.
        attainable_flops: FLOP/s, at most.
        bound: "memory" or "compute".
        time_s: seconds at that rate.
    """

    name: str
    flop: float
    bytes: float
    intensity: float
    attainable_flops: float
    bound: str
    time_s: float


class Roofline(NamedTuple):
    """The steps of one attention on one GPU; `ridge` is the intensity (FLOP per byte) where memory stops deciding."""

    gpu: str
    ridge: float
    qk: Step
    softmax: Step
    pv: Step
    fused: Step

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.qk, self.softmax, self.pv, self.fused

    @property
    def unfused_s(self) -> float:
        """Seconds for the three steps one after the other, scores and probabilities in HBM."""
        return self.qk.time_s + self.softmax.time_s + self.pv.time_s


def roofline(
    part: str | GPU,
    *,
    batch: int = 1,
    heads_q: int,
    heads_kv: int,
    seqlen_q: int,
    seqlen_k: int,
    head_dim: int,
    causal: bool = False,
    element_bytes: float = 2,
) -> Roofline:
    """Intensity and attainable rate of each step; seqlen_q = 1 is a decode step, seqlen_q = seqlen_k a prefill.

    Args:
        part: a GPU or its name.
        causal: aligned bottom right: query i sees the keys up to i + seqlen_k - seqlen_q. Only the pairs it lets through
            count as work; the scores are still stored whole.
        element_bytes: of q, k, v, o, scores and probabilities.

    Raises:
        TypeError, ValueError: bad sizes, an unknown GPU, or one whose rates are not known.
    """
    part = gpu(part)
    heads(heads_q, heads_kv)
    for name, size in (("batch", batch), ("seqlen_q", seqlen_q), ("seqlen_k", seqlen_k), ("head_dim", head_dim)):
        whole(name, size)
    positive("element_bytes", element_bytes, 8)
    pairs = batch * heads_q * (_causal_pairs(seqlen_q, seqlen_k) if causal else seqlen_q * seqlen_k)
    q_bytes = batch * heads_q * seqlen_q * head_dim * element_bytes
    k_bytes = batch * heads_kv * seqlen_k * head_dim * element_bytes
    score_bytes = batch * heads_q * seqlen_q * seqlen_k * element_bytes
    product, softmax = 2 * pairs * head_dim, SOFTMAX_FLOP * pairs
    return Roofline(
        gpu=part.name,
        ridge=part.ridge,
        qk=_step("qk", product, q_bytes + k_bytes + score_bytes, part),
        softmax=_step("softmax", softmax, 2 * score_bytes, part),
        pv=_step("pv", product, score_bytes + k_bytes + q_bytes, part),
        fused=_step("fused", 2 * product + softmax, 2 * q_bytes + 2 * k_bytes, part),
    )


def _causal_pairs(seqlen_q: int, seqlen_k: int) -> int:
    """Pairs under the bottom-right diagonal: the last query sees all keys, each one before it one key less, down to 0."""
    seeing = min(seqlen_q, seqlen_k)
    return seeing * seqlen_k - seeing * (seeing - 1) // 2


def _step(name: str, flop: float, moved: float, part: GPU) -> Step:
    peak, bandwidth = known(part, "dense_16bit_flops"), known(part, "hbm_bytes_per_s")
    intensity = flop / moved
    rate = min(peak, intensity * bandwidth)
    bound = "compute" if intensity >= peak / bandwidth else "memory"
    time_s = max(flop / peak, moved / bandwidth)
    return Step(name, flop, moved, intensity, rate, bound, time_s)
