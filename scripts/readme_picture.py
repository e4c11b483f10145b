"""Draw docs/split_kv.png: one decode step on an H200, unsplit and split, and the measured split curve."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

from flashlab.hardware import decode_grid, decode_time, gpu, measured
from flashlab.widgets import style

COLUMNS = 22
SPLITS = 16


def draw_sms(axes, blocks: int, sms: int, title: str) -> None:
    """Every SM a cell, filled where it has a block."""
    for sm in range(sms):
        color = style.READ if sm < blocks else style.FAINT
        axes.add_patch(Rectangle((sm % COLUMNS, -(sm // COLUMNS)), 0.84, 0.84, color=color, lw=0))
    axes.set(xlim=(-0.3, COLUMNS), ylim=(-(sms // COLUMNS) + 0.7, 1.1), aspect="equal")
    axes.axis("off")
    axes.set_title(title, loc="left", fontsize=style.BODY, color=style.INK)


def picture():
    part, shape = gpu(measured.GPU), measured.SPLIT_SHAPE
    seconds = dict(measured.SPLIT_CURVE)
    figure = plt.figure(figsize=(12.8, 4.6), facecolor=style.PANEL, layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.15))
    for row, splits in enumerate((1, SPLITS)):
        tile = {name: shape[name] for name in ("batch", "heads_q", "heads_kv", "seqlen_k")}
        blocks = decode_grid(num_splits=splits, **tile).blocks
        keys = "keys not split" if splits == 1 else f"keys split {splits} ways"
        title = f"{keys}: {blocks} of {part.sms} SMs busy, {seconds[splits] * 1e6:,.0f} µs"
        draw_sms(figure.add_subplot(grid[row, 0]), blocks, part.sms, title)
    axes = figure.add_subplot(grid[:, 1], facecolor=style.PANEL)
    splits, times = zip(*measured.SPLIT_CURVE, strict=True)
    many = range(1, 265)
    predicted = [decode_time(part, num_splits=n, blocks_per_sm=2, **shape).time_s * 1e6 for n in many]
    axes.loglog(many, predicted, color=style.NOW, lw=2, label="flashlab.hardware's model, fitted to these points")
    axes.loglog(splits, [t * 1e6 for t in times], "o", color=style.READ, ms=7, label=f"measured, {part.name}, {measured.DATE}")
    axes.set_xlabel("num_splits", fontsize=style.BODY, color=style.INK)
    axes.set_title("µs per decode step", loc="left", fontsize=style.BODY, color=style.INK)
    for axis, ticks in ((axes.xaxis, (1, 2, 4, 8, 16, 33, 66, 132, 264)), (axes.yaxis, (150, 200, 400, 800, 1600))):
        axis.set_major_locator(matplotlib.ticker.FixedLocator(ticks))
        axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.tick_params(labelsize=style.SMALL, colors=style.MUTED)
    axes.grid(color=style.RULE, lw=0.6)
    axes.spines[:].set_visible(False)
    axes.legend(frameon=False, fontsize=style.SMALL, labelcolor=style.INK)
    caption = "One new token, batch 1, {heads_q} query heads on {heads_kv} kv heads, head_dim {head_dim}, {seqlen_k:,} keys, bf16"
    figure.suptitle(caption.format(**shape), x=0.01, ha="left", fontsize=style.HEADLINE - 3, color=style.INK)
    return figure


if __name__ == "__main__":
    target = Path(__file__).parents[1] / "docs" / "split_kv.png"
    picture().savefig(target, dpi=100, metadata={"Software": None})
    print(f"wrote {target.relative_to(Path.cwd())}")
