"""The reader's copies: ``python -m flashlab.course.workbook`` puts every lesson into workbook/ and overwrites nothing.

A copy has no outputs yet, so that no number is seen before it is predicted.

``workbook/.copied.json`` holds a hash of each lesson as it was copied, so that a newer version is noticed: by its cells'
sources, since outputs change with every run.
"""

import hashlib
import json
import os
from pathlib import Path

import click
import nbformat

from flashlab.course import lessons
from flashlab.course.notebook import FOLDER, built_path

WORKBOOK = FOLDER.parent / "workbook"
COPIED = ".copied.json"


def fill(workbook: Path) -> list[str]:
    """Copy the lessons that are not in the workbook yet; what happened, one line each.

    Raises FileNotFoundError where the notebooks are not there: the course is read from a clone of the repository.
    """
    found = [path for name in lessons.LESSONS if (path := built_path(name)).exists()]
    if not found:
        raise FileNotFoundError(f"no lessons in {FOLDER}: the course needs a clone of the repository, not the installed package")
    workbook.mkdir(parents=True, exist_ok=True)
    copied = _read(workbook / COPIED)
    said, new = [], []
    for lesson in found:
        mine, version = workbook / lesson.name, _version(lesson)
        if not mine.exists():
            _copy(lesson, mine)
            copied[lesson.name] = version
            new.append(lesson.stem)
        elif copied.setdefault(lesson.name, _version(mine)) != version:
            said.append(
                f"{lesson.stem}: there is a newer version in {FOLDER.name}/. Yours is kept. To get the new one, rename "
                f"{workbook.name}/{lesson.name} and run this again."
            )
    _write(workbook / COPIED, copied)
    if new:
        said.insert(0, f"Copied into {workbook.name}/: {', '.join(new)}.")
    kept = "" if new else f"Your lessons in {workbook.name}/ are as you left them. "
    said.append(f"{kept}Open {workbook.name}/{found[0].name} first; your answers are kept in {workbook.name}/answers.json.")
    return said


def _copy(lesson: Path, mine: Path) -> None:
    """Raises ValueError where the lesson is no notebook."""
    notebook = nbformat.read(lesson, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(notebook, mine)


def _version(lesson: Path) -> str:
    """A hash of what the lesson says, outputs aside; a file that is no notebook has no version."""
    try:
        cells = json.loads(lesson.read_text(encoding="utf-8"))["cells"]
        said = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError):
        return ""
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _read(path: Path) -> dict[str, str]:
    try:
        copied = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return copied if isinstance(copied, dict) else {}


def _write(path: Path, copied: dict[str, str]) -> None:
    written = path.with_suffix(".new")
    written.write_text(json.dumps(copied, indent=1, sort_keys=True), encoding="utf-8")
    os.replace(written, path)


@click.command(help=__doc__)
def main() -> None:
    try:
        for line in fill(WORKBOOK):
            click.echo(line)
    except OSError as error:
        raise SystemExit(f"workbook: {error}") from None


if __name__ == "__main__":
    main()
