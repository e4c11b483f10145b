"""In-place append, with and without rotary embedding, against plain torch."""

import pytest
import torch

from flashlab import flash_attn_with_kvcache
from flashlab.reference.naive import attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def rotate(x, cos, sin, positions, interleaved):
    """x (batch, tokens, heads, dim) at positions (batch, tokens), in float64: pairs as complex numbers."""
    half = cos.shape[1]
    head = x[..., : 2 * half].double()
    pairs = head.unflatten(-1, (half, 2)) if interleaved else torch.stack([head[..., :half], head[..., half:]], -1)
    turned = torch.view_as_complex(pairs.contiguous()) * torch.complex(cos.double(), sin.double())[positions][:, :, None]
    turned = torch.view_as_real(turned)
    turned = turned.flatten(-2) if interleaved else torch.cat(turned.unbind(-1), -1)
    return torch.cat([turned, x[..., 2 * half :].double()], -1)


def tables(positions, rotary_dim):
    angle = torch.arange(positions)[:, None] / 100 ** (torch.arange(0, rotary_dim, 2) / rotary_dim)
    return torch.cos(angle), torch.sin(angle)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rotary_dim, interleaved", [(0, True), (16, True), (16, False), (40, True), (24, False)])
@pytest.mark.parametrize("layout", ["rows", "batch_idx", "paged"])
def test_append_then_attend(layout, rotary_dim, interleaved, dtype):
    generator = torch.Generator().manual_seed(rotary_dim)
    batch, new, heads_q, heads_kv, dim, page, capacity = 3, 2, 6, 2, 40, 16, 48
    lengths = torch.tensor([0, 15, 30], dtype=torch.int32)
    rand = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)
    dense = [rand(batch, capacity, heads_kv, dim) for _ in range(2)]
    q, k, v = rand(batch, new, heads_q, dim), rand(batch, new, heads_kv, dim), rand(batch, new, heads_kv, dim)
    where = {}
    if layout == "rows":
        caches = [t.clone() for t in dense]
        back = lambda cache: cache
    elif layout == "batch_idx":
        rows = torch.tensor([4, 0, 2])
        caches = [rand(5, capacity, heads_kv, dim) for _ in range(2)]
        for cache, t in zip(caches, dense, strict=True):
            cache[rows] = t
        where["cache_batch_idx"] = rows.int().to(DEVICE)
        back = lambda cache: cache[rows]
    else:
        order = torch.randperm(batch * capacity // page + 2, generator=generator)[: batch * capacity // page]
        caches = [rand(len(order) + 2, page, heads_kv, dim) for _ in range(2)]
        for cache, t in zip(caches, dense, strict=True):
            cache[order] = t.reshape(-1, page, heads_kv, dim)
        where["block_table"] = order.reshape(batch, -1).int().to(DEVICE)
        back = lambda cache: cache[order].reshape(batch, capacity, heads_kv, dim)
    untouched = [cache.clone() for cache in caches]
    caches = [cache.to(DEVICE) for cache in caches]
    rotary = {}
    positions = lengths.long()[:, None] + torch.arange(new)
    q_ref, k_ref = q.double(), k.double()
    if rotary_dim:
        cos, sin = (t.to(dtype) for t in tables(capacity, rotary_dim))
        rotary = dict(rotary_cos=cos.to(DEVICE), rotary_sin=sin.to(DEVICE), rotary_interleaved=interleaved)
        q_ref, k_ref = (rotate(t, cos, sin, positions, interleaved) for t in (q, k))
    out = flash_attn_with_kvcache(
        q.to(DEVICE), *caches, k.to(DEVICE), v.to(DEVICE), cache_seqlens=lengths.to(DEVICE), causal=True, **where, **rotary
    )
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    for b in range(batch):
        for t, new_values in zip(dense, (k_ref, v.double()), strict=True):
            t[b, lengths[b] : lengths[b] + new] = new_values[b].to(dtype)
    for cache, t, before in zip(caches, dense, untouched, strict=True):
        torch.testing.assert_close(back(cache.cpu()), t, rtol=tolerance, atol=tolerance)
        changed = (cache.cpu() != before).any(-1).any(-1)
        assert changed.sum() == batch * new, "only the new tokens' slots are written"
    ref, _ = attention(q_ref, dense[0], dense[1], causal=True, seqlens_k=lengths + new)
    torch.testing.assert_close(out.cpu().double(), ref, rtol=tolerance, atol=tolerance)


def test_without_a_mask_every_query_stands_at_the_first_new_position():
    generator = torch.Generator().manual_seed(0)
    cos, sin = tables(64, 8)
    q, k, v = (torch.randn(1, 3, 2, 8, generator=generator) for _ in range(3))
    caches = [torch.randn(1, 64, 2, 8, generator=generator) for _ in range(2)]
    dense = [t.clone() for t in caches]
    length = 20
    out = flash_attn_with_kvcache(
        q.to(DEVICE), *(on_device := [t.to(DEVICE) for t in caches]), k.to(DEVICE), v.to(DEVICE), cos.to(DEVICE), sin.to(DEVICE),
        cache_seqlens=length,
    )  # fmt: skip
    dense[0][:, length : length + 3] = rotate(k, cos, sin, torch.arange(length, length + 3)[None], True).float()
    dense[1][:, length : length + 3] = v
    torch.testing.assert_close(on_device[0].cpu(), dense[0], rtol=1e-5, atol=1e-5)
    ref, _ = attention(
        rotate(q, cos, sin, torch.full((1, 3), length), True), *dense, seqlens_k=torch.tensor([length + 3])
    )
    torch.testing.assert_close(out.cpu().double(), ref, rtol=1e-5, atol=1e-5)


def test_step_by_step_is_the_whole_at_once():
    """A cache filled token by token answers as plain causal attention over the sequence."""
    generator = torch.Generator().manual_seed(0)
    tokens, heads, dim = 20, 2, 16
    q, k, v = (torch.randn(2, tokens, heads, dim, generator=generator).to(DEVICE) for _ in range(3))
    caches = [torch.full((2, 32, heads, dim), float("nan"), device=DEVICE) for _ in range(2)]
    outs = []
    for t in range(tokens):
        step = slice(t, t + 1)
        outs.append(flash_attn_with_kvcache(q[:, step], *caches, k[:, step], v[:, step], cache_seqlens=t, causal=True))
    ref, _ = attention(q.cpu(), k.cpu(), v.cpu(), causal=True)
    torch.testing.assert_close(torch.cat(outs, 1).cpu().double(), ref, rtol=1e-5, atol=1e-5)
