"""The lessons in order, each loaded when it is first asked for."""

import difflib
import importlib

from flashlab.course.spec import Exercise, Lesson, Prediction, Question

LESSONS = (
    "00_start_here",
    "01_naive_attention",
    "02_online_softmax",
    "03_tiled_attention",
    "04_first_triton_kernel",
    "05_flash_attention_2",
    "06_backward_pass",
    "07_measure",
    "08_decoding_underfills_the_gpu",
    "09_split_kv_decoding",
)


def lesson(number: str) -> Lesson:
    """The lesson ``"02"``. Raises ValueError where there is none."""
    known = [name.split("_", 1)[0] for name in LESSONS]
    if number not in known:
        raise ValueError(f"there is no lesson {number!r}; the lessons are {', '.join(known)}")
    return importlib.import_module(f"flashlab.course.lessons.lesson_{number}").LESSON


def exercise(id: str) -> Exercise:
    """The exercise ``"02.online_softmax"``. Raises ValueError where there is none."""
    return _find("exercise", id, lambda lesson: lesson.exercises)


def prediction(id: str) -> Prediction:
    """The prediction ``"03.k_bytes"``. Raises ValueError where there is none."""
    return _find("prediction", id, lambda lesson: lesson.predictions)


def question(id: str) -> Question:
    """The quiz question ``"03.q1"``. Raises ValueError where there is none."""
    return _find("question", id, lambda lesson: lesson.questions)


def _find(kind: str, id: str, items):
    if not isinstance(id, str) or "." not in id:
        raise ValueError(f"{kind} {id!r}: an id looks like '02.name'")
    known = {item.id: item for item in items(lesson(id.split(".", 1)[0]))}
    if id not in known:
        near = difflib.get_close_matches(id, known, n=1) or list(known)
        raise ValueError(f"there is no {kind} {id!r}; did you mean {' or '.join(map(repr, near)) or 'another lesson'}?")
    return known[id]
