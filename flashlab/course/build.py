"""Build the notebooks: ``python -m flashlab.course.build [02 03 ...] [--check | --solved] [--fresh]``.

notebooks/source/NN_name.py is put together with the exercises' stubs, run, brought to one form and written to
notebooks/NN_name.ipynb. Building twice gives the same bytes.
"""

import json
import tempfile
import time
from pathlib import Path

import click
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode

from flashlab.course import lessons
from flashlab.course.execute import CELL_SECONDS, execute
from flashlab.course.notebook import assemble, built_path, differences, load, normalised, source_path, text

SECONDS = 60  # what a lesson may take on a CPU


def build(name: str, fresh: bool = False) -> NotebookNode:
    """The executed notebook of a lesson. ``fresh`` renews the outputs of cells tagged nbval-ignore-output as well."""
    before = None if fresh else load(built_path(name))
    return normalised(execute(assemble(name), built_path(name).parent), before)


def solve(name: str) -> list[str]:
    """Run a lesson with every stub solved and every question answered; what is not right then, one line each."""
    lesson = lessons.lesson(name.split("_", 1)[0])
    with tempfile.TemporaryDirectory() as workbook:
        execute(assemble(name, solved=True), built_path(name).parent, FLASHLAB_WORKBOOK=workbook)
        answers = Path(workbook) / "answers.json"
        kept = json.loads(answers.read_text(encoding="utf-8")) if answers.exists() else {}

    def shortfall(kind: str, items, right) -> list[str]:
        entries = kept.get(kind, {})
        return [f"{kind}: {i.id} is {entries.get(i.id, 'missing')}" for i in items if not right(entries.get(i.id, {}))]

    return [
        *shortfall("checks", lesson.exercises, lambda entry: entry.get("done")),
        *shortfall("predictions", lesson.predictions, lambda entry: entry.get("points") == 1.0),
        *shortfall("quiz", lesson.questions, lambda entry: entry.get("right")),
    ]


@click.command(help=__doc__)
@click.argument("chosen", nargs=-1, metavar="[NN ...]")
@click.option("--check", is_flag=True, help="Compare with the committed notebooks; write nothing.")
@click.option("--solved", is_flag=True, help="Run with every stub solved and every question answered; write nothing.")
@click.option("--fresh", is_flag=True, help="Renew the outputs of machine-dependent cells too.")
def main(chosen: tuple[str, ...], check: bool, solved: bool, fresh: bool) -> None:
    failed = False
    for name in _names(chosen):
        began = time.monotonic()
        try:
            problems = solve(name) if solved else _check(name) if check else _write(name, fresh)
        except CellTimeoutError:
            problems = [f"a cell took more than {CELL_SECONDS} s"]
        except CellExecutionError as error:
            problems = [str(error)]
        seconds = time.monotonic() - began
        slow = f" (more than {SECONDS} s)" if seconds > SECONDS else ""
        click.echo(f"{name}: {'; '.join(problems) or 'ok'}, {seconds:.0f} s{slow}")
        failed = failed or bool(problems)
    raise SystemExit(1 if failed else 0)


def _names(chosen: tuple[str, ...]) -> list[str]:
    known = [name for name in lessons.LESSONS if source_path(name).exists()]
    unknown = [word for word in chosen if not any(name == word or name.split("_")[0] == word for name in known)]
    if unknown:
        raise click.UsageError(f"{', '.join(unknown)}: the lessons are {', '.join(known)}")
    return [name for name in known if not chosen or name in chosen or name.split("_")[0] in chosen]


def _write(name: str, fresh: bool) -> list[str]:
    built_path(name).write_text(text(build(name, fresh)), encoding="utf-8")
    return []


def _check(name: str) -> list[str]:
    committed = load(built_path(name))
    return ["not built yet"] if committed is None else differences(build(name), committed)


if __name__ == "__main__":
    main()
