"""Inputs for lesson 09's exercises, and the even cut that they share."""

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case


def even_splits(length: int, block_n: int, num_splits: int) -> list[tuple[int, int]]:
    """(start, end) of every split's keys: whole tiles of block_n keys, as evenly as they go; start = end where empty."""
    tiles = -(-length // block_n)
    edges = [min(tiles * i // num_splits * block_n, length) for i in range(num_splits + 1)]
    return list(zip(edges[:-1], edges[1:], strict=True))


def cache(seed: int, length: int, group: int = 3, head_dim: int = 4, capacity: int | None = None, sharp: float = 1.0):
    """q (group, head_dim), k and v (capacity, head_dim): the query heads of one kv head, NaN past the cache's length."""
    capacity = length if capacity is None else capacity
    q = normal(seed, group, head_dim) * sharp
    k, v = (torch.full((capacity, head_dim), float("nan"), dtype=torch.float64) for _ in range(2))
    k[:length], v[:length] = normal(seed + 1, length, head_dim), normal(seed + 2, length, head_dim)
    return q, k, v


def decode_cases(seed: int, *shapes: tuple, **options) -> list[Case]:
    """A case for each (length, block_n, num_splits); with ``capacity`` the cache has room for more keys."""
    found = []
    for i, (length, block_n, num_splits) in enumerate(shapes):
        room = options.get("capacity")
        label = f"{length} keys" + (f" in a cache of {room}" if room else "")
        label += f", tiles of {block_n}, {num_splits} split{'s' if num_splits > 1 else ''}"
        found.append(Case(label, (*cache(seed + 10 * i, length, **options), length, block_n, num_splits)))
    return found
