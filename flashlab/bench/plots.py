"""A record as a picture. Needs matplotlib (the extra ``bench``)."""

import hashlib
import json
import os

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from flashlab.bench import figures
from flashlab.bench.look import LOOK, MARKS, MUTED, SERIES
from flashlab.bench.report import UNIT
from flashlab.sizing.units import show_bytes

GROUPED = FuncFormatter(lambda value, _: f"{value:,.6g}")
SIZES = FuncFormatter(lambda value, _: show_bytes(value).split("(")[-1].rstrip(")").replace(".000", ""))
STAMP = "Description"  # where a PNG says which record it was drawn from


def draw(record: dict, path: str | os.PathLike) -> None:
    """Draw a record to a PNG that carries the record's stamp. Raises ValueError where nothing in it was timed."""
    with matplotlib.rc_context(LOOK):
        figure = _curves(record) if record["curves"] else _cases(record)
        FigureCanvasAgg(figure).print_png(path, metadata={STAMP: stamp(record), "Software": None})


def stamp(record: dict) -> str:
    """Says which record a picture was drawn from."""
    text = json.dumps(record, sort_keys=True).encode()
    return f"flashlab bench {record['kind']} {hashlib.sha256(text).hexdigest()[:16]}"


def _cases(record: dict) -> Figure:
    """Speeds of plain cases; under them, where there are any, what quantised caches gain."""
    timed = [line for line in figures.lines(record) if line.status == "ok" and line.mode == "eager"]
    plain = [line for line in timed if line.case.cache == "bf16"]
    gains = figures.quantised(record)
    if not timed:
        raise ValueError("the record holds no times to draw")
    heights = [n for n in (len({line.case for line in plain}), len(gains)) if n]
    figure = Figure(figsize=(9.6, 1.9 + 0.33 * sum(heights) + 0.7 * (len(heights) - 1)), layout="constrained")
    panels = list(figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    if plain:
        _dots(panels[0], plain, record)
        panels[0].set_title(_title(record), pad=18)
        handles, titles = panels[0].get_legend_handles_labels()
        figure.legend(handles[::-1], titles[::-1], loc="outside lower center", ncols=4)
    if gains:
        _bars(panels[-1], gains)
    return figure


def _dots(axes, timed: list[figures.Line], record: dict) -> None:
    """A row a case, a mark a peer, the speed to the right, the ceiling a line."""
    labels = list(dict.fromkeys(line.case.label for line in timed))
    quantity = timed[0].quantity
    factor, unit = UNIT[quantity]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(True)
    for name in dict.fromkeys(sorted((line.peer for line in timed), key=list(MARKS).index, reverse=True)):
        lines = [line for line in timed if line.peer == name]
        color, marker = MARKS[name]
        bar = marker == "|"
        axes.plot(
            [line.rate / factor for line in lines], [labels.index(line.case.label) for line in lines], ls="none", marker=marker,
            ms=9 if lines[0].role == "ours" else 8, color=color, mec=color if bar else "white", mew=2.5 if bar else 0.8,
            label=lines[0].title, zorder=3 if lines[0].role == "ours" else 2,
        )  # fmt: skip
    ceiling = record["ceilings"][figures.CEILING[quantity]] / factor
    what = "8192³ matmul" if quantity == "flop_per_s" else "reading 1 GiB"
    axes.axvline(ceiling, color=MUTED, lw=1.2, ls=(0, (4, 3)))
    axes.annotate(f"{what}, {ceiling:,.0f}", (ceiling, 1.0), xycoords=("data", "axes fraction"), xytext=(-4, 3),
                  textcoords="offset points", ha="right", color=MUTED, fontsize=9)  # fmt: skip
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(GROUPED)
    axes.set_xlabel(unit if quantity == "flop_per_s" else f"{unit} of K and V")


def _bars(axes, gains: list[figures.Gain]) -> None:
    axes.barh(range(len(gains)), [gain.times for gain in gains], color=SERIES[0], height=0.6)
    axes.set_yticks(range(len(gains)), [gain.case.label for gain in gains])
    axes.invert_yaxis()
    axes.axvline(1, color=MUTED, lw=1.2, ls=(0, (4, 3)))
    for row, gain in enumerate(gains):
        axes.annotate(f"{gain.times:.2f}×", (gain.times, row), xytext=(4, 0), textcoords="offset points", va="center")
    axes.set_title("Quantised caches: times as fast as bf16")
    axes.set_xlim(right=1.08 * max(gain.times for gain in gains))
    axes.grid(True, axis="x")


def _curves(record: dict) -> Figure:
    curves = record["curves"]
    figure = Figure(figsize=(1.5 + 4.2 * len(curves) if len(curves) > 1 else 9.0, 4.2), layout="constrained")
    for axes, curve in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
        CURVES[curve["name"]](axes, curve)
        axes.grid(True)
        if len(curve["series"]) > 1:
            axes.legend(fontsize=8)
    figure.suptitle(_title(record), x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


def _plot(axes, curve, y, marker="o", line="-"):
    for series, color in zip(curve["series"], SERIES, strict=False):
        points = series["points"]
        axes.plot([p["x"] for p in points], [y(p) for p in points], marker=marker, ls=line, ms=4.5, color=color,
                  label=series["label"])  # fmt: skip


def _staircase(axes, curve):
    for series, color in zip(curve["series"], SERIES, strict=False):
        xs = [p["x"] for p in series["points"]]
        ys = [p["time"]["median_s"] * 1e3 for p in series["points"]]
        axes.step(xs, ys, where="post", color=color, lw=1, alpha=0.5)
        axes.plot(xs, ys, "o", ms=4.5, color=color, label=series["label"].replace(" of shared memory a block: ", " a block, "))
    axes.set(xlabel="blocks", ylabel="ms", title="The staircase")
    axes.set_ylim(bottom=0)


def _underfill(axes, curve):
    _plot(axes, curve, lambda p: p["bytes"] / p["time"]["median_s"] / 1e9)
    axes.set(xlabel="blocks of 256 threads", ylabel="GB/s", title="Underfill: reading by few blocks")
    _log(axes, xticks=(1, 8, 32, 132, 528, 2112), yticks=(10, 100, 1000, 4000))


def _splits(axes, curve):
    _plot(axes, curve, lambda p: p["time"]["median_s"] * 1e6)
    axes.set(xlabel="num_splits", ylabel="µs", title=f"Split-KV: {curve['series'][0]['label']}")
    _log(axes, xticks=(1, 2, 4, 8, 16, 33, 66, 128), yticks=(125, 250, 500, 1000, 2000))


def _log(axes, xticks, yticks) -> None:
    axes.set(xscale="log", yscale="log")
    for axis, ticks in ((axes.xaxis, xticks), (axes.yaxis, yticks)):
        axis.set_ticks(ticks)
        axis.set_major_formatter(GROUPED)
        axis.set_minor_locator(NullLocator())


def _link(axes, curve):
    _plot(axes, curve, lambda p: p["bytes"] / p["time"]["median_s"] / 1e9)
    axes.set(ylabel="GB/s", title="Transfers by size")
    axes.set_xscale("log", base=2)
    axes.set_xticks([point["x"] for point in curve["series"][0]["points"]])
    axes.xaxis.set_major_formatter(SIZES)


CURVES = {"staircase": _staircase, "underfill": _underfill, "splits": _splits, "link": _link}


def _title(record: dict) -> str:
    return f"{record['kind']}, {record['machine']['gpu']}, {record['date'][:10]}"
