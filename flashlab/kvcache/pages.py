"""The tensors of a paged cache: pages of K and V for every layer, in the model's precision or quantised.

A page holds page_size tokens of all kv heads, head-major: (pages, heads_kv, page_size, head_dim) in memory, seen as
(pages, page_size, heads_kv, head_dim). Which page belongs to whom is the pool's business (flashlab.kvcache.pool).
"""

import torch

from flashlab.kvcache import quantize


class Pages:
    """K and V pages of one layer.

    Args:
        format: "native" keeps dtype; "fp8", "int8" and "int4" keep codes and a float32 scale per token and head.
    """

    def __init__(self, num_pages, page_size, heads_kv, head_dim, format, dtype, device):
        self.format = format
        self.scales: dict[str, torch.Tensor] = {}
        if format == "native":
            shape = (num_pages, heads_kv, page_size, head_dim)
            self.k, self.v = (torch.zeros(shape, dtype=dtype, device=device).transpose(1, 2) for _ in range(2))
        else:
            (self.k, k_scale), (self.v, v_scale) = (
                quantize.new_cache(num_pages, page_size, heads_kv, head_dim, format, device=device) for _ in range(2)
            )
            self.scales = dict(k_scale=k_scale, v_scale=v_scale)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, K and V, scales included."""
        return sum(t[:1].numel() * t.element_size() for t in (self.k, self.v, *self.scales.values()))

    def arguments(self) -> dict[str, torch.Tensor]:
        """What flash_attn_with_kvcache takes: k_cache, v_cache, and k_scale, v_scale of a quantised format."""
        return dict(k_cache=self.k, v_cache=self.v, **self.scales)

    def write(self, pages: torch.Tensor, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store k and v (n, heads_kv, head_dim) at slots of pages, (n,) each."""
        if self.format == "native":
            self.k[pages, slots], self.v[pages, slots] = k.to(self.k.dtype), v.to(self.v.dtype)
        else:
            quantize.write(k, self.k, self.scales["k_scale"], pages, slots)
            quantize.write(v, self.v, self.scales["v_scale"], pages, slots)

    def read(self, pages: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V (n, heads_kv, head_dim) at slots of pages; of a quantised format, dequantised to float32."""
        if self.format == "native":
            return self.k[pages, slots], self.v[pages, slots]
        return tuple(
            quantize.dequantize(_raw(cache)[pages, slots].view(cache.dtype), self.scales[scale][pages, slots])
            for cache, scale in ((self.k, "k_scale"), (self.v, "v_scale"))
        )

    def move(self, pages: torch.Tensor, slots: torch.Tensor, to_pages: torch.Tensor, to_slots: torch.Tensor) -> None:
        """Copy tokens as they are stored, all read before any is written."""
        for tensor in (_raw(self.k), _raw(self.v), *self.scales.values()):
            tensor[to_pages, to_slots] = tensor[pages, slots]

    def move_pages(self, pages: torch.Tensor, to_pages: torch.Tensor) -> None:
        """Copy whole pages, all read before any is written."""
        for tensor in (_raw(self.k), _raw(self.v), *self.scales.values()):
            tensor[to_pages] = tensor[pages]


def _raw(cache: torch.Tensor) -> torch.Tensor:
    """Codes as bytes, since torch does not index float8; other caches as they are."""
    return cache.view(torch.uint8) if cache.element_size() == 1 else cache
