"""Which part of a tuple is wrong is said by the name that the spec gives it."""

import torch

from flashlab.course import lessons, sources
from flashlab.course.probe import probes


def test_parts_of_a_tuple_carry_the_names_of_the_spec():
    exercise = lessons.exercise("02.online_attention")
    wrong_lse = next(m.function for m in exercise.mistakes if m.function.__name__ == "lse_without_the_maximum")
    probe = probes(exercise, exercise.sub_checks[0])[0]
    text = probe.complaint(probe.run(wrong_lse)).text
    assert text.startswith(f"{probe.case.label}, lse: yours ")


def test_returned_reads_names_only_where_there_are_names():
    def named(x):
        low, high = min(x), max(x)
        return low, high

    def computed(x):
        return min(x), max(x)

    def single(x):
        return x

    assert sources.returned(named) == ["low", "high"]
    assert sources.returned(computed) == sources.returned(single) == []


def first_trial(id, function):
    exercise = lessons.exercise(id)
    probe = probes(exercise, exercise.sub_checks[0])[0]
    return probe, probe.run(function)


def test_a_result_that_went_through_float32_is_told_so():
    probe, outcome = first_trial("02.online_softmax", lambda x, block: torch.softmax(x.float(), dim=1).double())
    text, cause = probe.complaint(outcome)
    assert "nearly right: was a number rounded to float32" in text and cause == "float32"
    probe, outcome = first_trial("02.online_softmax", lambda x, block: torch.softmax(x.float(), dim=1))
    text, cause = probe.complaint(outcome)
    assert "your result is float32, spec float64 (torch.zeros" in text and cause == "float32"


def test_a_wrong_result_is_not_called_nearly_right():
    for wrong in (1e-4, 1.0):
        probe, outcome = first_trial("02.online_softmax", lambda x, block, e=wrong: torch.softmax(x, dim=1) + e)
        text, cause = probe.complaint(outcome)
        assert "nearly" not in text and cause == ""


def test_one_wrong_broadcast_is_known_whichever_factor_comes_first():
    x, y = torch.ones(2, 4), torch.ones(5)
    probe, a = first_trial("02.online_softmax", lambda *_: x * y)
    b, other = probe.run(lambda *_: y * x), probe.run(lambda *_: x * y[:3])
    assert a.error != b.error and probe.same(a, b)
    assert other.error and not probe.same(a, other)
