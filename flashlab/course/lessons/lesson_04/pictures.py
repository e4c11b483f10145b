"""The drawings of lesson 04. Every number in them is computed, or was recorded."""

from matplotlib.patches import Rectangle

from flashlab.course.lessons.lesson_04 import SEQLEN_K, SEQLEN_Q, TILE, lanes_off, recorded
from flashlab.course.plots import drawing, plot
from flashlab.widgets.style import ACCENT, DONE, FAINT, INK, MUTED, NOW, READ, RULE


def programs(n: int = 1000, block: int = 256) -> None:
    """A vector cut into the blocks of its programs; the last one hangs over the end."""
    count = -(-n // block)
    with plot(9.6, 2.2) as ax:
        drawing(ax, 96, 22)
        unit = 92 / (count * block)
        for i in range(count):
            left, width = 2 + i * block * unit, block * unit
            inside = max(0, min(block, n - i * block)) * unit
            ax.add_patch(Rectangle((left, 7), inside, 6, fc=DONE if i % 2 else READ, ec="white", lw=1.5))
            ax.add_patch(
                Rectangle((left + inside, 7), width - inside, 6, fc=FAINT, ec=MUTED, lw=0.8, hatch="///", zorder=0)
            )
            ax.text(left + width / 2, 16.5, f"program {i}", ha="center", weight="bold", fontsize=11)
            ax.text(left, 3.8, f"{i * block}", ha="left", color=MUTED)
        ax.plot([2 + n * unit] * 2, [5.4, 14.6], color=ACCENT, lw=1.8)
        ax.text(2 + n * unit - 0.6, 3.8, f"n = {n}", ha="right", color=ACCENT, weight="bold")
        ax.text(94, 0.4, f"hatched: {count * block - n} lanes that must be off", ha="right", color=MUTED)


def tile_in_memory(rows: int = 4, width: int = 6, stride: int = 8, tile=((1, 3), (2, 5))) -> None:
    """A matrix whose rows lie ``stride`` apart, a tile of it, and both in memory. Numbers are offsets in elements."""
    (r0, r1), (c0, c1) = tile
    cell, low = 5.2, 13
    with plot(9.6, 4.0) as ax:
        drawing(ax, 96, 40)
        for r in range(rows):
            for c in range(stride):
                mine, data = r0 <= r < r1 and c0 <= c < c1, c < width
                color = NOW if mine else DONE if data else FAINT
                x, y = 14 + c * cell, low + (rows - 1 - r) * cell
                ax.add_patch(Rectangle((x, y), cell, cell, fc=color, ec="white", lw=1.5))
                ax.text(x + cell / 2, y + cell / 2, str(r * stride + c), ha="center", va="center", fontsize=10,
                        color=INK if data else MUTED)  # fmt: skip
            ax.text(12.6, low + (rows - 0.5 - r) * cell, f"row {r}", ha="right", va="center", color=MUTED)
        for c in range(width):
            ax.text(14 + (c + 0.5) * cell, low + rows * cell + 1, f"{c}", ha="center", color=MUTED)
        words = (
            f"stride_m = {stride}, stride_n = 1", f"{rows} x {width}, {stride - width} more to the next row (grey)", "",
            f"tile: rows {', '.join(map(str, range(r0, r1)))}, columns {', '.join(map(str, range(c0, c1)))}",
            f"offsets: {r0} * {stride} + {c0} = {r0 * stride + c0}, ...",
        )  # fmt: skip
        for i, line in enumerate(words):
            ax.text(60, low + rows * cell - 2.5 - 3.7 * i, line, fontsize=11, va="center")
        unit = 92 / (rows * stride)
        for i in range(rows * stride):
            r, c = divmod(i, stride)
            mine = r0 <= r < r1 and c0 <= c < c1
            color = NOW if mine else DONE if c < width else FAINT
            ax.add_patch(Rectangle((2 + i * unit, 3.4), unit, 4, fc=color, ec="white", lw=1))
            if mine:
                ax.text(2 + (i + 0.5) * unit, 5.4, str(i), ha="center", va="center", fontsize=9)
        ax.text(2, 9, "the same in memory, one element after another", color=MUTED)
        for r in range(rows):
            ax.text(2 + r * stride * unit, 0.8, f"row {r}", color=MUTED, fontsize=9)


def waste(marked: int) -> None:
    """Share of a program's lanes that are off, by the length of a row."""
    lengths = range(1, 1025)
    with plot(9.0, 3.0) as ax:
        ax.plot(lengths, [lanes_off(n) for n in lengths], color=READ, lw=1.8)
        ax.plot([marked], [lanes_off(marked)], "o", color=ACCENT, ms=8)
        ax.text(marked, 55, f"n = {marked}: {lanes_off(marked):.1f}%", color=ACCENT, weight="bold")
        ax.set(xlabel="elements in a row", ylabel="% of lanes off", xlim=(0, 1024), ylim=(0, 63))
        ax.set_xticks([1, 128, 256, 512, 1024])
        ax.grid(axis="y")


def grid_of_the_head(seqlen_q: int = SEQLEN_Q, seqlen_k: int = SEQLEN_K, tile: int = TILE) -> None:
    """The score matrix in tiles: a row of tiles is a program, its steps numbered; what lies outside is hatched."""
    rows, cols = -(-seqlen_q // tile), -(-seqlen_k // tile)
    with plot(9.6, 4.6) as ax:
        for i in range(rows):
            for j in range(cols):
                height, width = min(tile, seqlen_q - i * tile), min(tile, seqlen_k - j * tile)
                x, y = j * tile, i * tile
                ax.add_patch(Rectangle((x, y), tile, tile, fc=FAINT, ec=MUTED, lw=0.6, hatch="///"))
                ax.add_patch(Rectangle((x, y), width, height, fc=DONE if (i + j) % 2 else READ, ec="white", lw=1.2))
                if height > tile / 4:
                    ax.text(x + width / 2, y + height / 2, str(j), ha="center", va="center",
                            color=INK if (i + j) % 2 else "white")  # fmt: skip
            ax.text(-4, (i + 0.5) * tile, f"program {i}", ha="right", va="center", weight="bold")
        ax.set(xlim=(-44, cols * tile + 2), ylim=(rows * tile + 12, -12), aspect="equal")
        ax.text(0, -4, f"{seqlen_k} keys", color=MUTED)
        words = "number: step of the loop. Hatched: queries and keys that do not exist"
        ax.text(0, rows * tile + 9, words, color=MUTED)
        ax.set_xticks([]), ax.set_yticks([])
        ax.spines[:].set_visible(False)


def read_rates() -> None:
    """GB/s that so many programs read together, recorded, beside what one alone predicts."""
    rates = recorded.read_rates()
    one, most = rates[1] / 1e9, recorded.ceiling() / 1e9
    with plot(9.0, 3.9) as ax:
        ax.plot(list(rates), [min(n * one, most) for n in rates], color=MUTED, lw=1.6, ls=(0, (4, 3)),
                label="predicted: n times one program, at most the memory's rate")  # fmt: skip
        ax.plot(list(rates), [rate / 1e9 for rate in rates.values()], "o-", color=READ, label="recorded")
        ax.axvline(recorded.sms(), color=RULE, lw=1.4, zorder=0)
        ax.text(recorded.sms() * 1.07, 36, f"{recorded.sms()} SMs", color=MUTED)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ticks = [1, 4, 16, 64, 132, 264, 528, 1056, 2112]
        ax.set_xticks(ticks, [str(n) for n in ticks])
        ax.set_yticks([50, 100, 500, 1000, 5000], ["50", "100", "500", "1000", "5000"])
        ax.minorticks_off()
        ax.set(xlabel="programs of 256 threads", ylabel="GB/s read together")
        ax.grid(axis="y")
        ax.legend(loc="upper left")
        ax.set_title("H200: programs that do nothing but read")
