"""The drawings of lesson 08. Every number in them is computed by the package or was recorded."""

from matplotlib.patches import Rectangle

from flashlab.course.lessons.lesson_08 import (
    A100,
    H200,
    HEADS_KV,
    HEADS_Q,
    LONG,
    full_batch,
    intensity,
    recorded,
    spec_of_llama,
    step_s,
    weights_bytes,
)
from flashlab.course.plots import drawing, plot
from flashlab.hardware import gpu
from flashlab.sizing import max_context, plan
from flashlab.widgets.style import ACCENT, DONE, FAINT, INK, MUTED, NOW, PANEL, READ, RULE, WRITE


def packing(heads_q: int = HEADS_Q, heads_kv: int = HEADS_KV) -> None:
    """Two launches of one decode step: a block for each query head, and a block for each kv head."""
    group = heads_q // heads_kv
    with plot(9.6, 2.9) as ax:
        drawing(ax, 96, 29)
        for top, packed, title in ((26.5, False, f"one block for each query head: {heads_q} blocks"),
                                   (13.5, True, f"packed, one block for each kv head: {heads_kv} blocks")):  # fmt: skip
            ax.text(1, top, title, weight="bold", fontsize=11)
            width = 94 / heads_q
            for head in range(heads_q):
                left = 1 + head * width
                if packed and head % group == 0:
                    size = group * width - 0.3, 7.2
                    ax.add_patch(Rectangle((left + 0.15, top - 8.6), *size, fc=FAINT, ec=READ, lw=1.6))
                elif not packed:
                    ax.add_patch(Rectangle((left + 0.2, top - 8.6), width - 0.4, 7.2, fc=FAINT, ec=READ, lw=1.6))
                ax.add_patch(Rectangle((left + 0.7, top - 4.4), width - 1.4, 2.0, fc=NOW, ec="none"))
                if not packed:
                    ax.add_patch(Rectangle((left + 0.7, top - 7.9), width - 1.4, 2.6, fc=READ, ec="none"))
            if packed:
                for kv in range(heads_kv):
                    left = 1 + kv * group * width
                    ax.add_patch(Rectangle((left + 0.7, top - 7.9), group * width - 1.4, 2.6, fc=READ, ec="none"))
        ax.add_patch(Rectangle((1, 0.5), 2, 2, fc=NOW, ec="none"))
        ax.text(3.8, 1.5, "one query row", va="center", color=MUTED)
        ax.add_patch(Rectangle((20, 0.5), 2, 2, fc=READ, ec="none"))
        ax.text(22.8, 1.5, "one reading of a kv head's K and V", va="center", color=MUTED)
        ax.add_patch(Rectangle((54, 0.5), 2, 2, fc=FAINT, ec=READ, lw=1.6))
        ax.text(56.8, 1.5, "one block", va="center", color=MUTED)


def three_readings(part=A100, heads_q: int = HEADS_Q, heads_kv: int = HEADS_KV) -> None:
    """The SMs of a GPU, three times: those that batch 1 gives a block."""
    readings = (("one block a sequence", 1), ("one a kv head (packed)", heads_kv), ("one a query head", heads_q))
    columns = 12
    rows = -(-part.sms // columns)
    with plot(9.6, 3.1, columns=3) as axes:
        for ax, (name, blocks) in zip(axes, readings, strict=True):
            drawing(ax, columns, rows + 1.5)
            for sm in range(part.sms):
                x, y = sm % columns, rows - 1 - sm // columns
                ax.add_patch(Rectangle((x + 0.08, y + 0.08), 0.84, 0.84, fc=NOW if sm < blocks else FAINT, ec="none"))
            words = f"{blocks} of {part.sms} SMs: {100 * blocks / part.sms:.2f}%"
            ax.text(0.1, rows + 0.9, words, weight="bold", fontsize=12)
            ax.text(0.1, rows + 0.2, name, color=MUTED)


def rates() -> None:
    """GB/s against blocks on an H200: the recorded reading, two bounds for it, and recorded decode steps."""
    curve, block, most = recorded.underfill(), recorded.block_bytes_per_s() / 1e9, recorded.gpu_bytes_per_s() / 1e9
    grid = [2 ** (i / 8) for i in range(0, 90)]
    with plot(9.6, 4.6) as ax:
        bounds, seen = [min(n * block, most) for n in grid], [rate / 1e9 for rate in curve.values()]
        ax.plot(grid, bounds, color=MUTED, lw=1.6, label="two bounds: min(blocks × one block, all)")
        ax.plot(list(curve), seen, "o-", color=READ, lw=1.4, ms=6, label="blocks that only read")
        unsplit = [(b * kv, recorded.kv_bytes(b, kv, n) / recorded.decode(b, q, kv, n, peer) / 1e3)
                   for b, q, kv, n, peer in recorded.UNSPLIT]  # fmt: skip
        ax.plot(*zip(*unsplit, strict=True), "D", color=WRITE, ms=8, zorder=4, label="decode steps, one split")
        size = recorded.kv_bytes(1, HEADS_KV, LONG)
        split = [(HEADS_KV * n, size / us / 1e3) for n, us in recorded.splits().items()]
        ax.plot(*zip(*split, strict=True), "x", color=NOW, ms=7, mew=2, zorder=3, label="batch 1, its 8 heads split")
        ax.axvline(H200.sms, color=RULE, lw=1.2)
        ax.text(H200.sms * 1.06, 45, "one block an SM", color=MUTED)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks([1, 8, 32, 132, 512, 2048], ["1", "8", "32", "132", "512", "2048"])
        ax.set_yticks([50, 100, 200, 500, 1000, 2000, 4500], ["50", "100", "200", "500", "1000", "2000", "4500"])
        ax.minorticks_off()
        ax.set(xlabel="blocks of the launch", ylabel="GB/s of K and V", ylim=(28, 6500))
        ax.set_title("Recorded on an H200: few blocks read slowly")
        ax.grid(axis="y")
        ax.legend(loc="upper left")


def two_intensities() -> None:
    """The H200's roofline with attention (by group) and the weights (by batch) on it."""
    intensities = [2 ** (i / 16) for i in range(-16, 180)]
    peak, bandwidth = H200.dense_16bit_flops / 1e12, H200.hbm_bytes_per_s / 1e12
    with plot(9.6, 4.2) as ax:
        ax.plot(intensities, [min(peak, i * bandwidth) for i in intensities], color=INK, lw=1.8)
        for marker, color, name, points, drop in (
            ("D", WRITE, "attention, any batch: query heads per kv head", {g: intensity(1, 8 * g, 8, LONG)
                                                                           for g in (1, 4, 8)}, -1),
            ("o", READ, "weights: batch", {b: float(b) for b in (1, 16, 64, 256)}, 1),
        ):  # fmt: skip
            at = [(i, min(peak, i * bandwidth)) for i in points.values()]
            ax.plot(*zip(*at, strict=True), marker, color=color, ms=8 - drop, zorder=3.5 - drop / 2, label=name)
            for n, (x, y) in zip(points, at, strict=True):
                shift = (9, -12) if drop < 0 else (-9, 7)
                ax.annotate(str(n), (x, y), shift, textcoords="offset points", color=color, weight="bold",
                            ha="left" if drop < 0 else "right")  # fmt: skip
        ax.axvline(H200.ridge, color=RULE, lw=1.2)
        ax.text(H200.ridge * 0.95, 2.2, f"ridge: {H200.ridge:.0f}", color=MUTED, ha="right")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set(xlim=(0.6, 1500), ylim=(2, 2500), xlabel="FLOP per byte", ylabel="attainable TFLOP/s")
        ax.set_title("H200, bf16: a batch moves the weights up the slope, and leaves attention where it is")
        ax.grid(True)
        ax.legend(loc="upper left")


def tokens_per_second(contexts: tuple[int, ...] = (1024, 8192, 32768, LONG)) -> None:
    """Predicted tokens per second of Llama-3.1-8B against the batch, up to what an H200's memory holds."""
    spec, colors = spec_of_llama(), (DONE, READ, NOW, WRITE)
    with plot(9.6, 4.4) as ax:
        for tokens, color in zip(contexts, colors, strict=True):
            most = plan(spec, H200, tokens=tokens).max_batch
            grid = sorted({1, most, *(round(most ** (i / 24)) for i in range(24))})
            rates = [batch / step_s(batch, tokens) for batch in grid]
            ax.plot(grid, rates, color=color)
            ax.plot([most], [rates[-1]], "s", color=color, ms=8)
            words = f"{tokens} tokens: at most {most}"
            ax.annotate(words, (most, rates[-1]), (9, -4), textcoords="offset points", color=INK)
        ax.plot([1, 100], [1 / step_s(1, 1024), 100 / step_s(1, 1024)], color=MUTED, lw=1.2, ls=(0, (4, 3)), zorder=0)
        ax.text(80, 27000, "if a sequence cost nothing: batch times as fast", color=MUTED, ha="right")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set(xlim=(0.9, 9000), ylim=(100, 60000), xlabel="batch", ylabel="tokens per second, all sequences")
        ax.set_title("Llama-3.1-8B on an H200, predicted from its bytes; squares: the memory is full")
        ax.grid(axis="y")


def fill_and_memory(names: tuple[str, ...] = ("a100", "h100", "h200", "b200")) -> None:
    """The batch that memory allows against the context, and the context up to which it fills the SMs."""
    spec, colors = spec_of_llama(), (MUTED, NOW, READ, WRITE)
    grid = [2**i for i in range(10, 18)]
    with plot(9.6, 4.4) as ax:
        for name, color in zip(names, colors, strict=True):
            part = gpu(name)
            room = plan(spec, part, tokens=LONG).budget.cache
            need = full_batch(part.sms)
            edge = max_context(spec, room, need)
            batches = [plan(spec, part, tokens=n).max_batch for n in grid]
            words = f"{part.name}: {need} fill {part.sms} SMs, up to {edge:,} tokens"
            dash, above = ("--", 3) if name == "a100" else ("-", 2)  # the two with 80 GB lie on each other
            ax.plot(grid, batches, color=color, label=words, ls=dash, zorder=above)
            ax.plot([edge], [need], "o", color=color, ms=9, mec=PANEL, zorder=4)
        ax.axhspan(0.8, 14, color=FAINT, zorder=0)
        ax.text(1100, 3.2, "fewer sequences than fill any of them", color=MUTED)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(grid, [f"{n // 1024}k" for n in grid])
        ax.set(ylim=(2, 1500), xlabel="tokens in each sequence", ylabel="largest batch that fits")
        ax.set_title("Llama-3.1-8B, bf16: the batch that memory allows (dots: it just fills the SMs)")
        ax.grid(axis="y")
        ax.legend(loc="upper right")


def memory(batches: tuple[int, ...], tokens: int = LONG) -> None:
    """Weights and caches of some batches beside an H200's memory."""
    spec, room = spec_of_llama(), H200.memory_bytes / 1e9
    with plot(9.6, 0.55 * len(batches) + 1.2) as ax:
        for row, batch in enumerate(batches):
            left = weights_bytes() / 1e9
            ax.barh(row, left, color=MUTED, height=0.62, ec="white")
            for _ in range(batch):
                width = spec.bytes(1, tokens) / 1e9
                ax.add_patch(Rectangle((left + 0.6, row - 0.3), width - 1.2, 0.6, fc=READ, ec="none"))
                left += width
            box = dict(fc=PANEL, ec="none", pad=1.5)
            ax.text(left + 3, row, f"{left:.0f} GB", va="center", weight="bold", bbox=box, zorder=4)
        ax.axvline(room, color=ACCENT, lw=1.6, ls=(0, (4, 3)))
        ax.text(room + 2, -0.75, f"the H200 has {room:.0f} GB", color=ACCENT, weight="bold")
        ax.axvline(0.9 * room, color=ACCENT, lw=1.0, ls=(0, (1, 2)))
        ax.text(0.9 * room - 2, -0.75, "90%", color=ACCENT, ha="right")
        ax.set_yticks(range(len(batches)), [f"batch {batch}" for batch in batches], color=INK)
        ax.set(ylim=(len(batches) - 0.5, -1.15), xlim=(0, 345))
        ax.set_xlabel(f"GB: weights (grey), and a cache of {tokens} tokens for each sequence (blue)")
        ax.tick_params(left=False)
