"""The package starts at once and pulls in nothing."""

import subprocess
import sys

import pytest

from flashlab import sizing


def python(code):
    return subprocess.run([sys.executable, *code], check=True, capture_output=True, text=True)


@pytest.mark.parametrize("statement", ["import flashlab.sizing", "from flashlab.sizing import CacheSpec"])
def test_it_starts_in_under_50_ms(statement):
    """CPU time of the import alone in a fresh process, the best of seven: a busy machine must not decide."""
    code = f"import time; start = time.process_time(); {statement}; print(time.process_time() - start)"
    times = [float(python(["-c", code]).stdout) for _ in range(7)]
    assert 0 < min(times) < 0.050


def test_every_name_loads_and_nothing_outside_the_standard_library_with_it():
    code = "import sys; before = set(sys.modules); from flashlab.sizing import *; from flashlab.hardware import gpu;"
    code += "gpu('h200'); print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    loaded = set(python(["-c", code]).stdout.split())
    assert "flashlab" in loaded and loaded - {"flashlab"} <= sys.stdlib_module_names


def test_names():
    assert set(sizing.__all__) <= set(dir(sizing))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        sizing.nothing  # noqa: B018
