"""A change is one when it is larger than the noise and the samples do not overlap."""

import copy

import pytest

from flashlab.bench import compare as module
from flashlab.bench import figures, records, timing
from flashlab.bench.compare import compare


def slowed(record, factor, spread=0.0, peer="rival"):
    """The record with a peer's samples scaled, and spread evenly around their middle."""
    after = copy.deepcopy(record)
    for entry in after["results"][0]["entries"]:
        if entry["peer"] == peer:
            middle, count = entry["time"]["median_s"] * factor, len(entry["time"]["samples_s"])
            samples = [middle * (1 + spread * (2 * i / (count - 1) - 1)) for i in range(count)]
            entry["time"] = timing.summary(samples)._asdict()
    return after


def verdicts(before, after):
    return {change.peer: change.verdict for change in compare(before, after)}


@pytest.mark.parametrize(
    "factor, spread, verdict",
    [
        (1.0, 0.0, "same"),
        (1.02, 0.0, "same"),  # apart, but within the noise
        (1.05, 0.0, "slower"),
        (0.95, 0.0, "faster"),
        (1.05, 0.2, "same"),  # more than the noise, but the samples overlap
        (0.9, 0.3, "same"),
        (1.5, 0.2, "slower"),
    ],
)
def test_the_rule(record, factor, spread, verdict):
    after = slowed(record, factor, spread)
    assert verdicts(record, after) == {"flashlab": "same", "rival": verdict}
    ratio = next(change.ratio for change in compare(record, after) if change.peer == "rival")
    assert ratio == pytest.approx(factor)


def test_turned_round_slower_is_faster(record):
    after = slowed(record, 1.2)
    assert verdicts(after, record)["rival"] == "faster"


def test_gone_and_new(record):
    after = copy.deepcopy(record)
    after["results"][0]["entries"][1].update(peer="other")
    assert verdicts(record, after) == {"flashlab": "same", "rival": "gone", "other": "new"}


@pytest.mark.parametrize("status", ["wrong", "failed", "refused", "not run"])
def test_what_is_wrong_now_is_not_merely_gone(record, status):
    after = copy.deepcopy(record)
    after["results"][0]["entries"][0].update(status=status, reason="so it is", time=None)
    records.validate(after)
    assert verdicts(record, after)["flashlab"] == ("broken" if status in ("wrong", "failed") else "gone")
    assert verdicts(after, record)["flashlab"] == "new"


def test_different_kinds_do_not_compare(record):
    with pytest.raises(ValueError, match="prefill record and a decode record"):
        compare(record, {**record, "kind": "decode"})


def test_what_else_changed_is_said(record):
    after = copy.deepcopy(record)
    after["machine"]["driver"] = "590.0"
    after["ceilings"]["read_bytes_per_s"] *= 0.9
    assert module.cautions(record, record) == []
    driver, read = module.cautions(record, after)
    assert driver == "driver was 580.1 and is 590.0"
    assert "-10.0%" in read


def test_ratios_to_the_best_rival_and_the_ceiling(bench):
    class Timed(bench.Torch):
        def prepare(self, case, inputs):
            runner = super().prepare(case, inputs)
            clock.says[runner.call] = self.seconds
            return runner

    clock = bench.Clock()
    ours, quick, slow, variant = Timed("flashlab", "ours"), Timed("quick"), Timed("slow"), Timed("variant", "variant")
    ours.seconds, quick.seconds, slow.seconds, variant.seconds = 2e-3, 1e-3, 4e-3, 1e-4
    record = bench.measured([ours, quick, slow, variant], clock=clock)
    lines = {line.peer: line for line in figures.lines(record)}
    assert lines["flashlab"].to_best_rival == pytest.approx(0.5)  # the variant is no rival
    assert lines["quick"].to_best_rival == pytest.approx(4.0)  # to the best of the others
    assert lines["flashlab"].rate == pytest.approx(bench.TINY.flop / 2e-3)
    assert lines["flashlab"].to_ceiling == pytest.approx(bench.TINY.flop / 2e-3 / bench.CEILINGS["matmul_flop_per_s"])
    assert [(mine.peer, theirs.peer) for mine, theirs in figures.beaten(record)] == [("flashlab", "quick")]
