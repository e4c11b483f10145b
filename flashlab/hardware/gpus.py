"""One table of GPUs, gpus.csv: every number stands there once, with the document it comes from.

Names are found loosely: ``gpu("h100")``, ``gpu("A100-80GB")`` and what nvidia-smi prints. A name that leaves the form
factor or the memory open takes the first row of that model in the table: the SXM part, and the larger memory (A100
80 GB, V100 32 GB), except GH200, where it is the 96 GB part. A name that asks for something the table does not have
(an L40, a laptop's RTX 4090, an H100 NVL) is refused, never matched to its neighbour.
"""

import os
from functools import cache
from typing import NamedTuple

from flashlab.hardware.limits import LIMITS

BRANDS = ("nvidia", "geforce", "tesla", "amd", "instinct", "tensor core", "accelerator")


class GPU(NamedTuple):
    """What a GPU is. Rates are the datasheet's: no kernel reaches them.

    Attributes:
        name: the part, as in the table.
        cc: compute capability, "9.0"; an AMD part's architecture.
        sms: streaming multiprocessors (AMD: compute units).
        l2_bytes: second-level cache.
        memory_gb: the memory the part is sold with, in 10^9 bytes.
        memory_mib: the memory its driver reports, in 2^20 bytes; None where no public record is cited.
        hbm_bytes_per_s: memory bandwidth; None for a live GPU outside the table.
        dense_16bit_flops: FLOP/s of fp16 or bf16 matrix products, accumulated in fp32, without sparsity; None likewise.
        bf16: whether it multiplies bfloat16.
        pcie_gen: generation of its x16 PCI Express port; None likewise.
        nvlink_bytes_per_s: all NVLinks together, one direction; 0 where there are none.
        c2c_bytes_per_s: NVLink-C2C to its own CPU, one direction; 0 where there is none.
        source: the documents the numbers come from.
    """

    name: str
    cc: str
    sms: int
    l2_bytes: int
    memory_gb: float
    memory_mib: int | None
    hbm_bytes_per_s: float | None
    dense_16bit_flops: float | None
    bf16: bool
    pcie_gen: int | None
    nvlink_bytes_per_s: float
    c2c_bytes_per_s: float
    source: str

    @property
    def memory_bytes(self) -> int:
        """The memory there really is: the driver's figure, else the marketing one."""
        return self.memory_mib * 2**20 if self.memory_mib else int(self.memory_gb * 1e9)

    @property
    def threads_per_sm(self) -> int:
        return LIMITS[self.cc].threads

    @property
    def shared_memory_per_sm(self) -> int:
        """Bytes."""
        return LIMITS[self.cc].shared_memory

    @property
    def ridge(self) -> float:
        """FLOP per byte above which matrix products, not memory, set the pace."""
        return known(self, "dense_16bit_flops") / known(self, "hbm_bytes_per_s")


def known(part: GPU, field: str):
    """A field that a live GPU outside the table lacks. Raises ValueError naming the GPU and the field."""
    value = getattr(part, field)
    if value is None:
        raise ValueError(f"gpu {part.name!r}: {field} is not in the table of GPUs; name one of {', '.join(names())}")
    return value


def gpu(name: "str | GPU") -> GPU:
    """Find a GPU by a loose name; ``"live"`` is the one present, read through torch.

    Raises:
        TypeError: name is neither a string nor a GPU.
        ValueError: no part has that name; close ones are named.
        RuntimeError: "live" without torch or without a GPU.
    """
    if isinstance(name, GPU):
        return name
    if not isinstance(name, str):
        raise TypeError(f"gpu: expected a name such as 'h200', got {type(name).__name__}")
    if name.strip().lower() == "live":
        return _live()
    found = matches(name)
    if not found:
        raise ValueError(f"gpu {name!r}: not in the table; {_suggestion(name)}")
    return found[0]


def names() -> list[str]:
    """Every part of the table."""
    return [row.name for row, _ in _table()]


def matches(name: str) -> list[GPU]:
    """The parts that a loose name fits, the one it stands for first."""
    wanted = _squeeze(name)
    return [row for row, pattern in _table() if pattern.fullmatch(wanted)]


def _squeeze(name: str) -> str:
    lowered = name.lower()
    for brand in BRANDS:
        lowered = lowered.replace(brand, " ")
    return "".join(c for c in lowered if c.isalnum())


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    wanted = _squeeze(name)
    squeezed = {_squeeze(n): n for n in names()}
    close = [s for s in squeezed if wanted and wanted in s]
    close += [s for s in get_close_matches(wanted, squeezed, n=4, cutoff=0.5) if s not in close]
    close = [squeezed[s] for s in close]
    return f"did you mean {', '.join(close)}?" if close else f"it has {', '.join(names())}"


@cache
def _table() -> list:
    """(GPU, pattern of its names) for every row, in the table's order."""
    import csv
    import re

    def read(row: dict) -> tuple:
        part = GPU(
            name=row["name"],
            cc=row["cc"],
            sms=int(row["sms"]),
            l2_bytes=int(row["l2_mib"]) * 2**20,
            memory_gb=float(row["memory_gb"]),
            memory_mib=int(row["memory_mib"]) if row["memory_mib"] else None,
            hbm_bytes_per_s=float(row["hbm_gb_per_s"]) * 1e9,
            dense_16bit_flops=float(row["dense_16bit_tflops"]) * 1e12,
            bf16=row["bf16"] == "yes",
            pcie_gen=int(row["pcie_gen"]),
            nvlink_bytes_per_s=float(row["nvlink_gb_per_s"]) * 1e9,
            c2c_bytes_per_s=float(row["c2c_gb_per_s"]) * 1e9,
            source=row["source"],
        )
        models, words = ("|".join(row[column].split()) for column in ("model", "words"))
        words = words.replace("gb", "(?:gb)?")  # A100-80 as well as A100-80GB
        return part, re.compile(f"(?:{models})(?:{words})*")

    with open(os.path.join(os.path.dirname(__file__), "gpus.csv"), newline="", encoding="utf-8") as file:
        return [read(row) for row in csv.DictReader(file)]


def _live() -> GPU:
    """The GPU present. The device's own answers win over the table's; the table adds what no driver tells."""
    try:
        import torch
    except ImportError as error:
        raise RuntimeError("gpu 'live': reading the present GPU needs torch, which is not installed here") from error
    if not torch.cuda.is_available():
        raise RuntimeError("gpu 'live': torch sees no GPU here; name one instead, such as 'h200'")
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    seen = {
        "sms": device.multi_processor_count,
        "l2_bytes": device.L2_cache_size,
        "memory_mib": device.total_memory // 2**20,
    }
    found = matches(device.name)
    if found:
        return found[0]._replace(**seen, source=f"this machine's driver; {found[0].source}")
    cc = f"{device.major}.{device.minor}"
    if cc not in LIMITS:
        raise RuntimeError(f"gpu 'live': {device.name} has compute capability {cc}; known are {', '.join(LIMITS)}")
    return GPU(
        name=device.name, cc=cc, memory_gb=round(device.total_memory / 1e9), hbm_bytes_per_s=None,
        dense_16bit_flops=None, bf16=device.major >= 8, pcie_gen=None, nvlink_bytes_per_s=0, c2c_bytes_per_s=0,
        source="this machine's driver", **seen,
    )  # fmt: skip
