"""Every lesson run anew by nbval, each stored output compared with what comes out now.

Together with test_built (each source, id, tag and count is what the sources build) this holds that the committed notebooks
are what a build would write, image bytes and machine-dependent cells aside, at the price of one execution.
"""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from flashlab.course.execute import CELL_SECONDS, environment
from flashlab.course.notebook import built_path

ROOT = Path(__file__).parents[2]


def nbval(path: Path, scratch: Path) -> subprocess.CompletedProcess:
    options = ["--nbval", "--nbval-current-env", f"--nbval-cell-timeout={CELL_SECONDS}"]
    quiet = ["-q", "--color=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", *options, *quiet, str(path)]
    return subprocess.run(command, cwd=ROOT, env=environment(scratch), capture_output=True, text=True)


@pytest.mark.slow
def test_the_stored_outputs_are_what_comes_out(name, committed, tmp_path):
    done = nbval(built_path(name), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = sum(cell.cell_type == "code" for cell in committed.cells)
    assert f"{cells} passed" in done.stdout


@pytest.mark.slow
def test_an_output_that_differs_is_noticed(tmp_path):
    cell = nbformat.v4.new_code_cell("print(1)", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", text="2\n")]
    path = tmp_path / "wrong.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    done = nbval(path, tmp_path)
    assert done.returncode == 1 and "Cell outputs differ" in done.stdout, done.stdout + done.stderr
