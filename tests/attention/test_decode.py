"""flash_attn_with_kvcache against the float64 oracle: the contract's decode matrix, every pair of options, and the edges."""

import dataclasses
import itertools
import random

import pytest
import torch

from flashlab import flash_attn_with_kvcache
from flashlab.reference.compare import assert_close
from flashlab.reference.naive import attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAN = float("nan")


@dataclasses.dataclass
class Cache:
    """Keys and values of a batch as dense rows, and the same laid out as a caller would pass them."""

    k: torch.Tensor  # (batch, capacity, heads_kv, head_dim), NaN beyond each length
    v: torch.Tensor
    lengths: torch.Tensor
    arguments: dict  # k_cache, v_cache and what finds the rows in them


def make_cache(generator, lengths, heads_kv, head_dim, dtype, *, page_size=0, batch_idx=False, leftpad=None, capacity=None):
    """Random keys, every slot that holds none poisoned; pages in random order with poisoned ones between."""
    batch = len(lengths)
    step = page_size or 16
    capacity = capacity or max(1, -(-max(lengths, default=0) // step)) * step + (0 if page_size else 5)
    k, v = (torch.randn(batch, capacity, heads_kv, head_dim, generator=generator).to(dtype) for _ in range(2))
    positions = torch.arange(capacity)
    lengths = torch.tensor(lengths, dtype=torch.int32)
    first = torch.zeros_like(lengths) if leftpad is None else torch.tensor(leftpad, dtype=torch.int32)
    unused = (positions >= lengths[:, None]) | (positions < first[:, None])
    k[unused], v[unused] = NAN, NAN
    arguments = {}
    if page_size:
        columns = capacity // page_size
        spare = 3
        order = torch.randperm(batch * columns + spare, generator=generator)[: batch * columns]
        pages = [torch.full((batch * columns + spare, page_size, heads_kv, head_dim), NAN, dtype=dtype) for _ in range(2)]
        for cache, dense in zip(pages, (k, v), strict=True):
            cache[order] = dense.reshape(batch * columns, page_size, heads_kv, head_dim)
        k_cache, v_cache = pages
        arguments["block_table"] = order.reshape(batch, columns).int().to(DEVICE)
    elif batch_idx:
        rows = torch.randperm(batch + 2, generator=generator)[:batch]
        k_cache, v_cache = (torch.full((batch + 2, *k.shape[1:]), NAN, dtype=dtype) for _ in range(2))
        k_cache[rows], v_cache[rows] = k, v
        arguments["cache_batch_idx"] = rows.int().to(DEVICE)
    else:
        k_cache, v_cache = k.clone(), v.clone()
    if leftpad is not None:
        arguments["cache_leftpad"] = first.to(DEVICE)
    arguments |= dict(k_cache=k_cache.to(DEVICE), v_cache=v_cache.to(DEVICE), cache_seqlens=lengths.to(DEVICE))
    return Cache(k, v, lengths, arguments)


def expected(q, cache, dtype=torch.float64, **options):
    """The oracle on the dense rows, left padding cut away."""
    first = cache.arguments.get("cache_leftpad", torch.zeros_like(cache.lengths)).cpu()
    kept = [slice(int(a), max(int(a), int(b))) for a, b in zip(first, cache.lengths, strict=True)]
    longest = max((s.stop - s.start for s in kept), default=0)
    k, v = (torch.full((len(kept), longest, *dense.shape[2:]), NAN, dtype=dense.dtype) for dense in (cache.k, cache.v))
    for b, s in enumerate(kept):
        k[b, : s.stop - s.start], v[b, : s.stop - s.start] = cache.k[b, s], cache.v[b, s]
    lengths = torch.tensor([s.stop - s.start for s in kept])
    return attention(q.cpu(), k, v, seqlens_k=lengths, dtype=dtype, **options)


def check(q, cache, *, num_splits=0, **options):
    """Compare out and lse with the oracle; returns them."""
    out, lse = flash_attn_with_kvcache(
        q, **cache.arguments, num_splits=num_splits, return_softmax_lse=True,
        **{name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in options.items()},
    )  # fmt: skip
    ref, ref_lse = expected(q, cache, **options)
    low, _ = expected(q, cache, dtype=q.dtype, **options)
    factor = 3.0 if options.get("softcap") else 2.0
    assert out.dtype is q.dtype and out.is_contiguous() and lse.dtype is torch.float32
    atol = 1e-5 * float(ref.abs().max()) if q.dtype is torch.float32 and ref.numel() else 0.0
    assert_close(out.cpu(), ref, low, factor=factor, atol=atol)
    torch.testing.assert_close(lse.cpu().double(), ref_lse, rtol=1e-5, atol=1e-4 if q.dtype is torch.float32 else 2e-3)
    return out, lse


MATRIX = dict(
    head_dim=[8, 16, 32, 40, 59, 64, 72, 80, 96, 111, 128, 160, 192, 256],
    seqlens=[(1, 128), (1, 339), (3, 799), (16, 2000 if DEVICE == "cuda" else 300)],
    heads=[(6, 6), (6, 2), (6, 1), (9, 3), (12, 2)],
    page_size=[0, 16, 64, 128, 256],
    softcap=[0.0, 15.0, 50.0],
    window=[None, (True, False), (True, True)],
    causal=[False, True],
    dtype=[torch.float16, torch.bfloat16, torch.float32],
    alibi=[False, True],
    rows=["plain", "batch_idx", "leftpad"],
    num_splits=[0, 1, 3, 17],
)


def every_pair(matrix, seed=0, tries=30):
    """Few cases that hold every pair of values of every two options: of random cases, always the one with most new pairs."""
    pick = random.Random(seed)
    pairs = lambda case: set(itertools.combinations(enumerate(case), 2))
    wanted = {
        ((a, x), (b, y))
        for (a, left), (b, right) in itertools.combinations(enumerate(matrix.values()), 2)
        for x in left for y in right
    }  # fmt: skip
    cases = []
    while wanted:
        (a, x), (b, y) = pick.choice(sorted(wanted, key=repr))
        drawn = [[pick.choice(values) for values in matrix.values()] for _ in range(tries)]
        for case in drawn:
            case[a], case[b] = x, y
        best = max(drawn, key=lambda case: len(pairs(case) & wanted))
        wanted -= pairs(best)
        cases.append(dict(zip(matrix, best, strict=True)))
    return cases


@pytest.mark.parametrize("case", every_pair(MATRIX), ids=lambda case: "-".join(str(value) for value in case.values()))
def test_matrix(case):
    generator = torch.Generator().manual_seed(1)
    (seqlen_q, seqlen_k), (heads_q, heads_kv) = case["seqlens"], case["heads"]
    lengths = [seqlen_k, seqlen_k // 3 + 1]
    cache = make_cache(
        generator, lengths, heads_kv, case["head_dim"], case["dtype"], page_size=case["page_size"],
        batch_idx=case["rows"] == "batch_idx" and not case["page_size"],
        leftpad=[7, seqlen_k // 4] if case["rows"] == "leftpad" else None,
    )  # fmt: skip
    q = torch.randn(2, seqlen_q, heads_q, case["head_dim"], generator=generator).to(case["dtype"]).to(DEVICE)
    left, right = case["window"] or (False, False)
    options = dict(
        causal=case["causal"], softcap=case["softcap"],
        window_size=(seqlen_k // 2 if left else -1, 2 if right else 0 if left else -1),
    )  # fmt: skip
    if case["alibi"]:
        options["alibi_slopes"] = torch.rand(2, heads_q, generator=generator) * 0.1
    check(q, cache, num_splits=case["num_splits"], **options)


# Lengths and what lies beyond them.


def mixed(page):
    return [0, 1, page - 1, page, page + 1, 150]


@pytest.mark.parametrize("seqlen_q, causal", [(1, False), (2, True), (5, False)])
@pytest.mark.parametrize("page_size", [0, 16, 64])
def test_mixed_lengths_in_one_batch(page_size, seqlen_q, causal):
    generator = torch.Generator().manual_seed(page_size)
    lengths = mixed(page_size or 64)
    cache = make_cache(generator, lengths, 2, 24, torch.float32, page_size=page_size)
    q = torch.randn(len(lengths), seqlen_q, 6, 24, generator=generator).to(DEVICE)
    out, lse = check(q, cache, causal=causal)
    assert (out[0] == 0).all() and (lse[0] == -float("inf")).all()


@pytest.mark.parametrize("lengths, heads", [([1, 3], (1, 1)), ([32, 64, 96, 48], (8, 8)), ([5, 9, 0, 0], (4, 2))])
def test_nan_in_unused_slots_does_not_leak(lengths, heads):
    """make_cache poisons every unused slot; the first two are published reports, the last a batch padded with empty rows."""
    generator = torch.Generator().manual_seed(0)
    cache = make_cache(generator, lengths, heads[1], 64, torch.float16, capacity=128 if max(lengths) > 9 else 16)
    check(torch.randn(len(lengths), 1, heads[0], 64, generator=generator).half().to(DEVICE), cache)


def test_splits_agree():
    """Any number of splits, even and uneven batches: partial sums in another order and nothing else."""
    generator = torch.Generator().manual_seed(0)
    heads_q, heads_kv, dim = (16, 8, 128) if DEVICE == "cuda" else (4, 2, 32)
    for lengths in ([4096 if DEVICE == "cuda" else 700], [300, 0, 64, 1]):
        cache = make_cache(generator, lengths, heads_kv, dim, torch.float32, page_size=64)
        q = torch.randn(len(lengths), 1, heads_q, dim, generator=generator).to(DEVICE)
        first = None
        for num_splits in [1, 2, 3, 7, 16, 32, 64, 128, 0] if DEVICE == "cpu" else range(65):
            out, lse = flash_attn_with_kvcache(q, **cache.arguments, num_splits=num_splits, return_softmax_lse=True)
            first = first or (out, lse)
            torch.testing.assert_close(out, first[0], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(lse, first[1], rtol=1e-5, atol=1e-5)
        check(q, cache)


@pytest.mark.parametrize("left, right", [(4, 0), (0, 0), (9, 3), (63, -1)])
def test_a_window_keeps_its_oldest_key(left, right):
    """Every length around the window's: seen through values that name their key."""
    generator = torch.Generator().manual_seed(0)
    for lengths in ([10, left, left + 1, left + 2], [64 + left, 65 + left, 128, 200]):
        cache = make_cache(generator, lengths, 1, 16, torch.float32, page_size=16)
        q = torch.randn(4, 2, 2, 16, generator=generator).to(DEVICE)
        for num_splits in (1, 4):
            check(q, cache, window_size=(left, right), num_splits=num_splits)


@pytest.mark.parametrize("heads", [(9, 3), (12, 2), (10, 2), (7, 1), (48, 1)])
def test_any_group_of_query_heads(heads):
    generator = torch.Generator().manual_seed(0)
    cache = make_cache(generator, [70, 33], heads[1], 32, torch.float16)
    check(torch.randn(2, 3, heads[0], 32, generator=generator).half().to(DEVICE), cache, causal=True)


def test_large_queries_and_keys():
    generator = torch.Generator().manual_seed(0)
    cache = make_cache(generator, [150, 90], 2, 64, torch.float16)
    for name in ("k", "v"):
        getattr(cache, name).mul_(3)
        cache.arguments[f"{name}_cache"].mul_(3)
    check(torch.randn(2, 1, 4, 64, generator=generator).mul(5).half().to(DEVICE), cache)


def test_softcap_does_not_overflow():
    """Scores of +-1e4 under a cap of 50."""
    scores = torch.tensor([4400.0, 5000.0, 1e4, -1e4])
    k = torch.zeros(1, 4, 1, 16)
    k[0, :, 0, 0] = scores
    v = torch.randn(1, 4, 1, 16)
    q = torch.zeros(1, 1, 1, 16)
    q[..., 0] = 1
    arguments = dict(k_cache=k.to(DEVICE), v_cache=v.to(DEVICE), cache_seqlens=torch.tensor([4], dtype=torch.int32).to(DEVICE))
    check(q.to(DEVICE), Cache(k, v, torch.tensor([4]), arguments), softcap=50.0, softmax_scale=1.0)


def test_any_strides():
    """Caches that are slices and transposes of larger tensors, queries too."""
    generator = torch.Generator().manual_seed(0)
    cache = make_cache(generator, [70, 33], 3, 40, torch.float16, capacity=80)
    q = torch.randn(2, 2, 6, 40, generator=generator).half()
    kv = torch.stack([cache.k, cache.v]).permute(3, 1, 2, 0, 4).contiguous()  # (heads, batch, tokens, k or v, dim)
    big = torch.full((3, 2, 80, 2, 59), NAN, dtype=torch.float16)
    big[..., 3:43] = kv
    views = [big.to(DEVICE)[:, :, :, i, 3:43].permute(1, 2, 0, 3) for i in range(2)]
    cache.arguments |= dict(k_cache=views[0], v_cache=views[1])
    check(q.permute(2, 0, 1, 3).contiguous().to(DEVICE).permute(1, 2, 0, 3), cache, causal=True)


def test_lengths_as_one_number_on_the_host_and_by_default():
    generator = torch.Generator().manual_seed(0)
    cache = make_cache(generator, [37, 37], 2, 16, torch.float32)
    q = torch.randn(2, 1, 4, 16, generator=generator).to(DEVICE)
    out, _ = check(q, cache)
    host = dict(cache.arguments, cache_seqlens=37)
    assert torch.equal(flash_attn_with_kvcache(q, **host, num_splits=1), flash_attn_with_kvcache(q, **cache.arguments, num_splits=1))
    full = dict(k_cache=cache.arguments["k_cache"][:, :37], v_cache=cache.arguments["v_cache"][:, :37])
    torch.testing.assert_close(flash_attn_with_kvcache(q, **full), out)
    host["cache_seqlens"] = torch.tensor([37, 37], dtype=torch.int32)
    torch.testing.assert_close(flash_attn_with_kvcache(q, **host), out)


def test_empty_batch_and_no_queries():
    k = torch.zeros(0, 16, 2, 8, device=DEVICE)
    out, lse = flash_attn_with_kvcache(torch.zeros(0, 1, 4, 8, device=DEVICE), k, k, return_softmax_lse=True)
    assert out.shape == (0, 1, 4, 8) and lse.shape == (0, 4, 1)
    k = torch.zeros(2, 16, 2, 8, device=DEVICE)
    out, lse = flash_attn_with_kvcache(torch.zeros(2, 0, 4, 8, device=DEVICE), k, k, return_softmax_lse=True)
    assert out.shape == (2, 0, 4, 8) and lse.shape == (2, 4, 0)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs 9 GB")
def test_offsets_past_2_31():
    """A cache of more than 2^31 elements, read near its end, contiguous and paged."""
    heads, dim, tokens = 8, 128, 2_200_000
    k = torch.zeros(1, tokens, heads, dim, dtype=torch.bfloat16, device=DEVICE)
    v = k.clone()
    tail = torch.randn(2, 40, heads, dim).bfloat16()
    k[0, -40:], v[0, -40:] = tail.to(DEVICE)
    q = torch.randn(1, 1, 16, dim).bfloat16().to(DEVICE)
    out = flash_attn_with_kvcache(q, k, v, cache_seqlens=tokens, window_size=(39, 0))
    pages = [t.view(-1, 16, heads, dim) for t in (k, v)]
    table = torch.arange(pages[0].shape[0], device=DEVICE, dtype=torch.int32)[None]
    paged = flash_attn_with_kvcache(q, *pages, block_table=table, cache_seqlens=tokens, window_size=(39, 0))
    ref, _ = attention(q.cpu(), tail[:1], tail[1:])
    low, _ = attention(q.cpu(), tail[:1], tail[1:], dtype=torch.bfloat16)
    for result in (out, paged):
        assert_close(result.cpu(), ref, low)


@pytest.mark.skipif(DEVICE == "cpu", reason="131072 keys")
def test_a_long_cache():
    generator = torch.Generator().manual_seed(0)
    cache = make_cache(generator, [131072], 8, 128, torch.bfloat16, page_size=256)
    check(torch.randn(1, 1, 32, 128, generator=generator).bfloat16().to(DEVICE), cache)
