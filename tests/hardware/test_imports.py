"""The calculators start in milliseconds, need nothing but the standard library, and their names are functions."""

import statistics
import subprocess
import sys
import time

import pytest

PUBLIC = "GPU, gpu, occupancy, waves, roofline, link, num_splits, splits_to_fill, decode_time, underuse"


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def milliseconds(code: str) -> float:
    start = time.perf_counter()
    python(code)
    return 1e3 * (time.perf_counter() - start)


@pytest.mark.parametrize("package", ["flashlab.hardware", "flashlab.sizing"])
def test_importing_takes_under_50_ms_beyond_pythons_start(package):
    python(f"import {package}")  # byte code is written once
    extra = [milliseconds(f"import {package}") - milliseconds("pass") for _ in range(9)]
    assert statistics.median(extra) < 50, extra


def test_every_name_of_the_interface_needs_the_standard_library_alone():
    code = f"import sys; from flashlab.hardware import {PUBLIC}; gpu('h200'); print(*sys.modules)"
    loaded = {name.split(".")[0] for name in python(code).split()}
    bare = {name.split(".")[0] for name in python("import sys; print(*sys.modules)").split()}
    assert loaded - bare - set(sys.stdlib_module_names) == {"flashlab"}


@pytest.mark.parametrize("first", ["residency", "intensity", "launch", "splits", "links", "gpus", "timing"])
def test_names_are_functions_whatever_was_imported_before(first):
    code = f"import flashlab.hardware.{first}; from flashlab.hardware import occupancy, roofline, waves, link, gpu, num_splits"
    python(
        code
        + "\nassert all(type(f).__name__ == 'function' for f in (occupancy, roofline, waves, link, gpu, num_splits))"
    )


def test_the_names_on_offer_are_there_and_others_are_not():
    import flashlab.hardware as hardware

    assert all(getattr(hardware, name) is not None for name in hardware.__all__)
    assert set(hardware.__all__) <= set(dir(hardware))
    with pytest.raises(AttributeError, match="has no attribute 'gpus_of_the_future'"):
        hardware.gpus_of_the_future  # noqa: B018
