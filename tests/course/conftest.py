import importlib.util
import os
import sys
from pathlib import Path

import pytest

from flashlab.course import lessons, state

HERE = Path(__file__).parent


@pytest.fixture
def toy(monkeypatch):
    """The lesson of toy.py in the place of the course, with nothing remembered."""
    monkeypatch.setattr(lessons, "LESSONS", lessons.LESSONS)
    monkeypatch.setitem(sys.modules, "flashlab.course.lessons.lesson_77", None)
    monkeypatch.delenv("FLASHLAB_WORKBOOK", raising=False)
    spec = importlib.util.spec_from_file_location("flashlab_toy_lesson", HERE / "toy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.register()
    state.forget()
    yield module
    state.forget()


@pytest.fixture
def written(tmp_path):
    """A maker of functions as a reader writes them: ``written(source)`` is the last function defined by the source."""

    def make(source: str, name: str = "running"):
        path = tmp_path / f"answer_{len(os.listdir(tmp_path))}.py"
        path.write_text(f"import math\nimport functools\nimport torch\n{source}\n", encoding="utf-8")
        scope: dict = {}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), scope)
        return scope[name]

    return make
