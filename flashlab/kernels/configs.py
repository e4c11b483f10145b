"""Launch configurations: which tile, how many warps and pipeline stages, by GPU, kernel and shape.

They come from a table a GPU (``launch_tables``), shipped and never measured in a caller's process. A table's rows are
read from the top and the first that fits wins; a row's ``head_dim`` is the largest it serves, ``itemsize`` the bytes of an
element, ``max_seqlen`` the longest sequence it serves (absent: any), ``banded`` whether some edge of the band exists
(absent: either). No sequence length enters a compiled kernel's key: lengths only choose between rows.
"""

import dataclasses
import functools
import json
import math
from importlib import resources

import torch

from flashlab.kernels import backend

SMALLEST_BLOCK_D, LARGEST_BLOCK_D = 16, 256  # tl.dot multiplies no inner dimension below 16


@dataclasses.dataclass(frozen=True)
class Launch:
    """How to launch one kernel. BLOCK_D is head_dim padded to a power of two; the rest is the table's."""

    BLOCK_D: int
    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int
    heads_together: int = 1

    def blocks(self, heads: int) -> tuple[int, int, int, int]:
        """(BLOCK_D, BLOCK_M, BLOCK_N, HEAD_GROUP). Heads that run side by side must divide heads."""
        return self.BLOCK_D, self.BLOCK_M, self.BLOCK_N, math.gcd(heads, self.heads_together)

    @functools.cached_property
    def options(self) -> dict[str, int]:
        """What is not a kernel's argument."""
        return dict(num_warps=self.num_warps, num_stages=self.num_stages)


def choose(kernel: str, dtype: torch.dtype, device: torch.device, head_dim: int, seqlen: int, banded: bool) -> Launch:
    """The configuration of ``kernel`` on a device.

    Args:
        kernel: "forward", "preprocess", "dkdv" or "dq".
        seqlen: the longest sequence the kernel's grid is spread over: queries, or keys for dkdv.
        banded: whether a causal or window edge exists.
    """
    table = "interpreter" if backend.interpreting() else table_of_device(device.index)
    return lookup(table, kernel, dtype.itemsize, head_dim, seqlen, banded)


_memories = []


def remembered(function):
    """A cache over ``function``, for what follows from a table's rows: ``forget`` empties it."""
    cached = functools.lru_cache(maxsize=4096)(function)
    _memories.append(cached)
    return cached


def forget() -> None:
    """Choose anew from the tables: whoever changes a row calls this."""
    for cached in _memories:
        cached.cache_clear()


@remembered
def lookup(table: str, kernel: str, itemsize: int, head_dim: int, seqlen: int, banded: bool) -> Launch:
    """The first row of a table that fits."""
    for row in read_table(table)["rows"]:
        if (
            row["kernel"] == kernel
            and row.get("itemsize", itemsize) == itemsize
            and head_dim <= row.get("head_dim", head_dim)
            and seqlen <= row.get("max_seqlen", seqlen)
            and row.get("banded", banded) == banded
        ):
            block_d = max(SMALLEST_BLOCK_D, 1 << (head_dim - 1).bit_length())
            return Launch(block_d, **row["launch"])
    raise LookupError(f"launch table {table} has no row for {kernel}, {itemsize} bytes, head_dim {head_dim}")


@functools.cache
def read_table(name: str) -> dict:
    """A shipped table: {"gpu", "provenance", "rows"}."""
    return json.loads(resources.files("flashlab.kernels").joinpath(f"launch_tables/{name}.json").read_text())


@functools.cache
def table_of_device(index: int | None) -> str:
    """The table that serves a CUDA device."""
    return table_of(*torch.cuda.get_device_capability(index))


def table_of(major: int, minor: int) -> str:
    """The table that serves a compute capability. What divides them is the shared memory a block may have.

    8.0 has 163 KB, 8.6, 8.9 and 12.x 99 KB, 9.0 and 10.x 227 KB (CUDA C++ programming guide, technical specifications).
    """
    if major in (9, 10):
        return "sm_90" if major == 9 else "sm_100"
    return "sm_80" if (major, minor) in ((8, 0), (8, 7)) else "sm_86"
