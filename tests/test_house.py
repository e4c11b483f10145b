"""The rules of the house: who imports whom, what works without Triton, and that each fact about set-up stands once."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flashlab"

FLOORS = [
    {"hardware"},
    {"sizing"},
    {"reference"},
    {"kernels"},
    {"attention"},
    {"kvcache", "integrations", "parallel", "bench"},
    {"course", "widgets", "cli", "doctor"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
OUTSIDE = {"hardware": set(), "sizing": set(), "reference": {"torch"}, "kernels": {"torch", "triton"}, "attention": {"torch"}}
LAZY_TORCH = {"hardware"}  # gpu("live") reads the present GPU through torch, inside that call only


def imports(path):
    """(module imported, whether at the top of the file) for each import statement, those inside functions too."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from ((f"{node.module}.{alias.name}" if node.module == "flashlab" else node.module, id(node) in top)
                        for alias in node.names)


def rooms():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts != ("__init__",):
            yield path, parts[0]


def violations():
    for path, room in rooms():
        for module, at_top in imports(path):
            first, *rest = module.split(".")
            if first == "flashlab":
                target = rest[0] if rest else None
                if target in FLOOR and FLOOR[target] > FLOOR[room]:
                    yield f"{path.relative_to(ROOT)} imports {module}: {room} stands below {target}"
            elif first not in sys.stdlib_module_names and room in OUTSIDE and first not in OUTSIDE[room]:
                if not (room in LAZY_TORCH and first == "torch" and not at_top):
                    yield f"{path.relative_to(ROOT)} imports {module}: {room} allows {OUTSIDE[room] or 'the standard library'}"


def test_nothing_imports_upwards():
    assert list(violations()) == []


def test_every_room_has_a_floor():
    assert {room for _, room in rooms()} <= set(FLOOR)


def test_flashlab_imports_without_triton_and_only_calling_a_kernel_raises():
    program = """
import importlib.abc, sys
class NoTriton(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split('.')[0] == 'triton':
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoTriton())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == 'triton' else find(name, *rest)
import flashlab, flashlab.hardware, flashlab.sizing, flashlab.reference
import torch
from flashlab import flash_attn_func
q = torch.zeros(1, 4, 1, 16)
try:
    flash_attn_func(q, q, q)
except ImportError as error:
    assert 'Triton' in str(error), error
    print('said why')
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == "said why\n", result.stderr


def test_import_flashlab_is_light():
    program = "import flashlab, sys; print([m for m in ('torch', 'triton', 'numpy', 'click') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements):
    return {re.match(r"[A-Za-z0-9_.-]+", r)[0].lower() for r in requirements} - {"flashlab"}


def test_constraints_pin_everything_pyproject_asks_for():
    pinned = {line.split("==")[0].lower().replace("_", "-")
              for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    asked = names(project()["dependencies"])
    for extra in project()["optional-dependencies"].values():
        asked |= names(extra)
    assert asked <= pinned


def test_conda_gets_the_same_environment():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    assert conda == [f"python{project()['requires-python']}", "pip"]
    assert pip == {"pip": ["-c constraints.txt", "-e .[course]"]}
    assert "course" in project()["optional-dependencies"]


def test_ci_runs_the_command_the_readme_names():
    readme = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"^    make ([a-z]+)\b", readme, re.M))
    assert {"course", "test"} <= named <= targets
    assert (ROOT / ".ci/run").read_text().rstrip().endswith("make test")


@pytest.mark.parametrize("path", [p for p in subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines() if not p.endswith(".png")])
def test_no_machine_path_in_the_tree(path):
    if (ROOT / path).exists():
        assert not re.search(r"/(work|root|home/[a-z]+)/[a-z]", (ROOT / path).read_text()), path
