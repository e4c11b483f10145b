"""The time models against every measured point, and what must hold of any."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab.hardware import decode_time, gpu, measured, read_rate, staircase_time
from flashlab.hardware.timing import DECODE_TILE, against_measured, read_time

POINTS = [(model, *point) for model, points in against_measured().items() for point in points]


@pytest.mark.parametrize("model, what, predicted, seen", POINTS)
def test_within_15_percent_of_what_was_measured(model, what, predicted, seen):
    assert predicted == pytest.approx(seen, rel=0.15)


def test_every_measured_point_is_held_against_a_model():
    assert len(POINTS) == len(measured.STAIRCASE) + len(measured.UNDERFILL) + len(measured.SPLIT_CURVE)


def curve(splits: int, blocks_per_sm: int = 2) -> float:
    return decode_time("h200", num_splits=splits, blocks_per_sm=blocks_per_sm, **measured.SPLIT_SHAPE).time_s


def test_the_shape_of_the_split_curve():
    """Halving while SMs are idle, a cliff one split past a full wave, flat beyond."""
    assert curve(1) / curve(2) == pytest.approx(2, rel=0.05)
    assert curve(17) > 1.1 * curve(16)
    assert curve(17, blocks_per_sm=1) > curve(17)
    assert curve(33) < curve(17)
    assert 9 < curve(1) / curve(16) < 14


@settings(max_examples=50)
@given(st.integers(1, 3000), st.integers(1, 8))
def test_no_launch_reads_faster_than_memory_or_its_blocks_allow(blocks, blocks_per_sm):
    part, total = gpu("h200"), 1e9
    seconds = read_time(total, blocks, part, blocks_per_sm=blocks_per_sm, reader=DECODE_TILE)
    resident = min(blocks, part.sms * blocks_per_sm)
    assert total / seconds <= part.hbm_bytes_per_s * DECODE_TILE.gpu_share * (1 + 1e-9)
    assert total / seconds <= resident * DECODE_TILE.block_bytes_per_s * (1 + 1e-9)


@given(st.integers(1, 5000))
def test_one_more_block_never_reads_less(blocks):
    assert read_rate(blocks + 1) >= read_rate(blocks)


@given(st.integers(1, 2000), st.integers(1, 4))
def test_the_staircase_never_falls(blocks, blocks_per_sm):
    seconds = [staircase_time(blocks=b, sms=132, blocks_per_sm=blocks_per_sm) for b in (blocks, blocks + 1)]
    assert seconds[0] <= seconds[1]


def test_many_rounds_cost_as_much_as_their_bytes():
    """A thousand full rounds run at the full GPU's rate: the shortcut over them is exact."""
    one = read_time(1e9, 132 * 2 * 2, "h200", blocks_per_sm=2, reader=DECODE_TILE)
    many = read_time(500e9, 132 * 2 * 1000, "h200", blocks_per_sm=2, reader=DECODE_TILE)
    assert many == pytest.approx(500 * one, rel=1e-6)


def test_what_a_decode_step_is_made_of():
    step = decode_time("a100", batch=2, heads_q=32, heads_kv=8, head_dim=128, seqlen_k=4096, num_splits=4)
    assert step.bytes == 2 * 2 * 8 * 4096 * 128 * 2
    assert step.time_s == pytest.approx(step.read_s + step.combine_s + step.start_s)
    assert step.bandwidth_bytes_per_s == pytest.approx(step.bytes / step.time_s)
    assert (step.blocks, step.waves) == (64, pytest.approx(64 / 108))
    assert (
        decode_time("a100", batch=2, heads_q=32, heads_kv=8, head_dim=128, seqlen_k=4096, num_splits=1).combine_s == 0
    )


def test_query_tiles_of_one_kv_head_each_read_its_keys():
    """128 query heads on one kv head are two tiles: alone as slow as one, and no faster than memory when there are many."""
    shape = dict(heads_kv=1, head_dim=128, seqlen_k=65536)
    one, two = (decode_time("h200", batch=1, heads_q=h, num_splits=1, **shape) for h in (64, 128))
    assert (one.blocks, two.blocks) == (1, 2)
    assert two.read_s == pytest.approx(one.read_s, rel=1e-3)
    assert two.bytes == one.bytes
    many = decode_time("h200", batch=512, heads_q=128, num_splits=1, **shape)
    assert many.bytes / many.read_s <= gpu("h200").hbm_bytes_per_s * DECODE_TILE.gpu_share


@pytest.mark.parametrize("heads_q, heads_kv", [(32, 8), (128, 1)])
def test_partial_results_are_written_once_and_read_once(heads_q, heads_kv):
    part = gpu("h200")
    step = decode_time(part, batch=2, heads_q=heads_q, heads_kv=heads_kv, head_dim=128, seqlen_k=8192, num_splits=4)
    partial = 2 * heads_q * 4 * (128 + 1) * 4
    assert step.combine_s * part.hbm_bytes_per_s * DECODE_TILE.gpu_share == pytest.approx(2 * partial)


def test_a_smaller_format_takes_less_time():
    shape = dict(batch=8, heads_q=32, heads_kv=8, head_dim=128, seqlen_k=65536, num_splits=2)
    assert decode_time("h200", **shape, element_bytes=1).read_s == pytest.approx(
        decode_time("h200", **shape).read_s / 2
    )


def test_a_part_of_a_byte_is_a_byte():
    shape = dict(batch=1, heads_q=1, heads_kv=1, head_dim=1, seqlen_k=3, num_splits=1)
    assert decode_time("h200", **shape, element_bytes=0.5625).bytes == 4
    assert decode_time("h200", **shape, element_bytes=1e-30).bytes == 1


def test_bad_arguments_are_named():
    shape = dict(batch=1, heads_q=32, heads_kv=8, head_dim=128, seqlen_k=1024, num_splits=1)
    for bad, words in (
        (dict(element_bytes=0), "element_bytes must be above 0"),
        (dict(element_bytes=float("nan")), "element_bytes must be above 0"),
        (dict(blocks_per_sm=0), "blocks_per_sm must be at least 1"),
        (dict(head_dim=0), "head_dim must be at least 1"),
        (dict(num_splits=1000), "num_splits must be at most the 16 tiles"),
    ):
        with pytest.raises(ValueError, match=words):
            decode_time("h200", **(shape | bad))
    with pytest.raises(ValueError, match="blocks must be at least 1"):
        read_rate(0)
    with pytest.raises(TypeError, match="element_bytes must be a number, got '2'"):
        decode_time("h200", **shape, element_bytes="2")
    with pytest.raises(ValueError, match="total_bytes must be above 0 and finite, got nan"):
        read_time(float("nan"), 1, "h200", reader=DECODE_TILE)
    with pytest.raises(ValueError, match="block_s must be above 0 and finite, got -1"):
        staircase_time(blocks=1, sms=1, block_s=-1)
