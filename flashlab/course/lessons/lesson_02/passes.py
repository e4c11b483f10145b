"""Softmax of rows that do not fit on the chip, in three passes and in two, every load and store of HBM billed."""

import math

import torch

from flashlab.reference.memory import HBM


def three_passes(x: torch.Tensor, block: int, element_bytes: int = 4) -> tuple[torch.Tensor, HBM]:
    """Maximum, then sum, then divide: x is loaded three times. x: (rows, n). Returns softmax(x) and the bill."""
    hbm, program, columns = _memory(x, block, element_bytes)
    m = x.new_full((len(x), 1), -math.inf)
    l = x.new_zeros(len(x), 1)
    for c in columns:
        m = torch.maximum(m, program.load("x", c).amax(dim=1, keepdim=True))
    for c in columns:
        l = l + torch.exp(program.load("x", c) - m).sum(dim=1, keepdim=True)
    for c in columns:
        program.store("y", c, torch.exp(program.load("x", c) - m) / l)
    return hbm.tensors["y"], hbm


def two_passes(x: torch.Tensor, block: int, element_bytes: int = 4) -> tuple[torch.Tensor, HBM]:
    """Maximum and sum together, then divide: x is loaded twice."""
    hbm, program, columns = _memory(x, block, element_bytes)
    m = x.new_full((len(x), 1), -math.inf)
    l = x.new_zeros(len(x), 1)
    for c in columns:
        tile = program.load("x", c)
        m_new = torch.maximum(m, tile.amax(dim=1, keepdim=True))
        l = l * torch.exp(m - m_new) + torch.exp(tile - m_new).sum(dim=1, keepdim=True)
        m = m_new
    for c in columns:
        program.store("y", c, torch.exp(program.load("x", c) - m) / l)
    return hbm.tensors["y"], hbm


def _memory(x, block, element_bytes):
    hbm = HBM(element_bytes=element_bytes, x=x)
    hbm.tensors["y"] = torch.empty_like(x)
    columns = [(slice(None), slice(start, start + block)) for start in range(0, x.shape[1], block)]
    return hbm, hbm.program(0), columns
