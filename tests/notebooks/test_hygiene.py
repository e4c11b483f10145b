"""What a stored notebook must be to render anywhere, to compare strictly, and to hold what its lesson promises."""

import ast
import re

import nbformat
import pytest

from flashlab.course import lessons, sources
from flashlab.course.notebook import IGNORED, WIDGET, built_path, ignored, source_path

MEGABYTES = 1.5
BANNED = {"Output", "interact", "interactive", "interactive_output", "clear_output", "update_display", "savefig"}
MACHINE = re.compile(r"/(?:home|root|Users|tmp|work|mnt|opt|usr)/\w|[A-Z]:\\\w|site-packages|\bat 0x[0-9a-f]{6,}")


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(cell):
    """Everything a reader reads in the cell's outputs."""
    for output in cell.outputs:
        yield output.get("text", "")
        yield from (value for kind, value in output.get("data", {}).items() if kind.startswith("text/"))


def calls(notebook, function):
    """The calls of ``function`` in the order they stand."""
    found = []
    for cell in code(notebook):
        nodes = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
        nodes.sort(key=lambda node: (node.lineno, node.col_offset))
        found += [node for node in nodes if _name(node.func) == function]
    return found


def ids(notebook, function):
    return [ast.literal_eval(call.args[0]) for call in calls(notebook, function)]


def _name(node):
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def test_every_code_cell_was_run_in_order(committed):
    assert [cell.execution_count for cell in code(committed)] == list(range(1, len(code(committed)) + 1))
    assert all(cell.source.strip() for cell in committed.cells)


def test_no_cell_uses_what_cannot_be_compared(committed):
    for cell in code(committed):
        nodes = list(ast.walk(ast.parse(cell.source)))
        imported = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert not (imported | {_name(node) for node in nodes}) & BANNED, cell.source
        assert not cell.source.rstrip().endswith(";"), cell.source


def test_no_error_warning_or_svg_is_stored(committed):
    for cell in code(committed):
        for output in cell.outputs:
            assert output.output_type != "error" and output.get("name") != "stderr", cell.source
            assert not {"image/svg+xml", WIDGET, "application/javascript"} & set(output.get("data", {})), cell.source
            assert "Traceback" not in output.get("text", ""), cell.source


def test_no_widget_state_is_stored(name):
    stored = built_path(name).read_text(encoding="utf-8")
    assert '"widgets"' not in stored and WIDGET not in stored and "model_id" not in stored


def test_nothing_stored_belongs_to_one_machine(committed):
    for cell in committed.cells:
        for said in (cell.source, *texts(cell)) if cell.cell_type == "code" else (cell.source,):
            found = MACHINE.search(said)
            assert not found, f"{found.group()} in {cell.source[:60]!r}"


def test_few_cells_are_exempt_from_comparison(committed):
    exempt = [cell for cell in code(committed) if ignored(cell)]
    assert len(exempt) <= 4, [cell.source for cell in exempt]
    tags = {tag for cell in committed.cells for tag in cell.metadata.get("tags", [])}
    assert tags <= {IGNORED}


def test_the_file_is_of_modest_size(name):
    assert built_path(name).stat().st_size < MEGABYTES * 1e6


def test_there_are_pictures(committed):
    pictures = [output for cell in code(committed) for output in cell.outputs if "image/png" in output.get("data", {})]
    assert pictures


def test_the_first_code_cell_starts_the_lesson(name, committed):
    first = code(committed)[0]
    assert ids(committed, "start") == [name[:2]] and "start(" in first.source and ignored(first)


def test_every_exercise_is_set_specified_and_checked(name, committed):
    lesson = lessons.lesson(name[:2])
    wanted = {exercise.id: exercise.name for exercise in lesson.exercises}
    checked = [(call.args[0].value, ast.unparse(call.args[1])) for call in calls(committed, "check")]
    assert set(wanted) == {id for id, _ in checked}
    assert all(checked.count(item) == 1 for item in wanted.items()), checked
    source = source_path(name).read_text(encoding="utf-8")
    for kind in ("exercise", "spec"):
        assert sorted(re.findall(rf"^# {kind}: (\S+)$", source, re.MULTILINE)) == sorted(wanted), kind
    for id, name in wanted.items():
        parts = (f"# spec: {id}\n", f"# exercise: {id}\n", f'\ncheck("{id}", {name})')
        assert list(parts) == sorted(parts, key=source.index)


def test_the_untouched_exercises_are_not_attempted(name, committed):
    for exercise in lessons.lesson(name[:2]).exercises:
        (cell,) = [cell for cell in code(committed) if cell.source == f'check("{exercise.id}", {exercise.name})']
        assert "Not attempted yet" in cell.outputs[0].text


def test_every_prediction_and_question_is_asked_once_and_left_open(name, committed):
    lesson = lessons.lesson(name[:2])
    assert sorted(ids(committed, "predict")) == sorted(prediction.id for prediction in lesson.predictions)
    assert sorted(ids(committed, "quiz")) == sorted(question.id for question in lesson.questions)
    assert all(ast.literal_eval(call.keywords[0].value) is ... for call in calls(committed, "predict"))
    assert all(len(call.args) == 1 for call in calls(committed, "quiz"))
    units = {call.args[0].value: call.keywords[0].arg for call in calls(committed, "predict")}
    assert units == {prediction.id: prediction.unit for prediction in lesson.predictions}


def test_no_solution_stands_in_the_notebook(name, committed):
    stored = [cell.source for cell in committed.cells]
    for exercise in lessons.lesson(name[:2]).exercises:
        assert not any(sources.solution(exercise) in source for source in stored), exercise.id


def test_the_detectors_detect():
    cell = nbformat.v4.new_code_cell("import ipywidgets as w\nw.Output()", execution_count=1)
    bad = nbformat.v4.new_notebook(cells=[cell])
    with pytest.raises(AssertionError):
        test_no_cell_uses_what_cannot_be_compared(bad)
    cell.source = "from IPython.display import clear_output"
    with pytest.raises(AssertionError):
        test_no_cell_uses_what_cannot_be_compared(bad)
    cell.source = "1;"
    with pytest.raises(AssertionError):
        test_no_cell_uses_what_cannot_be_compared(bad)
    cell.outputs = [nbformat.v4.new_output("stream", text="<object at 0x7f00deadbeef>")]
    with pytest.raises(AssertionError):
        test_nothing_stored_belongs_to_one_machine(bad)
    cell.outputs = [nbformat.v4.new_output("stream", name="stderr", text="UserWarning")]
    with pytest.raises(AssertionError):
        test_no_error_warning_or_svg_is_stored(bad)
    cell.execution_count = 3
    with pytest.raises(AssertionError):
        test_every_code_cell_was_run_in_order(bad)
