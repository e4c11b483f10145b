"""The drawings of lesson 00. Every number in them comes from flashlab.hardware or from recorded.py."""

from matplotlib.patches import FancyBboxPatch, Rectangle

from flashlab.course.lessons.lesson_00 import read_gb_per_s_by_latency
from flashlab.course.lessons.lesson_00.recorded import LATENCY_NS
from flashlab.course.plots import drawing, plot
from flashlab.hardware import gpu, measured
from flashlab.hardware.limits import LIMITS
from flashlab.widgets.style import ACCENT, DONE, FAINT, INK, MUTED, NOW, READ, RULE, number


def one_gpu(name: str) -> None:
    """HBM, the L2, all the SMs, and one of them enlarged."""
    part = gpu(name)
    limits = LIMITS[part.cc]
    with plot(9.6, 4.5) as ax:
        drawing(ax, 96, 45)
        _box(ax, 1, 6, 13, 32, READ, f"HBM\n\n{part.memory_gb:.0f} GB", "white")
        _box(ax, 25, 6, 6, 32, DONE, f"L2\n\n{part.l2_bytes / 2**20:.0f}\nMiB")
        for y in (30, 22, 14):
            ax.annotate("", (25, y), (14, y), arrowprops=dict(arrowstyle="<->", color=MUTED, lw=1.6))
        ax.text(19.5, 35.4, f"{part.hbm_bytes_per_s / 1e12:.1f} TB/s", ha="center", fontsize=11, weight="bold")
        _grid_of_sms(ax, part.sms, 34, 6, 25, 32)
        ax.text(46.5, 40.2, f"{part.sms} SMs", ha="center", fontsize=12, weight="bold")
        _one_sm(ax, limits, 66, 4, 29, 36)
        ax.text(80.5, 42, "one SM", ha="center", fontsize=12, weight="bold")
        ax.text(48, 1.2, f"{part.name}: far, large and slow on the left; near, small and fast on the right",
                ha="center", color=MUTED, fontsize=9.5)  # fmt: skip


def _box(ax, x, y, width, height, color, text="", ink=INK, size=11):
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.8", fc=color, ec="none"))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=ink, fontsize=size, weight="bold")


def _grid_of_sms(ax, sms, x, y, width, height, columns=11):
    rows = -(-sms // columns)
    w, h = width / columns, height / rows
    for i in range(sms):
        left, bottom = x + (i % columns) * w, y + height - (i // columns + 1) * h
        chosen = i == columns * 6 - 1
        ax.add_patch(Rectangle((left + 0.2, bottom + 0.25), w - 0.4, h - 0.5, fc=NOW if chosen else DONE, ec="none"))
        if chosen:
            for corner, target in ((bottom + h - 0.25, 40), (bottom + 0.25, 4)):
                ax.plot([left + w - 0.2, 66], [corner, target], color=NOW, lw=1)


def _one_sm(ax, limits, x, y, width, height):
    warps = limits.threads // 32
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.8", fc=FAINT, ec=NOW, lw=1.6))
    shared = limits.shared_memory // 1024
    _box(ax, x + 1, y + 1, width - 2, 6, DONE, f"shared memory {shared} KiB", size=10)
    cell = (width - 2) / 4
    for quarter in range(4):
        left = x + 1 + quarter * cell
        _box(ax, left + 0.3, y + 8, cell - 0.6, 5, "#f3d9a8", "64 KiB\nregisters", size=7.5)
        for warp in range(warps // 4):
            row, column = divmod(warp, 2)
            size = (cell - 1.4) / 2
            ax.add_patch(Rectangle((left + 0.5 + column * (size + 0.4), y + 14 + row * 2.2), size, 1.7, fc=NOW, ec="none"))
    ax.text(x + width / 2, y + 33.6, f"{warps} warps x 32 threads = {limits.threads} threads", ha="center", va="center",
            fontsize=9, color=INK)  # fmt: skip


def latencies(clock_ghz: float) -> None:
    """How long one load waits, by where its data is."""
    names, _, waits = zip(*LATENCY_NS, strict=True)
    with plot(9, 2.3) as ax:
        ax.barh(range(len(names)), waits, color=[NOW, DONE, READ], height=0.62)
        for row, wait in enumerate(waits):
            ax.text(wait + 5, row, f"{wait:.0f} ns = {wait * clock_ghz:.0f} cycles", va="center", weight="bold")
        ax.set_yticks(range(len(names)), names, color=INK, fontsize=11)
        ax.invert_yaxis()
        ax.set(xlim=(0, 440), xlabel="nanoseconds from a load to its value (recorded, H200)")
        ax.tick_params(left=False)
        ax.spines["left"].set_visible(False)


def underfill() -> None:
    """Bandwidth against the number of blocks: recorded points over what latency predicts."""
    blocks, rates = zip(*((n, rate / 1e9) for n, rate in measured.UNDERFILL), strict=True)
    grid = [2 ** (i / 8) for i in range(0, 86)]
    with plot(9, 4.2) as ax:
        ax.plot(grid, [read_gb_per_s_by_latency(n) for n in grid], color=NOW, label="predicted: bytes under way / latency")
        ax.plot(blocks, rates, "o", color=READ, ms=8, label="recorded")
        for n, rate in zip(blocks, rates, strict=True):
            ax.annotate(number(rate), (n, rate), (7, -13), textcoords="offset points", color=READ, weight="bold")
        ax.axhline(gpu(measured.GPU).hbm_bytes_per_s / 1e9, color=MUTED, lw=1.2, ls=(0, (4, 3)))
        ax.text(1, 5300, "datasheet: 4800 GB/s", color=MUTED, va="bottom")
        ax.axvline(132, color=RULE, lw=1.2)
        ax.text(138, 6.4, "one block on each SM", color=MUTED)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(blocks, [str(n) for n in blocks])
        ax.set(xlim=(0.85, 1700), ylim=(5, 11000), xlabel="blocks of 256 threads", ylabel="GB/s read from HBM")
        ax.set_title("An almost empty GPU is a slow GPU")
        ax.grid(axis="y")
        ax.legend(loc="upper left", bbox_to_anchor=(0.0, 0.84))


def rooflines(names: tuple[str, ...], points: dict[str, float]) -> None:
    """min(peak, intensity x bandwidth) of several GPUs, and where some operations (name -> FLOP/byte) stand on the first."""
    colors = (READ, ACCENT, MUTED)
    intensities = [2 ** (i / 16) for i in range(-96, 260)]
    with plot(9, 4.8) as ax:
        for name, color in zip(names, colors, strict=False):
            part = gpu(name)
            peak, bandwidth = part.dense_16bit_flops / 1e12, part.hbm_bytes_per_s / 1e12
            ax.plot(intensities, [min(peak, i * bandwidth) for i in intensities], color=color,
                    label=f"{part.name}: {peak:.0f} TFLOP/s, {bandwidth:.3g} TB/s, ridge {part.ridge:.0f}")  # fmt: skip
            ax.plot([part.ridge], [peak], "o", color=color, ms=6)
        first = gpu(names[0])
        for name, intensity in points.items():
            rate = min(first.dense_16bit_flops, intensity * first.hbm_bytes_per_s) / 1e12
            ax.plot([intensity], [rate], "D", color=NOW, ms=8, zorder=4)
            sloping = intensity < first.ridge
            ax.annotate(name, (intensity, rate), (-10, 5) if sloping else (0, 12), textcoords="offset points",
                        ha="right" if sloping else "center", fontsize=9.5)  # fmt: skip
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set(xlim=(0.02, max(5000, 3 * max(points.values()))), ylim=(0.1, 4000))
        ax.set(xlabel="arithmetic intensity, FLOP per byte", ylabel="attainable TFLOP/s, 16 bit")
        ax.set_title("The roofline: a slope that memory sets, a roof that arithmetic sets")
        ax.grid(True)
        ax.legend(loc="lower right")
