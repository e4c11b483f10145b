import math

import numpy
import pytest
import torch

from flashlab.course import predict, state, units
from flashlab.course.predict import points


@pytest.fixture
def say(toy, capsys):
    def make(id, **said):
        predict(id, **said)
        return capsys.readouterr().out

    return make


def test_a_bare_number_is_asked_for_its_unit(toy, capsys):
    predict("77.size", 8)
    assert "with its unit: predict(" in capsys.readouterr().out and state.read()["predictions"] == {}


def test_dots_print_the_question(say):
    said = say("77.size", GB=...)
    assert "How large are 1e9 float64?" in said and 'predict("77.size", GB=...)' in said
    assert state.read()["predictions"] == {}


def test_a_prediction_commits_scores_and_explains(say):
    assert say("77.size", GB=0.25) == (
        "You said 0.25 GB. Counted: 8 GB. Off by 32x: eight bytes each.\n"
        "(Scored: within 10% full, within 2x half. You are at 0 of 1 so far.)\n"
    )
    assert "Exactly: rounded up." in (said := say("77.blocks", blocks=3)) and "You are at 1 of 2 so far." in said


def test_the_first_number_counts_and_a_later_one_is_only_shown(say):
    say("77.size", GB=5)
    said = say("77.size", GB=8)
    assert said.startswith("You said 8 GB. Counted: 8 GB. Exactly:")
    said = " ".join(said.split())
    assert "Your first answer counts: 5 GB, 0.5 of 1." in said and "You are at 0.5 of 1 so far." in said
    assert state.get("predictions", "77.size") == {"said": 5.0, "points": 0.5}


@pytest.mark.parametrize(
    "said, earned",
    [(8, 1), (8.8, 1), (7.2, 1), (8.81, 0.5), (7.19, 0.5), (16, 0.5), (4, 0.5), (16.1, 0), (3.9, 0), (1e300, 0), (1e-300, 0)],
)
def test_points(said, earned):
    assert points(said, 8) == earned


REFUSED = {
    "zero": ({"GB": 0}, "larger than zero"),
    "negative": ({"GB": -2}, "larger than zero"),
    "nan": ({"GB": math.nan}, "finite"),
    "infinity": ({"GB": math.inf}, "finite"),
    "text": ({"GB": "8"}, "plain number"),
    "bool": ({"GB": True}, "plain number"),
    "None": ({"GB": None}, "plain number"),
    "complex": ({"GB": 8j}, "plain number"),
    "list": ({"GB": [8]}, "plain number"),
    "tensor of two": ({"GB": torch.ones(2)}, "plain number"),
    "wrong unit": ({"tiles": 8}, "asked for in GB"),
    "bits": ({"Gbit": 8}, "asked for in GB"),
    "wrong case": ({"gb": 8}, "asked for in GB"),
    "dots in another unit": ({"tiles": ..., "GB": ...}, "One number"),
    "two numbers": ({"GB": 8, "MB": 8}, "One number"),
    "nothing": ({}, "One number"),
}


@pytest.mark.parametrize("said, sentence", REFUSED.values(), ids=REFUSED)
def test_what_is_no_answer_is_refused_in_one_line_and_not_committed(say, said, sentence):
    out = say("77.size", **said)
    assert sentence in out and out.count("\n") == 1 and out.startswith("77.size  ")
    assert state.read()["predictions"] == {}


@pytest.mark.parametrize(
    "said", [{"MB": 8000}, {"bytes": 8e9}, {"TB": 0.008}, {"GiB": 8e9 / 2**30}, {"GB": torch.tensor(8.0)}, {"GB": numpy.int32(8)}]
)
def test_units_of_one_kind_and_scalars_of_any_library_are_understood(say, said):
    assert "You said 8 GB." in say("77.size", **said)
    assert state.get("predictions", "77.size")["points"] == 1.0


def test_one_block_is_blocks(say):
    assert "You said 3 blocks." in say("77.blocks", block=3)


def test_units_of_different_kinds_do_not_convert():
    assert units.factor("GB", "ms") is None and units.factor("GB", "GB_per_s") is None
    assert units.factor("us", "ms") == pytest.approx(1e-3) and units.factor("percent", "fraction") == 0.01
    assert units.factor("GFLOP", "TFLOP") == pytest.approx(1e-3)


def test_no_unit_stands_in_two_families():
    names = [name for family in units.FAMILIES for name in family]
    assert len(names) == len(set(names))


def test_dots_in_another_unit_of_the_kind_print_the_question(say):
    assert "How large" in say("77.size", MB=...)
