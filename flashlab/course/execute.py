"""Run a notebook headless in this very Python, the same way on any machine."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ipykernel.kernelspec
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets import default

CELL_SECONDS = 120


class _ThisPython(KernelSpecManager):
    """Whatever kernel is called python3 elsewhere on the machine, lessons run in the interpreter that builds them."""

    def get_kernel_spec(self, kernel_name):
        return self.kernel_spec_class(resource_dir=ipykernel.kernelspec.RESOURCES, **ipykernel.kernelspec.get_kernel_dict())


class _Kernel(AsyncKernelManager):
    @default("kernel_spec_manager")
    def _this_python(self):
        return _ThisPython(parent=self)


def environment(ipython_folder: str | os.PathLike) -> dict[str, str]:
    """The process environment of a kernel whose outputs are stored or compared.

    On the CPU in Triton's interpreter, one thread (sums in one order), no reader's workbook and no reader's IPython profile.
    """
    ours = ("FLASHLAB_WORKBOOK", "MPLBACKEND", "PYTHONSTARTUP", "FORCE_COLOR", "TTY_COMPATIBLE")
    inherited = {k: v for k, v in os.environ.items() if k not in ours and not k.startswith("PYTEST_")}
    return inherited | {
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": "100",
        "IPYTHONDIR": str(ipython_folder),
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "PYTHONHASHSEED": "0",
        "TRITON_INTERPRET": "1",
    }


def execute(notebook: NotebookNode, folder: Path, **variables: str) -> NotebookNode:
    """Run all cells in ``folder`` with the environment above and these variables, and return the notebook.

    Raises nbclient's CellExecutionError or CellTimeoutError for the first cell that fails or takes over two minutes.
    """
    client = NotebookClient(
        notebook,
        kernel_manager_class=_Kernel,
        kernel_name="python3",
        timeout=CELL_SECONDS,
        store_widget_state=False,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    with tempfile.TemporaryDirectory() as scratch:
        return client.execute(env=environment(scratch) | variables, stderr=subprocess.DEVNULL)
