"""A GPU's memory as tiled attention sees it: a large slow HBM, and programs that load and store tiles and are billed.

Nothing reaches a program but through ``load`` and nothing leaves it but through ``store``, so the bill is complete. The
arithmetic runs in whatever dtype the tensors have (float64 in the tests); the bill is made out as if q, k, v, o and the
score matrices were stored with ``element_bytes`` each (2: bfloat16) and statistics and partial results with
``STATISTIC_BYTES`` (float32).

Time is counted in steps: every program of one launch starts together and takes one step for each pair of tiles it
works on; a launch starts when the one before it is done. That is the clock of a GPU with an SM for every program.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

STATISTIC_BYTES = 4
STATISTICS = ("m", "l", "lse", "o_partial", "lse_partial")


class Access(NamedTuple):
    """One tile moved. ``direction`` is "read" or "write", ``kind`` the tensor's name."""

    step: int
    program: tuple[int, ...]
    direction: str
    kind: str
    bytes: int


class Visit(NamedTuple):
    """One pair of tiles worked on: the work of one step of one program."""

    step: int
    program: tuple[int, ...]
    q_tile: int
    k_tile: int


@dataclass(frozen=True)
class Traffic:
    """Bytes moved between HBM and programs, by kind: {"q": 4096, ...}. Kinds that did not move are absent."""

    reads: dict[str, int] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.reads.values()) + sum(self.writes.values())

    @classmethod
    def of(cls, accesses) -> "Traffic":
        bill = {"read": Counter(), "write": Counter()}
        for access in accesses:
            bill[access.direction][access.kind] += access.bytes
        return cls(dict(bill["read"]), dict(bill["write"]))


class HBM:
    """Named tensors in device memory, and the record of everything that touched them.

    Attributes:
        tensors: name -> tensor. Put a new one there to allocate it; that moves nothing.
        accesses: every Access, in the order in which the loops made it.
        visits: every Visit, likewise.
    """

    def __init__(self, *, element_bytes: int = 2, **tensors: torch.Tensor):
        if element_bytes < 1:
            raise ValueError(f"element_bytes is {element_bytes}: a stored number takes at least 1 byte")
        self.element_bytes = element_bytes
        self.tensors = dict(tensors)
        self.accesses: list[Access] = []
        self.visits: list[Visit] = []
        self._launched_at = 0

    def launch(self) -> None:
        """Start the next kernel: its programs begin in the step after the last one of the kernel before."""
        self._launched_at = self.steps

    def program(self, *index: int) -> "Program":
        """One program of the current launch; ``index`` is its place in the grid."""
        return Program(self, index, self._launched_at)

    @property
    def steps(self) -> int:
        """How many steps everything so far took."""
        return 1 + max((access.step for access in self.accesses), default=-1)

    def traffic(self, steps: int | None = None) -> Traffic:
        """The bill of the first ``steps`` steps; of all of them by default."""
        return Traffic.of(a for a in self.accesses if steps is None or a.step < steps)


class Program:
    """One block of threads: its own clock, its own tiles, and no other way to memory."""

    def __init__(self, hbm: HBM, index: tuple[int, ...], step: int):
        self._hbm, self._index, self._step = hbm, index, step

    def load(self, kind: str, where=...) -> torch.Tensor:
        tile = self._hbm.tensors[kind][where]
        self._bill("read", kind, tile)
        return tile.clone()

    def store(self, kind: str, where, tile: torch.Tensor) -> None:
        self._hbm.tensors[kind][where] = tile
        self._bill("write", kind, tile)

    def visited(self, q_tile: int, k_tile: int) -> None:
        """This pair of tiles is done: one step."""
        self._hbm.visits.append(Visit(self._step, self._index, q_tile, k_tile))
        self._step += 1

    def _bill(self, direction, kind, tile):
        size = STATISTIC_BYTES if kind in STATISTICS else self._hbm.element_bytes
        self._hbm.accesses.append(Access(self._step, self._index, direction, kind, size * tile.numel()))
