"""The drawings of lesson 03. Every number in them is counted by flashlab.reference or was recorded."""

from matplotlib.patches import Rectangle

from flashlab.course.lessons.lesson_03 import HEAD_DIM, HEADS, SEQLEN, intensity, paper_elements, recorded
from flashlab.course.plots import drawing, plot
from flashlab.hardware import gpu
from flashlab.hardware.limits import LIMITS
from flashlab.reference import traffic
from flashlab.reference.mask import mask
from flashlab.reference.tiling import Tiling
from flashlab.widgets.style import ACCENT, DONE, FAINT, INK, MUTED, NOW, PANEL, READ, RULE, WRITE

FULL, CUT, SKIPPED = READ, NOW, FAINT


def tiles_in_sram(shapes: tuple[tuple[int, int], ...], head_dim: int = HEAD_DIM) -> None:
    """What a program keeps on the chip, for some (BLOCK_M, BLOCK_N), beside what one block may have."""
    room = {name: LIMITS[gpu(name).cc].shared_memory_per_block / 1024 for name in ("h200", "a100", "t4")}
    with plot(9.6, 0.62 * len(shapes) + 1.5) as ax:
        for row, (block_m, block_n) in enumerate(shapes):
            left = 0.0
            for name, elements, color in (("q", block_m, DONE), ("k", block_n, READ), ("v", block_n, NOW)):
                width = elements * head_dim * 2 / 1024
                ax.barh(row, width, left=left, color=color, height=0.6, label=name if row == 0 else None, ec="white")
                left += width
            ax.text(
                left + 3,
                row,
                f"{left:.0f} KiB",
                va="center",
                weight="bold",
                bbox=dict(fc=PANEL, ec="none", pad=1.5),
                zorder=3,
            )
        for name, kib in room.items():
            ax.plot([kib, kib], [-0.55, len(shapes) - 0.5], color=ACCENT, lw=1.4, ls=(0, (4, 3)), zorder=2)
            ax.text(kib, -0.72, f"{gpu(name).name.split('-')[0]}: {kib:.0f}", color=ACCENT, ha="center", weight="bold")
        ax.set_yticks(range(len(shapes)), [f"{m} x {n}" for m, n in shapes], color=INK)
        ax.set(ylim=(len(shapes) - 0.5, -1.1), xlim=(0, 300))
        ax.set_xlabel(f"KiB of tiles in bf16, head_dim {head_dim} (dashed: most that one block can have)")
        ax.set_ylabel("BLOCK_M x BLOCK_N")
        ax.legend(loc="lower right", ncols=3)


KINDS = {"Q": ("q",), "K, V": ("k", "v"), "O": ("o",), "S, P": ("s", "p"), "m, l, lse": ("m", "l", "lse")}
KIND_COLORS = {"Q": DONE, "K, V": READ, "O": NOW, "S, P": WRITE, "m, l, lse": MUTED}


def bytes_by_kind(orders: dict[str, traffic.Traffic], heads: int = HEADS) -> None:
    """GB read (above) and written (below) by each order of the loops, split by tensor."""
    with plot(9.6, 0.95 * len(orders) + 1.2) as ax:
        for row, moved in enumerate(orders.values()):
            for shift, side in ((-0.19, moved.reads), (0.19, moved.writes)):
                left = 0.0
                for kind, tensors in KINDS.items():
                    width = heads * sum(side.get(t, 0) for t in tensors) / 1e9
                    ax.barh(row + shift, width, left=left, height=0.34, color=KIND_COLORS[kind], ec="white", lw=0.6)
                    left += width
                ax.text(
                    left + 0.2,
                    row + shift,
                    f"{'read' if shift < 0 else 'written'} {left:.1f}",
                    va="center",
                    fontsize=9.5,
                )
        for kind, color in KIND_COLORS.items():
            ax.barh(0, 0, color=color, label=kind)
        ax.set_yticks(range(len(orders)), list(orders), color=INK, fontsize=11)
        ax.invert_yaxis()
        ax.set(xlabel="GB through the programs' loads and stores, all heads", xlim=(0, 1.13 * ax.get_xlim()[1]))
        ax.tick_params(left=False)
        ax.legend(loc="lower right", ncols=5)


def theorem(head_dims: tuple[int, ...] = (64, 128), seqlen: int = 2**16) -> None:
    """Counted elements of FlashAttention-1 with the paper's blocks against the size of SRAM, over 12 N^2 d^2 / M."""
    srams = [2**i for i in range(13, 20)]
    fine = [2 ** (i / 4) for i in range(13 * 4 - 2, 19 * 4 + 3)]
    with plot(9.0, 4.2) as ax:
        for head_dim, color in zip(head_dims, (READ, NOW), strict=True):
            line = [12 * traffic.theorem_2(seqlen, head_dim, m) for m in fine]
            ax.plot(fine, line, color=color, lw=1.6, label=f"12 N²d²/M, head_dim {head_dim}")
            ax.plot(srams, [paper_elements(head_dim, seqlen, m) for m in srams], "o", color=color, ms=7)
        ax.plot([], [], "o", color=MUTED, ms=7, label="counted")
        ax.axhline(4 * seqlen**2, color=WRITE, lw=1.6, ls=(0, (4, 3)))
        ax.text(fine[-1], 4 * seqlen**2 * 1.07, "naive: 4 N² for S and P", color=WRITE, ha="right", weight="bold")
        ax.axvline(2**16, color=RULE, lw=1.2)
        ax.text(2**16 * 1.05, 1.3e11, "128 KiB of bf16", color=MUTED)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(srams, [f"{m // 1024}K" for m in srams])
        ax.set(xlabel="M: numbers that fit in SRAM", ylabel="numbers moved to and from HBM", ylim=(3e8, 2.4e11))
        ax.set_title(f"Theorem 2, one head, N = {seqlen}")
        ax.grid(axis="y")
        ax.legend(loc="lower left")


def block_sizes() -> None:
    """Left: bytes against BLOCK_M and BLOCK_N. Right: FLOP per byte against BLOCK_M, with the H200's ridge."""
    sizes = (16, 32, 64, 128, 256)
    total = lambda m, n: HEADS * traffic.flash_attention_2(SEQLEN, SEQLEN, HEAD_DIM, m, n).total / 1e9
    ridge = recorded.MATMUL_FLOPS / recorded.COPY_BYTES_PER_S
    with plot(9.6, 3.5, columns=2) as (left, right):
        left.plot(sizes, [total(m, 64) for m in sizes], "o-", color=READ, label="BLOCK_M grows, BLOCK_N = 64")
        left.plot(sizes, [total(64, n) for n in sizes], "s--", color=NOW, label="BLOCK_N grows, BLOCK_M = 64")
        left.set(ylabel="GB loaded and stored", xlabel="block size")
        left.legend(loc="upper right")
        left.set_title("BLOCK_M decides, BLOCK_N does not")
        right.plot(sizes, [intensity(m) for m in sizes], "o-", color=READ)
        right.axhline(ridge, color=MUTED, lw=1.2, ls=(0, (4, 3)))
        right.text(16, ridge * 1.06, f"H200, recorded rates: ridge {ridge:.0f}", color=MUTED)
        right.set(ylabel="FLOP per byte", xlabel="BLOCK_M")
        right.set_title("Intensity is about BLOCK_M")
        for ax in (left, right):
            ax.set_xscale("log", base=2)
            ax.set_yscale("log", base=2)
            ax.set_xticks(sizes, [str(n) for n in sizes])
            ax.grid(axis="y")
        left.set_yticks([8, 16, 32, 64, 128], ["8", "16", "32", "64", "128"])
        right.set_yticks([16, 32, 64, 128, 256], ["16", "32", "64", "128", "256"])


def causal_tiles(*tilings: Tiling) -> None:
    """Each score matrix in its tiles: whole, cut by the diagonal, or skipped."""
    with plot(9.6, 3.9, columns=len(tilings), width_ratios=[len(t.k_tiles) for t in tilings]) as axes:
        for ax, tiling in zip(axes, tilings, strict=True):
            count = {FULL: 0, CUT: 0, SKIPPED: 0}
            for i, rows in enumerate(tiling.q_tiles):
                for j, keys in enumerate(tiling.k_tiles):
                    seen = mask(tiling.seqlen_q, tiling.seqlen_k, causal=tiling.causal)[rows, keys]
                    color = FULL if seen.all() else CUT if seen.any() else SKIPPED
                    count[color] += 1
                    ax.add_patch(Rectangle((j + 0.05, i + 0.05), 0.9, 0.9, fc=color, ec="none"))
            offset = tiling.seqlen_k - tiling.seqlen_q
            ax.plot([offset / tiling.block_n, len(tiling.k_tiles)], [0, len(tiling.q_tiles)], color=INK, lw=1.4)
            ax.set(xlim=(-0.1, len(tiling.k_tiles) + 0.1), ylim=(len(tiling.q_tiles) + 0.1, -0.1), aspect="equal")
            ax.set_xticks([]), ax.set_yticks([])
            ax.spines[:].set_visible(False)
            ax.set_title(f"{tiling.seqlen_q} queries, {tiling.seqlen_k} keys")
            words = f"{count[FULL]} whole, {count[CUT]} cut, {count[SKIPPED]} skipped"
            ax.text(0, len(tiling.q_tiles) + 0.2, words, va="top", color=MUTED)
        for color, name in ((FULL, "whole: no mask"), (CUT, "cut: masked"), (SKIPPED, "skipped: not loaded")):
            axes[0].plot([], [], "s", color=color, ms=9, label=name)
        axes[0].legend(loc="upper left", bbox_to_anchor=(-0.02, -0.06), ncols=3, fontsize=9)


def queries_outside() -> None:
    """FlashAttention-2's nest of loops."""
    _nest("for each tile of queries", "load q\nm = −∞, l = 0, acc = 0", "for each tile of keys", "load k, v\ntile_step",
          "store acc / l\nstore lse")  # fmt: skip


def keys_outside() -> None:
    """FlashAttention-1's nest of loops."""
    _nest(
        "for each tile of keys",
        "load k, v",
        "for each tile of queries",
        "load q, o, m, l\ntile_step\nstore o, m, l",
        "",
    )


def _nest(outer, before, inner, body, after):
    with plot(9.6, 2.1) as ax:
        drawing(ax, 96, 21)
        ax.add_patch(Rectangle((1, 1), 94, 19, fc=FAINT, ec=MUTED, lw=1.2))
        ax.add_patch(Rectangle((31, 2.5), 40, 13.5, fc=DONE, ec=MUTED, lw=1.2))
        ax.text(3, 17.2, outer, weight="bold", fontsize=11.5)
        ax.text(33, 13, inner, weight="bold", fontsize=11.5)
        for x, text in ((3, before), (33, body), (73, after)):
            ax.text(x, 7.4, text, fontsize=11, va="center", linespacing=1.5)


def from_naive_to_production() -> None:
    """Milliseconds of one prefill: naive step by step, our plain loops, and production kernels; floors beside them."""
    bars = [("naive, three kernels", recorded.NAIVE_US)]
    bars += [("plain loops, queries outside", {"tiled": recorded.LOOP_ORDERS[16, 16384]["queries outside"]})]
    bars += [(name, {"tiled": recorded.production_us(name)}) for name in recorded.PRODUCTION_TFLOPS]
    colors = {"scores": DONE, "softmax": WRITE, "output": NOW, "tiled": READ}
    naive = traffic.naive(16384, 16384, HEAD_DIM)
    memory_ms = 16 * naive.total / recorded.COPY_BYTES_PER_S * 1e3
    compute_ms = recorded.FLOP / recorded.MATMUL_FLOPS * 1e3
    with plot(9.6, 3.6) as ax:
        for row, (_, steps) in enumerate(bars):
            left = 0.0
            for step, us in steps.items():
                ax.barh(row, us / 1e3, left=left, color=colors[step], height=0.6, ec="white", lw=0.6)
                if len(steps) > 1:
                    ax.text(left + us / 2e3, row, step, ha="center", va="center", fontsize=9, color=INK)
                left += us / 1e3
            ax.text(left + 0.15, row, f"{left:.1f} ms", va="center", weight="bold")
        for value, words, row in ((memory_ms, f"predicted, naive: its bytes, {memory_ms:.1f} ms", 0.55),
                                  (compute_ms, f"predicted, tiled: its FLOP, {compute_ms:.1f} ms", 4.62)):  # fmt: skip
            ax.axvline(value, color=MUTED, lw=1.3, ls=(0, (4, 3)), zorder=0 if row < 1 else 2)
            ax.text(
                value + 0.12, row, words, color=MUTED, va="center", fontsize=9.5, bbox=dict(fc=PANEL, ec="none", pad=1)
            )
        ax.set_yticks(range(len(bars)), [name for name, _ in bars], color=INK, fontsize=10.5)
        ax.set(ylim=(len(bars), -0.6), xlim=(0, 17.5), xlabel=f"milliseconds, recorded: {recorded.WHEN}")
        ax.tick_params(left=False)
        ax.set_title("Batch 1, 16 heads, 16384 queries and keys, head_dim 128, bf16")
