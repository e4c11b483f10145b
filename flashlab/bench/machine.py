"""Where and with what a record was made: GPU, driver, clocks, power, versions, commit."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

import flashlab

MEASURED = ("flashlab/kernels", "flashlab/attention", "flashlab/bench")  # the code whose speed a record tells

STATE = {
    "sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "power_w": "power.draw", "temperature_c": "temperature.gpu",
}  # fmt: skip


def describe() -> dict:
    """The present CUDA GPU and the software on it, as schema.json's ``machine`` without ``under_load``."""
    import torch

    part = torch.cuda.get_device_properties()
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return {
        "gpu": part.name,
        "compute_capability": f"{part.major}.{part.minor}",
        "sms": part.multi_processor_count,
        "memory_mib": part.total_memory // 2**20,
        "driver": _ask("driver_version"),
        "cuda": torch.version.cuda,
        "cudnn": None if cudnn is None else str(cudnn),
        "torch": torch.__version__,
        "triton": installed("triton") or "not installed",
        "python": platform.python_version(),
        "power_limit_w": _number(_ask("power.limit")),
        "at_rest": state(),
    }


def state() -> dict:
    """Clocks, power and temperature now; None where they cannot be read."""
    answer = (_ask(",".join(STATE.values())) or "").split(",")
    return dict(zip(STATE, (_number(text) for text in answer), strict=True)) if len(answer) == len(STATE) else dict.fromkeys(STATE)


def package() -> dict:
    """flashlab's version, and the commit it was run from: the clone's, or FLASHLAB_COMMIT's for a copy without git.

    A ``+`` after the commit says that files of MEASURED differed from it.
    """
    root = Path(flashlab.__file__).parents[1]
    commit = _run("git", "-C", str(root), "rev-parse", "--short=12", "HEAD")
    if commit:
        changed = bool(_run("git", "-C", str(root), "status", "--porcelain", "--", *MEASURED))
    else:
        told = os.environ.get("FLASHLAB_COMMIT", "")
        commit, changed = told.rstrip("+") or None, told.endswith("+") if told else None
    return {"version": flashlab.__version__, "commit": commit, "changed": changed}


def installed(distribution: str) -> str | None:
    """The version of a package; None where it is absent."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def _which() -> str:
    """How nvidia-smi knows torch's current GPU, whatever CUDA_VISIBLE_DEVICES made of the numbering."""
    import torch

    uuid = str(getattr(torch.cuda.get_device_properties(), "uuid", "0"))
    return uuid if uuid == "0" or uuid.startswith("GPU-") else f"GPU-{uuid}"


def _ask(field: str) -> str | None:
    query = "nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", "-i"
    answer = _run(*query, _which()) or _run(*query, "0")
    return answer.splitlines()[0].strip() if answer else None


def _number(text: str | None) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _run(*command: str) -> str | None:
    """What a command prints; None where it does not exist or fails."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return done.stdout.strip() if done.returncode == 0 else None
