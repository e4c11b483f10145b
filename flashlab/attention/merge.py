"""merge_attn_states: attention over some keys and attention over others become attention over all of them.

    lse = log sum_i exp(lse_i),      out = sum_i exp(lse_i - lse) out_i

LSEs are natural logarithms, as every function of this package returns them; an LSE to base 2 must be multiplied by log 2
first. Cascade and context-parallel attention are this function between calls of the others.
"""

import torch

from flashlab.attention import checks


def merge_attn_states(
    out_a: torch.Tensor,
    lse_a: torch.Tensor,
    out_b: torch.Tensor | None = None,
    lse_b: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge two partial results over disjoint keys, or N stacked in front.

    Args:
        out_a, out_b: (batch, seqlen, heads, head_dim) float16, bfloat16 or float32, of one dtype. Without out_b, out_a is
            (N, batch, seqlen, heads, head_dim) and lse_a (N, batch, heads, seqlen).
        lse_a, lse_b: float32 (batch, heads, seqlen), natural logarithms; -inf where a partial saw no key, and then its out
            counts for nothing, whatever it holds.

    Returns:
        out (batch, seqlen, heads, head_dim) of out_a's dtype and lse float32 (batch, heads, seqlen), contiguous; (0, -inf)
        where no partial saw a key. There is no gradient.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, shape, dtype or device, named.
        ImportError: Triton is not installed.
    """
    if (out_b is None) != (lse_b is None):
        raise ValueError(f"{'out_b' if out_b is None else 'lse_b'} is None: out_b and lse_b are given together or not at all")
    outs, lses = ([out_a], [lse_a]) if out_b is None else ([out_a, out_b], [lse_a, lse_b])
    dims = 5 if out_b is None else 4
    for name, out, lse in zip("ab", outs, lses, strict=False):
        checks.tensor(f"out_{name}", out, dims)
        checks.tensor(f"lse_{name}", lse, dims - 1)
        if out.dtype not in checks.DTYPES or out.dtype is not out_a.dtype:
            raise TypeError(f"out_{name} has dtype {out.dtype}: must be float16, bfloat16 or float32, the same for all")
        if lse.dtype is not torch.float32:
            raise TypeError(f"lse_{name} has dtype {lse.dtype}: must be float32")
        if out.device != out_a.device or lse.device != out_a.device:
            raise ValueError(f"out_{name} is on {out.device}, lse_{name} on {lse.device}: must be on out_a's, {out_a.device}")
        if out.shape != out_a.shape:
            raise ValueError(f"out_{name} has shape {tuple(out.shape)}: must be out_a's, {tuple(out_a.shape)}")
        *front, seqlen, heads, _ = out.shape
        if tuple(lse.shape) != (*front, heads, seqlen):
            raise ValueError(f"lse_{name} has shape {tuple(lse.shape)}: must be {(*front, heads, seqlen)}")
    if not 1 <= out_a.shape[-1] <= checks.MAX_HEAD_DIM:
        raise ValueError(f"out_a has head_dim {out_a.shape[-1]}: must be from 1 to {checks.MAX_HEAD_DIM}")
    checks.where_kernels_run(out_a)
    eager = type(out_a) is torch.Tensor and not torch.compiler.is_compiling()
    return (_merge if eager else _merge_op)(outs, lses)


def _merge(outs: list[torch.Tensor], lses: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    from flashlab.kernels import backend
    from flashlab.kernels.combine import combine, merge_pair

    dtype = outs[0].dtype
    if backend.interpreting():
        outs = [backend.widen(out) for out in outs]
    outs = [out if out.stride(-1) == 1 else out.contiguous() for out in outs]
    out, lse = _empty(outs, lses)
    if out.numel() == 0:
        return out.to(dtype), lse
    if len(outs) == 2:
        merge_pair(outs[0], lses[0], outs[1], lses[1], out, lse)
    else:
        combine(outs[0], lses[0], out, lse)
    return out.to(dtype), lse


@torch.library.custom_op("flashlab::merge_attn_states", mutates_args=())
def _merge_op(outs: list[torch.Tensor], lses: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse); one stack of partials, or two partials."""
    return _merge(outs, lses)


@_merge_op.register_fake
def _(outs, lses):
    return _empty(outs, lses)


def _empty(outs, lses):
    """The unwritten result: like one partial, contiguous."""
    front = 1 if len(outs) == 1 else 0
    return outs[0].new_empty(outs[0].shape[front:]), lses[0].new_empty(lses[0].shape[front:])
