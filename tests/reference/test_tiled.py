import pytest
import torch

from flashlab.reference import tiled, traffic
from flashlab.reference.memory import HBM, Traffic
from flashlab.reference.naive import attention
from flashlab.reference.tiling import Tiling

LOOPS = {
    "flash_attention_1": (tiled.flash_attention_1, traffic.flash_attention_1, {}),
    "flash_attention_2": (tiled.flash_attention_2, traffic.flash_attention_2, {}),
    "split_kv_1": (tiled.split_kv, traffic.split_kv, {"num_splits": 1}),
    "split_kv_3": (tiled.split_kv, traffic.split_kv, {"num_splits": 3}),
    "split_kv_9": (tiled.split_kv, traffic.split_kv, {"num_splits": 9}),
}
SHAPES = [(16, 16), (17, 31), (31, 17), (1, 29), (13, 1), (5, 64)]


def head(sq, sk, d=8):
    return (torch.randn(n, d, dtype=torch.float64) for n in (sq, sk, sk))


def oracle(q, k, v, **options):
    out, lse = attention(q[None, :, None], k[None, :, None], v[None, :, None], **options)
    return out[0, :, 0], lse[0, 0]


def assert_exact(run, ref):
    torch.testing.assert_close((run.out, run.lse), ref, rtol=0, atol=1e-12)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("blocks", [(4, 5), (7, 3), (64, 64), (1, 1), (8, 8)])
@pytest.mark.parametrize("causal", [False, True])
def test_loops_agree_with_the_oracle_and_cost_what_the_formula_says(loop, shape, blocks, causal):
    run_loop, predict, options = LOOPS[loop]
    q, k, v = head(*shape)
    run = run_loop(q, k, v, block_m=blocks[0], block_n=blocks[1], causal=causal, **options)
    assert_exact(run, oracle(q, k, v, causal=causal))
    assert run.hbm.traffic() == predict(*shape, 8, *blocks, *options.values(), causal=causal)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_naive_agrees_too(shape, causal):
    q, k, v = head(*shape)
    run = tiled.naive(q, k, v, causal=causal, element_bytes=4)
    assert_exact(run, oracle(q, k, v, causal=causal))
    assert run.hbm.traffic() == traffic.naive(*shape, 8, element_bytes=4)


@pytest.mark.parametrize("loop", LOOPS)
def test_no_queries_or_no_keys(loop):
    run_loop, predict, options = LOOPS[loop]
    for shape in ((0, 5), (3, 0)):
        q, k, v = head(*shape)
        run = run_loop(q, k, v, block_m=2, block_n=2, softmax_scale=0.5, **options)
        assert_exact(run, oracle(q, k, v))
        assert run.hbm.traffic().total == predict(*shape, 8, 2, 2, *options.values()).total


def test_the_round_numbers_of_the_docstring():
    n, d, m, block = 64, 16, 8, 16
    elements = lambda t, *kinds: sum(t.reads.get(kind, 0) + t.writes.get(kind, 0) for kind in kinds)
    assert elements(traffic.naive(n, n, d, element_bytes=1), *"qkvosp") == 4 * n * d + 4 * n * n
    first = traffic.flash_attention_1(n, n, d, m, block, element_bytes=1)
    assert elements(first, *"qkvo") == 2 * n * d + 3 * n * d * n // block + n * d  # and O once to begin with
    second = traffic.flash_attention_2(n, n, d, block, m, element_bytes=1)
    assert elements(second, *"qkvo") == 2 * n * d + 2 * n * d * n // block


def test_theorem_2_the_constant_is_12():
    d, sram = 64, 32 * 1024
    block_m, block_n = traffic.paper_blocks(d, sram)
    assert (block_m, block_n) == (64, 128)
    ratios = []
    for n in (1024, 2048, 4096, 65536):
        counted = traffic.flash_attention_1(n, n, d, block_m, block_n, element_bytes=1)
        moved = sum(counted.reads.get(kind, 0) + counted.writes.get(kind, 0) for kind in "qkvo")
        ratios.append(moved / traffic.theorem_2(n, d, sram))
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] == pytest.approx(12, rel=1e-2)


def test_the_trace_says_who_works_on_what_and_when():
    q, k, v = head(6, 8)
    first = tiled.flash_attention_1(q, k, v, block_m=2, block_n=4)
    assert [(x.q_tile, x.k_tile) for x in first.hbm.visits] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
    assert [x.step for x in first.hbm.visits] == list(range(6))
    second = tiled.flash_attention_2(q, k, v, block_m=2, block_n=4, causal=True)
    assert [(x.program, x.step, x.k_tile) for x in second.hbm.visits] == [
        ((0,), 0, 0), ((1,), 0, 0), ((1,), 1, 1), ((2,), 0, 0), ((2,), 1, 1)
    ]  # fmt: skip
    split = tiled.split_kv(q[:1], k, v, block_m=2, block_n=2, num_splits=2)
    assert [(x.program, x.step, x.k_tile) for x in split.hbm.visits] == [
        ((0, 0), 0, 0), ((0, 0), 1, 1), ((0, 1), 0, 2), ((0, 1), 1, 3)
    ]  # fmt: skip
    assert split.hbm.steps == 4  # two pairs of tiles, the partial, the merge


@pytest.mark.parametrize("causal", [False, True])
def test_every_pair_that_is_seen_is_visited_once(causal):
    q, k, v = head(11, 13)
    tiling = Tiling(11, 13, 3, 4, causal)
    expected = [
        (i, j)
        for i, rows in enumerate(tiling.q_tiles)
        for j, keys in enumerate(tiling.k_tiles)
        if tiling.sees(rows, keys)
    ]
    assert len(expected) == 16 if not causal else len(expected) < 16
    for loop, _, options in LOOPS.values():
        run = loop(q, k, v, block_m=3, block_n=4, causal=causal, **options)
        assert sorted((x.q_tile, x.k_tile) for x in run.hbm.visits) == expected


def test_the_bill_grows_step_by_step_to_the_whole():
    q, k, v = head(9, 9)
    hbm = tiled.split_kv(q, k, v, block_m=4, block_n=2, num_splits=2).hbm
    totals = [hbm.traffic(steps).total for steps in range(hbm.steps + 1)]
    assert totals[0] == 0 and totals[-1] == hbm.traffic().total
    assert all(a < b for a, b in zip(totals, totals[1:], strict=False))


def test_a_load_is_a_copy():
    hbm = HBM(q=torch.zeros(4, 2))
    hbm.program(0).load("q", slice(0, 2)).add_(1)
    assert (hbm.tensors["q"] == 0).all()
    assert hbm.traffic() == Traffic({"q": 8}, {})


def test_what_does_not_fit_is_named():
    q, k, v = head(4, 6)
    with pytest.raises(ValueError, match="block_n is 0"):
        tiled.flash_attention_2(q, k, v, block_m=2, block_n=0)
    with pytest.raises(ValueError, match="v has shape"):
        tiled.flash_attention_1(q, k, v[:3], block_m=2, block_n=2)
    with pytest.raises(ValueError, match="num_splits is 0"):
        tiled.split_kv(q, k, v, block_m=2, block_n=2, num_splits=0)
    with pytest.raises(ValueError, match="element_bytes is 0"):
        tiled.naive(q, k, v, element_bytes=0)
