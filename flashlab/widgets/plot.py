"""A small plot inside a Scene: two axes, lines and marks, and the key to what was predicted, recorded or measured."""

import math
from dataclasses import dataclass

from flashlab.widgets import style
from flashlab.widgets.scene import Scene


@dataclass(frozen=True)
class Axis:
    """Values from ``low`` to ``high`` on pixels ``start`` to ``end``, evenly or by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        f = math.log if self.log else float
        value = min(max(value, self.low), self.high)
        share = (f(value) - f(self.low)) / ((f(self.high) - f(self.low)) or 1)
        return self.start + (self.end - self.start) * share


def frame(scene: Scene, x: Axis, y: Axis, x_ticks, y_ticks) -> None:
    """Rules and numbers; ticks are (value, words)."""
    for value, words in y_ticks:
        scene.line(x.start, y(value), x.end, y(value), stroke=style.FAINT)
        scene.text(x.start - 8, y(value) + 4, words, size=style.SMALL, fill=style.MUTED, anchor="end")
    for value, words in x_ticks:
        scene.line(x(value), y.start, x(value), y.start + 4, stroke=style.MUTED)
        scene.text(x(value), y.start + 18, words, size=style.SMALL, fill=style.MUTED, anchor="middle")
    scene.line(x.start, y.start, x.end, y.start, stroke=style.MUTED)


def steps_of_ten(low: float, high: float, parts=(1, 2, 5)) -> list[float]:
    """Round values from low to high for a logarithmic axis."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    values = [part * 10.0**n for n in range(first, last + 1) for part in parts]
    return [v for v in values if low <= v <= high]


def key(scene: Scene, x: float, y: float, entries, gap: float = 22) -> float:
    """The key in one line: entries are ("predicted" | "recorded" | "live", words). Gives the x where it ends."""
    for kind, words in entries:
        mark(scene, x + 6, y - 4, kind)
        scene.text(x + 18, y, words, size=style.SMALL, fill=style.MUTED)
        x += 18 + text_width(words, style.SMALL) + gap
    return x


def mark(scene: Scene, x: float, y: float, kind: str, size: float = 4.5) -> None:
    """An open blue circle is predicted, a filled diamond recorded, a filled square measured here."""
    if kind == "predicted":
        scene.mark(x, y, size=size, fill=style.PANEL, stroke=style.PREDICTED, line=2)
    elif kind == "recorded":
        scene.mark(x, y, shape="diamond", size=size, fill=style.RECORDED)
    else:
        scene.mark(x, y, shape="square", size=size - 0.5, fill=style.LIVE)


def text_width(words: str, size: float) -> float:
    """About how many pixels words take; for placing what follows them."""
    return 0.53 * size * len(words)
