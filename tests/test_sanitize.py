"""The calls that scripts/sanitize.py makes under compute-sanitizer are calls that work, and it says when one does not."""

import importlib.util
from pathlib import Path

import pytest
from click.testing import CliRunner

SCRIPT = Path(__file__).parents[1] / "scripts" / "sanitize.py"


@pytest.fixture(scope="module")
def sanitize():
    spec = importlib.util.spec_from_file_location("sanitize", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", ["full", "causal", "window", "varlen", "decode", "queries", "paged", "append", "merge"])
def test_the_calls_work(sanitize, case):
    sanitize.CASES[case]()


def test_a_case_that_fails_fails_the_script(sanitize, monkeypatch):
    monkeypatch.setattr(sanitize, "run", lambda case, tool: (int(case == "paged"), "1 hazard"))
    result = CliRunner().invoke(sanitize.main, ["merge", "paged", "--plain"])
    assert result.exit_code == 1 and "merge      ok" in result.output and "paged      FAILED (1)  1 hazard" in result.output


def test_without_the_tool_it_says_what_to_install(sanitize, monkeypatch):
    monkeypatch.setattr(sanitize.shutil, "which", lambda name: None)
    result = CliRunner().invoke(sanitize.main, ["merge"])
    assert result.exit_code == 2 and "comes with the CUDA toolkit" in result.output
