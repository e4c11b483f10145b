"""The first cell of a lesson: a known seed, the backend chosen before Triton loads, and a canary kernel that really ran."""

import torch

from flashlab.course import lessons, state
from flashlab.course.report import say
from flashlab.doctor import examine


def start(number: str) -> None:
    """Make the notebook of lesson ``number`` ready and say on what it runs. Problems are named, with what to do."""
    lesson = lessons.lesson(number)
    torch.manual_seed(0)
    health = examine()
    versions = ", ".join(f"{name} {version}" for name, version in health.versions.items())
    say(f"Lesson {lesson.number}, {lesson.title}. Kernels run on: {health.device} ({versions}).", later=2)
    for line in (*health.problems, *health.notes):
        say(line, 2)
    home = state.folder()
    print(f"  Your answers are kept in {home.name}/answers.json." if home else
          "  Your answers are not kept: open the lesson from workbook/ (make course) to keep them.")
