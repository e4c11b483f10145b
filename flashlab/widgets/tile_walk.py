"""The tile walk: which program touches which tile of K and V when, and what has gone through HBM by then.

The walk and the bytes are the record that flashlab.reference.tiled keeps while it runs on one head; nothing is counted
here. A step is one pair of tiles in every program that is running: the clock of a GPU with an SM for each.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from flashlab.reference import tiled
from flashlab.reference.memory import HBM
from flashlab.reference.tiling import Tiling
from flashlab.widgets import style
from flashlab.widgets.controls import check, menu, slider
from flashlab.widgets.explorable import Explorable
from flashlab.widgets.scene import Scene
from flashlab.widgets.state import Stepped, require
from flashlab.widgets.style import count, number, size

ORDERS = {
    "flash_attention_1": (
        "FlashAttention-1",
        "Keys outside: one program; K and V move once, Q and O again for every key tile.",
    ),
    "flash_attention_2": (
        "FlashAttention-2",
        "Queries outside: a program a row; Q and O move once, K and V again for every row.",
    ),
    "split_kv": (
        "split-KV",
        "The keys are shared out too: more programs, shorter walks, partial results to merge.",
    ),
}
MOST_Q_TILES, MOST_K_TILES = 16, 32
MOST = {"head_dim": 256, "block_m": 128, "block_n": 128}


@dataclass(frozen=True)
class Walk(Stepped):
    """State: the order of the loops, causal or not, the number of splits (of split_kv), and the shape of one head.

    Lengths in tokens, blocks in tokens a tile, at most 128, at most 16 query tiles and 32 key tiles. Bytes are those of bfloat16.
    """

    order: str = "flash_attention_2"
    causal: bool = False
    num_splits: int = 4
    seqlen_q: int = 512
    seqlen_k: int = 512
    head_dim: int = 64
    block_m: int = 64
    block_n: int = 64

    def __post_init__(self):
        super().__post_init__()
        require(self.order in ORDERS, "order", self.order, ", ".join(ORDERS))
        for name in ("num_splits", "seqlen_q", "seqlen_k", "head_dim", "block_m", "block_n"):
            value = getattr(self, name)
            require(value >= 1, name, value, "a whole number from 1 up")
        for name, most in MOST.items():  # the walk is run, not counted: a tile of a million keys would be made
            require(getattr(self, name) <= most, name, getattr(self, name), f"from 1 to {most}")
        rows, columns = -(-self.seqlen_q // self.block_m), -(-self.seqlen_k // self.block_n)
        require(rows <= MOST_Q_TILES, "seqlen_q", self.seqlen_q, f"at most {MOST_Q_TILES} tiles of block_m, {self.block_m}")
        require(columns <= MOST_K_TILES, "seqlen_k", self.seqlen_k, f"at most {MOST_K_TILES} tiles of block_n, {self.block_n}")
        require(self.num_splits <= MOST_K_TILES, "num_splits", self.num_splits, f"from 1 to {MOST_K_TILES}")
        self.check_step()

    @property
    def tiling(self) -> Tiling:
        return Tiling(self.seqlen_q, self.seqlen_k, self.block_m, self.block_n, self.causal)

    @property
    def steps(self) -> int:
        return record(self).steps


def record(state: Walk) -> HBM:
    """What flashlab.reference.tiled did for this state, whole."""
    return _record(state.order, state.num_splits if state.order == "split_kv" else None, state.tiling, state.head_dim)


@lru_cache(maxsize=128)
def _record(order, num_splits, tiling, head_dim):
    q, k, v = (torch.zeros(n, head_dim) for n in (tiling.seqlen_q, tiling.seqlen_k, tiling.seqlen_k))
    options = {} if num_splits is None else {"num_splits": num_splits}
    blocks = {"block_m": tiling.block_m, "block_n": tiling.block_n}
    return getattr(tiled, order)(q, k, v, causal=tiling.causal, **blocks, **options).hbm


def picture(state: Walk) -> Scene:
    """The score matrix as tiles, each with the step that worked on it; at the side the bytes moved so far."""
    hbm, tiling = record(state), state.tiling
    headline, under = _words(state, hbm)
    moved, whole = hbm.traffic(state.step), hbm.traffic()
    why = _why(state, hbm)
    said = f"Tile walk{', causal' * state.causal}. {headline} {_bill_in_words(moved, whole)} {under} In all, {why}."
    scene = Scene(960, 520, said)
    scene.headline(headline, under)
    _grid(scene, state, hbm, tiling)
    _bill(scene, moved, whole)
    scene.text(610, 494, why, size=style.SMALL, fill=style.MUTED)
    return scene


def _words(state, hbm):
    title, under = ORDERS[state.order]
    pairs = len(state.tiling.q_tiles) * len(state.tiling.k_tiles)
    if len(hbm.visits) < pairs:
        under = f"{pairs - len(hbm.visits)} of {pairs} pairs of tiles are masked whole, and skipped."
    if state.step == 0:
        programs = len({access.program for access in hbm.accesses if access.step == 0})
        work = f"{count(len(hbm.visits), 'pair')} of tiles in {count(hbm.steps, 'step')}"
        return f"{title}: {count(programs, 'program')}, {work}.", under
    at = f"{title}, step {state.step} of {hbm.steps}: "
    now = [visit for visit in hbm.visits if visit.step == state.step - 1]
    doing = [access for access in hbm.accesses if access.step == state.step - 1]
    if now:
        return at + f"{count(len(now), 'program')} at work, on a pair of tiles{' each' * (len(now) > 1)}.", under
    if any(access.direction == "read" for access in doing):
        return at + f"a second launch merges {count(state.num_splits, 'partial')} for each row of tiles.", under
    what = "their partial results" if state.order == "split_kv" else "O and lse"
    return at + f"the last programs write {what}.", under


def _why(state, hbm):
    """Where the bytes of K come from: how often its tiles are loaded, and how often over that is."""
    loads = sum(access.kind == "k" for access in hbm.accesses)
    own = state.seqlen_k * state.head_dim * hbm.element_bytes
    read = hbm.traffic().reads.get("k", 0)
    return f"{count(loads, 'load')} of a tile of K: {number(read / own)} × {size(own)} = {size(read)}"


LINES = {
    "Q": ("q",), "K": ("k",), "V": ("v",), "O": ("o",),
    "m + l": ("m", "l"), "lse": ("lse",), "partials": ("o_partial", "lse_partial"),
}  # fmt: skip


def _lines(by_kind):
    """Bytes for each line of the bill that has any: {"Q": 65536, ...}."""
    sums = {name: sum(by_kind.get(kind, 0) for kind in kinds) for name, kinds in LINES.items()}
    return {name: n for name, n in sums.items() if n}


def _bill_in_words(moved, whole):
    said = [
        f"{word} {', '.join(f'{name} {size(n)}' for name, n in _lines(side).items())}"
        for word, side in (("read", moved.reads), ("written", moved.writes))
        if side
    ]
    return f"{size(moved.total)} of {size(whole.total)} moved" + (f": {'; '.join(said)}." if said else ".")


LEFT, TOP, WIDTH, HEIGHT = 74, 132, 480, 312
NUMBERED = 18  # pixels of a cell from which its step fits in


def _grid(scene, state, hbm, tiling):
    rows, columns = len(tiling.q_tiles), len(tiling.k_tiles)
    width, height = min(WIDTH / columns, 60), min(HEIGHT / rows, 48)
    top = TOP + (HEIGHT - rows * height) / 2
    done = {(visit.q_tile, visit.k_tile): visit.step + 1 for visit in hbm.visits}
    title = f"tiles of K and V, {count(state.block_n, 'key')} each"
    scene.text(LEFT, top - 28, title, size=style.SMALL, fill=style.MUTED)
    for j in range(columns):
        if width >= 24 or j % 4 == 0:
            scene.text(LEFT + (j + 0.5) * width, top - 8, f"{j}", size=style.SMALL, fill=style.MUTED, anchor="middle")
    for i in range(rows):
        y = top + i * height
        scene.text(LEFT - 10, y + height / 2 + 4, f"Q {i}", size=style.SMALL, fill=style.MUTED, anchor="end")
        for j in range(columns):
            _cell(scene, LEFT + j * width, y, width, height, done.get((i, j)), state.step)
    if state.order == "split_kv":
        per_split = -(-columns // state.num_splits)
        for edge in range(per_split, columns, per_split):
            x = LEFT + edge * width
            scene.line(x, top - 5, x, top + rows * height + 5, stroke=style.INK, line=1.5)
    done_words = "done, and in which step" if min(width, height) >= NUMBERED else "done"
    _legend(scene, top + rows * height + 28, done_words, len(done) < rows * columns, state.order == "split_kv")


def _cell(scene, x, y, width, height, when, step):
    """One pair of tiles; ``when`` is the step that works on it, None if none does."""
    box = (x + 1.5, y + 1.5, width - 3, height - 3)
    middle, half = (x + width / 2, y + height / 2), min(width, height) * 0.16
    if when is None:
        scene.rect(*box, fill=style.FAINT, radius=3)
        scene.line(middle[0] - half, middle[1] + half, middle[0] + half, middle[1] - half, stroke=style.SKIP)
    elif when > step:
        scene.rect(*box, stroke=style.RULE, radius=3)
    else:
        now = when == step
        scene.rect(*box, fill=style.NOW if now else style.DONE, stroke=style.INK if now else None, radius=3)
        if min(width, height) >= NUMBERED:
            small = min(13, width * 0.5, height * 0.5)
            scene.text(middle[0], middle[1] + small * 0.36, str(when), size=small, anchor="middle", bold=now)


def _legend(scene, y, done_words, skips, splits):
    entries = [
        (style.NOW, style.INK, "at work"),
        (style.DONE, None, done_words),
        (None, style.RULE, "to come"),
    ]
    x = LEFT
    for fill, stroke, label in entries + [(style.FAINT, None, "skipped")] * skips:
        scene.rect(x + 1.5, y - 10, 12, 12, fill=fill, stroke=stroke, radius=2)
        if label == "skipped":
            scene.line(x + 5, y - 1.5, x + 10, y - 6.5, stroke=style.SKIP)
        scene.text(x + 20, y, label, size=style.SMALL, fill=style.MUTED)
        x += 40 + 6.2 * len(label)
    if splits:
        scene.line(x + 4, y - 11, x + 4, y + 3, stroke=style.INK, line=1.5)
        scene.text(x + 14, y, "split", size=style.SMALL, fill=style.MUTED)


def _bill(scene, moved, whole):
    """Reads above, writes below; an outline is what the whole walk will have moved, so that no scale jumps."""
    x, right = 610, 930
    scene.line(x - 28, TOP - 34, x - 28, 480)
    scene.text(x, TOP - 26, "through HBM so far", bold=True)
    scene.text(x, TOP + 4, size(moved.total), size=22, bold=True)
    scene.text(right, TOP + 4, f"of {size(whole.total)} in all", fill=style.MUTED, anchor="end")
    most, full, y = max([*_lines(whole.reads).values(), *_lines(whole.writes).values()]), right - x - 150, TOP + 44
    for word, now, end, colour in (
        ("read", moved.reads, whole.reads, style.READ),
        ("written", moved.writes, whole.writes, style.WRITE),
    ):
        scene.text(x, y, word, size=13, fill=colour, bold=True)
        for name, bytes_in_all in _lines(end).items():
            y += 28
            so_far = _lines(now).get(name, 0)
            scene.text(x, y, name, size=13)
            scene.rect(x + 66, y - 11, max(full * bytes_in_all / most, 2), 13, stroke=style.RULE, radius=2)
            if so_far:
                scene.rect(x + 66, y - 11, max(full * so_far / most, 2), 13, fill=colour, radius=2)
            scene.text(right, y, size(so_far), size=13, fill=style.INK if so_far else style.MUTED, anchor="end")
        y += 44


class TileWalk(Explorable):
    """The walk over tiles: ``TileWalk(order="flash_attention_2", causal=False, step=0, ...)``.

    The fields are Walk's; ValueError says what is wrong with one. ``figure()`` draws the current step for a page
    without a kernel.
    """

    State = Walk
    picture = staticmethod(picture)

    def make_controls(self, state):
        return {
            "order": menu(state, "order", "order", [(title, order) for order, (title, _) in ORDERS.items()]),
            "causal": check(state, "causal", "causal"),
            "num_splits": slider(state, "num_splits", "splits", 1, len(state.tiling.k_tiles)),
            "step": slider(state, "step", "step", 0, replace(state, step=0).steps),
        }

    def show_controls(self, state):
        self.controls["num_splits"].disabled = state.order != "split_kv"
        self.controls["num_splits"].max = max(len(state.tiling.k_tiles), state.num_splits)
        super().show_controls(state)
