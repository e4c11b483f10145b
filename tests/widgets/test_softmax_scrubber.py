import math
import random

import pytest
import torch

from flashlab.reference.algebra import Partial
from flashlab.widgets import SoftmaxScrubber
from flashlab.widgets.softmax_scrubber import SCORES, Scrub, answers, moments, picture


def row(n):
    return tuple(random.uniform(-4, 4) for _ in range(n)), tuple(random.uniform(-2, 2) for _ in range(n))


@pytest.mark.parametrize("n", [2, 5, 16, 31, 32])
def test_each_moment_is_attention_over_the_keys_so_far(n):
    scores, values = row(n)
    block_n = random.randint(1, n)
    found = moments(scores, values, block_n)
    assert (found[0].m, found[0].l, found[0].acc) == (-math.inf, 0, 0)
    for t, moment in enumerate(found[1:], start=1):
        seen = min(t * block_n, n)
        s, v = (torch.tensor(x[:seen], dtype=torch.float64) for x in (scores, values))
        whole = Partial.of(s, v[:, None])
        assert moment.m == max(scores[:seen])
        assert moment.m + math.log(moment.l) == pytest.approx(whole.lse.item(), abs=1e-12)
        assert moment.acc / moment.l == pytest.approx(whole.out.item(), abs=1e-12)
        before = found[t - 1].m
        assert moment.rescale == pytest.approx(math.exp(before - moment.m) if t > 1 else 0.0)


def test_the_last_step_is_softmax():
    scores, values = row(13)
    ours, whole = answers(Scrub(scores=scores, values=values, block_n=4))
    assert ours == pytest.approx(whole, abs=1e-12)
    weighted = sum(math.exp(s) * v for s, v in zip(scores, values, strict=True))
    assert whole == pytest.approx(weighted / sum(map(math.exp, scores)))
    summary = SoftmaxScrubber(scores=scores, values=values, step=5).summary
    assert "Divide once" in summary and "the same, to 12 digits" in summary


def test_the_words_say_whether_the_maximum_grew():
    scrub = {"scores": (1.0, 0.0, 3.0, 0.0, 2.0, 1.0), "values": (1.0,) * 6, "block_n": 2}
    say = [SoftmaxScrubber(**scrub, step=step).summary for step in range(5)]
    assert "Nothing seen yet. 6 scores, in 3 tiles of 2. m = −∞, l = 0, acc = 0." in say[0]
    assert "the first maximum" in say[1] and "m = 1, l = 1.37, acc = 1.37" in say[1]
    assert "grows by 2, so what came before shrinks to 0.135 of itself" in say[2]
    assert "the maximum stands" in say[3] and "m = 3" in say[3]
    assert "out = acc / l = 1" in say[4]


@pytest.mark.parametrize("step", range(6))
def test_the_weights_that_are_drawn_sum_to_l(step):
    state = Scrub(step=step)
    taken = min(step, state.tiles)
    bars = [s for s in picture(state).shapes if s["kind"] == "rect" and s["fill"] and s["y"] + s["height"] == 446]
    assert len(bars) == 4 * taken
    expected = moments(state.scores, state.values, 4)[taken].l
    assert sum(bar["height"] for bar in bars) / 116 == pytest.approx(expected, abs=2e-3)


def test_a_coarser_cut_brings_the_step_back_to_the_end():
    widget = SoftmaxScrubber(block_n=2, step=9)
    widget.controls["block_n"].value = 8
    assert (widget.state.step, widget.state.steps, widget.controls["step"].max) == (3, 3, 3)
    widget.update(block_n=1)
    assert (widget.state.step, widget.controls["step"].max, widget.controls["block_n"].value) == (3, 17, 1)


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"scores": (1.0,)}, "scores is"),
        ({"scores": (1.0, math.nan)}, "scores is"),
        ({"scores": (1.0, 51.0)}, "numbers from -50 to 50"),
        ({"values": (1.0, 2.0)}, "one number a score, 16"),
        ({"values": (math.inf,) * 16}, "finite numbers"),
        ({"block_n": 0}, "block_n is 0: allowed is from 1 to 16"),
        ({"step": -1}, "step is -1: allowed is from 0 to 5"),
    ],
)
def test_what_cannot_be_shown_is_named(bad, message):
    with pytest.raises(ValueError, match=message):
        SoftmaxScrubber(**bad)


def test_a_row_is_a_choice_of_scores():
    rising, falling = Scrub(row="rising"), Scrub(row="largest first")
    assert rising.scores == tuple(sorted(Scrub().scores)) and falling.scores == rising.scores[::-1]
    assert [moment.rescale < 1 for moment in moments(rising.scores, rising.values, 4)[2:]] == [True] * 3
    assert [moment.rescale < 1 for moment in moments(falling.scores, falling.values, 4)[2:]] == [False] * 3
    widget = SoftmaxScrubber(step=2)
    widget.controls["row"].value = "largest first"
    assert widget.state.scores == falling.scores and "the maximum stands" in widget.summary
    widget.update(scores=(1.0, 2.0, 3.0), values=(1.0, 1.0, 1.0), block_n=2)
    assert widget.state.row == widget.controls["row"].value == "your own"
    assert widget.controls["block_n"].max == 3
    widget.controls["row"].value = "rising"
    widget.controls["row"].value = "your own"
    assert widget.state.row == widget.controls["row"].value == "rising"
    with pytest.raises(ValueError, match="row is 'falling': allowed is as they come, rising"):
        Scrub(row="falling")


def test_scores_bring_their_own_length_and_name():
    widget = SoftmaxScrubber(row="rising", step=5)
    widget.update(scores=SCORES)  # not "rising" again
    assert (widget.state.scores, widget.state.row) == (SCORES, "as they come")
    widget.update(scores=(1.0, 2.0, 3.0))
    assert (len(widget.state.values), widget.state.block_n, widget.state.step, widget.state.row) == (3, 3, 2, "your own")
    with pytest.raises(ValueError, match="block_n is 9: allowed is from 1 to 3"):
        widget.update(block_n=9)
