"""A Scene drawn by matplotlib, without pyplot: no figure is kept, and a notebook shows it as the cell's result."""

import math
from io import BytesIO

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Polygon, Rectangle

from flashlab.widgets import style

PIXELS_AN_INCH = 100
POINTS_A_PIXEL = 72 / PIXELS_AN_INCH
ANCHORS = {"start": "left", "middle": "center", "end": "right"}
TEXT_SCALE = 0.92  # DejaVu Sans, matplotlib's own font, runs wider than a browser's


class SceneFigure(Figure):
    """A matplotlib figure whose repr is what it shows, so that a notebook without pictures still says it."""

    summary = ""

    def __repr__(self):
        return self.summary

    def _repr_png_(self):
        out = BytesIO()
        self.savefig(out, format="png", dpi=1.5 * PIXELS_AN_INCH, metadata={"Software": None})
        return out.getvalue()


def draw(scene) -> SceneFigure:
    """The scene at its own size, on its own light panel."""
    figure = SceneFigure(figsize=(scene.width / PIXELS_AN_INCH, scene.height / PIXELS_AN_INCH), dpi=PIXELS_AN_INCH)
    FigureCanvasAgg(figure)
    figure.summary = scene.summary
    figure.set_facecolor(style.PANEL)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, scene.width), ylim=(scene.height, 0))
    for order, shape in enumerate(scene.shapes):
        _DRAW[shape["kind"]](axes, shape, order)
    return figure


def _rect(axes, s, order):
    look = {
        "facecolor": s["fill"] or "none",
        "edgecolor": s["stroke"] or "none",
        "linewidth": s["line"] * POINTS_A_PIXEL,
    }
    corner, r = (s["x"], s["y"]), min(s["radius"], s["width"] / 2, s["height"] / 2)
    if r:
        box = f"round,pad=0,rounding_size={r}"
        patch = FancyBboxPatch(corner, s["width"], s["height"], boxstyle=box, mutation_aspect=1, **look)
    else:
        patch = Rectangle(corner, s["width"], s["height"], **look)
    axes.add_patch(patch).set_zorder(order)


def _line(axes, s, order):
    dashes = (0, (4, 3)) if s["dashed"] else "-"
    line = Line2D((s["x1"], s["x2"]), (s["y1"], s["y2"]), color=s["stroke"], linewidth=s["line"] * POINTS_A_PIXEL,
                  linestyle=dashes, zorder=order)  # fmt: skip
    axes.add_line(line)


def _text(axes, s, order):
    axes.text(s["x"], s["y"], s["text"], fontsize=s["size"] * POINTS_A_PIXEL * TEXT_SCALE, color=s["fill"],
              ha=ANCHORS[s["anchor"]], va="baseline", weight="bold" if s["bold"] else "normal", zorder=order,
              parse_math=False)  # fmt: skip


def _cells(axes, s, order):
    boxes = [
        Rectangle((s["x"] + i % s["columns"] * s["step"], s["y"] + i // s["columns"] * s["step"]), s["width"], s["height"])
        for i in range(len(s["codes"]))
    ]
    colours = [s["colours"][int(code)] for code in s["codes"]]
    axes.add_collection(PatchCollection(boxes, facecolor=colours, edgecolor="none", zorder=order))


def _path(axes, s, order):
    xs, ys = s["points"][::2], s["points"][1::2]
    axes.add_line(Line2D(xs, ys, color=s["stroke"], linewidth=s["line"] * POINTS_A_PIXEL, zorder=order))


def _mark(axes, s, order):
    a = math.pi / 4 if s["shape"] == "square" else 0
    corners, reach = (48, s["size"]) if s["shape"] == "circle" else (4, s["size"] * (2**0.5 if a else 1.2))
    points = [
        (s["x"] + reach * math.cos(a + k * 2 * math.pi / corners), s["y"] + reach * math.sin(a + k * 2 * math.pi / corners))
        for k in range(corners)
    ]
    look = {"facecolor": s["fill"] or "none", "edgecolor": s["stroke"] or "none"}
    axes.add_patch(Polygon(points, closed=True, linewidth=s["line"] * POINTS_A_PIXEL, **look)).set_zorder(order)


_DRAW = {"rect": _rect, "line": _line, "text": _text, "cells": _cells, "path": _path, "mark": _mark}
