"""Who is right: a few heads of a case in float64, whole where gradients are asked for, else some of their rows.

The rule is flashlab.reference.compare's: as close to float64 as plain PyTorch in bfloat16 is, twice over, plus rounding;
gradients three times plus 3e-4. Besides, nothing in the whole output may be infinite or NaN.

Rows are taken in runs. With the keys cut at the run's last diagonal, bottom-right alignment makes a run of a causal
problem a causal problem of its own.
"""

import dataclasses
import random

import torch

from flashlab.bench.cases import Case
from flashlab.bench.inputs import Inputs, dequantise
from flashlab.reference.compare import tolerance
from flashlab.reference.naive import attention

PAIRS = {"prefill": 4, "train": 2, "decode": 8}  # (batch, kv head) pairs looked at
RUN = 32  # rows in a run
GRADIENT = dict(factor=3.0, atol=3e-4)


@dataclasses.dataclass
class Piece:
    """What one tensor of the output must be in one place. ``place`` indexes (batch, tokens, heads)."""

    name: str
    place: tuple
    ref: torch.Tensor
    allowed: float


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The largest error found, what was allowed there, and why it is wrong, if it is."""

    error: float
    allowed: float
    reason: str | None = None


class Oracle:
    """The right answer for sampled parts of a case, worked out once and held against every peer."""

    def __init__(self, case: Case, inputs: Inputs, seed: int):
        self.pieces: list[Piece] = []
        draw = random.Random(seed)
        every = [(b, h) for b in range(case.batch) for h in range(case.heads_kv)]
        some = draw.sample(every, min(PAIRS[case.kind], len(every)))
        for b, h in {every[0], every[-1], *some}:
            if case.kind == "train":
                self._gradients(case, inputs, b, h)
            else:
                self._rows(case, inputs, b, h, draw)

    def judge(self, outputs) -> Verdict:
        """outputs: o, or (o, dq, dk, dv), shaped like the inputs."""
        named = dict(zip(("o", "dq", "dk", "dv"), outputs if isinstance(outputs, tuple) else (outputs,), strict=False))
        worst = Verdict(0.0, 0.0)
        for name, tensor in named.items():
            if not torch.isfinite(tensor).all():
                return Verdict(float("inf"), 0.0, f"{name} holds values that are not finite")
        for piece in self.pieces:
            error = float((named[piece.name][piece.place].double() - piece.ref).abs().max())
            if error > piece.allowed:
                where = f"{piece.name}, batch {piece.place[0]}"
                return Verdict(error, piece.allowed, f"{where}: error {error:.2e}, allowed {piece.allowed:.2e}")
            if error * worst.allowed >= worst.error * piece.allowed:  # the one nearest to its own limit
                worst = Verdict(error, piece.allowed)
        return worst

    def _rows(self, case, inputs, b, h, draw):
        q, k, v, heads = _one_head(case, inputs, b, h)
        last = case.seqlen_q - 1
        starts = {0, max(0, last + 1 - RUN), draw.randint(0, max(0, last + 1 - RUN))}
        for start in sorted(starts):
            stop = min(start + RUN, case.seqlen_q)
            keys = stop + case.seqlen_k - case.seqlen_q if case.causal else case.seqlen_k
            ref, low = (
                attention(q[:, start:stop], k[:, :keys], v[:, :keys], causal=case.causal, dtype=dtype)[0][0]
                for dtype in (torch.float64, q.dtype)
            )
            self.pieces.append(Piece("o", (b, slice(start, stop), heads), ref, tolerance(ref, low)))

    def _gradients(self, case, inputs, b, h):
        q, k, v, heads = _one_head(case, inputs, b, h)
        do = inputs.do[b : b + 1, :, heads]
        ref, low = (_forward_backward(case, q, k, v, do, dtype) for dtype in (torch.float64, q.dtype))
        places = (heads, heads, slice(h, h + 1), slice(h, h + 1))
        for i, (name, place) in enumerate(zip(("o", "dq", "dk", "dv"), places, strict=True)):
            allowed = tolerance(ref[i], low[i], **({} if name == "o" else GRADIENT))
            self.pieces.append(Piece(name, (b, slice(None), place), ref[i], allowed))


def _one_head(case: Case, inputs: Inputs, b: int, h: int):
    """q, k, v of one sequence and kv head, each with batch 1, and the query heads that read it."""
    group = case.heads_q // case.heads_kv
    heads = slice(h * group, (h + 1) * group)
    q = inputs.q[b : b + 1, :, heads]
    k, v = (
        dequantise(codes[b : b + 1, :, h : h + 1], None if scale is None else scale[b : b + 1, :, h : h + 1], torch.float64)
        for codes, scale in ((inputs.k, inputs.k_scale), (inputs.v, inputs.v_scale))
    )
    return q, k, v, heads


def _forward_backward(case, q, k, v, do, dtype):
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in (q, k, v))
    o, _ = attention(q, k, v, causal=case.causal, dtype=dtype)
    gradients = torch.autograd.grad(o, (q, k, v), do.to(dtype))
    return tuple(x.detach()[0].double() if dtype is torch.float64 else x.detach()[0] for x in (o, *gradients))
