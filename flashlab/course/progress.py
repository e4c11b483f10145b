"""What is done, over all lessons."""

import sys

from rich.console import Console
from rich.table import Table

from flashlab.course import lessons, state
from flashlab.course.spec import Lesson


def progress() -> None:
    """Print a table of the lessons: exercises passed, points of the predictions, quiz questions right, hints taken."""
    kept = state.read()
    table = Table(title="Your way through the course", title_justify="left", box=None, pad_edge=False)
    for column in ("lesson", "exercises", "predictions", "quiz", "hints", "next"):
        table.add_column(column)
    for name in lessons.LESSONS:
        number = name.split("_", 1)[0]
        try:
            row = _row(lessons.lesson(number), kept)
        except ImportError:  # its exercises are kernels, and there is no Triton here
            row = (f"{number} {name.removeprefix(number).replace('_', ' ').strip()}", "needs Triton", "", "", "", "")
        table.add_row(*row)
    Console(file=sys.stdout, width=110, force_jupyter=False, force_terminal=False, highlight=False).print(table)
    if state.folder() is None:
        print("Kept in memory only: lessons opened from workbook/ keep their answers (make course).")


def _row(lesson: Lesson, kept: dict[str, dict]) -> tuple[str, ...]:
    done = [e for e in lesson.exercises if kept["checks"].get(e.id, {}).get("done")]
    said = [kept["predictions"][p.id] for p in lesson.predictions if p.id in kept["predictions"]]
    right = [q for q in lesson.questions if kept["quiz"].get(q.id, {}).get("right")]
    hints = sum(kept["hints"].get(e.id, 0) for e in lesson.exercises)
    shown = sum(e.id in kept["solutions"] for e in lesson.exercises)
    points = f"{sum(entry['points'] for entry in said):g} of {len(said)}" if said else ""
    to_go = f"{len(lesson.predictions) - len(said)} to go" if len(said) < len(lesson.predictions) else ""
    return (
        f"{lesson.number} {lesson.title}",
        f"{len(done)} of {len(lesson.exercises)}",
        ", ".join(filter(None, (points, to_go))),
        f"{len(right)} of {len(lesson.questions)}",
        f"{hints}" + (f", {shown} solved for you" if shown else ""),
        next((e.name for e in lesson.exercises if e not in done), "done"),
    )
