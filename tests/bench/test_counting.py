"""The counts are those of the reference's loops, run and billed tile by tile."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab.bench import counting
from flashlab.bench.cases import CACHES, SETS, Case
from flashlab.hardware import gpu
from flashlab.kernels import configs, decode_plan
from flashlab.reference import tiled


def head(seqlen, head_dim):
    return torch.randn(seqlen, head_dim, dtype=torch.float64)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 2), st.sampled_from([(2, 2), (4, 2)]), st.integers(1, 300), st.booleans())
def test_the_forward_count_is_the_reference_loops(batch, heads, seqlen, causal):
    case = Case("prefill", batch, *heads, seqlen, seqlen, 64, causal)
    (count,) = counting.count(case, "h200")
    q, k, v = (head(seqlen, 64) for _ in range(3))
    run = tiled.flash_attention_2(q, k, v, block_m=count.block_m, block_n=count.block_n, causal=causal)
    rows = batch * heads[0]
    assert count.bytes == rows * run.hbm.traffic().total
    assert count.tiles == rows * len(run.hbm.visits)
    assert count.programs == rows * len({access.program for access in run.hbm.accesses})


@pytest.mark.parametrize("batch, heads_q, heads_kv, seqlen", [(1, 8, 2, 1000), (3, 4, 4, 333), (1, 32, 1, 700), (300, 4, 1, 64)])
def test_the_decode_count_is_the_reference_loops(batch, heads_q, heads_kv, seqlen):
    counts = counting.count(Case("decode", batch, heads_q, heads_kv, 1, seqlen, 64), "h200")
    decode = counts[0]
    group, rows = heads_q // heads_kv, batch * heads_kv
    q, k, v = head(group, 64), head(seqlen, 64), head(seqlen, 64)
    tiles = dict(block_m=decode.block_m, block_n=decode.block_n)
    if decode.num_splits > 1:
        run = tiled.split_kv(q, k, v, num_splits=decode.num_splits, **tiles)
    else:
        run = tiled.flash_attention_2(q, k, v, **tiles)
    assert sum(count.bytes for count in counts) == rows * run.hbm.traffic().total
    assert decode.tiles == rows * len(run.hbm.visits)
    assert decode.programs == rows * decode.num_splits


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("part", ["h200", "a100", "rtx 4090"])
def test_every_case_counts_on_every_architecture(kind, part):
    for case in SETS[kind]["quick"]:
        counts = counting.count(case, part)
        assert all(count.programs >= 1 and 0 < count.waves <= count.programs / gpu(part).sms for count in counts)
        assert sum(count.flop for count in counts if count.flop) >= case.flop


def test_the_backward_computes_scores_twice_and_counts_them_twice():
    case = Case("train", 1, 2, 2, 256, 256, 64)
    counts = counting.count(case, "h200")
    assert [count.launch for count in counts] == ["forward", "dkdv", "dq"]
    assert counts[1].bytes is counts[2].bytes is None
    forward = 4 * 2 * 256 * 256 * 64
    assert [count.flop / forward for count in counts] == [1, 2, 1.5]  # 3.5 of them are in case.flop


def test_tiles_and_splits_are_the_tables():
    case = Case("prefill", 1, 2, 2, 4096, 4096, 128, causal=True)
    (count,) = counting.count(case, "a100")
    config = configs.lookup("sm_80", "forward", 2, 128, 4096, True)
    assert (count.block_m, count.block_n) == (config.BLOCK_M, config.BLOCK_N)
    decode = counting.count(Case("decode", 1, 32, 8, 1, 131072, 128), "a100")[0]
    tile = decode_plan.choose_tile("sm_80", "native", 2, 128, 4, 8 / 108, False)
    assert decode.block_n == tile.BLOCK_N
    assert decode.num_splits == min(decode_plan.MOST_SPLITS, tile.blocks_per_sm * 108 // 8)


def test_a_quantised_cache_asks_for_fewer_bytes():
    plain = Case("decode", 1, 32, 8, 1, 8192, 128)
    read = [counting._cache_bytes(plain.alike(cache=cache)) * 8 for cache in CACHES]
    assert read == [plain.alike(cache=cache).bytes for cache in CACHES]
    assert read[0] / read[1] == pytest.approx(256 / 130)


def test_an_amd_part_has_no_table():
    with pytest.raises(ValueError, match="NVIDIA"):
        counting.count(SETS["prefill"]["quick"][0], "mi300x")
