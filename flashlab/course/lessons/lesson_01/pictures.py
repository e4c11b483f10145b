"""The drawings of lesson 01. They are given the numbers that they show."""

import torch
from matplotlib.patches import Rectangle

from flashlab.course.plots import drawing, plot
from flashlab.widgets.style import ACCENT, DONE, FAINT, INK, MUTED, NOW, READ, WRITE

SERIES = {"scores": READ, "softmax": NOW, "output": DONE}


def matrices(**steps: torch.Tensor) -> None:
    """Every matrix of a small attention with its numbers; between them, what leads from one to the next."""
    signs = {"q": "", "kT": "@", "s": "=", "p": "softmax", "v": "@", "o": "="}
    titles = {"kT": "k transposed", "s": "s, scaled"}
    widths = [x.shape[1] for x in steps.values()]
    with plot(11, 2.9, columns=len(steps), width_ratios=widths) as axes:
        for ax, (name, x) in zip(axes, steps.items(), strict=True):
            rows, columns = x.shape
            signed = name != "p"
            ax.imshow(x, cmap="RdBu_r" if signed else "Oranges", vmin=-2.5 if signed else 0, vmax=2.5 if signed else 1)
            for i in range(rows):
                for j in range(columns):
                    strong = abs(x[i, j]) > (1.6 if signed else 0.6)
                    shown = round(x[i, j].item(), 1) + 0.0  # no minus before a zero
                    ax.text(j, i, f"{shown:.1f}", ha="center", va="center", fontsize=8, color="white" if strong else INK)
            ax.set_title(titles.get(name, name), loc="center", fontsize=11)
            ax.set_xlabel(f"{rows} x {columns}")
            ax.set_xticks([])
            ax.set_yticks([])
            for spine in ax.spines.values():
                spine.set_visible(False)
            if signs[name]:
                ax.annotate(signs[name], (0, 0.5), (-13, 0), xycoords="axes fraction", textcoords="offset points",
                            ha="center", va="center", fontsize=12 if len(signs[name]) == 1 else 9, color=MUTED,
                            rotation=0 if len(signs[name]) == 1 else 90)  # fmt: skip


def weights_with_and_without_scale(unscaled: torch.Tensor, scaled: torch.Tensor) -> None:
    """The weights of one query, largest first."""
    with plot(9, 2.9, columns=2, sharey=True) as axes:
        for ax, weights, title, color in zip(
            axes, (unscaled, scaled), ("without the scale", "with the scale"), (ACCENT, READ), strict=True
        ):
            ax.bar(range(len(weights)), weights.sort(descending=True).values, color=color, width=0.8)
            ax.set_title(f"{title}: largest {weights.max():.2f}")
            ax.set(xlabel="keys, sorted by weight", ylim=(0, 1))
            ax.grid(axis="y")
        axes[0].set_ylabel("weight")


def two_masks(top_left: torch.Tensor, bottom_right: torch.Tensor) -> None:
    """Both alignments of a causal mask; the last row is the newest token."""
    with plot(9.6, 2.6, columns=2) as axes:
        for ax, mask, title in zip(
            axes, (top_left, bottom_right), ("top left: wrong with a cache", "bottom right: what decoding needs"), strict=True
        ):
            rows, keys = mask.shape
            for i in range(rows):
                for j in range(keys):
                    seen = bool(mask[i, j])
                    ax.add_patch(Rectangle((j + 0.05, i + 0.05), 0.9, 0.9, fc=READ if seen else FAINT, ec="none"))
            ax.set(xlim=(0, keys), ylim=(rows, 0), aspect="equal")
            ax.set_xticks([j + 0.5 for j in range(keys)], [f"k{j}" for j in range(keys)])
            ax.set_yticks([i + 0.5 for i in range(rows)], [f"q{i}" for i in range(rows)])
            ax.tick_params(length=0)
            for spine in ax.spines.values():
                spine.set_visible(False)
            ax.set_title(title)


def folding(heads_q: int, heads_kv: int) -> None:
    """Left, K copied for every query head; right, the queries of a group as rows over their one K."""
    group, colors = heads_q // heads_kv, (READ, WRITE, NOW, MUTED)
    with plot(9.6, 2.9) as ax:
        drawing(ax, 96, 29)
        ax.text(1, 27, f"copied: K moves {heads_q} times", weight="bold")
        ax.text(53, 27, f"folded: K moves {heads_kv} times", weight="bold")
        for h in range(heads_q):
            left = 1 + h * 5.4
            _block(ax, left, 20, 4.4, 2.6, colors[h // group], f"q{h}", "white")
            _block(ax, left, 4, 4.4, 14, DONE, f"K{h // group}")
        for g in range(heads_kv):
            left = 53 + g * 16
            for r in range(group):
                _block(ax, left + r * 3.4, 20, 3.1, 2.6, colors[g], f"q{g * group + r}", "white", 8)
            _block(ax, left, 4, 3.4 * group - 0.3, 14, DONE, f"K{g}")
        ax.text(1, 0.5, "each key is used for 1 query", color=MUTED)
        ax.text(53, 0.5, f"each key is used for {group} queries", color=MUTED)


def _block(ax, x, y, width, height, color, text, ink=INK, size=9):
    ax.add_patch(Rectangle((x, y), width, height, fc=color, ec="none"))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=ink, fontsize=size, weight="bold")


def traffic(lengths: list[int], narrow: list[float], scores: list[float], marked: int) -> None:
    """GB against length: what has to move, and what S and P add; the ratio at one length."""
    with plot(9, 4) as ax:
        ax.plot(lengths, scores, color=WRITE)
        ax.plot(lengths, narrow, color=READ)
        ax.text(lengths[-1] * 0.8, scores[-1], "S and P: grow with N squared", color=WRITE, ha="right", weight="bold")
        ax.text(lengths[-1], narrow[-1] * 0.08, "q, k, v and o: grow with N", color=READ, ha="right", weight="bold")
        at = lengths.index(marked)
        ax.annotate("", (marked, scores[at]), (marked, narrow[at]), arrowprops=dict(arrowstyle="<->", color=MUTED, lw=1.5))
        ax.text(marked * 1.08, (scores[at] * narrow[at]) ** 0.5, f"{scores[at] / narrow[at]:.0f}x at {marked}", color=INK,
                va="center", weight="bold")  # fmt: skip
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(lengths, [f"{n // 1024}k" for n in lengths])
        ax.set(xlabel="tokens in the prompt", ylabel="GB to and from HBM, one layer")
        ax.set_title("What naive attention moves")
        ax.grid(axis="y")


def predicted_and_recorded(labels: list[str], predicted: list[dict], recorded: list[dict]) -> None:
    """For each shape three bars, milliseconds: the floors of the steps, what they took, and the fused kernel."""
    with plot(9, 0.8 + 1.05 * len(labels)) as ax:
        for row, (floor, took) in enumerate(zip(predicted, recorded, strict=True)):
            _stacked(ax, row - 0.28, "predicted", floor, alpha=0.45)
            _stacked(ax, row, "recorded", took, alpha=1.0)
            ax.barh(row + 0.28, took["fused"], height=0.24, color=MUTED)
            ax.text(took["fused"], row + 0.28, f"  fused, recorded {took['fused']:.2f}", va="center", fontsize=9)
        for name, color in SERIES.items():
            ax.barh([0], [0], color=color, label=name)
        ax.set_yticks(range(len(labels)), labels, color=INK)
        ax.invert_yaxis()
        ax.set(xlabel="milliseconds", xlim=(0, 1.2 * max(sum(took[s] for s in SERIES) for took in recorded)))
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x")
        ax.legend(loc="upper right")


def _stacked(ax, y, what, steps, alpha):
    left = 0.0
    for name, color in SERIES.items():
        ax.barh(y, steps[name], left=left, height=0.24, color=color, alpha=alpha)
        left += steps[name]
    ax.text(left, y, f"  three steps, {what} {left:.2f}", va="center", fontsize=9)


def shares(bars: dict[str, dict[str, float]]) -> None:
    """Whose bytes they are: one full bar for each case (label -> part -> bytes)."""
    colors = {"q and o": MUTED, "k and v": READ, "s and p": WRITE}
    with plot(9, 0.8 + 0.62 * len(bars)) as ax:
        for row, parts in enumerate(bars.values()):
            left, total = 0.0, sum(parts.values())
            for name, size in parts.items():
                share = 100 * size / total
                ax.barh(row, share, left=left, color=colors[name], height=0.62, label=name if row == 0 else None)
                if share > 4:
                    ax.text(left + share / 2, row, f"{share:.0f}%" if share < 99.5 else f"{share:.1f}%", ha="center", va="center",
                            color="white", weight="bold")  # fmt: skip
                left += share
        ax.set_yticks(range(len(bars)), list(bars), color=INK)
        ax.invert_yaxis()
        ax.set(xlim=(0, 100), xlabel="percent of the bytes that naive attention moves")
        ax.tick_params(axis="y", length=0)
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
