import json

import pytest

from flashlab.course import check, hint, predict, progress, quiz, state


@pytest.fixture
def workbook(tmp_path, monkeypatch, toy):
    folder = tmp_path / "a b" / "workbook"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def test_answers_are_kept_in_a_folder_called_workbook(workbook):
    predict("77.size", GB=8)
    kept = json.loads((workbook / "answers.json").read_text())
    assert kept["predictions"] == {"77.size": {"points": 1.0, "said": 8.0}}
    assert [path.name for path in workbook.iterdir()] == ["answers.json"]  # nothing half-written is left


def test_answers_are_kept_where_the_variable_points(tmp_path, monkeypatch, toy):
    monkeypatch.setenv("FLASHLAB_WORKBOOK", str(tmp_path / "new"))
    hint("77.running")
    assert json.loads((tmp_path / "new" / "answers.json").read_text())["hints"] == {"77.running": 1}


def test_elsewhere_answers_stay_in_memory(tmp_path, monkeypatch, toy):
    monkeypatch.chdir(tmp_path)
    hint("77.running")
    assert list(tmp_path.iterdir()) == [] and state.get("hints", "77.running") == 1


def test_what_another_notebook_wrote_meanwhile_is_kept(workbook):
    predict("77.size", GB=8)
    other = json.loads((workbook / "answers.json").read_text())
    other["quiz"]["76.q1"] = {"right": True}
    other["later"] = {"a key": "of a newer version"}
    (workbook / "answers.json").write_text(json.dumps(other))
    predict("77.blocks", blocks=3)
    kept = json.loads((workbook / "answers.json").read_text())
    assert kept["quiz"] == {"76.q1": {"right": True}} and kept["later"] and len(kept["predictions"]) == 2


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"hints": 3}', "\0\0", '"text"'])
def test_a_broken_file_is_put_aside_and_said(workbook, capsys, broken):
    (workbook / "answers.json").write_text(broken)
    predict("77.size", GB=8)
    said = capsys.readouterr().out
    assert "could not be read" in said and "answers.broken-1.json" in said and "You are at 1 of 1 so far." in said
    assert (workbook / "answers.broken-1.json").read_text() == broken
    (workbook / "answers.json").write_text(broken)
    hint("77.running")
    assert (workbook / "answers.broken-2.json").exists()


def test_a_file_that_is_not_utf8_is_put_aside(workbook, capsys):
    (workbook / "answers.json").write_bytes(b"\xff\xfe\x00")
    hint("77.running")
    assert "could not be read" in capsys.readouterr().out and state.get("hints", "77.running") == 1


def test_a_folder_that_cannot_be_written_is_said_and_nothing_breaks(tmp_path, monkeypatch, toy, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLASHLAB_WORKBOOK", str(tmp_path / "file" / "under"))
    hint("77.running")
    said = capsys.readouterr().out
    assert "could not be kept" in said and "1. What must one block know" in said


def test_progress_is_a_table_of_what_is_done(toy, capsys):
    progress()
    assert "0 of 2" in (said := capsys.readouterr().out) and "77 Toy" in said and "running" in said
    predict("77.size", GB=5)
    quiz("77.q1", "b")
    hint("77.running")

    def running(x, block):
        return x.cumsum(0) * 1

    check("77.running", running)
    capsys.readouterr()
    progress()
    row = next(line for line in capsys.readouterr().out.splitlines() if "77 Toy" in line)
    assert row.split() == "77 Toy 1 of 2 0.5 of 1, 1 to go 1 of 2 1 half".split()
