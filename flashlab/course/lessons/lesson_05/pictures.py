"""The drawings of lesson 05. Every number in them is computed, compiled or was recorded."""

from matplotlib.patches import Rectangle

from flashlab.course.lessons.lesson_05 import HEADS, SEQLEN, accumulators, exponential_share, places, recorded
from flashlab.course.lessons.lesson_05.grid import busy, finish, grid_walks, schedule
from flashlab.course.lessons.lesson_05.loop_bounds import solution as loop_bounds
from flashlab.course.plots import drawing, plot
from flashlab.widgets.style import ACCENT, DONE, FAINT, INK, MUTED, NOW, PANEL, READ, RULE, WRITE

FULL, CUT, SKIPPED = READ, NOW, FAINT
HEAD_COLORS = (DONE, NOW, READ, FAINT)


def layouts(seqlen: int = 3, heads: int = 3) -> None:
    """The rows of one sequence in memory, tokens first and heads first, with the steps from row to row."""
    with plot(9.6, 3.0) as ax:
        drawing(ax, 96, 30)
        for y, name, heads_first in ((18, "(batch, seqlen, heads, head_dim), contiguous", False),
                                     (3, "made as (batch, heads, seqlen, head_dim), transposed", True)):  # fmt: skip
            ax.text(2, y + 9.6, name, weight="bold", fontsize=10.5)
            where = {}
            for slot in range(seqlen * heads):
                head, token = divmod(slot, seqlen) if heads_first else (slot % heads, slot // heads)
                where[token, head] = x = 2 + slot * 10.2
                ax.add_patch(Rectangle((x, y), 9.8, 4.2, fc=HEAD_COLORS[head], ec="white"))
                dark = HEAD_COLORS[head] == READ
                ax.text(x + 4.9, y + 2.1, f"t{token} h{head}", ha="center", va="center", fontsize=10,
                        color="white" if dark else INK)  # fmt: skip
            for to, words, lift in (((1, 0), "stride_t", 2.6), ((0, 1), "stride_h", 1.2)):
                begin, end = where[0, 0] + 0.6, where[to] + 0.6
                level = y + 4.2 + lift
                ax.annotate("", (end, y + 4.3), (begin, y + 4.3), arrowprops=dict(
                    arrowstyle="->", color=ACCENT, lw=1.3, connectionstyle=f"bar,fraction={-lift / (end - begin):.4f}",
                    shrinkA=0, shrinkB=0))  # fmt: skip
                ax.text(end + 0.8, level - 0.3, words, color=ACCENT, fontsize=9.5, va="center")


def kv_heads(heads_q: int = 12, heads_kv: int = 4) -> None:
    """Which kv head each query head reads: as it is, and two ways to get it wrong."""
    group = heads_q // heads_kv
    rows = (
        (f"head // {group}", [h // group for h in range(heads_q)], True),
        (f"head % {heads_kv}", [h % heads_kv for h in range(heads_q)], False),
        (f"head // {heads_kv}", [h // heads_kv for h in range(heads_q)], False),
    )
    with plot(9.6, 2.5) as ax:
        drawing(ax, 96, 25)
        for h in range(heads_q):
            ax.text(26.5 + 5.6 * h, 22.6, f"{h}", ha="center", color=MUTED)
        ax.text(2, 22.6, "query head", color=MUTED)
        for row, (name, reads, right) in enumerate(rows):
            y = 15.5 - 6.6 * row
            ax.text(2, y + 2.4, name, family="monospace", fontsize=11, weight="bold" if right else "normal", va="center")
            ax.text(17.5, y + 2.4, "right" if right else "wrong", color=READ if right else WRITE, va="center", fontsize=9.5)
            for h, kv in enumerate(reads):
                color = HEAD_COLORS[kv % len(HEAD_COLORS)]
                ax.add_patch(Rectangle((24 + 5.6 * h, y), 5.1, 4.8, fc=color, ec="white"))
                ax.text(26.5 + 5.6 * h, y + 2.3, f"{kv}", ha="center", va="center", color="white" if color == READ else INK)


def two_loops(*problems: tuple[int, int, int, int, bool]) -> None:
    """The tiles of (seqlen_q, seqlen_k, BLOCK_M, BLOCK_N, causal) problems: first loop, second loop, not visited."""
    wide = [-(-n // block_n) for _, n, _, block_n, _ in problems]
    with plot(9.6, 3.9, columns=len(problems), width_ratios=wide) as axes:
        for ax, (seqlen_q, seqlen_k, block_m, block_n, causal) in zip(axes, problems, strict=True):
            tall, count = -(-seqlen_q // block_m), {FULL: 0, CUT: 0, SKIPPED: 0}
            for tile in range(tall):
                full, stop = loop_bounds(tile, block_m, block_n, seqlen_q, seqlen_k, causal)
                for start in range(0, seqlen_k, block_n):
                    color = FULL if start < full else CUT if start < stop else SKIPPED
                    count[color] += 1
                    right, bottom = min(start + block_n, seqlen_k), min(tile * block_m + block_m, seqlen_q)
                    box = (start + 2, tile * block_m + 2), right - start - 4, bottom - tile * block_m - 4
                    ax.add_patch(Rectangle(*box, fc=color, ec="none"))
            if causal:
                ax.plot([seqlen_k - seqlen_q, seqlen_k], [0, seqlen_q], color=INK, lw=1.3)
            ax.set(xlim=(-4, seqlen_k + 4), ylim=(seqlen_q + 4, -4), aspect="equal")
            ax.set_xticks(range(0, seqlen_k + 1, 128)), ax.set_yticks(range(0, seqlen_q + 1, 128))
            ax.spines[:].set_visible(False)
            ax.tick_params(length=0, labelsize=8.5)
            ax.set_title(f"{seqlen_q} x {seqlen_k}{', causal' if causal else ''}\ntiles of {block_m} x {block_n}", fontsize=11)
            ax.set_xlabel(f"{count[FULL]} without mask, {count[CUT]} with,\n{count[SKIPPED]} skipped")
        for color, name in ((FULL, "first loop: no mask"), (CUT, "second loop: masked"), (SKIPPED, "not visited")):
            axes[0].plot([], [], "s", color=color, ms=9, label=name)
        axes[0].figure.legend(loc="outside lower left", ncols=3, fontsize=9.5)


def long_rows_first() -> None:
    """Places at work over time for a causal grid, short walks first and long walks first."""
    with plot(9.6, 2.9, columns=2, sharey=True, sharex=True) as axes:
        for ax, long, name in zip(axes, (False, True), ("short walks first", "long walks first"), strict=True):
            runs = schedule(grid_walks(SEQLEN, HEADS, 64, 64, long), places())
            at_work = busy(runs)
            ax.fill_between(range(len(at_work)), at_work, step="post", color=READ if long else NOW, lw=0)
            ax.axvline(finish(runs), color=INK, lw=1.2)
            ax.text(finish(runs) + 2, places() * 0.5, f"done\nafter {finish(runs)}", va="center")
            ax.set(title=name, xlabel="time, in key tiles", ylim=(0, places() * 1.05), xlim=(0, 190))
        axes[0].set_ylabel(f"places at work, of {places()}")


def registers(tiles: tuple[tuple[int, int, int], ...], head_dim: int = 128) -> None:
    """Registers a thread that acc and the scores alone take, for some (BLOCK_M, BLOCK_N, warps)."""
    with plot(9.6, 0.5 * len(tiles) + 1.4) as ax:
        for row, (block_m, block_n, warps) in enumerate(tiles):
            left = 0.0
            for (name, width), color in zip(accumulators(block_m, block_n, head_dim, 32 * warps).items(), (READ, NOW), strict=True):
                ax.barh(row, width, left=left, height=0.6, color=color, ec="white", label=name if row == 0 else None)
                left += width
            ax.text(left + 3, row, f"{left:g}", va="center", weight="bold", bbox=dict(fc=PANEL, ec="none", pad=1.5), zorder=3)
        ax.axvline(255, color=ACCENT, lw=1.4, ls=(0, (4, 3)))
        ax.text(255, -0.75, "most a thread can have: 255", color=ACCENT, ha="right", weight="bold")
        ax.set_yticks(range(len(tiles)), [f"{m} x {n}, {w} warps" for m, n, w in tiles], color=INK)
        ax.set(ylim=(len(tiles) - 0.5, -1.15), xlim=(0, 300))
        ax.set_xlabel(f"registers a thread for the two float32 tiles, head_dim {head_dim}")
        ax.tick_params(left=False)
        ax.legend(loc="lower right")


def recorded_tflops() -> None:
    """TFLOP/s of flashlab and its rivals by shape, recorded."""
    colors = {recorded.FA2: DONE, recorded.FLEX: RULE, recorded.OURS: READ, recorded.CUDNN: NOW}
    rows = recorded.prefill()
    with plot(9.6, 5.2) as ax:
        for row, shape in enumerate(rows.values()):
            for i, (peer, color) in enumerate(colors.items()):
                rate = shape.tflops(peer)
                y = row + (i - 1.5) * 0.2
                ax.barh(y, rate, height=0.19, color=color, label=recorded.PEERS[peer] if row == 0 else None)
                if peer in (recorded.OURS, recorded.CUDNN):
                    ax.text(rate + 4, y, f"{rate:.0f}", va="center", fontsize=8)
        ax.axvline(recorded.matmul_flops() / 1e12, color=MUTED, lw=1.3, ls=(0, (4, 3)))
        ax.text(recorded.matmul_flops() / 1e12 - 5, -0.85, "the best matrix product", color=MUTED, ha="right", fontsize=9.5)
        ax.set_yticks(range(len(rows)), list(rows), color=INK, fontsize=9.5)
        ax.set(ylim=(len(rows) - 0.4, -1.2), xlim=(0, 830), xlabel="TFLOP/s, forward, bf16 (causal: half the work)")
        ax.tick_params(left=False)
        ax.legend(loc="upper center", bbox_to_anchor=(0.42, -0.11), ncols=4)


def exponentials() -> None:
    """Time of a tile's exponentials beside that of its products, one after the other and overlapped."""
    with plot(9.6, 2.5) as ax:
        for row, head_dim in enumerate((64, 128, 256)):
            share = exponential_share(head_dim)
            ax.barh(row, 100, height=0.55, color=READ, ec="white", label="products" if row == 0 else None)
            ax.barh(row, 100 * share, left=100, height=0.55, color=NOW, ec="white", label="exponentials" if row == 0 else None)
            words = f"not overlapped: at most {100 / (1 + share):.0f}% of the products' peak"
            ax.text(102 + 100 * share, row, words, va="center", fontsize=9.5)
        ax.set_yticks(range(3), [f"head_dim {d}" for d in (64, 128, 256)], color=INK)
        ax.set(ylim=(2.5, -0.5), xlim=(0, 330), xlabel="time of a tile, its products = 100")
        ax.tick_params(left=False)
        ax.legend(loc="lower right", ncols=2)
