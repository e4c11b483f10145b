"""Eviction policies: what stays, what is freed, and that the measured loss is the attention that went to the rest."""

import pytest
import torch

from flashlab import flash_attn_with_kvcache
from flashlab.kvcache.evict import AttentionSinks, HeavyHitters, SlidingWindow
from flashlab.kvcache.pool import PagedKVCache
from flashlab.reference.naive import attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYERS, HEADS_Q, HEADS_KV, DIM, PAGE = 2, 4, 2, 16, 16


def filled(length, seed=0, num_pages=20):
    generator = torch.Generator().manual_seed(seed)
    pool = PagedKVCache(LAYERS, HEADS_KV, DIM, num_pages=num_pages, page_size=PAGE, dtype=torch.float32, device=DEVICE)
    sequence = pool.allocate()
    k, v = (torch.randn(LAYERS, 1, length, HEADS_KV, DIM, generator=generator) for _ in range(2))
    pool.append([sequence], k.to(DEVICE), v.to(DEVICE))
    q = torch.randn(LAYERS, 1, HEADS_Q, DIM, generator=generator)
    return pool, sequence, q.to(DEVICE), k[:, 0], v[:, 0]


def probabilities(q, k):
    """(layers, seqlen_q, heads_q, tokens) of plain attention."""
    k = k.double().repeat_interleave(HEADS_Q // HEADS_KV, 2)
    return torch.softmax(torch.einsum("lqhd,lkhd->lqhk", q.cpu().double(), k) * DIM**-0.5, -1)


def check_loss(result, q, k, kept):
    gone = [t for t in range(k.shape[1]) if t not in set(kept)]
    torch.testing.assert_close(result.mass_lost.cpu().double(), probabilities(q, k)[..., gone].sum(-1), rtol=1e-4, atol=1e-5)


def check_attention(pool, sequence, q, k, v, kept, **options):
    """The cache now answers as attention over the kept tokens, and no further off than the loss allows."""
    for layer in range(LAYERS):
        out = flash_attn_with_kvcache(q[layer][None], **pool.arguments(layer, [sequence]), **options).cpu().double()
        ref, _ = attention(q[layer][None].cpu(), k[layer, kept][None], v[layer, kept][None])
        torch.testing.assert_close(out, ref, rtol=1e-4, atol=1e-5)


def check_output_bound(result, pool, sequence, q, k, v, **options):
    for layer in range(LAYERS):
        out = flash_attn_with_kvcache(q[layer][None], **pool.arguments(layer, [sequence]), **options).cpu().double()
        full, _ = attention(q[layer][None].cpu(), k[layer][None], v[layer][None])
        allowed = 2 * result.mass_lost[layer].cpu().double() * v[layer].abs().max() + 1e-5
        assert ((out - full).abs().amax(-1)[0] <= allowed).all()


@pytest.mark.parametrize("length, window, freed", [(100, 20, 5), (100, 100, 0), (30, 64, 0), (96, 17, 4), (97, 1, 6)])
def test_sliding_window(length, window, freed):
    pool, sequence, q, k, v = filled(length)
    kept = list(range(max(0, length - window), length))
    result = SlidingWindow(window).evict(pool, sequence, q)
    assert (result.tokens_before, result.tokens_after, result.pages_freed) == (length, len(kept), freed)
    assert result.bytes_freed == freed * pool.page_bytes
    check_loss(result, q, k, kept)
    check_attention(pool, sequence, q, k, v, kept, window_size=(window - 1, 0))
    check_output_bound(result, pool, sequence, q, k, v, window_size=(window - 1, 0))


@pytest.mark.parametrize("length, sinks, window, pages", [(100, 4, 20, 2), (100, 0, 33, 3), (20, 4, 64, 2), (40, 16, 16, 2)])
def test_attention_sinks(length, sinks, window, pages):
    pool, sequence, q, k, v = filled(length)
    kept = sorted({*range(min(sinks, length)), *range(max(0, length - window), length)})
    used = pool.utilisation().pages_used
    result = AttentionSinks(sinks, window).evict(pool, sequence, q)
    assert result.tokens_after == len(kept) == pool.length(sequence)
    assert result.pages_freed == used - pages == used - pool.utilisation().pages_used
    check_loss(result, q, k, kept)
    check_attention(pool, sequence, q, k, v, kept)
    check_output_bound(result, pool, sequence, q, k, v)


def test_heavy_hitters_keep_what_was_attended_to():
    pool, sequence, q, k, v = filled(80)
    heavy = [3, 41, 42]
    for layer in range(LAYERS):  # keys that every query points at
        pages, slots = pool._index([pool._place(sequence, t) for t in heavy])
        k[layer, heavy] = q[layer, 0].cpu().reshape(HEADS_KV, -1, DIM).sum(1) * 3
        pool.layers[layer].write(pages, slots, k[layer, heavy].to(DEVICE), v[layer, heavy].to(DEVICE))
    policy = HeavyHitters(budget=3, window=10)
    tally = policy.observe(pool, sequence, q)
    torch.testing.assert_close(tally.cpu().double(), probabilities(q, k).sum((0, 1, 2)), rtol=1e-4, atol=1e-6)
    result = policy.evict(pool, sequence, q)
    kept = [*heavy, *range(70, 80)]
    assert result.tokens_after == 13 and result.pages_freed == 4
    check_loss(result, q, k, kept)
    check_attention(pool, sequence, q, k, v, kept)
    forgetful = AttentionSinks(3, 10)
    other, same, *_ = filled(80)
    for layer in range(LAYERS):
        other.layers[layer].write(*other._index([other._place(same, t) for t in heavy]), k[layer, heavy].to(DEVICE),
                                  v[layer, heavy].to(DEVICE))  # fmt: skip
    assert result.mass_lost.mean() < 0.1 < 0.5 < forgetful.evict(other, same, q).mass_lost.mean()


def test_heavy_hitters_follow_a_sequence_that_grows():
    pool, sequence, q, k, v = filled(20)
    policy = HeavyHitters(budget=4, window=4)
    first = policy.observe(pool, sequence, q)
    kept = policy.kept(sequence, 20)
    policy.evict(pool, sequence)
    new_k, new_v = (torch.randn(LAYERS, 1, 3, HEADS_KV, DIM, device=DEVICE) for _ in range(2))
    pool.append([sequence], new_k, new_v)
    tally = policy.observe(pool, sequence, q)
    all_k = torch.cat([k[:, kept], new_k[:, 0].cpu()], 1)
    expected = torch.nn.functional.pad(first[kept].cpu().double(), (0, 3)) + probabilities(q, all_k).sum((0, 1, 2))
    torch.testing.assert_close(tally.cpu().double(), expected, rtol=1e-4, atol=1e-6)
    policy.forget(sequence)
    assert policy.kept(sequence, 11) == list(range(4)) + list(range(7, 11))


def test_causal_queries_do_not_count_what_they_cannot_see():
    pool, sequence, _, k, _ = filled(12)
    q = torch.randn(LAYERS, 3, HEADS_Q, DIM, device=DEVICE)
    tally = HeavyHitters(1, 1).observe(pool, sequence, q)
    expected = torch.zeros(12, dtype=torch.float64)
    for t in range(3):
        expected[: 10 + t] += probabilities(q[:, t : t + 1], k[:, : 10 + t]).sum((0, 1, 2))
    torch.testing.assert_close(tally.cpu().double(), expected, rtol=1e-4, atol=1e-6)


def test_a_shared_prefix_survives_its_sharer_evicting():
    pool, sequence, q, k, v = filled(60)
    twin = pool.fork(sequence)
    AttentionSinks(20, 8).evict(pool, twin)
    check_attention(pool, sequence, q, k, v, list(range(60)))
    check_attention(pool, twin, q, k, v, [*range(20), *range(52, 60)])
    assert pool.pages(twin)[0] == pool.pages(sequence)[0]  # a whole page of sinks stays shared


@pytest.mark.parametrize("make", [lambda: SlidingWindow(0), lambda: AttentionSinks(-1, 4), lambda: HeavyHitters(0, 4)])
def test_bad_arguments_are_named(make):
    with pytest.raises(ValueError, match="window|sinks|budget"):
        make()


@pytest.mark.parametrize("seqlen_q", [1, 3])
def test_a_window_that_slides_again_loses_a_share_of_what_was_held(seqlen_q):
    pool, sequence, _, k, v = filled(100)
    q = torch.randn(LAYERS, seqlen_q, HEADS_Q, DIM, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    first = SlidingWindow(50).evict(pool, sequence, q)
    check_loss(first, q, k, range(50, 100))
    for layer in pool.layers:  # whoever gets the pages next may write anything
        layer.k[pool._free], layer.v[pool._free] = float("nan"), float("nan")
    second = SlidingWindow(20).evict(pool, sequence, q)
    assert (second.tokens_before, second.tokens_after, second.pages_freed) == (100 - 48, 20, 2)
    check_loss(second, q, k[:, 48:], range(32, 52))


@pytest.mark.parametrize("policy", [SlidingWindow(4), AttentionSinks(1, 4), HeavyHitters(2, 4)])
def test_nothing_is_lost_of_nothing(policy):
    pool, *_ = filled(10)
    result = policy.evict(pool, pool.allocate(), torch.randn(LAYERS, 2, HEADS_Q, DIM, device=DEVICE))
    assert result[:4] == (0, 0, 0, 0) and (result.mass_lost == 0).all()


@pytest.mark.parametrize("shape", [(1, 1, HEADS_Q, DIM), (LAYERS, 1, 3, DIM), (LAYERS, 41, HEADS_Q, DIM), (LAYERS, 1, HEADS_Q, 8)])
def test_queries_that_do_not_fit_are_named(shape):
    pool, sequence, *_ = filled(40)
    with pytest.raises(ValueError, match="q has"):
        HeavyHitters(2, 4).observe(pool, sequence, torch.randn(shape, device=DEVICE))


def test_a_tally_of_tokens_that_are_gone_is_not_used():
    pool, sequence, q, *_ = filled(40)
    policy = HeavyHitters(2, 4)
    policy.observe(pool, sequence, q)
    pool.keep(sequence, range(10))
    with pytest.raises(ValueError, match="holds 10 tokens, fewer than the 40 observed"):
        policy.evict(pool, sequence)
    policy.forget(sequence)
    assert policy.evict(pool, sequence).tokens_after == 6
