"""A small lesson that is no part of the course, for tests of the engine: ``register()`` makes it lesson 77."""

import sys
import types

import torch

from flashlab.course import lessons
from flashlab.course.spec import Case, Exercise, Lesson, Mistake, Prediction, Question, SubCheck


def spec(x, block):
    return x.cumsum(0)


def stub(x, block):
    """Sums up to each entry, one block after another. x: (n,) -> (n,)"""
    raise NotImplementedError


def solution(x, block):
    out, carried = [], torch.zeros((), dtype=x.dtype)
    for start in range(0, len(x), block):
        out.append(carried + x[start : start + block].cumsum(0))
        carried = out[-1][-1]
    return torch.cat(out)


def carry_forgotten(x, block):
    return torch.cat([x[start : start + block].cumsum(0) for start in range(0, len(x), block)])


def last_block_dropped(x, block):
    whole = len(x) // block * block
    return x[:whole].cumsum(0)


def own_entry_left_out(x, block):
    return x.cumsum(0) - x


def half_spec(x):
    return x / 2


def half_stub(x):
    """Half of every entry."""
    y = ...  # your line
    return y


def half_solution(x):
    return x / 2


def floor_half(x):
    return x // 2


def inputs(n, *more):
    x = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    return (x, *more)


def cases(*sizes):
    return lambda: [Case(f"n = {n}, block = {block}", inputs(n, block)) for n, block in sizes]


def ends_at_the_sum(fn):
    (x,) = inputs(9)
    last, total = fn(x, 4)[-1].item(), x.sum().item()
    return None if abs(last - total) < 1e-9 else f"the last entry is {last:.4f}, the sum {total:.4f}"


RUNNING = Exercise(
    id="77.running",
    title="Running sums",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=("What must one block know of those before?", "One number is enough.", "It is the last entry."),
    sub_checks=(
        SubCheck("one block is a plain sum", cases((8, 8))),
        SubCheck("several blocks", cases((8, 4), (9, 3))),
        SubCheck("length not divisible by the block", cases((7, 3))),
        SubCheck("the last entry is the sum", test=ends_at_the_sum),
    ),
    mistakes=(
        Mistake(carry_forgotten, "Every block begins at zero again.", "Where does a block learn what came before it?"),
        Mistake(last_block_dropped, "The last block is missing.", "How many blocks does the loop make?"),
        Mistake(own_entry_left_out, "Each entry leaves itself out.", "Is the sum taken before or after the entry?"),
    ),
    keep="A running sum needs one number from all that came before.",
)

HALF = Exercise(
    id="77.half",
    title="Halves",
    spec=half_spec,
    stub=half_stub,
    solution=half_solution,
    hints=("Divide.", "By two."),
    sub_checks=(SubCheck("any entries", lambda: [Case("n = 5", inputs(5))]),),
    mistakes=(Mistake(floor_half, "The fraction is lost.", "Which division is this?"),),
    keep="Half is half.",
)

LESSON = Lesson(
    number="77",
    name="77_toy",
    title="Toy",
    exercises=(RUNNING, HALF),
    predictions=(
        Prediction("77.size", "How large are 1e9 float64?", "GB", lambda: 8.0, lambda said, actual: "eight bytes each."),
        Prediction("77.blocks", "How many blocks?", "blocks", lambda: 3, lambda said, actual: "rounded up."),
    ),
    questions=(
        Question("77.q1", "Which?", "b", {"a": "this", "b": "that"}, {"a": "This is the other one."}, "lesson 76, section 2"),
        Question("77.q2", "How many?", 12),
    ),
)


def register():
    module = types.ModuleType("flashlab.course.lessons.lesson_77")
    module.LESSON = LESSON
    sys.modules[module.__name__] = module
    lessons.LESSONS = ("77_toy",)
