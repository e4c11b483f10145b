"""The doctor names what is broken and what to do about it."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from flashlab import doctor


def run(*arguments, before="", interpret=None):
    """The command in a process of its own, with TRITON_INTERPRET unset or as given."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if interpret is not None:
        env["TRITON_INTERPRET"] = interpret
    program = f"{before}\nfrom flashlab.cli import main\nmain(['doctor', *{list(arguments)!r}])"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)


def test_a_sound_machine_is_usable_and_every_dtype_was_computed():
    result = run("--json")
    health = json.loads(result.stdout)
    assert result.returncode == 0 and health["usable"] and not health["problems"]
    for name, tolerance in doctor.TOLERANCE.items():
        assert 0 < health["canary"][name] <= tolerance


def test_an_interpreter_that_the_environment_turned_off_is_named():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    result = run("--json", interpret="0")
    assert result.returncode == 1
    assert [("TRITON_INTERPRET=0" in p, "unset it" in p) for p in json.loads(result.stdout)["problems"]] == [(True, True)]


def test_triton_imported_first_is_named():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("with a GPU the order does not matter")
    result = run(before="import triton")
    assert result.returncode == 1
    assert "Import flashlab.kernels first" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    "error, cure",
    [
        (TypeError("only 0-dimensional arrays can be converted to Python scalars"), "numpy<2.4"),
        (RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel"), "restart Python"),
        (RuntimeError("0 active drivers ([]). There should only be one."), "unset TRITON_INTERPRET"),
        (RuntimeError("fatal error: Python.h: No such file or directory"), "python3-dev"),
        (ValueError("something new"), "constraints.txt"),
    ],
)
def test_a_kernel_that_does_not_run_is_named_with_its_cure(monkeypatch, error, cure):
    from flashlab.kernels import canary

    def broken(*_, **__):
        raise error

    monkeypatch.setattr(canary, "largest_error", broken)
    health = doctor.examine()
    assert not health.usable
    assert str(error).splitlines()[0] in health.problems[0] and cure in health.problems[0]


@pytest.mark.parametrize("wrong", [0.7, float("inf"), float("nan")])
def test_a_kernel_that_computes_wrongly_is_named(monkeypatch, wrong):
    from flashlab.kernels import canary

    right = canary.largest_error
    monkeypatch.setattr(canary, "largest_error", lambda dtype, **rest: wrong if "16" in str(dtype) else right(dtype))
    monkeypatch.setenv("TRITON_F32_DEFAULT", "tf32")
    problems = doctor.examine().problems
    assert [("float16" in p, "bfloat16" in p) for p in problems] == [(True, False), (True, True)]
    assert "Unset TRITON_F32_DEFAULT" in problems[0]


def test_missing_torch_is_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest))
    assert "torch is not installed" in doctor.examine().problems[0]


def test_the_canary_sees_a_mask_that_does_not_work(monkeypatch):
    """The padding is poisoned: a kernel that read it would give NaN, and one that wrote it is caught."""
    import torch

    from flashlab.kernels import canary

    class Lax:
        def __getitem__(self, grid):
            def launch(x, y, out, n, stride, BLOCK):
                out.copy_(torch.softmax(x[:, :stride], 1) @ y.new_ones(stride, stride))
            return launch

    monkeypatch.setattr(canary, "_canary", Lax())
    assert canary.largest_error(torch.float32) == float("inf")
