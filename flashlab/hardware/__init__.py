"""What a GPU is and what a launch does to it. Standard library only: it starts in milliseconds and runs anywhere.

    gpus, limits        one cited table of GPUs, and what an SM holds
    residency           occupancy: how many blocks one SM holds at once
    launch, splits      grids, waves, and how many ways to split the keys
    timing              how long a launch takes
    intensity           the roofline
    links, offload      PCI Express, NVLink, and fetching against recomputing
    measured            the points that the models are held against

The public names load on first use. No module has the name of a function, so a name here is always the function.
"""

import importlib

_HOME = {
    "GPU": "gpus",
    "gpu": "gpus",
    "Occupancy": "residency",
    "occupancy": "residency",
    "decode_grid": "launch",
    "prefill_grid": "launch",
    "underuse": "launch",
    "waves": "launch",
    "num_splits": "splits",
    "splits_to_fill": "splits",
    "decode_time": "timing",
    "read_rate": "timing",
    "staircase_time": "timing",
    "roofline": "intensity",
    "link": "links",
    "offload_or_recompute": "offload",
}

__all__ = [*_HOME]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'flashlab.hardware' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"flashlab.hardware.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *_HOME])
