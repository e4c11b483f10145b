"""A lesson's notebook as data: put together from its source, brought to one form, and compared."""

import ast
import hashlib
import re
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

import flashlab
from flashlab.course import lessons, sources

FOLDER = Path(flashlab.__file__).parents[1] / "notebooks"
IGNORED = "nbval-ignore-output"  # the tag of cells whose output differs from machine to machine
WIDGET = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_PLACED = re.compile(r"#\s*(exercise|spec):\s*(\S+)\s*")


def source_path(name: str) -> Path:
    """What one edits: ``notebooks/source/02_online_softmax.py``."""
    return FOLDER / "source" / f"{name}.py"


def built_path(name: str) -> Path:
    """What readers open: ``notebooks/02_online_softmax.ipynb``."""
    return FOLDER / f"{name}.ipynb"


def assemble(name: str, solved: bool = False) -> NotebookNode:
    """The notebook of a lesson, not run yet: its source with specs and stubs put in by id.

    ``solved`` puts in the solutions instead of the stubs, and the right answer into each predict() and quiz().
    """
    read = jupytext.read(source_path(name), fmt="py:percent")
    seen: Counter = Counter()
    cells = []
    for cell in read.cells:
        text = cell.source
        if cell.cell_type == "code":
            text = _placed(text, solved)
            text = _answered(text) if solved else text
        seen[text] += 1
        made = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
        tags = cell.metadata.get("tags")
        cells.append(made(text, id=_id(cell.cell_type, text, seen[text]), metadata={"tags": tags} if tags else {}))
    return nbformat.v4.new_notebook(cells=cells, metadata=METADATA)


def normalised(notebook: NotebookNode, before: NotebookNode | None = None) -> NotebookNode:
    """The executed notebook with nothing left in it that a second run would write differently.

    Streams are joined, widget views (which point into a kernel that is gone) and timings dropped, counts run from 1. A cell
    tagged nbval-ignore-output keeps the output it has in ``before``.
    """
    kept = {cell.id: cell for cell in before.cells if ignored(cell)} if before else {}
    cells, count = [], 0
    for cell in notebook.cells:
        tags = cell.metadata.get("tags")
        metadata = {"tags": tags} if tags else {}
        if cell.cell_type != "code":
            cells.append(nbformat.v4.new_markdown_cell(cell.source, id=cell.id, metadata=metadata))
            continue
        count += 1
        outputs = kept[cell.id].outputs if cell.id in kept else cell.outputs
        cells.append(
            nbformat.v4.new_code_cell(
                cell.source,
                id=cell.id,
                metadata=metadata,
                execution_count=count,
                outputs=[_output(output, count) for output in _joined(outputs)],
            )
        )
    return nbformat.v4.new_notebook(cells=cells, metadata=METADATA)


def text(notebook: NotebookNode) -> str:
    """The file's content."""
    return nbformat.writes(notebook, version=4, indent=1, ensure_ascii=False).rstrip("\n") + "\n"


def load(path: Path) -> NotebookNode | None:
    """The notebook at ``path``, or None where there is none."""
    return nbformat.read(path, as_version=4) if path.exists() else None


def ignored(cell: NotebookNode) -> bool:
    """Whether the cell's output may differ from machine to machine."""
    return IGNORED in cell.metadata.get("tags", [])


def differences(built: NotebookNode, committed: NotebookNode, outputs: bool = True) -> list[str]:
    """What differs in words, one line each: every source, id, tag and count, and with ``outputs`` all but image bytes."""
    found = []
    if built.metadata != committed.metadata:
        found.append(f"metadata: {dict(committed.metadata)} instead of {dict(built.metadata)}")
    if len(built.cells) != len(committed.cells):
        found.append(f"{len(committed.cells)} cells instead of {len(built.cells)}")
    for number, (new, old) in enumerate(zip(built.cells, committed.cells, strict=False)):
        first = (new.source.splitlines() or [""])[0]
        for part in ("cell_type", "source", "id", "metadata"):
            if new[part] != old[part]:
                found.append(f"cell {number} ({first}): {part} differs")
        if outputs and new.cell_type == old.cell_type == "code" and not ignored(new) and _seen(new) != _seen(old):
            lines = zip_longest(_lines(old), _lines(new), fillvalue="(nothing)")
            was, now = next((pair for pair in lines if pair[0] != pair[1]), ("", ""))
            found.append(f"cell {number} ({first}): outputs differ: {was!r} instead of {now!r}")
    return found


def _seen(cell: NotebookNode) -> list:
    """The outputs as they are compared: image bytes depend on the font library and are left out."""
    blank = {"image/png": "(image)", "image/jpeg": "(image)"}
    return [
        {**out, "metadata": {}, "data": {key: blank.get(key, value) for key, value in out.data.items()}}
        if "data" in out
        else dict(out)
        for out in cell.outputs
    ]


def _lines(cell: NotebookNode) -> list[str]:
    parts = [out["text"] if "text" in out else str(out) for out in _seen(cell)]
    return "\n".join(parts).splitlines()


def _placed(source: str, solved: bool) -> str:
    match = _PLACED.fullmatch(source.strip())
    if match is None:
        return source
    kind, id = match.groups()
    exercise = lessons.exercise(id)
    if kind == "spec":
        return sources.spec(exercise)
    return sources.solution(exercise) if solved else sources.stub(exercise)


def _answered(source: str) -> str:
    """The cell with each ``predict(id, unit=...)`` and each ``quiz(id)`` given its right answer."""
    if "predict(" not in source and "quiz(" not in source:
        return source
    raw = source.encode()
    starts = [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    edits = []
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or not call.args:
            continue
        if call.func.id == "predict":
            blank = call.keywords[0].value
            answer = repr(float(lessons.prediction(ast.literal_eval(call.args[0])).answer()))
            edits.append((starts[blank.lineno - 1] + blank.col_offset, blank.end_col_offset - blank.col_offset, answer))
        elif call.func.id == "quiz" and len(call.args) == 1:
            id = call.args[0]
            answer = f", {lessons.question(ast.literal_eval(id)).answer!r}"
            edits.append((starts[id.end_lineno - 1] + id.end_col_offset, 0, answer))
    for start, length, answer in sorted(edits, reverse=True):
        raw = raw[:start] + answer.encode() + raw[start + length :]
    return raw.decode()


def _id(kind: str, source: str, occurrence: int) -> str:
    return hashlib.sha256(f"{kind}\n{occurrence}\n{source}".encode()).hexdigest()[:12]


def _joined(outputs: list) -> list:
    """Outputs with the text of one stream in one piece, where it first appeared: how it was cut depends on timing."""
    joined, streams = [], {}
    for output in outputs:
        if output.output_type == "stream":
            if output.name in streams:
                streams[output.name].text += output.text
                continue
            output = streams[output.name] = NotebookNode(output)
        joined.append(output)
    return joined


def _output(output: NotebookNode, count: int) -> NotebookNode:
    output = NotebookNode(output)
    if output.output_type == "execute_result":
        output.execution_count = count
    if "data" in output:
        output.data = NotebookNode({key: value for key, value in output.data.items() if key != WIDGET})
    return output
