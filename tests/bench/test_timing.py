"""The order of measuring, and the arithmetic of a summary; a scripted clock stands in for the GPU."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlab.bench.timing import Plan, Runner, Samples, Timing, measure, percentile, summary


def contenders(*names):
    return {name: Runner(lambda name=name: name) for name in names}


def test_the_first_round_is_thrown_away_and_each_round_begins_with_another(bench):
    clock = bench.Clock(seconds=0.01)
    found = measure(contenders("a", "b", "c"), clock, Plan(rounds=3, round_s=0.02, least=2, most=5))
    after_heat = clock.log[clock.log.index("heat") + 1 :]
    turns = [call() for call, _ in after_heat]
    assert turns == ["a", "b", "c", "b", "c", "a", "c", "a", "b", "a", "b", "c"]
    assert [len(found[name].samples_s) for name in "abc"] == [3 * 2] * 3


def test_a_slow_start_is_no_sample():
    class Warming:
        turns = 0

        def heat(self):
            pass

        def samples(self, runner, count):
            self.turns += 1
            return Samples([1.0 if self.turns <= 3 else 0.5] * count, 0.0)

    found = measure(contenders("a"), Warming(), Plan(rounds=2))
    assert (found["a"].median_s, max(found["a"].samples_s)) == (0.5, 0.5)


@pytest.mark.parametrize("seconds, count", [(1.0, 4), (1e-3, 25), (1e-6, 30)])
def test_a_turn_lasts_about_round_s(bench, seconds, count):
    clock = bench.Clock(seconds)
    measure(contenders("a"), clock, Plan(rounds=1, round_s=0.025, least=4, most=30))
    assert clock.log[-1][1] == count


def test_one_that_raises_late_is_out_and_the_others_go_on(bench):
    calls = []

    def fails_in_the_end():
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("ran out")

    found = measure(contenders("a") | {"b": Runner(fails_in_the_end)}, bench.Clock())
    assert isinstance(found["b"], RuntimeError)
    assert isinstance(found["a"], Timing)
    assert len(calls) == 4


def test_nobody_is_an_empty_answer(bench):
    assert measure({}, bench.Clock()) == {}


@given(st.lists(st.floats(1e-9, 10), min_size=1, max_size=50))
def test_summary_is_ordered_and_within_the_samples(samples):
    found = summary(samples)
    assert min(samples) <= found.p20_s <= found.median_s * (1 + 1e-12) <= found.p80_s * (1 + 2e-12) <= max(samples) * (1 + 3e-12)
    assert found.median_s == pytest.approx(percentile(samples, 50))


def test_percentiles_are_those_of_statistics():
    samples = [float(n) for n in (5, 1, 9, 3, 7, 2)]
    tenths = statistics.quantiles(samples, n=10, method="inclusive")
    assert [percentile(samples, p) for p in (20, 80)] == pytest.approx([tenths[1], tenths[7]])


def test_no_samples_no_summary():
    with pytest.raises(ValueError, match="samples_s is empty"):
        summary([])
