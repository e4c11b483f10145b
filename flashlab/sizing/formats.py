"""How one element of K or V is stored, and what its scales take.

A vector of d elements (one head of one token, K or V) takes ceil(d * bits / 8) bytes and its scales:

    none         fp32, fp16, bf16
    tensor       one fp32 scale for a layer's whole K and one for its V: constant, 8 bytes a layer
    head         one fp32 scale a kv head: constant
    token_head   one fp32 scale for each token and head: 4 bytes a vector
    block        one fp16 scale for each `block` elements of a vector

Sources: q8_0 and q4_0 are ggml's blocks of 32 with one fp16 scale (34 and 18 bytes; ggml-common.h). nvfp4 is 4-bit
elements in blocks of 16 with one fp8 scale, over one fp32 scale a tensor (NVIDIA's NVFP4 layout). fp8 with one scale a
tensor is vLLM's default for an fp8 KV cache.
"""

from typing import NamedTuple

SCALES = ("tensor", "head", "token_head", "block")


class Format(NamedTuple):
    """A storage format: bits an element, scale_bytes a scale, and block elements to a scale where scales is "block"."""

    name: str
    bits: int
    scales: str = "none"
    scale_bytes: int = 0
    block: int = 0
    tensor_bytes: int = 0

    @property
    def element_bytes(self) -> float:
        """Bytes of an element alone, without scales."""
        return self.bits / 8

    def vector_bytes(self, dim: int) -> int:
        """Bytes of one vector of dim elements with the scales that grow with it. ValueError where blocks do not fit."""
        if dim == 0:
            return 0
        size = -(-dim * self.bits // 8)
        if self.scales == "token_head":
            return size + self.scale_bytes
        if self.scales == "block":
            if dim % self.block:
                raise ValueError(f"dtype {self.name}: blocks of {self.block} do not divide head_dim {dim}")
            return size + dim // self.block * self.scale_bytes
        return size

    def constant_bytes(self, heads: int) -> int:
        """Bytes of the scales of one layer's K (or V) that do not grow with tokens."""
        if self.scales == "tensor":
            return self.scale_bytes
        if self.scales == "head":
            return heads * self.scale_bytes
        return self.tensor_bytes


FORMATS = {
    "fp32": Format("fp32", 32),
    "fp16": Format("fp16", 16),
    "bf16": Format("bf16", 16),
    "fp8": Format("fp8", 8, "tensor", 4),
    "int8": Format("int8", 8, "tensor", 4),
    "int4": Format("int4", 4, "token_head", 4),
    "q8_0": Format("q8_0", 8, "block", 2, block=32),
    "q4_0": Format("q4_0", 4, "block", 2, block=32),
    "nvfp4": Format("nvfp4", 4, "block", 1, block=16, tensor_bytes=4),
}

_ALSO = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}

_WITH_CHOICE = ("fp8", "int8", "int4")


def kv_format(dtype, scales: str | None = None, argument: str = "dtype") -> Format:
    """The format called dtype ("bf16", "torch.bfloat16", a Format ...), with its scales laid out as asked.

    scales: None (the format's own), "tensor", "head", "token_head" (fp32 scales), or "block:N" (fp16 scales); only
    fp8, int8 and int4 leave a choice. Raises ValueError for an unknown name, calling it `argument`, or an impossible
    layout.
    """
    found = dtype if isinstance(dtype, Format) else _named(dtype, argument)
    if scales is None:
        return found
    if found.name not in _WITH_CHOICE:
        raise ValueError(f"scales {scales!r}: {found.name} has none to choose; only {', '.join(_WITH_CHOICE)} have")
    if scales in ("tensor", "head", "token_head"):
        return found._replace(scales=scales, scale_bytes=4, block=0)
    kind, _, size = str(scales).partition(":")
    if kind == "block" and size.isascii() and size.isdigit() and 0 < int(size) <= 65536:
        return found._replace(scales="block", scale_bytes=2, block=int(size))
    raise ValueError(f"scales {scales!r}: must be tensor, head, token_head or block:N, as in block:32")


def _named(dtype, argument: str) -> Format:
    name = str(dtype).lower().removeprefix("torch.")
    name = _ALSO.get(name, name)
    if name not in FORMATS:
        raise ValueError(f"{argument} {str(dtype)!r}: must be one of {', '.join(FORMATS)}")
    return FORMATS[name]
