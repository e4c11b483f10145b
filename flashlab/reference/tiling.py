"""Cutting attention's score matrix into tiles: which rows, which columns, and which pairs a causal mask leaves out."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from flashlab.reference.mask import allowed


@dataclass(frozen=True)
class Tiling:
    """seqlen_q queries cut into tiles of block_m, seqlen_k keys into tiles of block_n; the last of each may be short.

    Raises ValueError for a length below 0 or a block below 1.
    """

    seqlen_q: int
    seqlen_k: int
    block_m: int
    block_n: int
    causal: bool = False

    def __post_init__(self):
        for name in ("seqlen_q", "seqlen_k", "block_m", "block_n"):
            least = 0 if name.startswith("seqlen") else 1
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least {least}")

    @cached_property
    def q_tiles(self) -> list[slice]:
        return [slice(i, min(i + self.block_m, self.seqlen_q)) for i in range(0, self.seqlen_q, self.block_m)]

    @cached_property
    def k_tiles(self) -> list[slice]:
        return [slice(j, min(j + self.block_n, self.seqlen_k)) for j in range(0, self.seqlen_k, self.block_n)]

    def sees(self, rows: slice, keys: slice) -> bool:
        """Whether any query of the tile may look at any key of the tile. The last query sees furthest."""
        return allowed(rows.stop - 1, keys.start, self.seqlen_q, self.seqlen_k, causal=self.causal)

    def scores(self, b_q: torch.Tensor, b_k: torch.Tensor, rows: slice, keys: slice, scale: float) -> torch.Tensor:
        """One tile of softmax_scale * q @ k.T, masked: (rows, keys)."""
        i = torch.arange(rows.start, rows.stop, device=b_q.device)[:, None]
        j = torch.arange(keys.start, keys.stop, device=b_q.device)
        seen = allowed(i, j, self.seqlen_q, self.seqlen_k, causal=self.causal)
        return (scale * b_q @ b_k.T).masked_fill(~seen, -math.inf)
