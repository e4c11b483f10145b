"""Every lesson's exercises, predictions and questions, held to what the course promises of each."""

import ast
import importlib
import inspect
import math
import os
import pkgutil
import subprocess
import sys

import pytest

from flashlab.course import lessons, notebook, quiz, sources, state
from flashlab.course.grade import grade
from flashlab.course.probe import probes
from flashlab.course.trial import attempt, duplicate

ALL = [lessons.lesson(name.split("_", 1)[0]) for name in lessons.LESSONS]
EXERCISES = [exercise for lesson in ALL for exercise in lesson.exercises]
MISTAKES = [(exercise, mistake) for exercise in EXERCISES for mistake in exercise.mistakes]
PREDICTIONS = [prediction for lesson in ALL for prediction in lesson.predictions]
QUESTIONS = [question for lesson in ALL for question in lesson.questions]

each_lesson = pytest.mark.parametrize("lesson", ALL, ids=lambda lesson: lesson.number)
each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
each_prediction = pytest.mark.parametrize("prediction", PREDICTIONS, ids=lambda prediction: prediction.id)
each_question = pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)


@pytest.fixture
def shown(tmp_path):
    """What the notebook shows of a function, run as the reader runs it: after the lesson's imports, in a file of its own."""

    def run(exercise, source):
        path = tmp_path / f"{exercise.name}.py"
        path.write_text(f"{_imports(exercise)}\n\n{source}\n", encoding="utf-8")
        scope: dict = {}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), scope)
        return scope[exercise.name]

    return run


def _imports(exercise) -> str:
    """``import math, torch`` and what the lesson's first code cell with imports says."""
    name = lessons.lesson(exercise.id.split(".")[0]).name
    cells = notebook.assemble(name).cells if notebook.source_path(name).exists() else []
    for cell in cells:
        tree = ast.parse(cell.source) if cell.cell_type == "code" else ast.Module([], [])
        found = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        if found:
            return "import math, torch\n" + "\n".join(map(ast.unparse, found))
    return "import math, torch"


def as_reader(exercise, function):
    """The function as if the reader had written it."""

    def answer(*args):
        return function(*args)

    answer.__name__ = exercise.name
    return answer


def test_the_registry_holds_the_lessons_that_are_there():
    assert [lesson.name for lesson in ALL] == list(lessons.LESSONS) == sorted(lessons.LESSONS)
    package = importlib.import_module("flashlab.course.lessons")
    folders = {m.name for m in pkgutil.iter_modules(package.__path__) if m.name.startswith("lesson_")}
    assert folders == {f"lesson_{lesson.number}" for lesson in ALL}


@each_lesson
def test_a_lesson_has_enough_to_do(lesson):
    assert len(lesson.exercises) >= 3 and len(lesson.predictions) >= 3 and len(lesson.questions) == 2
    ids = [item.id for item in (*lesson.exercises, *lesson.predictions, *lesson.questions)]
    assert len(set(ids)) == len(ids) and all(id.startswith(f"{lesson.number}.") for id in ids)
    assert lesson.name.startswith(f"{lesson.number}_") and lesson.title


@each_lesson
def test_the_first_cell_turns_the_interpreter_on_by_itself(lesson):
    """In a fresh Python, where nothing has set TRITON_INTERPRET: an import that loads triton too early would be seen here."""
    pytest.importorskip("triton")
    cell = next(cell for cell in notebook.assemble(lesson.name).cells if cell.cell_type == "code")
    env = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "FLASHLAB_WORKBOOK")}
    command = [sys.executable, "-c", cell.source]
    ran = subprocess.run(command, env=env | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=120)
    assert "Kernels run on: CPU" in ran.stdout, ran.stdout + ran.stderr


@each_exercise
def test_an_exercise_is_complete(exercise):
    assert len(exercise.hints) >= 2 and len(exercise.mistakes) >= 3 and len(exercise.sub_checks) >= 2
    assert exercise.name.isidentifier() and exercise.title and exercise.keep.endswith(".")
    names = [sub.name for sub in exercise.sub_checks]
    assert len(set(names)) == len(names)
    diagnoses = [mistake.diagnosis for mistake in exercise.mistakes]
    assert len(set(diagnoses)) == len(diagnoses) and all(mistake.look_at for mistake in exercise.mistakes)


@each_exercise
def test_all_its_functions_take_the_same_arguments(exercise):
    functions = (exercise.spec, exercise.stub, exercise.solution, *(mistake.function for mistake in exercise.mistakes))
    assert len({tuple(inspect.signature(function).parameters) for function in functions}) == 1


@each_exercise
def test_the_spec_is_short(exercise):
    (definition,) = ast.parse(sources.spec(exercise)).body
    body = definition.body[1:] if ast.get_docstring(definition) else definition.body
    assert 1 <= body[-1].end_lineno - body[0].lineno + 1 <= 8


@each_exercise
def test_the_stub_is_not_attempted(exercise, shown):
    report = grade(exercise, shown(exercise, sources.stub(exercise)))
    assert report.ended.startswith("Not attempted yet") and not report.lines and not report.done


@each_exercise
def test_the_solution_passes(exercise, shown):
    report = grade(exercise, shown(exercise, sources.solution(exercise)))
    assert report.done and not report.remarks and not report.ended, report
    assert report.name == exercise.name and report.place.startswith(f"{exercise.name}.py:")


@pytest.mark.parametrize("exercise, mistake", MISTAKES, ids=[f"{e.id}-{m.function.__name__}" for e, m in MISTAKES])
def test_a_mistake_fails_with_its_own_diagnosis(exercise, mistake):
    report = grade(exercise, as_reader(exercise, mistake.function))
    assert not report.done, "this mistake passes"
    assert [line.notes for line in report.lines if line.notes] == [(mistake.diagnosis, mistake.look_at)]
    assert all(line.ok or line.notes or line.same_cause for line in report.lines)


def nothing(*args):
    return None


def broken(*args):
    raise ValueError("nothing comes out")


def echo(*args):
    return args[0]


@each_exercise
def test_no_sub_check_passes_a_useless_answer(exercise):
    for useless in (nothing, broken):
        assert grade(exercise, as_reader(exercise, useless)).passed == 0
    assert not grade(exercise, as_reader(exercise, echo)).done


@each_exercise
def test_the_shipped_functions_are_not_graded(exercise):
    for function in (exercise.spec, exercise.solution, *(mistake.function for mistake in exercise.mistakes)):
        report = grade(exercise, function)
        assert report.ended.startswith("Not graded") and "belongs to flashlab" in report.ended


@each_exercise
def test_cases_are_the_same_each_time_and_the_solution_leaves_them_alone(exercise):
    for sub in exercise.sub_checks:
        for once, again in zip(probes(exercise, sub), probes(exercise, sub), strict=True):
            if not hasattr(once, "case"):
                continue
            twin = duplicate(once.case.args)
            assert once.case.label == again.case.label
            assert again.same(again.expected, attempt(exercise.spec, twin))
            assert once.complaint(once.run(exercise.solution)) is None


@each_prediction
def test_a_prediction_can_be_made(prediction):
    actual = float(prediction.answer())
    assert math.isfinite(actual) and actual > 0 and actual == float(prediction.answer())
    assert prediction.unit.isidentifier() and prediction.question and prediction.source
    for said in (actual, actual / 3, actual * 3, actual * 1e6):
        explained = prediction.explain(said, actual)
        assert isinstance(explained, str) and explained.strip().endswith((".", "?", ")"))
        assert not explained.startswith("Off by")


@each_question
def test_a_question_is_answered_without_being_told(question, capsys, monkeypatch):
    monkeypatch.delenv("FLASHLAB_WORKBOOK", raising=False)
    assert question.text and question.where
    if question.choices:
        wrong = [letter for letter in question.choices if letter != question.answer]
        assert question.answer in question.choices and len(wrong) >= 2 and set(wrong) <= set(question.feedback)
    else:
        wrong = [question.answer * 1.5, -question.answer]
    for answer in wrong:
        quiz(question.id, answer)
        said = " ".join(capsys.readouterr().out.split())
        assert "not quite" in said and question.where in said
        assert question.choices.get(question.answer, f" {question.answer} ") not in said
    quiz(question.id, question.answer)
    assert "right." in capsys.readouterr().out
    state.forget()
