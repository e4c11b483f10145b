"""Answers as readers write them, the hostile ones too: each is graded, none is passed by accident, none raises."""

import textwrap

import pytest

from flashlab.course import check, state, trial
from flashlab.course.grade import grade
from flashlab.course.spec import Mistake

RIGHT = """
def running(x, block):
    out, carried = [], torch.zeros((), dtype=x.dtype)
    for start in range(0, len(x), block):
        out.append(carried + x[start : start + block].cumsum(0))
        carried = out[-1][-1]
    return torch.cat(out)
"""
CARRY_FORGOTTEN = """
def running(x, block):
    return torch.cat([part.cumsum(0) for part in x.split(block)])
"""


@pytest.fixture
def report(toy, written, capsys, monkeypatch):
    """The printed report on a source."""
    monkeypatch.setattr("flashlab.course.grade.LIMIT_S", 0.3)

    def make(source, id="77.running", name=None):
        check(id, written(source, name or id.split(".")[1]) if isinstance(source, str) else source)
        return capsys.readouterr().out

    return make


def test_a_right_answer_ends_with_the_sentence_worth_keeping(report):
    assert report(RIGHT) == textwrap.dedent("""\
        77.running   your running (answer_0.py:5)
          ok    one block is a plain sum
          ok    several blocks
          ok    length not divisible by the block
          ok    the last entry is the sum
          4 of 4. A running sum needs one number from all that came before.
        """)
    assert state.get("checks", "77.running") == {"passed": 4, "of": 4, "done": True}


def test_a_known_mistake_is_named_once_with_the_first_difference_and_where_to_look(report):
    said = report(CARRY_FORGOTTEN)
    lines = said.splitlines()
    assert lines[0] == "77.running   your running (answer_0.py:5)"
    assert lines[1] == "  ok    one block is a plain sum"
    assert lines[2].startswith("  FAIL  several blocks: n = 8, block = 4, entry 4: yours ")
    assert lines[3:] == [
        "        Every block begins at zero again.",
        "        Where does a block learn what came before it?",
        "  FAIL  length not divisible by the block (same cause)",
        "  FAIL  the last entry is the sum (same cause)",
        '  1 of 4. hint("77.running") has three more steps.',
    ]
    assert state.get("checks", "77.running") == {"passed": 1, "of": 4, "done": False}


def test_two_mistakes_at_once_are_both_named(report):
    said = report("""
def running(x, block):
    if block == 3 and len(x) == 7:
        return x[:6].cumsum(0)
    return torch.cat([part.cumsum(0) for part in x.split(block)])
""")
    assert "Every block begins at zero again." in said
    assert "length not divisible by the block: n = 7, block = 3: your result has shape (6,), spec (7,)" in said
    assert "The last block is missing." in said


def test_an_unknown_mistake_gets_the_difference_and_one_general_line(report):
    said = report("def running(x, block): return x.cumsum(0) + 1")
    assert said.count("No mistake we know gives this.") == 1
    assert said.count("FAIL") == 4 and "same cause" not in said


def test_a_mistake_that_fits_one_case_by_chance_is_not_blamed(report):
    said = report("""
def running(x, block):
    if len(x) == 8:
        return torch.cat([part.cumsum(0) for part in x.split(block)])
    return x.cumsum(0) + 1
""")
    assert "Every block begins at zero again." not in said and said.count("No mistake we know gives this.") == 1


def test_of_two_mistakes_that_explain_as_much_the_one_right_where_the_reader_is_right_is_named(toy):
    from dataclasses import replace

    def wrong_when_ragged(x, block):
        return x.cumsum(0) + (len(x) % block != 0)

    def wrong_always(x, block):
        return x.cumsum(0) + 1

    mistakes = [Mistake(fn, fn.__name__, "?") for fn in (wrong_always, wrong_when_ragged)]
    for order in (mistakes, mistakes[::-1]):
        exercise = replace(toy.RUNNING, sub_checks=toy.RUNNING.sub_checks[:3], mistakes=tuple(order))
        for mistake in mistakes:
            notes = [line.notes[0] for line in grade(exercise, mistake.function).lines if line.notes]
            assert notes == [mistake.diagnosis]


def test_the_best_score_is_kept(report):
    report(RIGHT)
    report(CARRY_FORGOTTEN)
    assert state.get("checks", "77.running")["done"]


NOT_ATTEMPTED = {
    "the stub": 'def running(x, block):\n    """Sums up to each entry."""\n    raise NotImplementedError',
    "comments only": "def running(x, block):\n    # I shall think\n    raise NotImplementedError",
    "another message": "def running(x, block): raise NotImplementedError('later')",
    "dots": "def running(x, block): ...",
    "returned dots": "def running(x, block): return ...",
    "begun, then given up": "def running(x, block):\n    y = x + 1\n    raise NotImplementedError",
}


@pytest.mark.parametrize("source", NOT_ATTEMPTED.values(), ids=NOT_ATTEMPTED)
def test_not_attempted(report, source):
    said = report(source)
    assert "Not attempted yet: four checks to pass." in said and "FAIL" not in said and "ok" not in said
    assert state.get("checks", "77.running") is None


def test_a_line_still_to_be_filled_in_is_pointed_at(report):
    said = " ".join(report("\ndef half(x):\n    x = x + 0\n    y = ...\n    return y * 2", "77.half").split())
    assert "Not attempted yet: one check to pass." in said and "still stands at answer_0.py:7" in said


def test_dots_in_an_index_are_no_placeholder(report):
    assert "1 of 1." in report("def half(x): return x[..., :] / 2", "77.half")


def test_an_exercise_whose_answer_is_its_spec_accepts_it(report):
    assert "1 of 1. Half is half." in report("def half(x): return x / 2", "77.half")


HOSTILE = {
    "returns None": ("def running(x, block): x.cumsum(0)", "yours is None (is a return missing?)"),
    "endless loop": ("def running(x, block):\n    while True: pass", "did not finish within 0.3 s"),
    "endless loop that swallows exceptions": (
        "def running(x, block):\n    while True:\n        try: [].pop()\n        except Exception: pass",
        "did not finish within 0.3 s",
    ),
    "endless recursion": ("def running(x, block): return running(x, block)", "RecursionError"),
    "NaN": ("def running(x, block): return x.cumsum(0) * math.nan", "entry 0: yours nan, spec "),
    "wrong dtype": ("def running(x, block): return x.cumsum(0).float()", "your result is float32, spec float64"),
    "wrong shape": ("def running(x, block): return x.cumsum(0)[:, None]", "your result has shape (8, 1), spec (8,)"),
    "a list": ("def running(x, block): return x.cumsum(0).tolist()", "yours is a list of 8, spec a float64 tensor"),
    "numpy": ("def running(x, block): return x.cumsum(0).numpy()", "yours is a ndarray, spec a float64 tensor"),
    "a tuple": ("def running(x, block): return x.cumsum(0),", "yours is a tuple of 1, spec a float64 tensor"),
    "raises": ("def running(x, block):\n    y = x\n    return y / 0 + z", "NameError: name 'z' is not defined (answer_0.py:6)"),
    "raises in a helper": (
        "def helper(x):\n    return x[99]\ndef running(x, block):\n    return helper(x)",
        "IndexError: index 99 is out of bounds for dimension 0 with size 8 (answer_0.py:5)",
    ),
    "leaves": ("def running(x, block): raise SystemExit(0)", "SystemExit: 0 (answer_0.py:4)"),
    "too few arguments": ("def running(x): return x", "takes 1 positional argument but 2 were given"),
    "no arguments": ("def running(): return 1", "takes 0 positional arguments but 2 were given"),
    "asserts": ("def running(x, block):\n    assert False", "AssertionError (answer_0.py:5)"),
    "a lambda": ("running = lambda x, block: x.cumsum(0) + 1", "your <lambda> (answer_0.py:4)"),
    "a class": (
        "class running:\n    def __init__(self, x, block): self.x = x",
        "You passed the class running: the exercise asks for a function.",
    ),
    "a generator": ("def running(x, block):\n    yield x", "yours is a generator, spec a float64 tensor"),
    "a coroutine": ("async def running(x, block): return x", "yours is a coroutine, spec a float64 tensor"),
    "mutation": (
        "def running(x, block):\n    for i in range(1, len(x)): x[i] += x[i - 1]\n    return x",
        "the result is right, but your function changed its argument x in place: work on a copy",
    ),
    "mutation of a view": (
        "def running(x, block):\n    out = x.cumsum(0)\n    x[:] = 0\n    return out",
        "your function changed its argument x in place",
    ),
}


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("source, sentence", HOSTILE.values(), ids=HOSTILE)
def test_hostile_answers_fail_and_are_told_what_they_did(report, source, sentence):
    said = report(source)
    assert sentence in " ".join(said.split())
    assert "FAIL" in said and "A running sum needs" not in said
    assert "Traceback" not in said and "flashlab" not in said
    assert not state.get("checks", "77.running")["done"]


def test_one_cause_is_told_once(report):
    said = report("def running(x, block): return None")
    assert said.count("return missing") == 1 and said.count("(same cause)") == 3


def test_an_exception_in_one_case_only_leaves_the_others_right(report):
    said = report(RIGHT.replace("    out, carried", "    assert len(x) % block == 0, 'whole blocks only'\n    out, carried"))
    assert "FAIL  length not divisible by the block: n = 7, block = 3: AssertionError: whole blocks only" in said
    assert said.count("  ok  ") == 2  # the last property has a ragged length as well


def test_what_the_function_prints_is_counted_and_not_shown(report):
    said = report(RIGHT.replace("    return", "    print('here')\n    return"))
    assert "here\n" not in said and "printed five lines, not shown here" in said and "4 of 4." in said


def test_decorated_answers_are_graded_at_their_own_place(report):
    decorated = """
def quiet(fn):
    @functools.wraps(fn)
    def wrapper(*args): return fn(*args)
    return wrapper
@quiet""" + RIGHT.rstrip()
    said = report(decorated)
    assert "4 of 4." in said and said.startswith("77.running   your running (answer_0.py:9)")


def test_lambdas_partials_and_callable_objects_can_be_right(report):
    assert "4 of 4." in report("running = lambda x, block: x.cumsum(0) * 1")
    assert "4 of 4." in report("def f(k, x, block): return x.cumsum(0) * k\nrunning = functools.partial(f, 1)")
    source = "class Sum:\n    def __call__(self, x, block): return x.cumsum(0) * 1\nrunning = Sum()"
    assert "4 of 4." in report(source)


def test_a_function_under_another_name_is_graded_and_its_name_is_said(report):
    said = report(RIGHT.replace("def running", "def mine"), name="mine")
    assert said.startswith("77.running   your mine (") and "called mine; the exercise asks for running." in said


def refused(report, fn):
    said = report(fn)
    assert "Not graded: " in said and "ok" not in said.split() and "FAIL" not in said
    assert state.get("checks", "77.running") is None
    return said


def test_other_peoples_functions_are_not_graded(report, toy, written):
    import json

    import torch

    from flashlab.reference import naive

    functions = [fn for fn in vars(naive).values() if getattr(fn, "__module__", "") == naive.__name__]
    assert "belongs to flashlab" in refused(report, functions[0])
    assert "not a function written in Python" in refused(report, torch.cumsum)
    assert "written by somebody else" in refused(report, torch.nn.functional.softmax)
    assert "written by somebody else" in refused(report, json.dumps)
    assert 'check("77.half", half)' in refused(report, written("def half(x): return x", "half"))


def test_the_shipped_solution_is_not_graded(toy, monkeypatch):
    from flashlab.course import author

    monkeypatch.setattr(author, "_OURS", toy.__file__)
    report = grade(toy.RUNNING, toy.solution)
    assert report.ended.startswith("Not graded: solution belongs to flashlab") and not report.lines


def test_the_spec_is_not_an_answer(report):
    assert "this is the spec" in refused(report, "def running(x, block):\n    return x.cumsum(0)")
    calls = "def running_spec(x, block): return x.cumsum(0)\ndef running(x, block): return running_spec(x, block)"
    assert "this is the spec, or calls it" in refused(report, calls)


def test_a_value_is_not_a_function(report):
    assert 'this is the int 3: pass the function itself, check("77.running", running)' in refused(report, 3)
    assert "this is None" in refused(report, None)


def test_an_unknown_exercise_names_the_near_ones(toy):
    with pytest.raises(ValueError, match="did you mean '77.running'"):
        check("77.runing", lambda x: x)


def test_a_sub_check_without_a_case_is_an_error(toy):
    from dataclasses import replace

    empty = replace(toy.RUNNING, sub_checks=(replace(toy.RUNNING.sub_checks[0], cases=lambda: []),))
    with pytest.raises(ValueError, match="there is no case"):
        grade(empty, lambda x, block: x)


def test_a_stub_handed_over_as_it_is_shipped_is_not_attempted(toy):
    assert grade(toy.RUNNING, toy.stub).ended.startswith("Not attempted yet")


def test_the_time_limit_leaves_earlier_alarms_alone():
    import signal

    before = signal.getsignal(signal.SIGALRM)
    assert trial.attempt(lambda: 1, (), 5).value == 1
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_another_thread_is_graded_without_a_time_limit(toy, written):
    import threading

    found = []
    fn = written(RIGHT)
    thread = threading.Thread(target=lambda: found.append(grade(toy.RUNNING, fn)))
    thread.start()
    thread.join()
    assert found[0].done
