"""Who may look at whom: the one rule behind causal masks, sliding windows and ragged lengths.

Queries and keys are aligned at their LAST elements (bottom right): query i stands at key position

    d(i) = i + seqlen_k - seqlen_q

so the last query always stands at the last key. That is what decoding needs: one new query, a long cache, and the
query sees all of it. Causal forbids j > d(i). A window (left, right) is inclusive, d(i) - left <= j <= d(i) + right,
so (L, 0) is L + 1 keys; a negative side is open. These are the conventions of the flash-attn package, 2.1 and later.
"""

import torch


def allowed(i, j, seqlen_q, seqlen_k, *, causal=False, window_size=(-1, -1)):
    """Whether query i may look at key j.

    Every argument before the star is an int, or a tensor of integers; they broadcast. A position outside its sequence
    (i >= seqlen_q or j >= seqlen_k) is never allowed. Returns a bool, or a bool tensor of the broadcast shape.
    """
    left, right = window_size
    diagonal = i + seqlen_k - seqlen_q
    seen = (i < seqlen_q) & (j < seqlen_k)
    if causal:
        seen = seen & (j <= diagonal)
    if left >= 0:
        seen = seen & (j >= diagonal - left)
    if right >= 0:
        seen = seen & (j <= diagonal + right)
    return seen


def mask(seqlen_q: int, seqlen_k: int, *, causal=False, window_size=(-1, -1), device=None) -> torch.Tensor:
    """The whole mask, bool (seqlen_q, seqlen_k): True where query i (a row) may look at key j (a column)."""
    i = torch.arange(seqlen_q, device=device)[:, None]
    j = torch.arange(seqlen_k, device=device)[None, :]
    return allowed(i, j, seqlen_q, seqlen_k, causal=causal, window_size=window_size)
