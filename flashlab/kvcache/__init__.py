"""Caches that hold tensors: a paged pool (pool), quantised formats (quantize), and what to let go (evict)."""

from flashlab.kvcache.pool import OutOfPages, PagedKVCache, Utilisation

__all__ = ["OutOfPages", "PagedKVCache", "Utilisation"]
