"""flash_attn_varlen_func against the oracle: packed sequences of mixed lengths, zeros among them, and paged keys."""

import itertools

import pytest
import torch

from flashlab import flash_attn_varlen_func

LENGTHS = {
    "zeros first and between": ([0, 1, 0, 1], [0, 3, 0, 5]),
    "no keys for some queries": ([3, 70, 5], [0, 64, 0]),
    "no queries for some keys": ([0, 70, 0], [9, 64, 65]),
    "mixed": ([1, 65, 130, 0, 17], [64, 63, 200, 12, 1]),
    "longer queries than keys": ([100, 64, 3], [7, 65, 2]),
}
OPTIONS = (
    dict(),
    dict(causal=True),
    dict(window_size=(20, 5), softcap=15.0),
    dict(causal=True, alibi=True),
)
CASES = list(itertools.product(LENGTHS, OPTIONS))


def packed(bench, lengths_q, lengths_k, heads, head_dim, dtype):
    generator = torch.Generator().manual_seed(sum(lengths_q) + sum(lengths_k))
    q = bench.poisoned((sum(lengths_q), heads[0], head_dim), dtype, generator)
    k, v = (bench.poisoned((sum(lengths_k), heads[1], head_dim), dtype, generator) for _ in range(2))
    return q, k, v, cumulated(bench, lengths_q), cumulated(bench, lengths_k)


def cumulated(bench, lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=bench.DEVICE)


@pytest.mark.parametrize("which, options", CASES, ids=lambda value: str(value))
def test_packed_sequences(bench, which, options):
    lengths_q, lengths_k = LENGTHS[which]
    heads = [(9, 3), (4, 4), (6, 1), (2, 1)][CASES.index((which, options)) % 4]
    dtype = [torch.float16, torch.bfloat16, torch.float32][CASES.index((which, options)) % 3]
    q, k, v, cu_q, cu_k = packed(bench, lengths_q, lengths_k, heads, 40, dtype)
    options = dict(options)
    if options.pop("alibi", False):
        options["alibi_slopes"] = torch.linspace(0.1, 0.5, len(lengths_q) * heads[0], device=bench.DEVICE).view(-1, heads[0])
    longest = max(lengths_q), max(lengths_k)
    bench.compare(
        lambda q, k, v: flash_attn_varlen_func(q, k, v, cu_q, cu_k, *longest, **options, return_attn_probs=True)[:2],
        lambda q, k, v, dtype: bench.attention_varlen(q, k, v, cu_q, cu_k, **options, dtype=dtype),
        q, k, v, softcap=options.get("softcap", 0.0),
    )  # fmt: skip


def test_longest_may_be_overstated(bench):
    q, k, v, cu_q, cu_k = packed(bench, [5, 70], [70, 5], (2, 2), 16, torch.float16)
    exact = flash_attn_varlen_func(q, k, v, cu_q, cu_k, 70, 70, causal=True)
    assert torch.equal(exact, flash_attn_varlen_func(q, k, v, cu_q, cu_k, 200, 333, causal=True))


def test_packed_equals_padded_bit_for_bit(bench):
    from flashlab import flash_attn_func

    q, k, v, cu_q, cu_k = packed(bench, [67] * 2, [67] * 2, (4, 2), 32, torch.float16)
    padded = flash_attn_func(*(x.unflatten(0, (2, 67)) for x in (q, k, v)), causal=True)
    assert torch.equal(padded.flatten(0, 1), flash_attn_varlen_func(q, k, v, cu_q, cu_k, 67, 67, causal=True))


def paged(bench, k, v, lengths, page_size, *, spare=3):
    """k and v (total, heads, head_dim) laid into pages in random order, every unused slot and page NaN, and the table."""
    generator = torch.Generator().manual_seed(page_size)
    columns = max(1, -(-max(lengths) // page_size))
    count = len(lengths) * columns + spare
    order = torch.randperm(count, generator=generator)
    table = torch.full((len(lengths), columns), -1, dtype=torch.int32)
    pages = [torch.full((count, page_size, *k.shape[1:]), float("nan"), dtype=k.dtype, device=k.device) for _ in "kv"]
    token = used = 0
    for row, length in enumerate(lengths):
        for column, first in enumerate(range(0, length, page_size)):
            page = table[row, column] = int(order[used])
            used += 1
            here = slice(token + first, token + min(first + page_size, length))
            for store, dense in zip(pages, (k, v), strict=True):
                store[page, : here.stop - here.start] = dense[here]
        token += length
    return *pages, table.to(bench.DEVICE)


@pytest.mark.parametrize("page_size", [16, 64, 128, 256, 48])
@pytest.mark.parametrize("options", [dict(), dict(causal=True), dict(window_size=(33, 0))], ids=str)
def test_paged_keys(bench, page_size, options):
    long = 2 * page_size + 5
    lengths_k = [0, 1, page_size - 1, page_size, page_size + 1, long]
    lengths_q = [2, 1, 5, 3, 70, 4]
    q, k, v, cu_q, cu_k = packed(bench, lengths_q, lengths_k, (3, 1), 32, torch.float16)
    k_pages, v_pages, table = paged(bench, k, v, lengths_k, page_size)
    bench.compare(
        lambda q, *_: flash_attn_varlen_func(
            q, k_pages, v_pages, cu_q, cu_k, max(lengths_q), long, **options, block_table=table, return_attn_probs=True
        )[:2],
        lambda q, k, v, dtype: bench.attention_varlen(q, k, v, cu_q, cu_k, **options, dtype=dtype),
        q, k, v, backward=False,
    )  # fmt: skip


def test_a_table_with_too_few_columns_raises(bench):
    """One column of 256 tokens for 257 keys: what lies beyond it is not ours to read."""
    q, k, v, cu_q, cu_k = packed(bench, [1], [257], (1, 1), 16, torch.float16)
    k_pages, v_pages, table = paged(bench, k, v, [257], 256)
    with pytest.raises(ValueError, match="block_table has 1 columns of 256 tokens: sequence 0 of 257 keys needs 2"):
        flash_attn_varlen_func(q, k_pages, v_pages, cu_q, cu_k, 1, 257, block_table=table[:, :1])


@pytest.mark.parametrize("page", [-1, 5, 1 << 30])
def test_a_table_that_points_outside_raises(bench, page):
    q, k, v, cu_q, cu_k = packed(bench, [1], [20], (1, 1), 16, torch.float16)
    k_pages, v_pages, table = paged(bench, k, v, [20], 16)
    table[0, 1] = page
    with pytest.raises(ValueError, match=rf"block_table\[0, 1\] is {page}: must be a page from 0 to 4"):
        flash_attn_varlen_func(q, k_pages, v_pages, cu_q, cu_k, 1, 20, block_table=table)


def test_a_paged_cache_has_no_gradients(bench):
    q, k, v, cu_q, cu_k = packed(bench, [1], [20], (1, 1), 16, torch.float16)
    k_pages, v_pages, table = paged(bench, k, v, [20], 16)
    with pytest.raises(NotImplementedError, match="block_table"):
        flash_attn_varlen_func(q.requires_grad_(), k_pages, v_pages, cu_q, cu_k, 1, 20, block_table=table)


@pytest.mark.parametrize(
    "starts, longest, message",
    [
        ([0, 5, 3, 8], 8, "must start at 0 and never fall"),
        ([1, 5, 6, 8], 8, "must start at 0 and never fall"),
        ([0, 5, 6, 7], 8, "ends at 7: must end at the number of tokens, 8"),
        ([0, 5, 6, 8], 4, "max_seqlen_q 4: the longest sequence of cu_seqlens_q is 5"),
    ],
)
def test_cu_seqlens_that_cannot_be(bench, starts, longest, message):
    q = torch.randn(8, 2, 16, device=bench.DEVICE)
    wrong = torch.tensor(starts, dtype=torch.int32, device=bench.DEVICE)
    right = torch.tensor([0, 5, 6, 8], dtype=torch.int32, device=bench.DEVICE)
    with pytest.raises(ValueError, match=message):
        flash_attn_varlen_func(q, q, q, wrong, right, longest, 8)
