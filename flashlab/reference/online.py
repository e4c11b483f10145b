"""Online softmax: attention over keys that arrive tile by tile, with nothing kept but three small things a row.

    m    the largest score so far
    l    sum of e^(s - m) over the scores so far
    acc  sum of e^(s - m) v over them

A new tile may raise the maximum. What came before was measured against the old one, so it is rescaled once:

    m'   = max(m, max_j s_j)
    r    = e^(m - m')                            the rescale: 1 if the maximum stands, smaller if it grew
    l'   = r l   + sum_j e^(s_j - m')
    acc' = r acc + sum_j e^(s_j - m') v_j

After the last tile out = acc / l and lse = m + log l. (Milakov and Gimelshein, arXiv 1805.02867; with values,
FlashAttention-2, arXiv 2307.08691, algorithm 1.) It is flashlab.reference.algebra's merge, with the division put off.
"""

import math
from typing import NamedTuple

import torch


class State(NamedTuple):
    """m (rows,), l (rows,) and acc (rows, head_dim): what a program keeps in registers between tiles."""

    m: torch.Tensor
    l: torch.Tensor
    acc: torch.Tensor


def start(rows: int, head_dim: int, *, dtype: torch.dtype = torch.float64, device=None) -> State:
    """Before the first tile: the maximum of no scores is -inf, their sum is 0."""
    return State(
        torch.full((rows,), -math.inf, dtype=dtype, device=device),
        torch.zeros(rows, dtype=dtype, device=device),
        torch.zeros(rows, head_dim, dtype=dtype, device=device),
    )


def rescale(m: torch.Tensor, m_new: torch.Tensor) -> torch.Tensor:
    """e^(m - m_new): turns sums measured against m into sums measured against m_new. 0 where nothing came before."""
    return torch.exp(m - _anchor(m_new))


def step(state: State, b_s: torch.Tensor, b_v: torch.Tensor) -> State:
    """Take in one tile: scores b_s (rows, n), -inf where masked; values b_v (n, head_dim)."""
    m_new = torch.maximum(state.m, b_s.amax(-1))
    r = rescale(state.m, m_new)
    b_p = torch.exp(b_s - _anchor(m_new)[:, None])
    return State(m_new, r * state.l + b_p.sum(-1), r[:, None] * state.acc + b_p @ b_v)


def finish(state: State) -> tuple[torch.Tensor, torch.Tensor]:
    """out (rows, head_dim) and lse (rows,). A row that saw no key gives (0, -inf)."""
    out = state.acc / state.l.masked_fill(state.l == 0, 1)[:, None]
    return out, state.m + torch.log(state.l)


def _anchor(m: torch.Tensor) -> torch.Tensor:
    """While every score so far is -inf so is m, and -inf - -inf is NaN: measure against 0, every term is then 0."""
    return m.masked_fill(m == -math.inf, 0)
