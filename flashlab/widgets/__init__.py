"""Pictures one can drive: each is a plain state, a pure function from it to a scene, and a widget that redraws it."""

import importlib

_HOME = {
    "SoftmaxScrubber": "softmax_scrubber",
    "TileWalk": "tile_walk",
    "SMGrid": "sm_grid",
    "OccupancyScope": "occupancy",
    "KVPlanner": "kv_planner",
    "OffloadRace": "offload_race",
    "link": "explorable",
    "unlink": "explorable",
}

__all__ = list(_HOME)


def __getattr__(name: str):
    if name in _HOME:
        return getattr(importlib.import_module(f"flashlab.widgets.{_HOME[name]}"), name)
    raise AttributeError(f"module 'flashlab.widgets' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_HOME])
