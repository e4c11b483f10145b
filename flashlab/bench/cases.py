"""The shapes that are measured, small and whole. Standard library only.

Work is counted as everyone counts it: a product of matrices takes 2 M N K FLOP and attention has two of them, so
4 batch heads_q seqlen_q seqlen_k head_dim forward, half of it when causal, and 3.5 times that for forward and backward
(five more products of the same size; arXiv 2307.08691, section 4.1). Decoding is counted in the bytes of K and V it must
read, the scales of a quantised cache included.
"""

import dataclasses

KINDS = {
    "prefill": "the forward pass over whole sequences",
    "train": "forward and backward",
    "decode": "one query token on a cache, bf16 and quantised",
    "launch": "the staircase, underfill and split curves",
    "link": "transfers between host and GPU by size",
}
"""What can be measured: three kinds of cases, and two of curves."""

CACHES = {"bf16": 2.0, "fp8": 1.0, "int4": 0.5, "int4 head-major": 0.5}
"""Bytes an element of a cache takes. Head-major lies as (batch, heads_kv, seqlen, head_dim)."""

SCALE_BYTES = 2  # one float16 a token and head, for K and for V
FORWARD_AND_BACKWARD = 3.5


@dataclasses.dataclass(frozen=True)
class Case:
    """One shape. seqlens in tokens; ``cache`` is a key of CACHES; inputs are bfloat16 but for a quantised cache."""

    kind: str
    batch: int
    heads_q: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    causal: bool = False
    cache: str = "bf16"

    @property
    def label(self) -> str:
        """``B4 H16 S4096 D128 causal``, ``B1 H32/8 S131072 D128 int4``."""
        heads = f"H{self.heads_q}" if self.heads_q == self.heads_kv else f"H{self.heads_q}/{self.heads_kv}"
        parts = [f"B{self.batch}", heads, f"S{self.seqlen_k}", f"D{self.head_dim}"]
        parts += ["causal"] * self.causal + [self.cache] * (self.cache != "bf16")
        return " ".join(parts)

    @property
    def flop(self) -> float:
        """Floating-point operations, by the convention above."""
        forward = 4 * self.batch * self.heads_q * self.seqlen_q * self.seqlen_k * self.head_dim
        return forward * (0.5 if self.causal else 1.0) * (FORWARD_AND_BACKWARD if self.kind == "train" else 1.0)

    @property
    def bytes(self) -> int:
        """Bytes of K and V, with their scales."""
        tokens = self.batch * self.heads_kv * self.seqlen_k
        scales = 0 if self.cache == "bf16" else SCALE_BYTES
        return int(2 * tokens * (self.head_dim * CACHES[self.cache] + scales))

    @property
    def work(self) -> tuple[str, float]:
        """What its speed is counted in: ("bytes_per_s", bytes) or ("flop_per_s", flop)."""
        return ("bytes_per_s", self.bytes) if self.kind == "decode" else ("flop_per_s", self.flop)

    def alike(self, **changes) -> "Case":
        return dataclasses.replace(self, **changes)


def self_attention(kind: str, batch: int, heads: int, seqlen: int, head_dim: int) -> tuple[Case, Case]:
    """Full and causal."""
    return tuple(Case(kind, batch, heads, heads, seqlen, seqlen, head_dim, causal) for causal in (False, True))


def decode(batch: int, heads_q: int, heads_kv: int, seqlen_k: int, cache: str = "bf16") -> Case:
    """One query token a sequence."""
    return Case("decode", batch, heads_q, heads_kv, 1, seqlen_k, 128, cache=cache)


PREFILL = ((16, 16, 1024, 128), (4, 16, 4096, 128), (2, 16, 8192, 128), (1, 16, 16384, 128), (4, 32, 4096, 64),
           (1, 32, 16384, 64))  # fmt: skip
TRAIN = ((4, 16, 4096, 128), (2, 16, 8192, 128))
DECODE = ((1, 32, 8, 131072), (1, 32, 8, 32768), (1, 32, 8, 8192), (4, 32, 8, 32768), (16, 32, 8, 8192),
          (64, 32, 8, 4096), (128, 32, 8, 1024), (1, 32, 32, 65536), (8, 64, 8, 16384), (1, 32, 1, 131072))  # fmt: skip
QUANTISED = ((1, 32, 8, 131072), (4, 32, 8, 131072))  # 0.5 and 2 GB of K and V in bfloat16

SETS = {
    "prefill": {
        "quick": self_attention("prefill", 4, 16, 1024, 128),
        "full": tuple(case for shape in PREFILL for case in self_attention("prefill", *shape)),
    },
    "train": {
        "quick": self_attention("train", 4, 16, 1024, 128),
        "full": tuple(case for shape in TRAIN for case in self_attention("train", *shape)),
    },
    "decode": {
        "quick": (decode(1, 32, 8, 8192), decode(1, 32, 8, 8192, "int4")),
        "full": (
            *(decode(*shape) for shape in DECODE),
            *(decode(*shape, cache) for shape in QUANTISED for cache in CACHES if cache != "bf16"),
        ),
    },
}


def cases(kind: str, which: str) -> tuple[Case, ...]:
    """The cases of a shape set. Raises ValueError for a kind or a set that does not exist."""
    if kind not in SETS:
        raise ValueError(f"kind {kind!r}: must be one of {', '.join(SETS)}")
    if which not in SETS[kind]:
        raise ValueError(f"set {which!r}: must be one of {', '.join(SETS[kind])}")
    return SETS[kind][which]
