"""The builder on a toy lesson, run in a real kernel."""

import copy
import json
import sys
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner

from flashlab.course import build, notebook

HERE = Path(__file__).parent
SOURCE = '''# %% [markdown]
# # Toy

# %%
import os, sys, torch
sys.path.insert(0, os.environ["TOY"])
import toy
toy.register()

# %% tags=["nbval-ignore-output"]
import time
from flashlab.course import check, predict, quiz
print(time.time_ns())

# %%
predict("77.size", GB=...)

# %%
"é"; predict("77.blocks", blocks=...); print("é", quiz("77.q1"), quiz("77.q2"))

# %%
# spec: 77.running

# %%
# exercise: 77.running

# %%
check("77.running", running)

# %%
# exercise: 77.half

# %%
check("77.half", half)

# %%
import ipywidgets
print("one", flush=True); print("two", file=sys.stderr, flush=True); print("three", flush=True)
ipywidgets.IntSlider()

# %%
print(os.environ["TRITON_INTERPRET"], os.environ.get("FLASHLAB_WORKBOOK"), sys.executable == os.environ["PYTHON_OF_TEST"])
1 + 1

# %%
1 + 1

# %%
def running(x, block):
    y = x
    return y.cumsum(1)
check("77.running", running)
'''


@pytest.fixture
def source(toy, tmp_path, monkeypatch):
    """The source's path; written, it is what the builder builds."""
    monkeypatch.setattr(notebook, "FOLDER", tmp_path)
    monkeypatch.setenv("TOY", str(HERE))
    monkeypatch.setenv("PYTHON_OF_TEST", sys.executable)
    path = notebook.source_path("77_toy")
    path.parent.mkdir()
    path.write_text(SOURCE, encoding="utf-8")
    return path


@pytest.fixture
def built(source):
    build._write("77_toy", fresh=False)
    return notebook.load(notebook.built_path("77_toy"))


def cell(nb, start):
    return next(c for c in nb.cells if c.source.startswith(start))


def test_assembled_cells_hold_the_exercises_under_the_readers_name(source):
    nb = notebook.assemble("77_toy")
    assert cell(nb, "def running_spec(x, block):").source == "def running_spec(x, block):\n    return x.cumsum(0)"
    assert cell(nb, "def running(").source.endswith("    raise NotImplementedError")
    solved = notebook.assemble("77_toy", solved=True)
    assert cell(solved, "def half(").source == "def half(x):\n    return x / 2"
    assert cell(solved, "predict(").source == 'predict("77.size", GB=8.0)'
    assert 'blocks=3.0); print("é", quiz("77.q1", \'b\'), quiz("77.q2", 12))' in cell(solved, '"é"').source


def test_ids_come_from_the_content(source):
    first = notebook.assemble("77_toy")
    assert len({c.id for c in first.cells}) == len(first.cells)  # two code cells are the same but for their place
    source.write_text("# %%\nnew = 1\n\n" + SOURCE, encoding="utf-8")
    assert [c.id for c in notebook.assemble("77_toy").cells[1:]] == [c.id for c in first.cells]


def test_an_unknown_exercise_stops_the_build(source):
    source.write_text("# %%\n# exercise: 77.walking\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no exercise '77.walking'"):
        notebook.assemble("77_toy")


@pytest.mark.slow
def test_a_built_notebook_is_in_one_form_and_building_twice_gives_the_same_bytes(built):
    path = notebook.built_path("77_toy")
    before = path.read_bytes()
    nbformat.validate(built)
    assert set(built.metadata) == {"kernelspec", "language_info"} and built.metadata.language_info == {"name": "python"}
    code = [c for c in built.cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
    said = cell(built, "import ipywidgets").outputs
    assert [(out.output_type, out.get("text")) for out in said] == [
        ("stream", "one\nthree\n"),
        ("stream", "two\n"),
        ("execute_result", None),
    ]
    assert said[2].data == {"text/plain": "IntSlider(value=0)"} and said[2].execution_count == 10
    assert cell(built, "check(").outputs[0].text.startswith("77.running   your running (cell 6, line 1)\n  Not attempted")
    redefined = built.cells[-1].outputs[0].text
    assert redefined.startswith("77.running   your running (cell 13, line 1)\n") and "(cell 13, line 3)" in redefined
    assert cell(built, "print(os.environ").outputs[0].text == "1 None True\n"
    assert json.loads(before.decode()) and before.endswith(b"}\n")
    build._write("77_toy", fresh=False)
    assert path.read_bytes() == before
    build._write("77_toy", fresh=True)
    assert path.read_bytes() != before  # the clock in the cell whose output is ignored


def test_what_is_not_what_the_source_builds_is_named(source):
    built = notebook.normalised(notebook.assemble("77_toy"))
    cell(built, "check(").outputs = [nbformat.v4.new_output("stream", text="same\nreport\n")]
    cell(built, "import time").outputs = [nbformat.v4.new_output("stream", text="a clock")]
    assert notebook.differences(built, copy.deepcopy(built)) == []
    for change, sentence in {
        "source": "source differs",
        "text": "outputs differ: 'report!' instead of 'report'",
        "count": "outputs differ",
        "tag": "metadata differs",
        "less": "cells instead of",
        "kernel": "metadata: ",
    }.items():
        other = copy.deepcopy(built)
        if change == "source":
            other.cells[0].source += " and more"
        elif change == "text":
            cell(other, "check(").outputs[0].text = "same\nreport!\n"
        elif change == "count":
            cell(other, "check(").outputs.clear()
        elif change == "tag":
            other.cells[3].metadata["tags"] = ["nbval-ignore-output"]
        elif change == "less":
            other.cells.pop()
        else:
            other.metadata["kernelspec"]["name"] = "mine"
        assert any(sentence in line for line in notebook.differences(built, other)), change
    other = copy.deepcopy(built)
    cell(other, "import time").outputs[0].text = "another clock"
    assert notebook.differences(built, other) == []


@pytest.mark.slow
def test_the_solved_lesson_passes_everything(source):
    assert build.solve("77_toy") == []
    source.write_text(SOURCE.replace('check("77.half", half)', "").replace('quiz("77.q2")', ""), encoding="utf-8")
    assert build.solve("77_toy") == ["checks: 77.half is missing", "quiz: 77.q2 is missing"]


@pytest.mark.slow
def test_a_cell_that_fails_stops_the_build_and_leaves_the_notebook_alone(source, capsys):
    source.write_text("# %%\n1 / 0\n", encoding="utf-8")
    with pytest.raises(SystemExit) as left:
        build.main(["77"])
    assert left.value.code == 1 and "ZeroDivisionError" in capsys.readouterr().out
    assert not notebook.built_path("77_toy").exists()


def test_an_unknown_lesson_is_a_usage_error(source):
    done = CliRunner().invoke(build.main, ["99"])
    assert done.exit_code == 2 and "99: the lessons are 77_toy" in done.output
