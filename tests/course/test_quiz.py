import pytest

from flashlab.course import quiz, state


@pytest.fixture
def ask(toy, capsys):
    def make(*arguments):
        quiz(*arguments)
        return capsys.readouterr().out

    return make


def test_the_question_with_its_choices(ask):
    said = ask("77.q1")
    assert said == '77.q1  Which?\n  a) this\n  b) that\n  Answer with quiz("77.q1", "a") or another letter.\n'
    assert ask("77.q1", ...) == said
    assert ask("77.q2") == '77.q2  How many?\n  Answer with quiz("77.q2", 12.5), with your number.\n'
    assert state.read()["quiz"] == {}


@pytest.mark.parametrize("answer", ["b", "B", " b "])
def test_right(ask, answer):
    assert ask("77.q1", answer) == "77.q1  b: right.\n"
    assert state.get("quiz", "77.q1") == {"first": "b", "tries": 1, "right": True}


def test_wrong_answers_get_a_thought_and_where_to_read_and_not_the_answer(ask):
    assert ask("77.q1", "a") == "77.q1  a: not quite. This is the other one. Read again: lesson 76, section 2.\n"
    assert ask("77.q2", 13) == "77.q2  13: not quite.\n"
    ask("77.q1", "b")
    assert state.get("quiz", "77.q1") == {"first": "a", "tries": 2, "right": True}


def test_numbers_within_the_tolerance(ask):
    assert "right" in ask("77.q2", 12.2) and "right" in ask("77.q2", 12) and "not quite" in ask("77.q2", 12.3)


@pytest.mark.parametrize("answer", ["c", 1, "", True, ["b"]])
def test_no_such_letter(ask, answer):
    assert "one of the letters a, b" in ask("77.q1", answer)
    assert state.read()["quiz"] == {}


@pytest.mark.parametrize("answer", ["12", True, float("nan"), [12]])
def test_no_number(ask, answer):
    assert "number is needed" in ask("77.q2", answer)
    assert state.read()["quiz"] == {}
