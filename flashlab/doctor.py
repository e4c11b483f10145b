"""What this machine has, and whether Triton really computes on it: versions, GPU or interpreter, and a canary."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass, field

PACKAGES = ("torch", "triton", "numpy", "jupyterlab", "ipywidgets", "matplotlib")
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


@dataclass
class Health:
    """The doctor's findings. ``usable`` says whether kernels can be trusted here."""

    versions: dict[str, str]
    device: str = "none"  # "NVIDIA H200, compute capability 9.0", or "CPU (Triton's interpreter)"
    canary: dict[str, float] = field(default_factory=dict)  # dtype -> largest error against float64
    problems: list[str] = field(default_factory=list)  # each with what to do; any makes the machine unusable
    notes: list[str] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        return not self.problems


def examine() -> Health:
    """Look at versions and hardware and run the canary in float32, float16 and bfloat16. Never raises."""
    health = Health({"python": platform.python_version(), **_versions()})
    if importlib.util.find_spec("torch") is None:
        health.problems.append("torch is not installed. pip install 'flashlab[course]', or make course in the clone.")
        return health
    try:
        from flashlab.kernels import backend
    except (ImportError, RuntimeError) as error:
        health.problems.append(str(error))
        return health
    except Exception as error:  # a broken torch or triton fails in its own ways
        health.problems.append(f"importing torch or triton failed: {type(error).__name__}: {error}. Reinstall both.")
        return health
    _device(health, backend)
    if _runs_nowhere(backend):
        health.problems.append(
            f"TRITON_INTERPRET={os.environ['TRITON_INTERPRET']} turns Triton's interpreter off, and there is no GPU here: "
            "unset it and restart Python."
        )
    else:
        _canary(health, backend)
    return health


def _runs_nowhere(backend) -> bool:
    import torch

    return not torch.cuda.is_available() and not backend.interpreting()


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _device(health: Health, backend) -> None:
    import torch

    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        health.device = f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}"
        if backend.interpreting():
            health.notes.append("TRITON_INTERPRET is set, so kernels run in the interpreter although there is a GPU.")
            health.device = "CPU (Triton's interpreter)"
    else:
        health.device = "CPU (Triton's interpreter)"
        if _nvidia_smi_sees_a_gpu():
            cuda = torch.version.cuda
            why = "this torch is a CPU build" if cuda is None else f"torch (CUDA {cuda}) cannot use its driver"
            health.notes.append(f"nvidia-smi sees a GPU but torch does not: {why}. make clean, then make course.")
    if backend.interpreting():
        health.notes.append("The interpreter shows neither races nor speed: those need a GPU.")


def _nvidia_smi_sees_a_gpu() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return listing.stdout.startswith("GPU")


def _canary(health: Health, backend) -> None:
    import torch

    try:
        from flashlab.kernels.canary import largest_error

        for name, tolerance in TOLERANCE.items():
            if name == "bfloat16" and not backend.interpreting() and torch.cuda.get_device_capability() < (8, 0):
                health.notes.append("This GPU has no bfloat16; use float16.")
                continue
            error = health.canary[name] = largest_error(getattr(torch, name))
            if not error <= tolerance:
                health.problems.append(
                    f"a small Triton kernel gives wrong {name} results here (error {error:.2g}, allowed {tolerance:g}). "
                    f"{_what_to_do(health, '')}"
                )
        if backend.interpreting():
            error = largest_error(torch.bfloat16, widen=False)
            verdict = "is wrong" if error > TOLERANCE["bfloat16"] else "is right in this Triton"
            health.notes.append(
                f"The interpreter's own bfloat16 {verdict} (error {error:.1e}); flashlab's launchers widen it to float32."
            )
    except Exception as error:  # whatever Triton raises, the reader needs the cure and not a traceback
        health.problems.append(
            f"a small Triton kernel does not run: {type(error).__name__}: {_first_line(error)}. "
            f"{_what_to_do(health, str(error))}"
        )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def _what_to_do(health: Health, message: str) -> str:
    triton, numpy = health.versions["triton"], health.versions["numpy"]
    if "0-dimensional" in message or "only length-1 arrays" in message:
        return f"Triton {triton} does not work with numpy {numpy}: pip install 'numpy<2.4', or a newer triton."
    if "outside of the scope of a kernel" in message:
        return "TRITON_INTERPRET changed after triton was imported: restart Python and import flashlab.kernels first."
    if "active drivers" in message:
        return "Triton found no GPU driver and its interpreter is off: unset TRITON_INTERPRET and restart Python."
    if "Python.h" in message or "gcc" in message or "C compiler" in message:
        return "Triton builds a small C launcher: install a C compiler and Python's headers (gcc, python3-dev)."
    flags = sorted(name for name in os.environ if name.startswith("TRITON_") and name != "TRITON_INTERPRET")
    unset = f" Unset {', '.join(flags)}." if flags else ""
    return f"Use the versions in constraints.txt (make clean, then make course).{unset}"
