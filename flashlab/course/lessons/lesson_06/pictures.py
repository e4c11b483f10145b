"""The drawings of lesson 06. Every number in them is counted by the package or was recorded."""

import torch
from matplotlib.patches import FancyArrowPatch, Rectangle

from flashlab.course.lessons.lesson_06 import recorded
from flashlab.course.plots import drawing, plot
from flashlab.reference.tiling import Tiling
from flashlab.widgets.style import ACCENT, DONE, FAINT, INK, MUTED, NOW, PANEL, READ, SKIP, WRITE


def _box(ax, x, y, text, color, width=9.0, height=5.0, **edge):
    ax.add_patch(Rectangle((x - width / 2, y - height / 2), width, height, fc=color, **{"ec": MUTED, "lw": 1.2} | edge))
    ax.text(x, y, text, ha="center", va="center", fontsize=11.5, weight="bold")


def _arrow(ax, start, end, color=INK, **style):
    ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=color, lw=1.3, **style))


def there_and_back() -> None:
    """The forward pass from left to right; under it the gradients from right to left."""
    with plot(9.8, 3.7) as ax:
        drawing(ax, 98, 37)
        top, middle, low, bottom = 33, 24, 13, 4
        boxes = ((8, top, "Q"), (8, middle, "K"), (34, top, "S"), (60, top, "P"), (60, middle, "V"), (88, top, "O"),
                 (88, low, "dO"), (60, low, "dP"), (60, bottom, "dV"), (34, low, "dS"), (8, low, "dQ"),
                 (8, bottom, "dK"))  # fmt: skip
        for x, y, name in boxes:
            if name in ("S", "P", "dS", "dP"):
                _box(ax, x, y, name, PANEL, ls=(0, (4, 3)))
            else:
                _box(ax, x, y, name, NOW if name in ("dQ", "dK", "dV") else DONE)
        for start, end in (((12.7, top), (29.2, top)), ((12.7, middle), (29.2, top - 1.5)), ((38.7, top), (55.2, top)),
                           ((64.7, top), (83.2, top)), ((64.7, middle), (83.2, top - 1.5))):  # fmt: skip
            _arrow(ax, start, end)
        for start, end in (((83.3, low), (64.8, low)), ((83.3, low - 1), (64.8, bottom + 0.5)),
                           ((55.3, low), (38.8, low)), ((29.3, low), (12.8, low)),
                           ((29.3, low - 1), (12.8, bottom + 0.5))):  # fmt: skip
            _arrow(ax, start, end, ACCENT)
        words = ((21, top + 1.4, "q · k · scale"), (47, top + 1.4, "softmax"), (74, top + 1.4, "P V"))
        back = ((74, low + 1.4, "dO Vᵀ"), (77, bottom + 1.6, "Pᵀ dO"), (47, low + 1.4, "P ∘ (dP − D)"),
                (21, low + 1.4, "dS K · scale"), (25, bottom + 1.6, "dSᵀ Q · scale"))  # fmt: skip
        for x, y, text in words:
            ax.text(x, y, text, ha="center", color=INK, fontsize=10)
        for x, y, text in back:
            ax.text(x, y, text, ha="center", color=ACCENT, fontsize=10)
        ax.text(88, middle, "forward", ha="center", color=INK, weight="bold")
        ax.text(88, bottom, "backward", ha="center", color=ACCENT, weight="bold")
        for color, ls, name in (
            (DONE, "-", "given, in HBM"),
            (PANEL, (0, (4, 3)), "only ever a tile of it"),
            (NOW, "-", "wanted"),
        ):
            ax.add_patch(Rectangle((0, 0), 0, 0, fc=color, ec=MUTED, ls=ls, label=name))
        ax.legend(loc="upper center", bbox_to_anchor=(0.36, 0.56), ncols=3, fontsize=9.5)


def one_row(p: torch.Tensor, dp: torch.Tensor) -> None:
    """p, dp with its weighted mean, and ds, key by key."""
    mean = float((p * dp).sum())
    ds = p * (dp - mean)
    keys = range(len(p))
    with plot(9.6, 2.7, columns=3) as (left, middle, right):
        left.bar(keys, p, color=READ)
        middle.bar(keys, dp, color=NOW)
        middle.axhline(mean, color=ACCENT, lw=1.6, ls=(0, (4, 3)))
        middle.text(len(p) - 0.5, mean, f"mean {mean:g}", color=ACCENT, ha="right", va="bottom", weight="bold")
        right.bar(keys, ds, color=WRITE)
        right.axhline(0, color=MUTED, lw=1)
        for ax, title in ((left, "p"), (middle, "dp: what reached p"), (right, "ds = p (dp − mean)")):
            ax.set_xticks(keys, [f"key {j}" for j in keys])
            ax.set_title(title)
        for j in keys:
            below = float(ds[j]) < 0
            right.text(j, float(ds[j]), f"{float(ds[j]):.2f}", ha="center", va="top" if below else "bottom")
        right.margins(y=0.18)


def recompute_or_store() -> None:
    """Milliseconds to make P again against milliseconds to write and read it, by head_dim; this lesson's shape."""
    case = recorded.FULL
    entries = case.batch * case.heads_q * case.seqlen_q * case.seqlen_k
    store = 4 * entries / recorded.copy_bytes_per_s() * 1e3
    dims = (0, 512)
    with plot(9.0, 3.6) as ax:
        again = [2 * d * entries / recorded.matmul_flop_per_s() * 1e3 for d in dims]
        ax.plot(dims, again, color=READ, label="make it again: 2 · head_dim FLOP an entry")
        ax.plot(dims, [store, store], color=WRITE, label="write it once and read it once: 4 bytes an entry")
        ax.plot(
            dims,
            [store * 1.5] * 2,
            color=WRITE,
            lw=1.4,
            ls=(0, (4, 3)),
            label="write it once and read it in two kernels",
        )
        for d in (64, 128, 256):
            ms = 2 * d * entries / recorded.matmul_flop_per_s() * 1e3
            ax.plot(d, ms, "o", color=READ, ms=7)
            ax.text(d + 7, ms - 0.03, f"{d}: {ms:.2f} ms", va="top", color=INK)
        ax.set(xlim=(0, 512), ylim=(0, 2.15), xlabel="head_dim", ylabel="milliseconds, at the H200's recorded rates")
        ax.grid(axis="y")
        ax.legend(loc="upper left")


def two_walks(tiling: Tiling, q_tile: int, k_tile: int) -> None:
    """The score matrix in tiles; the walk of one program that owns queries, and of one that owns keys."""
    rows, cols = len(tiling.q_tiles), len(tiling.k_tiles)
    titles = (f"dq: program {q_tile} owns a tile of queries", f"dk, dv: program {k_tile} owns a tile of keys")
    with plot(9.6, 4.2, columns=2) as axes:
        for ax, title, by_rows in zip(axes, titles, (True, False), strict=True):
            step = 0
            for i, q_rows in enumerate(tiling.q_tiles):
                for j, keys in enumerate(tiling.k_tiles):
                    seen = tiling.sees(q_rows, keys)
                    mine = seen and (i == q_tile if by_rows else j == k_tile)
                    ax.add_patch(
                        Rectangle(
                            (j + 0.05, i + 0.05), 0.9, 0.9, fc=NOW if mine else READ if seen else FAINT, ec="none"
                        )
                    )
                    if mine:
                        step += 1
                        ax.text(j + 0.5, i + 0.5, str(step), ha="center", va="center", weight="bold")
            if by_rows:
                ax.text(cols + 0.15, q_tile + 0.5, "dq", color=ACCENT, weight="bold", va="center")
            else:
                ax.text(k_tile + 0.5, rows + 0.15, "dk, dv", color=ACCENT, weight="bold", ha="center", va="top")
            ax.set(xlim=(-0.1, cols + 0.9), ylim=(rows + 0.9, -0.1), aspect="equal", xlabel="keys", ylabel="queries")
            ax.set_xticks([]), ax.set_yticks([])
            ax.spines[:].set_visible(False)
            ax.set_title(title, fontsize=11)


PRODUCTS = {
    "S = Q Kᵀ": (1, 1, 1, 1),
    "O = P V": (1, 0, 0, 0),
    "dP = dO Vᵀ": (0, 1, 1, 1),
    "dV = Pᵀ dO": (0, 1, 1, 0),
    "dK = dSᵀ Q": (0, 1, 1, 0),
    "dQ = dS K": (0, 1, 0, 1),
}
KERNELS = ("forward", "backward in one", "dkdv", "dq")


def products() -> None:
    """Which kernel computes which product of matrices."""
    with plot(8.6, 3.1) as ax:
        for row, (name, marks) in enumerate(PRODUCTS.items()):
            for column, mark in enumerate(marks):
                x = column + (0.5 if column == 1 else 1.0 if column > 1 else 0)
                again = mark and (name.startswith("S") and column > 0 or name.startswith("dP") and column == 3)
                color = (NOW if again else READ) if mark else FAINT
                ax.add_patch(Rectangle((x + 0.04, row + 0.06), 0.92, 0.88, fc=color, ec="none"))
        for column, name in enumerate(KERNELS):
            x = column + (0.5 if column == 1 else 1.0 if column > 1 else 0) + 0.5
            total = sum(marks[column] for marks in PRODUCTS.values())
            ax.text(x, -0.2, name, ha="center", weight="bold")
            ax.text(x, len(PRODUCTS) + 0.5, f"{total}", ha="center", weight="bold", fontsize=12)
        ax.text(4.0, len(PRODUCTS) + 0.5, "+", ha="center", fontsize=12)
        for color, name in ((READ, "computed"), (NOW, "computed again"), (FAINT, "not needed")):
            ax.plot([], [], "s", color=color, ms=9, label=name)
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        ax.set(xlim=(-0.1, 5.1), ylim=(len(PRODUCTS) + 0.8, -0.6))
        ax.set_yticks([i + 0.5 for i in range(len(PRODUCTS))], list(PRODUCTS), color=INK, fontsize=11)
        ax.set_xticks([])
        ax.tick_params(left=False)
        ax.spines[:].set_visible(False)


def forward_and_backward() -> None:
    """Recorded milliseconds of forward + backward, this lesson's shape; the FLOP's own time as dashed lines."""
    case = recorded.FULL
    times = sorted(recorded.milliseconds(case).items(), key=lambda item: item[1])
    forward = case.alike(kind="prefill").flop / recorded.matmul_flop_per_s() * 1e3
    with plot(9.6, 3.6) as ax:
        for row, (name, ms) in enumerate(times):
            first = recorded.forward_ms(case, name)
            ax.barh(row, first, color=DONE, height=0.6, ec="white", lw=0.6)
            ax.barh(
                row,
                ms - first,
                left=first,
                color=READ if name == recorded.OURS else SKIP,
                height=0.6,
                ec="white",
                lw=0.6,
            )
            ax.text(ms + 0.1, row, f"{ms:.2f} ms", va="center", weight="bold")
        for products, y in ((7, len(times) - 0.32), (9, len(times) + 0.12)):
            ms = products / 2 * forward
            ax.axvline(ms, color=ACCENT, lw=1.3, ls=(0, (4, 3)))
            ax.text(ms + 0.1, y, f"{products} products at the best rate: {ms:.2f} ms", color=ACCENT, va="center",
                    bbox=dict(fc=PANEL, ec="none", pad=1))  # fmt: skip
        ax.barh(0, 0, color=DONE, label="forward (recorded alone)")
        ax.barh(0, 0, color=SKIP, label="the rest: backward (ours blue)")
        ax.set_yticks(range(len(times)), [name for name, _ in times], color=INK)
        ax.set(ylim=(len(times) + 0.4, -0.6), xlim=(0, 15), xlabel="milliseconds")
        ax.tick_params(left=False)
        ax.set_title(f"{case.label}, bf16, forward + backward, recorded")
        ax.legend(loc="upper right")
