"""flash_attn_func against the float64 oracle over the whole range of its arguments, forward and backward."""

import dataclasses
import itertools
import random

import pytest
import torch

from flashlab import flash_attn_func

ON_GPU = torch.cuda.is_available()
HEAD_DIMS = (8, 16, 32, 40, 59, 64, 72, 80, 96, 111, 128, 160, 192, 256)
SEQLENS = (
    (1, 1), (1, 3), (2, 1), (3, 799), (113, 203), (128, 217), (239, 1), (511, 1), (3, 513), (256, 512), (640, 128),
    (1023, 1024), (1024, 1023),
)  # fmt: skip
HEADS = ((6, 6), (6, 2), (6, 1), (9, 3), (12, 2))
MASKS = (
    dict(),
    dict(causal=True),
    dict(window_size=(37, 0)),
    dict(window_size=(64, 21)),
    dict(causal=True, window_size=(100, 50)),
    dict(window_size=(-1, 17)),
)
SOFTCAPS = (0.0, 0.0, 15.0, 50.0)
ALIBIS = (None, None, "heads", "batch and heads")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclasses.dataclass(frozen=True)
class Case:
    head_dim: int
    seqlens: tuple
    heads: tuple
    mask: dict
    softcap: float
    alibi: str | None
    dtype: torch.dtype
    batch: int
    heads_first: bool

    def __str__(self):
        mask = ",".join(f"{key}={value}" for key, value in self.mask.items()) or "full"
        extras = f"cap{self.softcap:g}-alibi {self.alibi}-b{self.batch}{'-heads first' if self.heads_first else ''}"
        return f"d{self.head_dim}-{self.seqlens}-{self.heads}-{mask}-{extras}-{str(self.dtype)[6:]}"


def sample(count, tiles):
    """``count`` cases, every value of every argument equally often and each time in other company.

    tiles: the most 64 x 64 tiles of scores a case may have; above it one kv head and one batch row are kept.
    """
    rng = random.Random(4)

    def cycle(values):
        while True:
            yield from rng.sample(values, len(values))

    columns = [cycle(values) for values in (HEAD_DIMS, SEQLENS, HEADS, MASKS, SOFTCAPS, ALIBIS, DTYPES, (1, 2), (0, 1))]
    for values in itertools.islice(zip(*columns, strict=True), count):
        head_dim, seqlens, heads, mask, softcap, alibi, dtype, batch, heads_first = values
        size = -(-seqlens[0] // 64) * -(-seqlens[1] // 64)
        if size * heads[0] * batch > tiles:
            heads, batch = (heads[0] // heads[1], 1), 1
        if size * heads[0] > tiles:
            heads = (heads[0] // 3 if heads[0] % 3 == 0 else 1, 1)
        yield Case(head_dim, seqlens, heads, mask, softcap, alibi, dtype, batch, bool(heads_first))


CASES = list(sample(140, 10**9) if ON_GPU else sample(60, 100))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_argument(bench, case):
    generator = torch.Generator().manual_seed(11)
    seqlen_q, seqlen_k = case.seqlens
    heads_q, heads_kv = case.heads
    make = lambda tokens, heads: bench.poisoned(
        (case.batch, tokens, heads, case.head_dim), case.dtype, generator, heads_first=case.heads_first
    )
    q, k, v = make(seqlen_q, heads_q), make(seqlen_k, heads_kv), make(seqlen_k, heads_kv)
    slopes = None
    if case.alibi:
        shape = (heads_q,) if case.alibi == "heads" else (case.batch, heads_q)
        slopes = torch.rand(shape, generator=generator).to(bench.DEVICE) * 0.3
    options = dict(**case.mask, softcap=case.softcap, alibi_slopes=slopes)
    bench.compare(
        lambda q, k, v: flash_attn_func(q, k, v, **options, return_attn_probs=True)[:2],
        lambda q, k, v, dtype: bench.attention(q, k, v, **options, dtype=dtype),
        q, k, v, softcap=case.softcap, generator=generator,
    )  # fmt: skip


def test_every_value_is_sampled():
    assert {case.head_dim for case in CASES} == set(HEAD_DIMS)
    assert {case.seqlens for case in CASES} == set(SEQLENS)
    assert {str(case.mask) for case in CASES} == {str(mask) for mask in MASKS}
    assert {(case.dtype, bool(case.softcap), bool(case.alibi)) for case in CASES} >= set(
        itertools.product(DTYPES, (False, True), (False, True))
    )


@pytest.mark.parametrize("seqlen", [40, 200])
def test_float32_is_exact_to_rounding(bench, seqlen):
    """IEEE products, not TF32: 1e-5 relative where TF32 would give 1e-3."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = (bench.poisoned((1, seqlen, 2, 64), torch.float32, generator) for _ in range(3))
    weights = [torch.randn(q.shape, generator=generator).to(bench.DEVICE)]
    ours = bench.differentiate(lambda *x: (flash_attn_func(*x, causal=True),), [q, k, v], weights)
    exact = bench.differentiate(
        lambda *x: (bench.attention(*x, causal=True)[0],), [q.double(), k.double(), v.double()], weights
    )
    for one, other in zip([*ours[0], *ours[1]], [*exact[0], *exact[1]], strict=True):
        assert (one - other).norm() < 1e-5 * other.norm()


@pytest.mark.parametrize("extra", range(1, 128, 9 if not ON_GPU else 1))
def test_odd_key_lengths_with_a_transposed_cache(bench, extra):
    generator = torch.Generator().manual_seed(extra)
    q = bench.poisoned((1, 5, 3, 32), torch.float16, generator)
    k, v = (bench.poisoned((1, 128 + extra, 1, 32), torch.float16, generator, heads_first=True) for _ in range(2))
    bench.compare(
        lambda q, k, v: flash_attn_func(q, k, v, return_attn_probs=True)[:2],
        lambda q, k, v, dtype: bench.attention(q, k, v, dtype=dtype),
        q, k, v,
    )  # fmt: skip


@pytest.mark.parametrize("head_dim", [1, 2, 3, 7, 17, 33, 65, 129, 255])
def test_head_dims_that_are_no_multiple_of_8(bench, head_dim):
    generator = torch.Generator().manual_seed(head_dim)
    q, k, v = (bench.poisoned((1, 20, 2, head_dim), torch.float16, generator) for _ in range(3))
    bench.compare(
        lambda q, k, v: flash_attn_func(q, k, v, causal=True, return_attn_probs=True)[:2],
        lambda q, k, v, dtype: bench.attention(q, k, v, causal=True, dtype=dtype),
        q, k, v,
    )  # fmt: skip


def test_softmax_scale(bench):
    generator = torch.Generator().manual_seed(5)
    q, k, v = (bench.poisoned((1, 70, 2, 16), torch.float32, generator) for _ in range(3))
    bench.compare(
        lambda q, k, v: flash_attn_func(q, k, v, softmax_scale=0.77, return_attn_probs=True)[:2],
        lambda q, k, v, dtype: bench.attention(q, k, v, softmax_scale=0.77, dtype=dtype),
        q, k, v,
    )  # fmt: skip
