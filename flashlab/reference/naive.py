"""Attention as the formula says it, in float64: the oracle that every kernel answers to. Slow, and obviously right.

    s_ij = softmax_scale * <q_i, k_j>                   head_dim ** -0.5 unless given
    s_ij = softcap * tanh(s_ij / softcap)               when softcap > 0 (Gemma 2, arXiv 2408.00118)
    s_ij = s_ij - slope * |d(i) - j|                    with ALiBi (arXiv 2108.12409); d(i) as in reference.mask
    s_ij = -inf                                         where query i may not look at key j
    lse_i = log sum_j exp(s_ij)
    out_i = sum_j exp(s_ij - lse_i) v_j                 0 where the sum is empty, and then lse_i = -inf

With ``dtype`` set to the inputs' own precision it is `low`: what plain PyTorch makes of the same inputs. Its error is
the yardstick for a kernel's (flashlab.reference.compare).
"""

import torch

from flashlab.reference.mask import allowed


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    seqlens_q: torch.Tensor | None = None,
    seqlens_k: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over padded batches. Differentiable by autograd.

    Args:
        q: (batch, seqlen_q, heads_q, head_dim), any floating dtype.
        k: (batch, seqlen_k, heads_kv, head_dim). Query head h reads key head h // (heads_q // heads_kv).
        v: (batch, seqlen_k, heads_kv, head_dim_v); head_dim_v is usually head_dim.
        causal: aligned to the bottom right.
        window_size: (left, right), inclusive; a negative side is open.
        softcap: 0.0 is off.
        alibi_slopes: (heads_q) or (batch, heads_q).
        softmax_scale: head_dim ** -0.5 unless given.
        seqlens_q, seqlens_k: (batch,) integers, 0 allowed; how many of the row's queries and keys are real. The rest is
            padding: whatever it holds, NaN too, has no effect, and a padded query gives (0, -inf).
        dtype: what to compute in. Pass q.dtype for `low`.

    Returns:
        out (batch, seqlen_q, heads_q, head_dim_v) in ``dtype``, and lse (batch, heads_q, seqlen_q), natural logarithm,
        in ``dtype`` but float32 at least. A query that sees no key gives out 0 and lse -inf.

    Raises:
        ValueError: shapes that do not fit together, or a length outside its tensor.
    """
    batch, seqlen_q, heads_q, head_dim = _shape("q", q, 4)
    _, seqlen_k, heads_kv, _ = _shape("k", k, 4)
    _expect("k", k, (batch, seqlen_k, heads_kv, head_dim))
    _expect("v", v, (batch, seqlen_k, heads_kv, v.shape[-1]))
    if heads_kv == 0 or heads_q % heads_kv:
        raise ValueError(f"q has {heads_q} heads and k has {heads_kv}: heads_q must be a multiple of heads_kv")
    sq = _lengths("seqlens_q", seqlens_q, batch, seqlen_q, q.device)
    sk = _lengths("seqlens_k", seqlens_k, batch, seqlen_k, q.device)
    i = torch.arange(seqlen_q, device=q.device)[:, None]
    j = torch.arange(seqlen_k, device=q.device)
    seen = allowed(i, j, sq, sk, causal=causal, window_size=window_size)  # (batch, 1, seqlen_q, seqlen_k)

    # What nobody may look at becomes 0, so that NaN in a padded slot cannot leak through 0 * NaN, forward or backward.
    unseen_q, unseen_k = ~seen.any(-1), ~seen.any(-2)
    q = _heads_first(q, dtype).masked_fill(unseen_q[..., None], 0)
    k = _heads_first(k, dtype).masked_fill(unseen_k[..., None], 0).repeat_interleave(heads_q // heads_kv, dim=1)
    v = _heads_first(v, dtype).masked_fill(unseen_k[..., None], 0).repeat_interleave(heads_q // heads_kv, dim=1)

    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    scores = (q * scale) @ k.transpose(-1, -2)
    wide = torch.promote_types(dtype, torch.float32)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        scores = scores - _slopes(alibi_slopes, batch, heads_q).to(wide) * (i + sk - sq - j).abs()
    scores = scores.masked_fill(~seen, float("-inf"))

    lse = torch.logsumexp(scores.to(wide), dim=-1)
    p = torch.softmax(scores, dim=-1).masked_fill(~seen, 0)  # softmax of an empty row is NaN: here it is 0
    out = p.to(dtype) @ v
    return out.transpose(1, 2), lse


def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    alibi_slopes: torch.Tensor | None = None,
    **options,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over sequences packed end to end: sequence b owns rows cu_seqlens[b] to cu_seqlens[b + 1].

    q is (total_q, heads_q, head_dim), k and v (total_k, heads_kv, head_dim), cu_seqlens (batch + 1,) integers from 0.
    Takes attention's other options. Returns out (total_q, heads_q, head_dim) and lse (heads_q, total_q); rows that no
    sequence owns give (0, -inf).
    """
    starts_q, starts_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    if len(starts_q) != len(starts_k):
        raise ValueError(f"cu_seqlens_q holds {len(starts_q)} entries, cu_seqlens_k {len(starts_k)}: they must match")
    dtype = options.get("dtype", torch.float64)
    out = torch.zeros(*q.shape[:2], v.shape[-1], dtype=dtype, device=q.device)
    wide = torch.promote_types(dtype, torch.float32)
    lse = torch.full((q.shape[1], q.shape[0]), float("-inf"), dtype=wide, device=q.device)
    slopes = None if alibi_slopes is None else _slopes(alibi_slopes, len(starts_q) - 1, q.shape[1]).flatten(1)
    for b in range(len(starts_q) - 1):
        rows, keys = slice(starts_q[b], starts_q[b + 1]), slice(starts_k[b], starts_k[b + 1])
        slope = None if slopes is None else slopes[b if len(slopes) > 1 else 0]
        one = attention(q[None, rows], k[None, keys], v[None, keys], alibi_slopes=slope, **options)
        out[rows], lse[:, rows] = one[0][0], one[1][0]
    return out, lse


def _heads_first(x, dtype):
    return x.to(dtype).transpose(1, 2)


def _shape(name, x, dims):
    if x.dim() != dims:
        raise ValueError(f"{name} has shape {tuple(x.shape)}: expected {dims} dimensions")
    return x.shape


def _expect(name, x, shape):
    if tuple(x.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(x.shape)}: expected {tuple(shape)}")


def _lengths(name, lengths, batch, capacity, device):
    """(batch, 1, 1, 1), ready to broadcast against (batch, heads, seqlen_q, seqlen_k)."""
    if lengths is None:
        return torch.full((batch, 1, 1, 1), capacity, device=device)
    lengths = torch.as_tensor(lengths, device=device)
    _expect(name, lengths, (batch,))
    if batch and not (0 <= int(lengths.min()) and int(lengths.max()) <= capacity):
        raise ValueError(f"{name} holds {lengths.tolist()}: every length must lie between 0 and {capacity}")
    return lengths.long().view(batch, 1, 1, 1)


def _slopes(slopes, batch, heads):
    """(1 or batch, heads, 1, 1)."""
    if tuple(slopes.shape) not in ((heads,), (batch, heads)):
        raise ValueError(f"alibi_slopes has shape {tuple(slopes.shape)}: expected {(heads,)} or {(batch, heads)}")
    return slopes.view(-1, heads, 1, 1)
