"""Grids and waves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlab.hardware import decode_grid, prefill_grid, underuse, waves

sizes = st.integers(1, 4096)


def test_prefill_gives_every_tile_of_queries_a_block():
    grid = prefill_grid(batch=4, heads_q=16, heads_kv=16, seqlen_q=4097, block_m=128)
    assert (grid.query_blocks, grid.blocks, grid.key_blocks) == (33, 4 * 16 * 33, 33)


def test_packed_prefill_counts_the_heads_of_a_group_as_queries():
    grid = prefill_grid(batch=1, heads_q=32, heads_kv=8, seqlen_q=100, seqlen_k=1000, block_m=128, pack_gqa=True)
    assert (grid.heads, grid.query_blocks, grid.blocks) == (8, 4, 32)
    plain = prefill_grid(batch=1, heads_q=32, heads_kv=8, seqlen_q=100, seqlen_k=1000, block_m=128)
    assert (plain.heads, plain.query_blocks, plain.blocks) == (32, 1, 32)


def test_decode_has_a_block_for_every_kv_head_and_split():
    grid = decode_grid(batch=1, heads_q=32, heads_kv=8, seqlen_k=131072, num_splits=12)
    assert (grid.rows, grid.blocks, grid.key_blocks) == (8, 96, 1024)
    assert decode_grid(batch=1, heads_q=32, heads_kv=8, seqlen_k=131072, pack_gqa=False).blocks == 32


@pytest.mark.parametrize("heads_q, heads_kv", [(9, 3), (12, 2), (7, 1)])
def test_any_group_size(heads_q, heads_kv):
    assert decode_grid(batch=2, heads_q=heads_q, heads_kv=heads_kv, seqlen_k=99).rows == 2 * heads_kv


def test_waves_around_a_full_gpu():
    full = waves(blocks=264, sms=132, blocks_per_sm=2)
    assert (full.waves, full.rounds, full.tail, full.idle, full.efficiency) == (1, 1, 264, 0, 1)
    over = waves(blocks=133, sms=132)
    assert (over.rounds, over.tail, over.idle) == (2, 1, 131)
    assert over.efficiency == pytest.approx(133 / 264)


@given(sizes, st.integers(1, 304), st.integers(1, 32))
def test_waves_account_for_every_block(blocks, sms, blocks_per_sm):
    found = waves(blocks=blocks, sms=sms, blocks_per_sm=blocks_per_sm)
    assert (found.rounds - 1) * found.capacity + found.tail == blocks
    assert 1 <= found.tail <= found.capacity == found.tail + found.idle
    assert 0 < found.efficiency <= 1


def test_three_readings_of_less_than_one_percent_of_an_a100():
    used = underuse(batch=1, heads_q=32, heads_kv=8, sms=108)
    assert [round(100 * share, 2) for share in used] == [0.93, 29.63, 7.41]
    assert tuple(underuse(batch=500, heads_q=32, heads_kv=8, sms=108)) == (1, 1, 1)


@pytest.mark.parametrize(
    "bad, error, words",
    [
        (dict(heads_kv=5), ValueError, "heads_kv must divide heads_q 32, got 5"),
        (dict(batch=0), ValueError, "batch must be at least 1, got 0"),
        (dict(seqlen_k=0), ValueError, "seqlen_k must be at least 1"),
        (dict(seqlen_k=1.5), TypeError, "seqlen_k must be an integer, got 1.5"),
        (dict(num_splits=0), ValueError, "num_splits must be at least 1"),
        (dict(num_splits=9), ValueError, "num_splits must be at most the 8 tiles of keys, got 9"),
        (dict(block_n=0), ValueError, "block_n must be at least 1"),
    ],
)
def test_bad_grids_are_refused(bad, error, words):
    shape = dict(batch=1, heads_q=32, heads_kv=8, seqlen_k=1024, block_n=128)
    with pytest.raises(error, match=words):
        decode_grid(**(shape | bad))


def test_no_keys_are_refused_not_replaced():
    with pytest.raises(ValueError, match="seqlen_k must be at least 1, got 0"):
        prefill_grid(batch=1, heads_q=1, heads_kv=1, seqlen_q=100, seqlen_k=0)


def test_packed_readings_count_the_blocks_that_are_launched():
    shape = dict(batch=1, heads_q=128, heads_kv=1)
    assert underuse(sms=132, **shape).gqa_packed == decode_grid(seqlen_k=1024, **shape).rows / 132 == 2 / 132


def test_bad_waves_are_refused():
    with pytest.raises(TypeError, match="blocks must be an integer, got True"):
        waves(blocks=True, sms=132)
    with pytest.raises(ValueError, match="blocks must be at least 1, got 0"):
        waves(blocks=0, sms=132)
    with pytest.raises(ValueError, match="sms must be at least 1"):
        waves(blocks=1, sms=0)
