import itertools

import pytest

from flashlab.reference import traffic
from flashlab.widgets import TileWalk, style
from flashlab.widgets.tile_walk import ORDERS, Walk, picture, record

SHAPE = {"seqlen_q": 100, "seqlen_k": 150, "head_dim": 8, "block_m": 16, "block_n": 32}


def cells(scene, fill):
    return sum(s["kind"] == "rect" and s["fill"] == fill and s["width"] > 12 and s["x"] < 560 for s in scene.shapes)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("causal", [False, True])
def test_the_picture_shows_the_record_of_the_loops(order, causal):
    first = Walk(order=order, causal=causal, **SHAPE)
    hbm = record(first)
    options = {"num_splits": 4} if order == "split_kv" else {}
    whole = getattr(traffic, order)(100, 150, 8, 16, 32, *options.values(), causal=causal)
    own, loads = 150 * 8 * 2, sum(access.kind == "k" for access in hbm.accesses)
    times = f"{style.number(whole.reads['k'] / own)} × {style.size(own)} = {style.size(whole.reads['k'])}"
    assert f"In all, {loads} loads of a tile of K: {times}." in picture(first).summary
    assert hbm.traffic() == whole
    assert len(hbm.visits) == (35 if not causal else 29)
    for step in range(first.steps + 1):
        scene = picture(Walk(step=step, order=order, causal=causal, **SHAPE))
        assert cells(scene, style.NOW) == sum(visit.step == step - 1 for visit in hbm.visits)
        assert cells(scene, style.DONE) == sum(visit.step < step - 1 for visit in hbm.visits)
        assert cells(scene, style.FAINT) == 35 - len(hbm.visits)
        assert f"{style.size(hbm.traffic(step).total)} of {style.size(whole.total)} moved" in scene.summary


def test_the_three_orders_in_words():
    say = {order: TileWalk(order=order, step=2).summary for order in ORDERS}
    assert "FlashAttention-1, step 2 of 64: 1 program at work, on a pair of tiles." in say["flash_attention_1"]
    assert "FlashAttention-2, step 2 of 9: 8 programs at work, on a pair of tiles each." in say["flash_attention_2"]
    assert "split-KV, step 2 of 4: 32 programs at work" in say["split_kv"]
    assert "split-KV: 32 programs, 64 pairs of tiles in 4 steps." in TileWalk(order="split_kv").summary
    assert "the last programs write their partial results" in TileWalk(order="split_kv", step=3).summary
    assert "a second launch merges 4 partials" in TileWalk(order="split_kv", step=4).summary
    assert "the last programs write O and lse" in TileWalk(step=9).summary
    assert "28 of 64 pairs of tiles are masked whole, and skipped" in TileWalk(causal=True).summary


def test_no_step_is_wordless_for_any_small_shape():
    for order, causal, sq, splits in itertools.product(ORDERS, (False, True), (1, 40, 90), (1, 3, 7)):
        state = Walk(order=order, causal=causal, num_splits=splits, seqlen_q=sq, seqlen_k=64, block_m=16, block_n=16)
        summaries = {picture(Walk(**{**vars(state), "step": step})).summary for step in range(state.steps + 1)}
        assert len(summaries) == state.steps + 1


def test_controls_follow_the_state():
    walk = TileWalk(step=9)
    assert walk.controls["num_splits"].disabled
    walk.controls["order"].value = "split_kv"
    assert (walk.state.step, walk.controls["step"].max, walk.controls["num_splits"].disabled) == (4, 4, False)
    walk.controls["causal"].value = True
    walk.controls["num_splits"].value = 8
    assert (walk.state.causal, walk.state.num_splits, walk.state.steps) == (True, 8, 3)


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"order": "flash"}, "order is 'flash': allowed is flash_attention_1, flash_attention_2, split_kv"),
        ({"seqlen_q": 2048}, "seqlen_q is 2048: allowed is at most 16 tiles of block_m, 64"),
        ({"seqlen_k": 4096}, "at most 32 tiles of block_n, 64"),
        ({"block_m": 0}, "block_m is 0"),
        ({"num_splits": 2.5}, "num_splits is 2.5"),
        ({"num_splits": 33}, "num_splits is 33"),
        ({"head_dim": 512}, "head_dim is 512"),
        ({"block_n": 10**9, "seqlen_k": 10**9}, "block_n is 1000000000: allowed is from 1 to 128"),
        ({"step": 10}, "step is 10: allowed is from 0 to 9"),
    ],
)
def test_what_cannot_be_shown_is_named(bad, message):
    with pytest.raises(ValueError, match=message):
        TileWalk(**bad)
