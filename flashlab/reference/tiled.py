"""Attention of one head as loops over tiles, every load and store from HBM counted. Read it top to bottom.

    naive              three launches; the score matrix goes to HBM and comes back, twice
    FlashAttention-1   keys outside, queries inside: K and V move once, Q, O, m and l once for every key tile
    FlashAttention-2   queries outside, keys inside: Q and O move once, K and V once for every query tile, and every
                       query tile is a program of its own
    split-KV           FlashAttention-2 with the keys shared out too: many programs for one query, merged at the end

The arithmetic of a tile is the same in all of them: flashlab.reference.online. Only the order of the loops differs, and
with it what has to be carried through HBM. Sources: arXiv 2205.14135 (algorithm 1), arXiv 2307.08691 (algorithm 1),
Flash-Decoding (pytorch.org/blog/flash-decoding). What the counts must be: flashlab.reference.traffic.

All take q (seqlen_q, head_dim), k and v (seqlen_k, head_dim) of one dtype and return Run(out, lse, hbm) with out
(seqlen_q, head_dim), lse (seqlen_q,) and the HBM that holds the record. ``causal`` is aligned to the bottom right, and
skips every pair of tiles that it masks whole. ValueError: shapes that do not fit, or a block below 1.
"""

import math
from typing import NamedTuple

import torch

from flashlab.reference import online
from flashlab.reference.algebra import Partial, merge
from flashlab.reference.memory import HBM
from flashlab.reference.tiling import Tiling


class Run(NamedTuple):
    out: torch.Tensor
    lse: torch.Tensor
    hbm: HBM


def naive(q, k, v, *, causal=False, softmax_scale=None, element_bytes=2) -> Run:
    """S = QK^T, P = softmax(S), O = PV: a kernel each, each matrix moved once by whoever makes or needs it."""
    tiling, scale = _prepare(q, k, v, len(q) or 1, len(k) or 1, causal, softmax_scale)
    hbm = HBM(element_bytes=element_bytes, q=q, k=k, v=v)
    hbm.tensors |= {"s": q.new_zeros(len(q), len(k)), "p": q.new_zeros(len(q), len(k)), "o": torch.zeros_like(q)}

    program = hbm.program(0)
    b_q, b_k = program.load("q"), program.load("k")
    program.store("s", ..., tiling.scores(b_q, b_k, slice(0, len(q)), slice(0, len(k)), scale))

    hbm.launch()
    program = hbm.program(0)
    s = program.load("s")
    lse = torch.logsumexp(s, dim=-1)
    program.store("p", ..., torch.exp(s - lse.masked_fill(lse == -math.inf, 0)[:, None]))

    hbm.launch()
    program = hbm.program(0)
    program.store("o", ..., program.load("p") @ program.load("v"))
    return Run(hbm.tensors["o"], lse, hbm)


def flash_attention_1(q, k, v, *, block_m, block_n, causal=False, softmax_scale=None, element_bytes=2) -> Run:
    """Keys outside: one program; O, m and l live in HBM, and each visit of a query tile loads and stores them."""
    tiling, scale = _prepare(q, k, v, block_m, block_n, causal, softmax_scale)
    hbm = HBM(element_bytes=element_bytes, q=q, k=k, v=v)
    hbm.tensors |= {"o": torch.zeros_like(q), "m": q.new_empty(len(q)), "l": q.new_empty(len(q))}

    program = hbm.program(0)
    state = online.start(len(q), q.shape[1], dtype=q.dtype, device=q.device)
    program.store("o", ..., state.acc)
    program.store("m", ..., state.m)
    program.store("l", ..., state.l)
    for j, keys in enumerate(tiling.k_tiles):
        b_k, b_v = program.load("k", keys), program.load("v", keys)
        for i, rows in enumerate(tiling.q_tiles):
            if not tiling.sees(rows, keys):
                continue
            b_q, b_o = program.load("q", rows), program.load("o", rows)
            m, l = program.load("m", rows), program.load("l", rows)
            state = online.State(m, l, b_o * l[:, None])  # O is kept divided, as the paper has it: undo, go on, redo
            state = online.step(state, tiling.scores(b_q, b_k, rows, keys, scale), b_v)
            program.store("o", rows, online.finish(state)[0])
            program.store("m", rows, state.m)
            program.store("l", rows, state.l)
            program.visited(i, j)
    lse = hbm.tensors["m"] + torch.log(hbm.tensors["l"])  # m and l are what it leaves behind; not billed
    return Run(hbm.tensors["o"], lse, hbm)


def flash_attention_2(q, k, v, *, block_m, block_n, causal=False, softmax_scale=None, element_bytes=2) -> Run:
    """Queries outside: a program a query tile; m, l and acc never leave it, and it writes its rows once."""
    tiling, scale = _prepare(q, k, v, block_m, block_n, causal, softmax_scale)
    hbm = HBM(element_bytes=element_bytes, q=q, k=k, v=v)
    hbm.tensors |= {"o": torch.empty_like(q), "lse": q.new_empty(len(q))}

    for i, rows in enumerate(tiling.q_tiles):
        program = hbm.program(i)
        b_q = program.load("q", rows)
        out, lse = _attend(program, tiling, scale, b_q, i, range(len(tiling.k_tiles)))
        program.store("o", rows, out)
        program.store("lse", rows, lse)
    return Run(hbm.tensors["o"], hbm.tensors["lse"], hbm)


def split_kv(q, k, v, *, block_m, block_n, num_splits, causal=False, softmax_scale=None, element_bytes=2) -> Run:
    """A program a query tile and split of the keys, each writing a partial; then a second launch merges them.

    Splits are whole tiles, ceil(key tiles / num_splits) each. A program that sees no key stores (0, -inf) and leaves.
    """
    tiling, scale = _prepare(q, k, v, block_m, block_n, causal, softmax_scale)
    if num_splits < 1:
        raise ValueError(f"num_splits is {num_splits}: it must be at least 1")
    hbm = HBM(element_bytes=element_bytes, q=q, k=k, v=v)
    hbm.tensors |= {"o": torch.empty_like(q), "lse": q.new_empty(len(q))}
    hbm.tensors |= {"o_partial": q.new_empty(num_splits, *q.shape), "lse_partial": q.new_empty(num_splits, len(q))}

    per_split = math.ceil(len(tiling.k_tiles) / num_splits)
    for i, rows in enumerate(tiling.q_tiles):
        for split in range(num_splits):
            program = hbm.program(i, split)
            mine = range(len(tiling.k_tiles))[split * per_split : (split + 1) * per_split]
            if mine and tiling.sees(rows, tiling.k_tiles[mine[0]]):
                out, lse = _attend(program, tiling, scale, program.load("q", rows), i, mine)
            else:
                out, lse = torch.zeros_like(q[rows]), torch.full_like(q[rows, 0], -math.inf)
            program.store("o_partial", (split, rows), out)
            program.store("lse_partial", (split, rows), lse)

    hbm.launch()
    for i, rows in enumerate(tiling.q_tiles):
        program = hbm.program(i)
        where = [(split, rows) for split in range(num_splits)]
        whole = merge(*(Partial(program.load("o_partial", w), program.load("lse_partial", w)) for w in where))
        program.store("o", rows, whole.out)
        program.store("lse", rows, whole.lse)
    return Run(hbm.tensors["o"], hbm.tensors["lse"], hbm)


def _attend(program, tiling, scale, b_q, i, k_tiles):
    """The inner loop of FlashAttention-2: one query tile past some key tiles, nothing stored on the way."""
    rows = tiling.q_tiles[i]
    state = online.start(len(b_q), b_q.shape[1], dtype=b_q.dtype, device=b_q.device)
    for j in k_tiles:
        keys = tiling.k_tiles[j]
        if not tiling.sees(rows, keys):
            break  # causal: no later key tile is seen either
        b_k, b_v = program.load("k", keys), program.load("v", keys)
        state = online.step(state, tiling.scores(b_q, b_k, rows, keys, scale), b_v)
        program.visited(i, j)
    return online.finish(state)


def _prepare(q, k, v, block_m, block_n, causal, softmax_scale):
    for name, x, shape in (("q", q, q.shape), ("k", k, (len(k), q.shape[-1])), ("v", v, (len(k), q.shape[-1]))):
        if x.dim() != 2 or x.shape != shape:
            expected = f"(seqlen, {q.shape[-1]}), one head, k and v alike"
            raise ValueError(f"{name} has shape {tuple(x.shape)}: expected {expected}")
    scale = q.shape[1] ** -0.5 if softmax_scale is None else softmax_scale
    return Tiling(len(q), len(k), block_m, block_n, causal), scale
