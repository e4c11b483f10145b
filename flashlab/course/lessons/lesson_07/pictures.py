"""The drawings of lesson 07. Every number in them is computed by the package, was recorded, or is the model GPU's."""

import statistics

from matplotlib.patches import Rectangle

from flashlab.course.lessons.lesson_07 import H200, recorded
from flashlab.course.lessons.lesson_07.model_gpu import FLUSH_BYTES, Kernel, ModelGPU
from flashlab.course.plots import plot
from flashlab.hardware import occupancy
from flashlab.widgets.style import ACCENT, DONE, FAINT, INK, MUTED, NOW, READ, RULE, WRITE

HOST, DEVICE = 1.0, 0.0


def _lanes(ax, end: float) -> None:
    ax.set(xlim=(-0.09 * end, end), ylim=(-0.75, 2.1), xlabel="microseconds")
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    for y, name in ((HOST, "host"), (DEVICE, "GPU")):
        ax.text(-0.02 * end, y, name, ha="right", va="center", weight="bold")


def _bar(ax, y: float, start: float, width: float, color: str, words: str = "", ink: str = "white") -> None:
    ax.add_patch(Rectangle((start, y - 0.27), width, 0.54, fc=color, ec="white", lw=1.2))
    ax.text(start + width / 2, y, words, ha="center", va="center", color=ink, fontsize=9.5)


def not_waiting() -> None:
    """The recorded decode step over 131072 keys: what the host does, what the GPU does, and what a clock that does not wait says."""
    step = recorded.longest_step()
    half = step.host_us / 2
    with plot(9.6, 2.7) as ax:
        _lanes(ax, 205)
        _bar(ax, HOST, 0, half, NOW, "issue 1", INK)
        _bar(ax, HOST, half, half, NOW, "issue 2", INK)
        _bar(ax, DEVICE, half, step.device_us, READ, f"decode and combine: {step.device_us:.0f} us")
        for at, words in ((0, "start"), (step.host_us, "stop")):
            ax.axvline(at, color=ACCENT, lw=1.4, ls=(0, (4, 3)))
            ax.text(at + 1.5, 1.78, words, color=ACCENT, weight="bold")
        ax.text(step.host_us + 2, HOST, f"your clock says {step.host_us:.0f} us", va="center", color=ACCENT, weight="bold")


def keeping_busy() -> None:
    """One sample of the honest benchmark on the model GPU: the host is done before the kernel begins."""
    model = ModelGPU(disturbed=False)
    issue, flush = recorded.issue_s() * 1e6, FLUSH_BYTES / recorded.read_bytes_per_s() * 1e6
    kernel = model.cold_us(Kernel("a step over 80 MB", 80e6))
    with plot(9.6, 2.7) as ax:
        _lanes(ax, 135)
        _bar(ax, HOST, 0, issue, NOW, "issue flush", INK)
        _bar(ax, HOST, issue, issue, NOW, "issue kernel", INK)
        _bar(ax, DEVICE, issue, flush, FAINT, f"flush: {flush:.0f} us", INK)
        _bar(ax, DEVICE, issue + flush, kernel, READ, f"{kernel:.0f} us")
        for at, words, side in ((issue + flush, "start event", "right"), (issue + flush + kernel, "end event", "left")):
            ax.axvline(at, color=ACCENT, lw=1.4, ls=(0, (4, 3)))
            ax.text(at + (1.2 if side == "left" else -1.2), 1.78, words, color=ACCENT, weight="bold", ha=side)
        ax.annotate("the host is done", (2 * issue, HOST), (2 * issue + 3, HOST), color=MUTED, va="center", fontsize=9.5)


def disturbed(samples: list[float]) -> None:
    """Samples in their order, with their mean and median."""
    mean, median = statistics.mean(samples), statistics.median(samples)
    with plot(9.6, 3.0) as ax:
        ax.plot(range(1, len(samples) + 1), samples, "o", color=READ, ms=6)
        for value, color, words, drop in ((mean, WRITE, "mean", 4), (median, INK, "median", -13)):
            ax.axhline(value, color=color, lw=1.5)
            ax.annotate(f"{words} {value:.1f}", (len(samples) + 0.6, value), (0, drop), textcoords="offset points", color=color,
                        weight="bold")  # fmt: skip
        ax.set(xlabel="sample", ylabel="microseconds", xlim=(0, len(samples) + 4.5), ylim=(0.94 * min(samples), 1.05 * max(samples)))


def staircase() -> None:
    """Time against blocks, recorded, for one and for two blocks an SM."""
    shared = recorded.shared_memory()
    with plot(9.6, 3.9) as ax:
        for name, color, marker, words in (("1 an SM", WRITE, "o", "1 block an SM"), ("2 an SM", READ, "D", "2 blocks an SM")):
            points = recorded.staircase()[name]
            label = f"{shared[name]:,} bytes of shared memory: {words}"
            ax.plot(list(points), list(points.values()), marker, color=color, ms=7, label=label)
            per = int(name[0]) * H200.sms
            edges = [0, *(n * per for n in range(1, max(points) // per + 1))]
            for left, right in zip(edges, [*edges[1:], max(points)], strict=True):
                if right > left:
                    level = next(us for blocks, us in points.items() if left < blocks <= right)
                    ax.plot([left, right], [level, level], color=color, lw=1.2, alpha=0.6)
        for n in (1, 2, 3, 4, 6):
            ax.axvline(n * H200.sms, color=RULE, lw=1.0)
        ax.set_xticks([0, 132, 264, 396, 528, 792])
        ax.set(xlabel="blocks of the grid", ylabel="microseconds, recorded", ylim=(0, 1650), xlim=(0, 810))
        ax.legend(loc="upper left")


def limits(cases: dict[str, tuple[int, int, int]], cc: str = "9.0") -> None:
    """What each resource alone would allow, for some (threads, registers, shared memory); the smallest decides."""
    names = {"blocks": "slots", "warps": "warps", "registers": "registers", "shared_memory": "shared memory"}
    with plot(9.6, 2.9, columns=len(cases), sharey=True) as axes:
        for ax, (title, case) in zip(axes, cases.items(), strict=True):
            fit = occupancy(cc=cc, threads=case[0], registers=case[1], shared_memory=case[2])
            for row, name in enumerate(names):
                allowed = min(fit.limits[name], 40)
                decides = fit.limits[name] == fit.blocks_per_sm
                ax.barh(row, allowed, color=WRITE if decides else DONE, height=0.6)
                ax.text(allowed + 0.7, row, f"{fit.limits[name]:.0f}", va="center", weight="bold" if decides else "normal")
            ax.set_title(f"{title}\n{case[0]} threads, {case[1]} registers,\n{case[2]:,} bytes", fontsize=9.5)
            ax.set(xlim=(0, 40), ylim=(3.6, -0.6), xlabel="blocks per SM")
            ax.set_yticks(range(4), list(names.values()), color=INK)
            ax.tick_params(left=False)


def roof() -> None:
    """The H200's roofline, and recorded prefill and decode of this package and its rivals under it, without a mask."""
    peak, bandwidth = H200.dense_16bit_flops / 1e12, H200.hbm_bytes_per_s / 1e12
    best, read = recorded.matmul_flop_per_s() / 1e12, recorded.read_bytes_per_s() / 1e12
    grid = [2 ** (i / 16) for i in range(-12, 224)]
    with plot(9.6, 4.6) as ax:
        ax.plot(grid, [min(peak, i * bandwidth) for i in grid], color=INK, lw=1.8, label="datasheet")
        ax.plot(grid, [min(best, i * read) for i in grid], color=MUTED, lw=1.2, ls=(0, (4, 3)), label="reached: a product, reading")
        looks = {recorded.FLEX: ("s", FAINT), recorded.FA2: ("v", DONE), recorded.CUDNN: ("o", NOW), recorded.OURS: ("D", READ)}
        for peer, (marker, color) in looks.items():
            points = [p for kind in ("prefill", "decode") for p in recorded.points(kind) if not p.case.causal and peer in p.seconds]
            xs, ys = [p.intensity for p in points], [p.flops(peer) / 1e12 for p in points]
            size = 5 if peer == recorded.OURS else 7
            ax.plot(xs, ys, marker, color=color, ms=size, mec=MUTED, mew=0.6, label=recorded.PEERS[peer])
        ax.text(1.15, 1.1, "decode", weight="bold")
        ax.text(1300, 100, "prefill", weight="bold")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set(xlabel="FLOP per byte", ylabel="TFLOP/s", xlim=(0.7, 14000), ylim=(0.02, 1800))
        ax.grid(True)
        ax.legend(loc="lower right")


def ladder() -> None:
    """The causal forward's TFLOP/s, change by change: measured, and what each change was predicted to make of the one before."""
    steps = (
        ("three loops, 64-bit addresses", recorded.THREE_LOOPS, None),
        ("four heads side by side", recorded.FOUR_HEADS_TOGETHER, recorded.FOUR_HEADS_PREDICTED),
        ("two loops, 32-bit addresses", recorded.TWO_LOOPS, recorded.TWO_LOOPS_PREDICTED),
        ("64 x 64: two blocks an SM", recorded.TWO_BLOCKS_AN_SM, recorded.TWO_BLOCKS_PREDICTED),
    )
    with plot(9.6, 2.7) as ax:
        for row, (_, reached, percent) in enumerate(steps):
            ax.barh(row, reached, height=0.58, color=READ, label="measured" if row == 0 else None)
            ax.text(reached + 5, row, f"{reached}", va="center", weight="bold")
            if percent is not None:
                said = steps[row - 1][1] * (1 + percent / 100)
                label = "predicted from the row above" if row == 1 else None
                ax.plot([said, said], [row - 0.4, row + 0.4], color=NOW, lw=3, label=label)
        ax.set_yticks(range(len(steps)), [name for name, *_ in steps], color=INK)
        ax.set(xlabel="TFLOP/s, causal, B4 H16 S4096 D128", ylim=(3.6, -0.6), xlim=(0, 700))
        ax.tick_params(left=False)
        ax.legend(loc="upper right")
