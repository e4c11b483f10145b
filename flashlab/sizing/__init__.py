"""What a model's KV cache takes, and what fits on a GPU. Standard library and flashlab.hardware only.

    from flashlab.sizing import CacheSpec, plan
    spec = CacheSpec.from_config("config.json", dtype="fp8")
    spec.bytes(batch=8, tokens=32768)
    plan(spec, "h200", tokens=32768).max_batch

The names load on first use, so that importing this package costs nothing.
"""

import importlib

_HOME = {
    "CacheSpec": "cache",
    "Paged": "cache",
    "Layer": "layers",
    "KINDS": "layers",
    "Format": "formats",
    "FORMATS": "formats",
    "kv_format": "formats",
    "MODEL_TYPES": "models",
    "Budget": "budget",
    "memory_budget": "budget",
    "Plan": "capacity",
    "Concurrency": "capacity",
    "plan": "capacity",
    "max_batch": "capacity",
    "max_context": "capacity",
    "concurrency": "capacity",
    "Request": "timeline",
    "Step": "timeline",
    "Timeline": "timeline",
    "stream": "timeline",
    "simulate": "batching",
    "Explanation": "explanation",
    "explain": "explanation",
    "show_bytes": "units",
    "GB": "units",
    "GiB": "units",
}

__all__ = list(_HOME)


def __getattr__(name: str):
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_HOME])
