"""A picture as plain data: a light panel with boxes, lines and text on it, and what it shows in words.

A widget's pure function makes a Scene; flashlab.widgets.figure draws it with matplotlib for a page without a kernel,
and canvas.js in the browser, so both show the same thing. Lengths are pixels, y grows downwards, colours are CSS.
"""

from dataclasses import dataclass, field

from flashlab.widgets import style


@dataclass
class Scene:
    """Shapes in drawing order. ``summary`` is the picture in words and numbers, for screen readers and for tests."""

    width: int
    height: int
    summary: str = ""
    shapes: list[dict] = field(default_factory=list)

    def rect(self, x, y, width, height, *, fill=None, stroke=None, line=1.0, radius=0.0) -> None:
        self._add("rect", x=x, y=y, width=width, height=height, fill=fill, stroke=stroke, line=line, radius=radius)

    def line(self, x1, y1, x2, y2, *, stroke=style.RULE, line=1.0, dashed=False) -> None:
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, line=line, dashed=dashed)

    def text(self, x, y, text, *, size=style.BODY, fill=style.INK, anchor="start", bold=False) -> None:
        """``y`` is the baseline; ``anchor`` is "start", "middle" or "end"."""
        self._add("text", x=x, y=y, text=text, size=size, fill=fill, anchor=anchor, bold=bold)

    def cells(self, x, y, columns, step, width, height, codes, colours) -> None:
        """A grid of equal boxes, row by row: ``step`` pixels from one to the next, ``codes[i]`` the digit of its colour."""
        self._add("cells", x=x, y=y, columns=columns, step=step, width=width, height=height, codes=codes, colours=colours)

    def path(self, points, *, stroke=style.READ, line=2.0) -> None:
        """Straight lines through (x, y) points."""
        self._add("path", points=[round(v, 2) for point in points for v in point], stroke=stroke, line=line)

    def mark(self, x, y, *, shape="circle", size=5.0, fill=None, stroke=None, line=1.5) -> None:
        """A point of a plot: "circle", "diamond" or "square", ``size`` pixels from its middle to its edge."""
        self._add("mark", x=x, y=y, shape=shape, size=size, fill=fill, stroke=stroke, line=line)

    def headline(self, text: str, under: str = "") -> None:
        """What the picture says, and one quieter line below; smaller where it would not fit."""
        room = self.width - 56
        self.text(28, 40, text, size=min(style.HEADLINE, room / (0.56 * max(len(text), 1))), bold=True)
        self.text(28, 65, under, size=min(style.BODY, room / (0.53 * max(len(under), 1))), fill=style.MUTED)

    def as_dict(self) -> dict:
        """JSON for the browser."""
        return {"width": self.width, "height": self.height, "summary": self.summary, "shapes": self.shapes}

    def _add(self, kind, **shape):
        shape = {key: round(value, 2) if isinstance(value, float) else value for key, value in shape.items()}
        self.shapes.append({"kind": kind, **shape})
