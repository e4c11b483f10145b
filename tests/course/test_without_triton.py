"""Where Triton does not exist, as on macOS: lessons 00 to 03 work, the later ones say why they do not."""

import re
import subprocess
import sys

PROGRAM = """
import importlib.abc, importlib.util, sys

class NoTriton(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split('.')[0] == 'triton':
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTriton())
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == 'triton' else find(name, *rest)

from flashlab.course import hint, lessons, progress
for number in ("00", "01", "02", "03"):
    assert lessons.lesson(number).exercises
hint("03.tile_step")
progress()
try:
    hint("04.row_sums")
except ImportError as error:
    print(error)
"""


def test_the_first_lessons_work_and_the_others_say_what_is_missing(tmp_path):
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "03 Tiled attention" in run.stdout and re.search(r"04 first triton kernel\s+needs Triton", run.stdout)
    assert "flashlab's kernels need Triton, which is not installed here" in run.stdout
