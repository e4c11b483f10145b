import random

import pytest

from flashlab.bench import records
from flashlab.hardware import decode_grid, decode_time, gpu, num_splits, splits_to_fill, waves
from flashlab.widgets import SMGrid, style
from flashlab.widgets.sm_grid import GPUS, Launch, curve, picture

SHAPE = dict(batch=1, heads_q=32, heads_kv=8, head_dim=128, seqlen_k=131072)


def a_launch(seed):
    draw = random.Random(seed)
    heads_kv = draw.choice([1, 2, 8])
    state = dict(
        gpu=draw.choice(GPUS), batch=draw.randint(1, 300), heads_kv=heads_kv, seqlen_k=draw.randint(1, 200_000),
        heads_q=heads_kv * draw.choice([1, 3, 8, 60]), head_dim=draw.choice([64, 128]),
        blocks_per_sm=draw.randint(1, 8), pack_gqa=draw.random() < 0.7,
    )  # fmt: skip
    most = Launch(**state).most_splits
    return Launch(**state, num_splits=draw.randint(1, most))


def taken_places(scene):
    return sum(shape["codes"].count("1") for shape in scene.shapes if shape["kind"] == "cells")


@pytest.mark.parametrize("seed", range(20))
def test_every_wave_shows_its_blocks(seed):
    state = a_launch(seed)
    shape = {name: getattr(state, name) for name in ("batch", "heads_q", "heads_kv", "seqlen_k", "num_splits", "pack_gqa")}
    grid = decode_grid(**shape, block_n=64)
    filling = waves(blocks=grid.blocks, sms=gpu(state.gpu).sms, blocks_per_sm=state.blocks_per_sm)
    assert (state.grid, state.filling) == (grid, filling)
    for wave in {1, filling.rounds}:
        scene = picture(Launch(**vars(state) | {"wave": wave}))
        assert taken_places(scene) == (filling.tail if wave == filling.rounds else filling.capacity)
        cells = [shape for shape in scene.shapes if shape["kind"] == "cells"]
        assert len(cells) == state.blocks_per_sm and {len(c["codes"]) for c in cells} == {gpu(state.gpu).sms}
    assert f"= {grid.blocks:,} block" in scene.summary
    assert f"{filling.rounds:,} waves" in scene.summary or filling.rounds == 1


@pytest.mark.parametrize("seed", range(10))
def test_the_time_is_the_calculators(seed):
    state = a_launch(seed)
    predicted = decode_time(
        state.gpu, **state.shape, num_splits=state.num_splits, blocks_per_sm=state.blocks_per_sm, pack_gqa=state.pack_gqa
    )
    assert state.time() == predicted
    assert f"Predicted {style.seconds(predicted.time_s)} = read" in picture(state).summary
    points = dict(curve(state))
    assert points[state.num_splits] == predicted.time_s and len(points) == state.most_splits


def test_quantised_caches_are_read_with_their_scales():
    assert Launch(dtype="int4").time().bytes == 2 * 8 * 131072 * (64 + 4)
    assert Launch(dtype="fp8").time().bytes * 2 == Launch().time().bytes
    with pytest.raises(ValueError, match="blocks of 32 do not divide head_dim 80"):
        Launch(dtype="q8_0", head_dim=80)


def test_recorded_times_are_the_shipped_records():
    launch, decode = records.load("launch"), records.load("decode")
    points = next(c for c in launch["curves"] if c["name"] == "splits")["series"][0]["points"]
    state = Launch(num_splits=points[3]["x"])
    median = points[3]["time"]["median_s"]
    assert f"Recorded {style.seconds(median)} on H200, {launch['date'][:10]}: the prediction is" in picture(state).summary
    diamonds = [s for s in picture(state).shapes if s["kind"] == "mark" and s["shape"] == "diamond" and s["y"] < 460]
    assert len(diamonds) == len(points)
    own = next(
        entry["time"]["median_s"] for result in decode["results"] for entry in result["entries"]
        if result["case"] == dict(kind="decode", seqlen_q=1, causal=False, cache="int4", **SHAPE)
        and (entry["peer"], entry["mode"]) == ("flashlab", "eager")
    )  # fmt: skip
    said = SMGrid(dtype="int4").summary
    assert f"Recorded {style.seconds(own)} on H200" in said and "at the number of splits that flashlab's kernel chose" in said
    for other in ({"gpu": "A100"}, {"batch": 3}, {"pack_gqa": False}, {"dtype": "q8_0"}):
        assert "No run of this step is on record." in SMGrid(**other).summary


def test_the_next_cliff_and_the_two_rules():
    said = SMGrid(num_splits=8).summary
    fill, fa3 = splits_to_fill(8, 132, 2, 2048), num_splits(blocks=8, sms=132, key_blocks=2048)
    assert (fill, fa3) == (33, 15)
    assert "33 × 8 = 264 blocks still fit into one wave, 34 splits do not." in said
    assert "To fill one wave: 33 splits; FlashAttention-3's rule: 15." in said
    assert "264 blocks: one wave, and every SM of the H200 has work." in SMGrid(num_splits=33).summary
    assert "272 blocks take 2 waves; the last is 3.03% full." in SMGrid(num_splits=34).summary
    assert "are more than one wave already" in SMGrid(batch=64, heads_kv=32).summary


def test_other_fields_fall_back_to_what_is_left():
    widget = SMGrid(num_splits=128, batch=16, wave=62)
    widget.controls["seqlen_k"].value = 1024
    assert (widget.state.num_splits, widget.controls["num_splits"].max) == (16, 16)
    assert widget.state.wave == widget.state.filling.rounds == 8
    widget.controls["heads_q"].value = 4
    assert widget.state.heads_kv == 4 and [v for _, v in widget.controls["heads_kv"].options] == [1, 2, 4]
    widget.update(heads_q=12, heads_kv=6)
    assert [v for _, v in widget.controls["heads_kv"].options] == [1, 2, 3, 4, 6, 12]


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"gpu": "H9000"}, "gpu 'H9000'"),
        ({"gpu": "MI300X"}, "gpu is 'MI300X"),
        ({"batch": 0}, "batch is 0: allowed is a whole number from 1 to 4096"),
        ({"heads_kv": 5}, "heads_kv is 5: allowed is a divisor of heads_q, 32"),
        ({"num_splits": 129}, "num_splits is 129: allowed is from 1 to 128"),
        ({"num_splits": 3, "seqlen_k": 128}, "num_splits is 3: allowed is from 1 to 2"),
        ({"wave": 2}, "wave is 2: allowed is from 1 to 1"),
        ({"dtype": "int3"}, "dtype is 'int3'"),
    ],
)
def test_what_cannot_be_shown_is_named(bad, message):
    with pytest.raises(ValueError, match=message):
        SMGrid(**bad)
