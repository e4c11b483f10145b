"""The drawings of lesson 02. Every number in them is computed from what they are given, or was recorded."""

import math

import torch
from matplotlib.patches import FancyBboxPatch, Rectangle

from flashlab.course.lessons.lesson_02 import growths, predicted_us
from flashlab.course.plots import drawing, plot
from flashlab.hardware import measured
from flashlab.reference.algebra import Partial, merge
from flashlab.widgets.style import ACCENT, DONE, INK, MUTED, NOW, READ, WRITE


def passes() -> None:
    """A row of eight blocks, swept three times and twice."""
    sweeps = (
        (
            "three passes",
            ((READ, "read: m = max"), (READ, "read: l = sum of exp(x − m)"), (WRITE, "read, write: exp(x − m) / l")),
        ),
        ("online", ((READ, "read: m and l together"), (WRITE, "read, write: exp(x − m) / l"))),
    )
    with plot(9.6, 2.9) as ax:
        drawing(ax, 96, 29)
        for left, (title, lines) in zip((2, 52), sweeps, strict=True):
            ax.text(left, 26.2, title, fontsize=12, weight="bold")
            for block in range(8):
                ax.add_patch(Rectangle((left + block * 5, 20.5), 4.6, 3.4, fc=DONE, ec="none"))
            for row, (color, words) in enumerate(lines):
                y = 16.5 - 6 * row
                ax.annotate("", (left + 40, y), (left, y), arrowprops=dict(arrowstyle="-|>", color=color, lw=2.4))
                ax.text(left + 0.4, y + 1.2, words, color=INK, fontsize=10)


def moving_reference(x: list[float]) -> None:
    """The terms exp(x_i - m) after each element: dashed where they stood before the maximum grew."""
    with plot(9.6, 2.9, columns=len(x), sharey=True) as axes:
        m_old, l = -math.inf, 0.0
        for step, ax in enumerate(axes):
            m = max(x[: step + 1])
            l = sum(math.exp(x_i - m) for x_i in x[: step + 1])
            for i, x_i in enumerate(x):
                if i > step:
                    continue
                if i < step and m > m_old:
                    ax.bar(i, math.exp(x_i - m_old), 0.72, fc="none", ec=MUTED, ls=(0, (3, 2)), lw=1.2)
                height = math.exp(x_i - m)
                ax.bar(i, height, 0.72, color=NOW if i == step else DONE)
                ax.text(i, height + 0.03, f"{height:.2f}", ha="center", fontsize=9, weight="bold")
            ax.set_title(f"m = {m:g}, l = {l:.3f}")
            ax.set_xticks(
                range(len(x)), [f"{x_i:g}" if i <= step else "" for i, x_i in enumerate(x)], fontsize=11, color=INK
            )
            ax.set(xlim=(-0.6, len(x) - 0.4), ylim=(0, 1.2))
            ax.tick_params(left=False, labelleft=False, bottom=False)
            ax.spines["left"].set_visible(False)
            m_old = m
        axes[0].set_ylabel("exp(x − m)")


def growing_maximum(x: torch.Tensor, sizes: list[int]) -> None:
    """One row with its running maximum, and how often it grows on average against the length."""
    with plot(9.6, 3.4, columns=2, width_ratios=(3, 2)) as (left, right):
        running = x.cummax(dim=0).values
        grew = [j for j in range(1, len(x)) if running[j] > running[j - 1]]
        left.plot(x, ".", color=DONE, ms=3)
        left.step(range(len(x)), running, where="post", color=ACCENT, label="running maximum m")
        left.plot(grew, running[grew], "o", color=ACCENT, ms=6, label=f"grows {len(grew)} times after the first score")
        left.set(xlabel="score number", ylabel="score", ylim=(float(x.min()) - 0.3, float(x.max()) + 2.2))
        left.legend(loc="upper left")
        left.set_title(f"One row of {len(x)} random scores")
        fine = [2 ** (i / 4) for i in range(4, 4 * 13 + 1)]
        right.plot(fine, [math.log(n) + 0.5772 - 1 for n in fine], color=MUTED, lw=1.4, label="ln n − 0.42")
        right.plot(
            sizes, [growths(n, rows=512) for n in sizes], "o", color=ACCENT, ms=7, label="counted, 512 rows each"
        )
        right.set_xscale("log", base=2)
        right.set_xticks(sizes, [str(n) for n in sizes])
        right.set(xlabel="scores in the row", ylabel="growths", ylim=(0, 9.5))
        right.grid(axis="y")
        right.legend(loc="upper left")
        right.set_title("It grows like a logarithm")


def centre_of_mass(scores: torch.Tensor, values: torch.Tensor, cut: int) -> None:
    """Values in the plane, areas by weight; each side's out is its centre of mass, and merge finds the common one."""
    weights = torch.exp(scores - scores.max())
    sides = [Partial.of(scores[None, part], values[part]) for part in (slice(None, cut), slice(cut, None))]
    both = merge(*sides)
    with plot(9.6, 4.3) as ax:
        for part, side, color, name in zip((slice(None, cut), slice(cut, None)), sides, (READ, NOW), "ab", strict=True):
            ax.scatter(*values[part].T, s=900 * weights[part], color=color, alpha=0.45, lw=0)
            ax.plot(*side.out[0], "P", color=color, ms=14, mec=INK, mew=0.8)
            words, offset = (
                f"out_{name}, weight exp(lse_{name}) = {math.exp(side.lse):.2f}",
                (14, -20 if name == "a" else -14),
            )
            ax.annotate(words, side.out[0], offset, textcoords="offset points", weight="bold")
        ax.plot(*torch.stack([side.out[0] for side in sides]).T, color=MUTED, lw=1.2, ls=(0, (4, 3)), zorder=0)
        ax.plot(*both.out[0], "*", color=ACCENT, ms=20, mec=INK, mew=0.8, zorder=5)
        ax.annotate(f"merged: weight {math.exp(both.lse):.2f}", both.out[0], (18, -10), textcoords="offset points",
                    weight="bold", color=ACCENT)  # fmt: skip
        ax.margins(0.2, 0.16)
        ax.set(xlabel="value, first component", ylabel="second component")
        ax.set_title("Weight and centre of mass: what out and lse are")
        ax.grid(True)


ORDERS = {
    "one after another": (((((((0, 1), 2), 3), 4), 5), 6), 7),
    "a tree": (((0, 1), (2, 3)), ((4, 5), (6, 7))),
    "as they arrive": ((((5, 2), 7), (0, 6)), ((3, 1), 4)),
}


def fold(order, partials: list[Partial]) -> Partial:
    """Merge the partials two at a time, as the nested pairs say."""
    return partials[order] if isinstance(order, int) else merge(*(fold(side, partials) for side in order))


def merge_orders(partials: list[Partial]) -> None:
    """Three ways of bracketing eight partials, each with what it gives."""
    with plot(9.6, 3.3, columns=3) as axes:
        for ax, (name, order) in zip(axes, ORDERS.items(), strict=True):
            drawing(ax, 8, 9)
            ax.set_aspect("auto")
            leaves = _leaves(order)
            _draw_tree(ax, order, {leaf: i + 0.5 for i, leaf in enumerate(leaves)}, _depth(order))
            whole = fold(order, partials)
            ax.set_title(name)
            ax.text(4, -0.7, f"lse {float(whole.lse[0]):.12f}", ha="center", fontsize=9.5, color=MUTED)


def _leaves(order):
    return [order] if isinstance(order, int) else [leaf for side in order for leaf in _leaves(side)]


def _depth(order):
    return 0 if isinstance(order, int) else 1 + max(_depth(side) for side in order)


def _draw_tree(ax, order, place, whole):
    """Draws the tree below a node; returns where the node is."""
    if isinstance(order, int):
        x, y = place[order], 0.6
        ax.add_patch(
            FancyBboxPatch((x - 0.3, y - 0.3), 0.6, 0.6, boxstyle="round,pad=0,rounding_size=0.1", fc=DONE, ec="none")
        )
        ax.text(x, y, order, ha="center", va="center", weight="bold")
        return x, y
    ends = [_draw_tree(ax, side, place, whole) for side in order]
    x, y = sum(x for x, _ in ends) / 2, 0.6 + 7.6 * _depth(order) / whole
    for end_x, end_y in ends:
        ax.plot([end_x, x], [end_y + (0.3 if end_y == 0.6 else 0), y], color=MUTED, lw=1.4, zorder=0)
    ax.plot(x, y, "o", color=ACCENT, ms=8)
    return x, y


def splits() -> None:
    """The recorded split-KV curve over the model's prediction, and the floor that memory sets."""
    shape = measured.SPLIT_SHAPE
    floor = 4 * shape["seqlen_k"] * shape["heads_kv"] * shape["head_dim"] / measured.READ_BYTES_PER_S * 1e6
    numbers, seconds = zip(*measured.SPLIT_CURVE, strict=True)
    with plot(9.0, 4.0) as ax:
        ax.plot(numbers, [predicted_us(n) for n in numbers], color=NOW, label="predicted by flashlab.hardware")
        ax.plot(numbers, [s * 1e6 for s in seconds], "o", color=READ, ms=7, label="recorded")
        for n, s in measured.SPLIT_CURVE:
            if n in (1, 4, 16, 264):
                offset = (-14, -17) if n == 16 else (6, 8)
                ax.annotate(
                    f"{s * 1e6:.0f} us", (n, s * 1e6), offset, textcoords="offset points", color=READ, weight="bold"
                )
        ax.axhline(floor, color=MUTED, lw=1.2, ls=(0, (4, 3)))
        words = f"reading the cache at {measured.READ_BYTES_PER_S / 1e9:.0f} GB/s: {floor:.0f} us"
        ax.text(0.95, floor * 0.95, words, color=MUTED, va="top")
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks([1, 2, 4, 8, 16, 32, 64, 128, 256], ["1", "2", "4", "8", "16", "32", "64", "128", "256"])
        ax.set_yticks([100, 200, 400, 800, 1600], ["100", "200", "400", "800", "1600"])
        ax.minorticks_off()
        ax.set(xlabel="walks per KV head (splits)", ylabel="microseconds", xlim=(0.85, 420), ylim=(80, 2300))
        ax.set_title(f"One decode step, 131072 keys: {measured.GPU}, {measured.DATE}")
        ax.grid(axis="y")
        ax.legend(loc="upper right")
