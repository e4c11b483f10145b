"""The committed notebooks are put together from the sources (their outputs: test_strict)."""

from flashlab.course import lessons, notebook


def test_every_cell_is_what_the_source_builds(name, committed):
    assert notebook.differences(notebook.assemble(name), committed, outputs=False) == []


def test_the_file_is_in_the_builders_form(name, committed):
    stored = notebook.built_path(name).read_text(encoding="utf-8")
    assert stored == notebook.text(notebook.normalised(committed))


def test_every_notebook_is_a_lesson_and_has_a_source():
    names = list(lessons.LESSONS)
    assert sorted(path.stem for path in notebook.FOLDER.glob("*.ipynb")) == names
    assert sorted(path.stem for path in (notebook.FOLDER / "source").glob("*.py")) == names
