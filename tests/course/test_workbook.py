import json

import nbformat
import pytest
from click.testing import CliRunner

from flashlab.course import lessons, notebook, workbook


def lesson(path, *sources):
    path.write_text(nbformat.writes(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])))


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A clone with two lessons: the folder of the notebooks, and that of the workbook."""
    folder = tmp_path / "my clone" / "notebooks"
    folder.mkdir(parents=True)
    monkeypatch.setattr(notebook, "FOLDER", folder)
    monkeypatch.setattr(lessons, "LESSONS", ("00_a", "01_b", "02_not_written_yet"))
    lesson(folder / "00_a.ipynb", "1")
    lesson(folder / "01_b.ipynb", "2")
    return folder, folder.parent / "workbook"


def test_lessons_are_copied_once(course):
    folder, mine = course
    said = workbook.fill(mine)
    assert said[0] == "Copied into workbook/: 00_a, 01_b." and "Open workbook/00_a.ipynb first" in said[1]
    assert nbformat.read(mine / "00_a.ipynb", 4) == nbformat.read(folder / "00_a.ipynb", 4)
    before = {path: path.stat().st_mtime_ns for path in mine.glob("*.ipynb")}
    (said,) = workbook.fill(mine)
    assert said.startswith("Your lessons in workbook/ are as you left them. Open")
    assert before == {path: path.stat().st_mtime_ns for path in mine.glob("*.ipynb")}


def test_what_the_reader_wrote_is_never_overwritten_and_a_newer_version_is_said(course):
    folder, mine = course
    workbook.fill(mine)
    lesson(mine / "00_a.ipynb", "my answer")
    lesson(folder / "00_a.ipynb", "1, put better")
    lesson(folder / "01_b.ipynb", "2, put better")
    for _ in range(2):
        said = workbook.fill(mine)
        assert [line.split(":")[0] for line in said[:-1]] == ["00_a", "01_b"] and "Yours is kept" in said[0]
    assert "my answer" in (mine / "00_a.ipynb").read_text()


def test_a_lesson_put_out_of_the_way_comes_anew(course):
    folder, mine = course
    workbook.fill(mine)
    lesson(folder / "00_a.ipynb", "1, put better")
    (mine / "00_a.ipynb").rename(mine / "00_a mine.ipynb")
    assert workbook.fill(mine)[0] == "Copied into workbook/: 00_a."
    assert len(workbook.fill(mine)) == 1 and "put better" in (mine / "00_a.ipynb").read_text()


def test_new_outputs_are_no_newer_version(course):
    folder, mine = course
    workbook.fill(mine)
    built = nbformat.read(folder / "00_a.ipynb", 4)
    built.cells[0].outputs = [nbformat.v4.new_output("stream", text="ran")]
    nbformat.write(built, folder / "00_a.ipynb")
    assert len(workbook.fill(mine)) == 1


def test_a_copy_shows_no_number_before_it_is_predicted(course):
    folder, mine = course
    built = nbformat.read(folder / "00_a.ipynb", 4)
    built.cells[0].outputs = [nbformat.v4.new_output("stream", text="270,336 threads")]
    built.cells[0].execution_count = 1
    nbformat.write(built, folder / "00_a.ipynb")
    workbook.fill(mine)
    (cell,) = nbformat.read(mine / "00_a.ipynb", 4).cells
    assert cell.outputs == [] and cell.execution_count is None and cell.source == "1"
    assert len(workbook.fill(mine)) == 1


@pytest.mark.parametrize("broken", ["", "[]", "{"])
def test_a_lost_record_is_begun_again(course, broken):
    folder, mine = course
    workbook.fill(mine)
    (mine / workbook.COPIED).write_text(broken)
    lesson(mine / "00_a.ipynb", "my answer")
    workbook.fill(mine)
    assert "my answer" in (mine / "00_a.ipynb").read_text()
    assert set(json.loads((mine / workbook.COPIED).read_text())) == {"00_a.ipynb", "01_b.ipynb"}


def test_without_a_clone_one_line_says_so(course, monkeypatch, tmp_path):
    monkeypatch.setattr(lessons, "LESSONS", ("07_elsewhere",))
    with pytest.raises(FileNotFoundError, match="clone of the repository"):
        workbook.fill(tmp_path / "w")


def test_the_command(course, monkeypatch):
    monkeypatch.setattr(workbook, "WORKBOOK", course[1])
    done = CliRunner().invoke(workbook.main)
    assert done.exit_code == 0 and done.output.startswith("Copied into workbook/: 00_a, 01_b.\n")
    monkeypatch.setattr(lessons, "LESSONS", ())
    done = CliRunner().invoke(workbook.main)
    assert done.exit_code == 1 and done.output.startswith("workbook: no lessons in") and done.output.count("\n") == 1
