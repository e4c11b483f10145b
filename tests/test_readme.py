"""What README shows runs."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_it_shows_runs():
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.S | re.M)
    assert blocks
    for block in blocks:
        program = f"{block}\nassert o.shape == (2, 1, 8, 64) and q.grad.isfinite().all() and o.isfinite().all()"
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr


def test_the_commands_it_shows_exist():
    from flashlab.cli import COMMANDS

    shown = set(re.findall(r"^    flashlab (\w+)", README, re.M))
    assert shown == set(COMMANDS)


def test_the_files_it_links_to_are_there():
    root = Path(__file__).parents[1]
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (root / link).exists(), link
