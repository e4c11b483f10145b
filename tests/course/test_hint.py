from flashlab.course import hint, solution, state


def test_one_more_hint_each_time(toy, capsys):
    hint("77.running")
    first = capsys.readouterr().out
    assert first == "  1. What must one block know of those before?\n  (two more steps to ask for.)\n"
    hint("77.running")
    assert "2. One number is enough.\n  (one more step to ask for.)" in capsys.readouterr().out
    for _ in range(2):
        hint("77.running")
    last = capsys.readouterr().out
    assert last.endswith('3. It is the last entry.\n  (That is all. solution("77.running") shows the answer.)\n')
    assert state.get("hints", "77.running") == 3


def test_the_report_counts_the_hints_that_are_left(toy, capsys):
    from flashlab.course import check

    def running(x, block):
        return x.cumsum(0) + 1

    hint("77.running")
    check("77.running", running)
    assert 'hint("77.running") has two more steps.' in capsys.readouterr().out
    hint("77.running"), hint("77.running")
    check("77.running", running)
    assert capsys.readouterr().out.endswith('0 of 4. solution("77.running") shows the tested answer.\n')


def test_the_solution_is_the_tested_source_under_the_readers_name(toy, capsys):
    solution("77.running")
    said = capsys.readouterr().out
    assert said.startswith("# Running sums\ndef running(x, block):\n    out, carried = [], ")
    assert state.get("solutions", "77.running") is True
