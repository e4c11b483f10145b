"""The drawings of lesson 09. Every number in them is computed by the package, was recorded, or was published."""

import math

from matplotlib.patches import FancyArrowPatch, Rectangle

from flashlab.course.lessons.lesson_09 import (
    HEADS_KV,
    SPLITS,
    end_to_end,
    floor_us,
    predicted_us,
    recorded,
    speedup,
)
from flashlab.course.lessons.lesson_09.problems import even_splits
from flashlab.course.plots import drawing, plot
from flashlab.hardware import num_splits, waves
from flashlab.hardware.splits import splits_to_fill
from flashlab.widgets.style import ACCENT, DONE, FAINT, INK, MUTED, NOW, PANEL, READ, RULE, WRITE

COLORS = (READ, NOW, DONE, "#cc79a7", "#56b4e9", "#f0e442", "#009e73", WRITE)


def sms_at_work(*splits: int, sms: int = recorded.SMS) -> None:
    """Every SM a cell, with the programs that it is dealt, for some numbers of splits."""
    columns = 12
    with plot(9.6, 3.9, columns=len(splits)) as axes:
        for ax, n in zip(axes, splits, strict=True):
            programs = HEADS_KV * n
            drawing(ax, columns, math.ceil(sms / columns) + 0.2)
            for sm in range(sms):
                holds = programs // sms + (sm < programs % sms)
                color = (FAINT, READ, NOW, WRITE)[min(holds, 3)]
                x, y = sm % columns, math.ceil(sms / columns) - 1 - sm // columns
                ax.add_patch(Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, fc=color, ec="none"))
                if holds > 1:
                    ax.text(x + 0.5, y + 0.48, holds, ha="center", va="center", fontsize=9, weight="bold")
            busy = min(programs, sms)
            ax.set_title(f"{n} split{'s' if n > 1 else ''}: {programs} programs\n{busy} of {sms} SMs work", fontsize=11)


def two_launches(rows: int = 3, splits: int = 4) -> None:
    """The split kernel's grid, what it leaves in HBM, and the combine kernel's grid."""
    with plot(9.6, 3.3) as ax:
        drawing(ax, 96, 33)
        width, height = 9.5, 6.5
        for row in range(rows):
            y = 20 - row * (height + 1.2)
            ax.text(7.2, y + height / 2, f"row {row}", ha="right", va="center", color=MUTED)
            for i in range(splits):
                x = 8 + i * width
                ax.add_patch(Rectangle((x, y), width - 0.5, height, fc=DONE, ec="none"))
                ax.text(x + width / 2 - 0.25, y + height / 2, f"({row}, {i})", ha="center", va="center", fontsize=10)
                ax.add_patch(Rectangle((58 + i * 4.4, y + 0.6), 3.8, height - 1.2, fc=NOW, ec="none"))
            ax.add_patch(Rectangle((84, y), 9, height, fc=READ, ec="none"))
            ax.text(88.5, y + height / 2, f"({row})", ha="center", va="center", color="white", weight="bold")
            for start, end in ((46.3, 57.2), (75.8, 83.2)):
                arrow = FancyArrowPatch(
                    (start, y + height / 2), (end, y + height / 2), arrowstyle="-|>", mutation_scale=12, color=MUTED, lw=1.3
                )
                ax.add_patch(arrow)
        for x, words in (
            (27, "launch 1: program (row, split)\nreads its own keys"),
            (66.6, "in HBM: out and lse\nof every split"),
            (88.5, "launch 2:\nmerges a row"),
        ):
            ax.text(x, 28, words, ha="center", va="bottom", fontsize=10.5, weight="bold", linespacing=1.3)


def cuts(tiles: int = 9, splits: int = 4) -> None:
    """Tiles dealt out by ceil(tiles / splits) each, and by floor(i * tiles / splits) edges."""
    each = -(-tiles // splits)
    ways = {
        f"{each} tiles each, as long as they last": [
            (min(i * each, tiles), min((i + 1) * each, tiles)) for i in range(splits)
        ],
        "edges at floor(i · tiles / splits)": even_splits(tiles, 1, splits),
    }
    with plot(9.6, 2.3) as ax:
        drawing(ax, 96, 23)
        for row, (words, edges) in enumerate(ways.items()):
            y = 12.5 - 11 * row
            ax.text(1, y + 3, words, va="center", fontsize=10.5)
            for i, (first, last) in enumerate(edges):
                for tile in range(first, last):
                    x = 40 + tile * 6
                    ax.add_patch(Rectangle((x + 0.2, y), 5.6, 6, fc=COLORS[i], ec="none", alpha=0.85))
                    ax.text(x + 3, y + 3, i, ha="center", va="center", weight="bold")
            counts = " + ".join(str(last - first) for first, last in edges)
            ax.text(40, y - 0.8, f"splits 0 to {splits - 1}: {counts} tiles", va="top", color=MUTED, fontsize=9.5)


def efficiency(rows: int = HEADS_KV, sms: int = recorded.SMS, most: int = 72) -> None:
    """How full the waves are, by number of splits, and what FlashAttention-3's rule and a full wave make of it."""
    counts = range(1, most + 1)
    full = {n: waves(blocks=rows * n, sms=sms).efficiency for n in counts}
    chosen = num_splits(blocks=rows, sms=sms, key_blocks=1024)
    fill = splits_to_fill(rows, sms, 1, 1024)
    with plot(9.6, 3.7) as ax:
        ax.bar(counts, [full[n] for n in counts], color=[NOW if n == chosen else READ if n == fill else DONE for n in counts])
        ax.axhline(0.85 * max(full.values()), color=ACCENT, lw=1.4, ls=(0, (4, 3)))
        ax.text(most + 0.6, 0.86, "85% of\nthe best", color=ACCENT, va="bottom", fontsize=9.5)
        ax.text(chosen + 0.4, 1.1, f"FlashAttention-3: {chosen}", color=INK, weight="bold", ha="right", va="center")
        ax.text(fill + 1.2, 1.1, f"one full wave: {fill}", color=INK, weight="bold", va="center")
        after = fill + 1
        ax.annotate(
            f"{after}: {rows * after} programs,\n{rows * after - sms} in a second wave", (after, full[after]), (after + 3.5, 0.3),
            fontsize=9.5, arrowprops=dict(arrowstyle="-", color=MUTED, lw=1),
            bbox=dict(fc=PANEL, ec="none", pad=2),
        )  # fmt: skip
        ax.set(xlabel="splits", ylabel="places that hold a program", ylim=(0, 1.28), xlim=(0, most + 6))
        ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
        ax.set_title(f"{rows} rows on {sms} SMs, one program an SM: waves / waves rounded up")


def sweep() -> None:
    """Recorded times by number of splits, two tiles, the model of one of them, and what the rules choose."""
    small, large = recorded.sweep(), recorded.LARGE_TILES
    model = [n for n in range(1, 133)]
    with plot(9.6, 4.6) as ax:
        ax.plot(model, [predicted_us(n) for n in model], color=FAINT, lw=5, label="predicted, tiles of 64", zorder=1)
        ax.plot(list(large), list(large.values()), "s", color=NOW, ms=6.5, label="recorded, tiles of 64 keys, 4 warps")
        ax.plot(list(small), list(small.values()), "o-", color=READ, ms=6, lw=1.2, label="recorded, tiles of 32 keys, 1 warp")
        ax.axhline(floor_us(), color=MUTED, lw=1.2, ls=(0, (4, 3)))
        ax.text(0.93, floor_us() * 0.96, f"reading K and V: {floor_us():.0f} us", color=MUTED, va="top")
        fa3 = num_splits(blocks=HEADS_KV, sms=recorded.SMS, key_blocks=1024)
        for n, words, x in ((fa3, f"FlashAttention-3's\nrule: {fa3}", 13.5), (SPLITS, f"this package's\nrule: {SPLITS}", 37)):
            ax.axvline(n, ymax=0.42, color=ACCENT, lw=1.2, ls=(0, (1, 2)))
            ax.text(x, 420, words, color=ACCENT, weight="bold", ha="center", fontsize=10)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks([1, 2, 4, 8, 16, 32, 64, 128], ["1", "2", "4", "8", "16", "32", "64", "128"])
        ax.set_yticks([100, 200, 400, 800, 1600], ["100", "200", "400", "800", "1600"])
        ax.minorticks_off()
        ax.set(xlabel="splits", ylabel="microseconds", xlim=(0.9, 150), ylim=(95, 2600))
        ax.set_title(f"One sequence, 32 / 8 heads, 131072 keys: {recorded.GPU}, 2026-11-30")
        ax.grid(axis="y")
        ax.legend(loc="upper right")


def published() -> None:
    """The published table: the same number of keys in ever fewer sequences."""
    table = {key: us for key, us in recorded.PUBLISHED.items() if math.prod(key) == 65536}
    names = {"eager": ("PyTorch's operators", MUTED), "flash2": ("FlashAttention 2.0.9", NOW), "split": ("Flash-Decoding", READ)}
    with plot(9.6, 4.0) as ax:
        places = range(len(table))
        for name, (words, color) in names.items():
            ax.plot(places, [us[name] for us in table.values()], "o-", color=color, label=words, ms=6)
        for place in (0, len(table) - 1):
            us = list(table.values())[place]
            ax.text(
                place, math.sqrt(us["flash2"] * us["split"]), f"{us['flash2'] / us['split']:.0f}x", ha="center", va="center",
                weight="bold", color=INK, bbox=dict(fc=PANEL, ec=RULE),
            )  # fmt: skip
        ax.set_yscale("log")
        ax.set_xticks(places, [f"{batch} x {seqlen}" for batch, seqlen in table], fontsize=9)
        ax.set_yticks([50, 100, 200, 500, 1000, 2000, 5000], ["50", "100", "200", "500", "1000", "2000", "5000"])
        ax.minorticks_off()
        ax.set(ylim=(40, 9000), xlabel="sequences x keys: 65536 keys in all, everywhere", ylabel="microseconds, published")
        ax.set_title("A100, fp16, 16 query heads on 2 kv heads")
        ax.grid(axis="y")
        ax.legend(loc="upper left", ncols=3)


def factors() -> None:
    """How many times faster, and against what: a bar for every comparison."""
    split = recorded.decode("flashlab")
    longest = recorded.PUBLISHED[1, 131072]
    bars = [
        ("A100, published, 2 kv heads: FlashAttention 2.0.9 / Flash-Decoding", longest["flash2"] / longest["split"], NOW),
        ("A100, published, 2 kv heads: PyTorch's operators / Flash-Decoding", longest["eager"] / longest["split"], NOW),
        ("H200, 8 kv heads: FlexAttention, which does not split, / this package", recorded.decode("torch-flex") / split, READ),
        ("H200, 8 kv heads: this package's kernel, one split / split", speedup(8), READ),
        ("H200, 8 kv heads: the same in tiles of 64, one split / split", recorded.LARGE_TILES[1] / split, READ),
        ("H200, 8 kv heads: FlashAttention-4, one split / this package", recorded.FA4_UNSPLIT_US / split, READ),
        ("H200, 1 kv head: this package's kernel, one split / split", speedup(1), READ),
    ]
    with plot(9.6, 3.6) as ax:
        for row, (_, factor, color) in enumerate(bars):
            ax.barh(row, factor, color=color, height=0.62)
            ax.text(factor + 0.7, row, f"{factor:.1f}x", va="center", weight="bold")
        ax.set_yticks(range(len(bars)), [words for words, *_ in bars], color=INK, fontsize=9.5)
        ax.invert_yaxis()
        ax.set(xlabel="times faster, one sequence of 131072 keys", xlim=(0, 70))
        ax.tick_params(left=False)


def tokens() -> None:
    """From the kernel's factor to a token's, by context, for a model of Llama-3-8B's shape."""
    lengths = (8192, 32768, 131072)
    layers = end_to_end.LLAMA_3_8B["num_hidden_layers"]
    rest = end_to_end.weights_us(end_to_end.LLAMA_3_8B, recorded.read_bytes_per_s()) / 1e3
    with plot(9.6, 3.3) as ax:
        for row, seqlen in enumerate(lengths):
            for shift, peer, color in ((-0.2, "flashlab-unsplit", NOW), (0.2, "flashlab", READ)):
                attention = layers * recorded.decode(peer, seqlen_k=seqlen) / 1e3
                ax.barh(row + shift, rest, height=0.36, color=DONE, ec="white")
                ax.barh(row + shift, attention, left=rest, height=0.36, color=color, ec="white")
                words = f"{rest + attention:.1f} ms"
                if shift > 0:
                    words += f": {end_to_end.recorded_token_factor(seqlen):.1f} times faster"
                ax.text(rest + attention + 0.6, row + shift, words, va="center", fontsize=9.5, weight="bold")
        for color, words in ((DONE, "weights, read once"), (NOW, "attention, one split"), (READ, "attention, split")):
            ax.barh(0, 0, color=color, label=words)
        ax.set_yticks(range(len(lengths)), [f"{n} keys" for n in lengths], color=INK)
        ax.invert_yaxis()
        ax.set(xlabel=f"milliseconds a token: {layers} layers of recorded attention, and the weights' bytes over the fastest read",
               xlim=(0, 82))  # fmt: skip
        ax.tick_params(left=False)
        ax.legend(loc="center right")


def host() -> None:
    """GPU time of a step against the time that Python needs to launch it."""
    lengths = (8192, 32768, 131072)
    with plot(9.6, 3.0) as ax:
        for row, seqlen in enumerate(lengths):
            gpu = recorded.decode("flashlab", seqlen_k=seqlen)
            python = recorded.decode("flashlab", seqlen_k=seqlen, time="host_s")
            graph = recorded.decode("flashlab", mode="graph", seqlen_k=seqlen, time="host_s")
            for shift, us, color in ((-0.27, gpu, READ), (0.0, python, NOW), (0.27, graph, MUTED)):
                ax.barh(row + shift, us, height=0.25, color=color)
                ax.text(us + 1, row + shift, f"{us:.0f}", va="center", fontsize=9.5, weight="bold")
        for color, words in ((READ, "the GPU works"), (NOW, "Python launches (two kernels)"), (MUTED, "Python replays a CUDA graph")):
            ax.barh(0, 0, color=color, label=words)
        ax.set_yticks(range(len(lengths)), [f"{n} keys" for n in lengths], color=INK)
        ax.invert_yaxis()
        ax.set(xlabel="microseconds a step, recorded", xlim=(0, 150))
        ax.tick_params(left=False)
        ax.legend(loc="upper right")
