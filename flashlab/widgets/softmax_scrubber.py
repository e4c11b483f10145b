"""The softmax scrubber: one row of scores taken in tile by tile, and what happens to m, l and acc on the way.

Every number comes from flashlab.reference.online. Step 0 has seen nothing, step t has taken in t tiles, and the last
step divides: out = acc / l, held against softmax over the whole row.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from flashlab.reference import online
from flashlab.widgets import plot, style
from flashlab.widgets.controls import menu, slider
from flashlab.widgets.explorable import Explorable
from flashlab.widgets.scene import Scene
from flashlab.widgets.state import Stepped, require
from flashlab.widgets.style import number

SCORES = (0.5, 1.2, -0.3, 0.8, 0.1, 2.4, 1.0, -0.6, 1.9, 0.3, -1.0, 1.4, 0.7, 3.1, 2.2, -0.2)
VALUES = (1.0, 2.0, -1.0, 0.5, 3.0, 1.5, -2.0, 0.0, 1.0, -0.5, 2.0, 1.0, -1.0, 2.5, 0.5, 1.0)
ROWS = {"as they come": SCORES, "rising": tuple(sorted(SCORES)), "largest first": tuple(sorted(SCORES, reverse=True))}
OWN = "your own"
LONGEST = 32


@dataclass(frozen=True)
class Scrub(Stepped):
    """State: scores and values, one number a key, 2 to 32 of them; keys to a tile; tiles taken in.

    row names the scores: one of ROWS in place of scores, or "your own".
    """

    scores: tuple[float, ...] = SCORES
    values: tuple[float, ...] = ()  # a choice of its own unless given
    block_n: int = 4
    row: str = "as they come"

    def __post_init__(self):
        super().__post_init__()
        require(self.row in (*ROWS, OWN), "row", self.row, ", ".join((*ROWS, OWN)))
        scores = ROWS.get(self.row, self.scores) if self.scores == SCORES else self.scores
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "row", next((name for name, known in ROWS.items() if known == scores), OWN))
        n = len(self.scores)
        object.__setattr__(self, "values", self.values or (VALUES * 2)[:n])
        require(2 <= n <= LONGEST, "scores", self.scores, f"2 to {LONGEST} numbers")
        require(all(-50 <= s <= 50 for s in self.scores), "scores", self.scores, "numbers from -50 to 50")
        require(len(self.values) == n, "values", self.values, f"one number a score, {n}")
        require(all(abs(v) < 1e6 for v in self.values), "values", self.values, "finite numbers below a million")
        require(1 <= self.block_n <= n, "block_n", self.block_n, f"from 1 to {n}")
        self.check_step()

    @classmethod
    def settle(cls, fields, asked):
        """A row brings its scores, scores their own name; values, keys to a tile and step fall back to what there is of them."""
        before, fields = len(fields["values"]), dict(fields)
        if "scores" in asked and "row" not in asked:
            fields["row"] = OWN
        elif "row" in asked and "scores" not in asked:
            fields["scores"] = ROWS.get(fields["row"], fields["scores"])
        n = len(fields["scores"])
        if "values" not in asked and n != before:
            fields["values"] = ()
        if "block_n" not in asked:
            fields["block_n"] = max(1, min(fields["block_n"], n))
        return super().settle(fields, asked)

    @property
    def tiles(self) -> int:
        return -(-len(self.scores) // self.block_n)

    @property
    def steps(self) -> int:
        return self.tiles + 1

    def tile(self, t: int) -> range:
        """The keys of tile t."""
        return range(len(self.scores))[t * self.block_n : (t + 1) * self.block_n]


@dataclass(frozen=True)
class Moment:
    """The running state after some tiles, as Python numbers: m, l, acc, and the rescale that the last tile caused."""

    m: float
    l: float
    acc: float
    rescale: float


@lru_cache(maxsize=64)
def moments(scores: tuple[float, ...], values: tuple[float, ...], block_n: int) -> tuple[Moment, ...]:
    """One Moment before the first tile and one after each."""
    s, v = torch.tensor([scores], dtype=torch.float64), torch.tensor(values, dtype=torch.float64)[:, None]
    state = online.start(1, 1)
    found = [Moment(float(state.m), 0.0, 0.0, 1.0)]
    for b_s, b_v in zip(s.split(block_n, dim=1), v.split(block_n), strict=True):
        before, state = state, online.step(state, b_s, b_v)
        found.append(Moment(*(float(x) for x in state), float(online.rescale(before.m, state.m))))
    return tuple(found)


def answers(state: Scrub) -> tuple[float, float]:
    """(acc / l after the last tile, softmax(scores) . values over the whole row)."""
    last = moments(state.scores, state.values, state.block_n)[-1]
    s, v = (torch.tensor(x, dtype=torch.float64) for x in (state.scores, state.values))
    return last.acc / last.l, float(torch.softmax(s, dim=0) @ v)


def picture(state: Scrub) -> Scene:
    """Scores above with the running maximum, weights e^(s - m) below, the three running numbers at the side."""
    taken, dividing = min(state.step, state.tiles), state.step == state.steps
    found = moments(state.scores, state.values, state.block_n)
    headline, under = _words(state, taken, dividing, found)
    running = f"m = {number(found[taken].m)}, l = {number(found[taken].l)}, acc = {number(found[taken].acc)}."
    scene = Scene(960, 500, f"Softmax scrubber, step {state.step} of {state.steps}. {headline} {under} {running}")
    scene.headline(headline, under)
    _scores(scene, state, taken, dividing, found)
    _weights(scene, state, taken, dividing, found)
    _ledger(scene, state, taken, dividing, found)
    return scene


def _words(state, taken, dividing, found):
    now, before = found[taken], found[max(taken - 1, 0)]
    if state.step == 0:
        return "Nothing seen yet.", f"{len(state.scores)} scores, in {state.tiles} tiles of {state.block_n}."
    if dividing:
        ours, whole = answers(state)
        return (
            f"Divide once, at the end: out = acc / l = {number(ours)}.",
            f"softmax over the whole row gives {number(whole)}: {_same(ours, whole)}.",
        )
    if taken == 1:
        return "Tile 1: the first maximum is the one to measure against.", "There is nothing to rescale yet."
    if now.rescale < 1:
        return (
            f"Tile {taken}: the maximum grows by {number(now.m - before.m)}, so what came before shrinks "
            f"to {number(now.rescale)} of itself.",
            f"l and acc were sums of e^(s − {number(before.m)}); now they are sums of e^(s − {number(now.m)}).",
        )
    return (
        f"Tile {taken}: the maximum stands, so nothing is rescaled.",
        "The tile's terms are simply added to l and acc.",
    )


def _same(a, b):
    return "the same, to 12 digits" if abs(a - b) <= 1e-12 * max(1, abs(b)) else f"off by {number(a - b)}"


LEFT, RIGHT = 74, 600
TOP, FLOOR = 106, 262  # of the scores
W_TOP, W_FLOOR = 330, 446  # of the weights


def _columns(state):
    """x of each key's bar, and its width: keys side by side, a gap between tiles."""
    gap = 10
    width = (RIGHT - LEFT - gap * (state.tiles - 1)) / len(state.scores)
    return [LEFT + j * width + gap * (j // state.block_n) for j in range(len(state.scores))], width


def _fit(numbers, width):
    """Whether each number has room below its bar."""
    return width >= max(24, *(plot.text_width(number(x), style.SMALL) + 3 for x in numbers))


def _extent(state, t):
    x, width = _columns(state)
    keys = state.tile(t)
    return x[keys[0]], x[keys[-1]] + width


def _colour(state, j, taken, dividing):
    t = j // state.block_n
    return style.FAINT if t >= taken else style.NOW if t == taken - 1 and not dividing else style.DONE


def _scores(scene, state, taken, dividing, found):
    high, low = max(*state.scores, 0.0), min(*state.scores, 0.0)
    y = lambda s: TOP + 22 + (FLOOR - TOP - 40) * (high - s) / ((high - low) or 1)
    x, width = _columns(state)
    labelled = _fit(state.scores, width)
    scene.text(28, TOP - 8, "scores s", bold=True)
    for t in range(state.tiles):
        a, b = _extent(state, t)
        if t == taken - 1 and not dividing:
            scene.rect(a - 3, TOP + 2, b - a + 6, FLOOR - TOP + 18, stroke=style.NOW, line=1.5, radius=4)
        if b - a >= 16 or t % 4 == 0:
            words = f"tile {t + 1}" if b - a >= 44 or t == 0 else str(t + 1)
            scene.text((a + b) / 2, FLOOR + 14, words, size=style.SMALL, fill=style.MUTED, anchor="middle")
    for j, s in enumerate(state.scores):
        top, height = min(y(s), y(0)), abs(y(s) - y(0))
        scene.rect(x[j] + 2, top, width - 4, height, fill=_colour(state, j, taken, dividing), radius=2)
        if labelled:
            across_zero = y(0) + 15 if s >= 0 else y(0) - 6  # away from the bar, where nothing else is
            scene.text(x[j] + width / 2, across_zero, number(s), size=style.SMALL, fill=style.MUTED, anchor="middle")
    scene.line(LEFT, y(0), RIGHT, y(0), stroke=style.MUTED)
    if not taken or abs(y(found[taken].m) - y(0)) > 14:  # else m stands there
        scene.text(LEFT - 8, y(0) + 4, "0", size=style.SMALL, fill=style.MUTED, anchor="end")
    for t in range(taken):
        a, b = _extent(state, t)
        scene.line(a, y(found[t + 1].m), b, y(found[t + 1].m), stroke=style.ACCENT, line=2.5)
        if t and found[t + 1].m != found[t].m:
            scene.line(a, y(found[t].m), a, y(found[t + 1].m), stroke=style.ACCENT, line=1, dashed=True)
    if taken:
        scene.text(LEFT - 8, y(found[taken].m) + 4, "m", fill=style.ACCENT, anchor="end", bold=True)


def _weights(scene, state, taken, dividing, found):
    now, before = found[taken], found[max(taken - 1, 0)]
    shrunk = now.rescale < 1 and taken > 1 and not dividing
    x, width = _columns(state)
    tall = lambda s, m: (W_FLOOR - W_TOP) * math.exp(s - m)
    labelled = _fit(state.values, width)
    scene.text(28, W_TOP - 16, "p = e^(s − m) / l" if dividing else "weights e^(s − m)", bold=True)
    if taken:
        about = "they sum to 1" if dividing else f"they sum to l = {number(now.l)}"
        scene.text(196, W_TOP - 16, about + ("; dashed: before this tile" if shrunk else ""), fill=style.MUTED)
    scene.line(LEFT, W_TOP, RIGHT, W_TOP)
    for j, (s, v) in enumerate(zip(state.scores, state.values, strict=True)):
        if labelled:
            scene.text(x[j] + width / 2, W_FLOOR + 22, number(v), size=style.SMALL, fill=style.MUTED, anchor="middle")
        if j >= taken * state.block_n:
            continue
        if j < (taken - 1) * state.block_n and shrunk:
            _dashed_bar(scene, x[j] + 2, W_FLOOR, width - 4, tall(s, before.m))
        high = tall(s, now.m)
        scene.rect(x[j] + 2, W_FLOOR - high, width - 4, high, fill=_colour(state, j, taken, dividing), radius=2)
    scene.line(LEFT, W_FLOOR, RIGHT, W_FLOOR, stroke=style.MUTED)
    scene.text(LEFT - 8, W_FLOOR + 4, "0", size=style.SMALL, fill=style.MUTED, anchor="end")
    highest = number(1 / now.l if dividing else 1)
    scene.text(LEFT - 8, W_TOP + 4, highest, size=style.SMALL, fill=style.MUTED, anchor="end")
    if labelled:
        scene.text(LEFT - 8, W_FLOOR + 22, "v", bold=True, anchor="end")


def _dashed_bar(scene, x, floor, width, height):
    for x1, y1, x2, y2 in ((x, 0, x, height), (x, height, x + width, height), (x + width, height, x + width, 0)):
        scene.line(x1, floor - y1, x2, floor - y2, stroke=style.MUTED, dashed=True)


def _ledger(scene, state, taken, dividing, found):
    now, before = found[taken], found[max(taken - 1, 0)]
    x, right = 650, 930
    scene.line(x - 24, TOP - 12, x - 24, W_FLOOR)
    added_l, added_acc = now.l - now.rescale * before.l, now.acc - now.rescale * before.acc
    old, r = number(before.m), number(now.rescale)
    working = taken > 0 and not dividing
    rows = [
        ("m", "largest score", number(now.m), f"max({old}, {number(_tile_max(state, taken))})" if working else ""),
        ("r", "rescale", r if working else "", f"e^({old} − {_bracket(now.m)})" if working else ""),
        ("l", "sum of weights", number(now.l), f"{r} × {number(before.l)} + {_bracket(added_l)}" if working else ""),
        ("acc", "weighted sum of values", number(now.acc),
         f"{r} × {_bracket(before.acc)} + {_bracket(added_acc)}" if working else ""),
    ]  # fmt: skip
    if dividing:
        ours, whole = answers(state)
        rows[1] = ("out", "acc / l", number(ours), f"softmax(s) · v = {number(whole)}")
        rows = [rows[0], rows[2], rows[3], rows[1]]
    for k, (name, meaning, value, formula) in enumerate(rows):
        y = TOP + 6 + 88 * k
        scene.text(x, y, name, size=18, bold=True, fill=style.ACCENT if name in ("m", "out") else style.INK)
        scene.text(x + 44, y, meaning, fill=style.MUTED)
        value = value or "–"
        scene.text(right, y, value, size=min(18, 74 / (0.66 * len(value))), bold=True, anchor="end")
        scene.text(x + 44, y + 24, formula, size=min(style.BODY, (right - x - 44) / (0.53 * max(len(formula), 1))))
        if k < len(rows) - 1:
            scene.line(x, y + 48, right, y + 48)


def _tile_max(state, taken):
    return max(state.scores[j] for j in state.tile(taken - 1))


def _bracket(x):
    return f"({number(x)})" if x < 0 else number(x)


class SoftmaxScrubber(Explorable):
    """Online softmax, tile by tile: ``SoftmaxScrubber(scores=..., values=..., block_n=4, step=0)``.

    The fields are Scrub's; ValueError says what is wrong with one. ``figure()`` draws the current step for a page
    without a kernel.
    """

    State = Scrub
    picture = staticmethod(picture)

    def make_controls(self, state):
        return {
            "step": slider(state, "step", "step", 0, state.steps),
            "block_n": slider(state, "block_n", "keys to a tile", 1, len(state.scores)),
            "row": menu(state, "row", "scores", (*ROWS, OWN) if state.row == OWN else tuple(ROWS)),
        }

    def show_controls(self, state):
        if state.row == OWN and OWN not in self.controls["row"].options:
            self.controls["row"].options = (*ROWS, OWN)
        self.controls["block_n"].max = len(state.scores)
        super().show_controls(state)
