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
