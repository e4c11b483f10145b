"""Attention functions with flash-attn's names and meanings. Importing them needs torch alone; calling them, Triton."""

import importlib

_HOME = {
    "flash_attn_func": "prefill",
    "flash_attn_varlen_func": "prefill",
    "flash_attn_qkvpacked_func": "packed",
    "flash_attn_kvpacked_func": "packed",
    "flash_attn_varlen_qkvpacked_func": "packed",
    "flash_attn_varlen_kvpacked_func": "packed",
    "flash_attn_with_kvcache": "decode",
    "merge_attn_states": "merge",
    "set_checks": "checks",
}

__all__ = [*_HOME]


def __getattr__(name: str):
    if name in _HOME:
        value = getattr(importlib.import_module(f"flashlab.attention.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'flashlab.attention' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_HOME])
