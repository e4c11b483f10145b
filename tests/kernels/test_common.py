"""The helpers every kernel shares: the band of visible keys, against the mask itself; tanh and the online softmax."""

import random

import numpy as np
import pytest
import torch

import flashlab.kernels  # noqa: F401  before Triton
from flashlab.reference.mask import mask

import triton  # isort: skip
import triton.language as tl  # isort: skip

from flashlab.kernels import common  # isort: skip

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def _band(p_out, first, last, shift, length, left, right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
          BLOCK: tl.constexpr):  # fmt: skip
    start, full_start, full_end, end = common.band_range(
        first, last, shift, length, left, right, HAS_LEFT, HAS_RIGHT, BLOCK
    )
    n = 0
    for masked in tl.static_range(2):
        begin, stop = common.loop_bounds(start, full_start, full_end, end, masked == 1)
        for position in range(begin, stop, BLOCK):
            tile = common.tile_start(position, full_start, full_end, masked == 1)
            tl.store(p_out + 2 * n, tile)
            tl.store(p_out + 2 * n + 1, masked)
            n += 1


def visited(first, last, shift, length, window, block):
    """[(where a tile begins, whether it is masked)] in the order of the loops."""
    out = torch.full((256,), -1, dtype=torch.int32, device=DEVICE)
    left, right = window
    _band[(1,)](out, first, last, shift, length, left, right, left >= 0, right >= 0, block)
    pairs = out.view(-1, 2).tolist()
    return [(tile, bool(masked)) for tile, masked in pairs if tile >= 0]


def hold(seen, tiles, block):
    """seen: (rows, length) bool. Every visible pair lies in one visited tile, no tile is idle, no unmasked one partial."""
    starts = [tile for tile, _ in tiles]
    assert len(set(starts)) == len(starts)
    covered = np.zeros(seen.shape[1], dtype=int)
    for tile, masked in tiles:
        assert 0 <= tile < seen.shape[1]
        covered[tile : tile + block] += 1
        here = seen[:, tile : tile + block]
        assert here.any(), "a tile that no row sees was visited"
        assert masked or (here.shape[1] == block and here.all()), "a partial tile runs without a mask"
    assert covered.max(initial=0) <= 1 and covered[seen.any(0)].all(), "a visible key was not visited"


@pytest.mark.parametrize("side", ["queries", "keys"])
def test_the_band_is_the_mask(side):
    rng = random.Random(side)
    for _ in range(150):
        seqlen_q, seqlen_k = rng.randint(1, 90), rng.randint(1, 90)
        window = rng.choice([(-1, -1), (-1, 0), (rng.randint(0, 70), -1), (rng.randint(0, 40), rng.randint(0, 40)), (0, 0)])
        block_rows, block = rng.choice([8, 16]), rng.choice([4, 8, 16])
        seen = mask(seqlen_q, seqlen_k, window_size=window).numpy()
        shift = seqlen_k - seqlen_q
        if side == "keys":  # from the keys' side: transpose, negate, swap
            seen, shift, window = seen.T, -shift, window[::-1]
        first = rng.randrange(0, seen.shape[0], block_rows)
        last = min(first + block_rows, seen.shape[0]) - 1
        hold(seen[first : last + 1], visited(first, last, shift, seen.shape[1], window, block), block)


@triton.jit
def _tanh(p_x, p_out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(p_out + lanes, common.tanh(tl.load(p_x + lanes)))


def test_tanh_keeps_its_digits_and_does_not_overflow():
    x = torch.cat([torch.linspace(-3, 3, 500), torch.tensor([1e-30, -1e-6, 200.0, -200.0, 1e30, -1e30]), torch.zeros(6)])
    x = x.to(DEVICE)
    out = torch.empty_like(x)
    _tanh[(1,)](x, out, 512)
    exact = torch.tanh(x.double())
    assert ((out - exact).abs() <= 4e-7 * exact.abs()).all()


@triton.jit
def _softmax(p_s, p_o, p_lse, M: tl.constexpr, N: tl.constexpr, TILES: tl.constexpr):
    m, l = common.softmax_start(M, tl.float32)
    acc = tl.zeros([M, N], tl.float32)
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    for tile in tl.static_range(TILES):
        s = tl.load(p_s + rows[:, None] * (N * TILES) + tile * N + cols[None, :])
        p, m, l, alpha = common.softmax_step(s, m, l, common.LOG2E, True)
        acc = acc * alpha[:, None] + p
    o, lse = common.softmax_finish(acc, m, l)
    tl.store(p_o + rows[:, None] * N + cols[None, :], o)
    tl.store(p_lse + rows, lse)


def test_online_softmax_of_rows_that_start_late_or_never():
    """-inf before, between and for the whole of a row: no NaN, and the LSE is torch's."""
    s = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)) * 30
    s[0] = float("-inf")
    s[1, :40] = float("-inf")
    s[2, 16:] = float("-inf")
    s[3, 16:48] = float("-inf")
    s = s.to(DEVICE)
    o, lse = torch.empty(16, 16, device=DEVICE), torch.empty(16, device=DEVICE)
    _softmax[(1,)](s, o, lse, 16, 16, 4)
    torch.testing.assert_close(lse, s.logsumexp(1), rtol=1e-5, atol=1e-5)
    expected = s.softmax(1).nan_to_num(0).view(16, 4, 16).sum(1)
    torch.testing.assert_close(o, expected, rtol=1e-5, atol=1e-6)
