"""flashlab: attention from the naive formula to split-KV decoding, as a course and as a package.

The public names load on first use, so ``import flashlab`` is instant and works where Triton does not exist.
"""

import importlib

__version__ = "0.1.0"

_HOME = {
    "flash_attn_func": "flashlab.attention",
    "flash_attn_varlen_func": "flashlab.attention",
    "flash_attn_qkvpacked_func": "flashlab.attention",
    "flash_attn_kvpacked_func": "flashlab.attention",
    "flash_attn_varlen_qkvpacked_func": "flashlab.attention",
    "flash_attn_varlen_kvpacked_func": "flashlab.attention",
    "flash_attn_with_kvcache": "flashlab.attention",
    "merge_attn_states": "flashlab.attention",
    "set_checks": "flashlab.attention",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str):
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'flashlab' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_HOME])
