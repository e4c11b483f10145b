"""Which part of a tuple is wrong is said by the name that the spec gives it."""

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
