"""The SM grid: which SMs of a GPU a decode step gives work to, wave by wave, and the time that comes of it.

A decode step has one query token a sequence. Its grid is batch x heads x splits blocks; the GPU holds SMs x blocks per
SM of them at once and deals them out in turn. Grid, waves, split rules and times are flashlab.hardware's.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, sqrt

from flashlab.hardware import decode_grid, decode_time, gpu, num_splits, splits_to_fill, waves
from flashlab.hardware.gpus import names
from flashlab.hardware.limits import CUDA
from flashlab.hardware.splits import MAX_SPLITS
from flashlab.sizing import FORMATS, kv_format
from flashlab.widgets import live, plot, recorded, style
from flashlab.widgets.controls import check, ladder, menu, slider
from flashlab.widgets.explorable import Explorable
from flashlab.widgets.scene import Scene
from flashlab.widgets.state import Fields, gpu_name, require
from flashlab.widgets.style import count, number, seconds

GPUS = tuple(name for name in names() if gpu(name).cc in CUDA)
LIMITS = {"batch": 4096, "heads_q": 512, "heads_kv": 512, "head_dim": 1024, "seqlen_k": 2**24, "blocks_per_sm": 32}
BLOCK_N = 64  # keys to a tile
KERNEL_CACHES = {"bf16": "native", "fp16": "native", "fp8": "fp8", "int8": "int8", "int4": "int4"}


@dataclass(frozen=True)
class Launch(Fields):
    """State: a GPU and a decode step on it. seqlen_k in tokens; wave is the one shown, from 1; dtype is the cache's.

    live holds (splits, seconds) that were measured on such a GPU here; any other step drops them.
    """

    gpu: str = "H200"
    batch: int = 1
    heads_q: int = 32
    heads_kv: int = 8
    head_dim: int = 128
    seqlen_k: int = 131072
    num_splits: int = 1
    blocks_per_sm: int = 2
    pack_gqa: bool = True
    dtype: str = "bf16"
    wave: int = 1
    live: tuple[tuple[int, float], ...] = ()

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "gpu", gpu_name(self.gpu, GPUS))
        for name, most in LIMITS.items():
            value = getattr(self, name)
            require(1 <= value <= most, name, value, f"a whole number from 1 to {most}")
        require(self.heads_q % self.heads_kv == 0, "heads_kv", self.heads_kv, f"a divisor of heads_q, {self.heads_q}")
        require(self.dtype in FORMATS, "dtype", self.dtype, ", ".join(FORMATS))
        kv_format(self.dtype).vector_bytes(self.head_dim)
        most = self.most_splits
        require(1 <= self.num_splits <= most, "num_splits", self.num_splits,
                f"from 1 to {most}, and no more than tiles of {BLOCK_N} keys")  # fmt: skip
        require(1 <= self.wave <= self.filling.rounds, "wave", self.wave, f"from 1 to {self.filling.rounds}")

    @property
    def most_splits(self) -> int:
        return min(MAX_SPLITS, -(-self.seqlen_k // BLOCK_N))

    @property
    def shape(self) -> dict:
        return {name: getattr(self, name) for name in ("batch", "heads_q", "heads_kv", "head_dim", "seqlen_k")}

    @property
    def grid(self):
        shape = {name: value for name, value in self.shape.items() if name != "head_dim"}
        return decode_grid(**shape, block_n=BLOCK_N, num_splits=self.num_splits, pack_gqa=self.pack_gqa)

    @property
    def filling(self):
        return waves(blocks=self.grid.blocks, sms=gpu(self.gpu).sms, blocks_per_sm=self.blocks_per_sm)

    def time(self, splits: int | None = None):
        """The predicted step, at this or another number of splits."""
        form = kv_format(self.dtype)
        return decode_time(
            self.gpu, **self.shape, num_splits=splits or self.num_splits, blocks_per_sm=self.blocks_per_sm,
            element_bytes=form.vector_bytes(self.head_dim) / self.head_dim, block_n=BLOCK_N, pack_gqa=self.pack_gqa,
        )  # fmt: skip

    def recorded(self) -> recorded.Decode:
        """Recorded times of this very step, if there are any. flashlab's kernel always packs GQA."""
        return recorded.decode(self.gpu, self.dtype, **self.shape) if self.pack_gqa else recorded.Decode()

    @classmethod
    def settle(cls, fields, asked):
        """Heads to a divisor, splits to the tiles there are, and the wave to the last one."""
        fields = dict(fields)
        if not asked <= {"num_splits", "wave", "blocks_per_sm", "live"}:
            fields["live"] = ()
        if "heads_kv" not in asked:
            fields["heads_kv"] = _divisor(fields["heads_q"], fields["heads_kv"])
        if "num_splits" not in asked:
            fields["num_splits"] = max(1, min(fields["num_splits"], -(-fields["seqlen_k"] // BLOCK_N)))
        if "wave" not in asked:
            fields["wave"] = min(fields["wave"], cls(**fields | {"wave": 1}).filling.rounds)
        return fields


def _divisor(n, most):
    return next((d for d in range(min(n, most), 0, -1) if n % d == 0), 1)


@lru_cache(maxsize=64)
def _curve(state: Launch) -> tuple[tuple[int, float], ...]:
    """(splits, predicted seconds) up to the most there can be."""
    return tuple((n, state.time(n).time_s) for n in range(1, state.most_splits + 1))


def curve(state: Launch):
    """``_curve`` of the state, whatever its splits and wave."""
    return _curve(replace(state, num_splits=1, wave=1))


def picture(state: Launch) -> Scene:
    """Left the SMs in one wave; right the waves, and the time against the number of splits; below the time in parts."""
    filling, grid, time = state.filling, state.grid, state.time()
    record = state.recorded()
    headline, under = _words(state, filling, grid)
    said = [headline, under, f"Predicted {_predicted(time)}.", _recorded(state, time, record)]
    said += [*([f"Live {_live(state)}."] if state.live else []), _cliff(state, grid)]
    scene = Scene(960, 600 + 23 * bool(state.live), " ".join(("SM grid.", *said)))
    scene.headline(headline, under)
    _chip(scene, state, filling)
    _waves(scene, state, filling)
    _splits(scene, state, time, record)
    _time(scene, state, time, record)
    return scene


def _words(state, filling, grid):
    sms = gpu(state.gpu).sms
    if filling.rounds == 1:
        busy = min(sms, filling.blocks)
        headline = f"{count(filling.blocks, 'block')}: {busy} of the {state.gpu}'s {sms} SMs have work."
        if busy == sms:
            headline = f"{count(filling.blocks, 'block')}: one wave, and every SM of the {state.gpu} has work."
    else:
        share = number(100 * filling.tail / filling.capacity)
        headline = f"{count(filling.blocks, 'block')} take {filling.rounds:,} waves; the last is {share}% full."
    who = count(grid.heads, "kv head" if state.pack_gqa else "query head") + " (GQA packed)" * state.pack_gqa
    tiles = f" × {grid.query_blocks} query tiles" if grid.query_blocks > 1 else ""
    under = (
        f"batch {state.batch} × {who}{tiles} × {count(state.num_splits, 'split')} = {filling.blocks:,} blocks;"
        f"  {sms} SMs × {state.blocks_per_sm} = {filling.capacity:,} at once;"
        f"  {filling.blocks:,} / {filling.capacity:,} = {number(filling.waves)} waves."
    )
    return headline, under


def _predicted(time):
    parts = f"read {seconds(time.read_s)} + combine {seconds(time.combine_s)} + start {seconds(time.start_s)}"
    return f"{seconds(time.time_s)} = {parts}"


def _recorded(state, time, record):
    """The recorded time beside the prediction, at this number of splits or at the kernel's own; what stands in its way."""
    found = {point.x: point for point in record.by_splits}.get(state.num_splits)
    if found:
        off = 100 * (time.time_s / found.y - 1)
        side = "above" if off > 0 else "below"
        return f"Recorded {seconds(found.y)} on {found.where}: the prediction is {number(abs(off))}% {side} it."
    if record.own_choice:
        own = record.own_choice
        return f"Recorded {seconds(own.y)} on {own.where}, at the number of splits that flashlab's kernel chose."
    near = ", ".join(str(point.x) for point in record.by_splits)
    return f"Not recorded at this number of splits; recorded are {near}." if near else "No run of this step is on record."


def _live(state):
    """What was measured here, at this number of splits and at the best."""
    times = dict(state.live)
    best = min(times, key=times.get)
    now = f"{seconds(times[state.num_splits])}; " if state.num_splits in times else ""
    return f"{now}measured on this machine's {state.gpu}: best {seconds(times[best])} at {count(best, 'split')}"


def _cliff(state, grid):
    """How many splits still fit into one wave, and what the two rules choose."""
    sms = gpu(state.gpu).sms
    capacity = sms * state.blocks_per_sm
    fill = splits_to_fill(grid.rows, sms, state.blocks_per_sm, grid.key_blocks)
    fa3 = num_splits(blocks=grid.rows, sms=sms, key_blocks=grid.key_blocks)
    if grid.rows > capacity:
        edge = f"Without splits {count(grid.rows, 'block')} are more than one wave already."
    elif fill < state.most_splits:
        edge = f"Next cliff: {fill} × {grid.rows} = {fill * grid.rows:,} blocks still fit into one wave, {fill + 1} splits do not."
    else:
        fit = "the one split fits" if state.most_splits == 1 else f"even {state.most_splits} splits fit"
        edge = f"No cliff: {fit} into one wave."
    return f"{edge} To fill one wave: {count(fill, 'split')}; FlashAttention-3's rule: {fa3}."


CHIP_X, CHIP_Y, CHIP, CHIP_HIGH = 28, 128, 388, 356


def _chip(scene, state, filling):
    """Every SM a box with a slot for each resident block."""
    sms, slots = gpu(state.gpu).sms, state.blocks_per_sm
    columns = ceil(sqrt(sms))
    rows = ceil(sms / columns)
    step = min(CHIP / columns, CHIP_HIGH / rows)
    before = (state.wave - 1) * filling.capacity
    running = min(filling.capacity, filling.blocks - before)
    title = f"wave {state.wave} of {filling.rounds}: " if filling.rounds > 1 else ""
    scene.text(CHIP_X, CHIP_Y - 14, f"{title}{running} of {filling.capacity} places taken", bold=True)
    gap, inner = 3, (1 if slots <= 8 else 0)
    width = (step - gap) / slots
    for k in range(slots):
        codes = "".join("1" if k * sms + sm < running else "0" for sm in range(sms))
        x = CHIP_X + k * width
        scene.cells(x, CHIP_Y, columns, step, width - inner, step - gap, codes, [style.FAINT, style.NOW])
    slot = "one place" if slots == 1 else f"{slots} places"
    legend = f"a square is an SM with {slot}; orange: a block runs there"
    scene.text(CHIP_X, CHIP_Y + rows * step + 16, legend, size=style.SMALL, fill=style.MUTED)


RIGHT_X, RIGHT = 500, 932


def _waves(scene, state, filling):
    """A bar a wave; where there are many, the first ones and the last."""
    rounds, y, height = filling.rounds, CHIP_Y, 15
    scene.text(RIGHT_X, y - 14, f"{count(rounds, 'wave')}, {number(100 * filling.efficiency)}% of the places used", bold=True)
    shown = list(range(1, rounds + 1)) if rounds <= 5 else [1, 2, 3, None, rounds]
    if state.wave not in shown and None in shown:
        shown[2] = state.wave
    left, right = RIGHT_X + 46, RIGHT - 112
    for wave in shown:
        if wave is None:
            scene.text(left, y + 12, f"{rounds - 4:,} more, full", size=style.SMALL, fill=style.MUTED)
        else:
            taken = filling.capacity if wave < rounds else filling.tail
            full = right - left
            scene.text(RIGHT_X, y + 12, f"{wave:,}", size=style.SMALL, fill=style.MUTED)
            scene.rect(left, y, full, height, fill=style.FAINT, radius=2)
            colour = style.NOW if wave == state.wave else style.DONE
            scene.rect(left, y, max(full * taken / filling.capacity, 2), height, fill=colour, radius=2)
            words = f"{taken:,}" + (f"; {filling.idle:,} idle" if wave == rounds and filling.idle else "")
            scene.text(RIGHT, y + 12, words, size=style.SMALL, fill=style.MUTED, anchor="end")
        y += 21


def _splits(scene, state, time, record):
    """Predicted time against the number of splits, the recorded points, and where we are."""
    top, floor = 290, 452
    most = max(state.most_splits, 2)
    points, notes = curve(state), [point for point in record.by_splits if point.x <= most]
    own = record.own_choice
    values = [t for _, t in (*points, *state.live)] + [point.y for point in notes] + ([own.y] if own else [])
    low, high = min(values) / 1.2, max(values) * 1.15
    y = plot.Axis(low, max(high, 5 * low), floor, top, log=True)
    x = plot.Axis(1, most, RIGHT_X + 46, RIGHT, log=True)
    scene.text(RIGHT_X, top - 24, "time against splits", bold=True)
    ticks = plot.steps_of_ten(y.low, y.high)
    splits = [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= x.high]
    plot.frame(scene, x, y, [(n, str(n)) for n in splits], [(t, seconds(t)) for t in ticks[:: -(-len(ticks) // 5)]])
    scene.text(RIGHT, floor + 36, "splits", size=style.SMALL, fill=style.MUTED, anchor="end")
    if own:
        scene.line(x.start, y(own.y), x.end, y(own.y), stroke=style.RECORDED, dashed=True)
    scene.path([(x(n), y(t)) for n, t in points], stroke=style.PREDICTED)
    for point in notes:
        plot.mark(scene, x(point.x), y(point.y), "recorded", 4)
    for n, t in state.live:
        plot.mark(scene, x(n), y(t), "live", 4.5)
    here = x(state.num_splits)
    scene.line(here, top - 6, here, floor, stroke=style.INK, dashed=True)
    plot.mark(scene, here, y(time.time_s), "predicted", 6)
    entries = [("predicted", "predicted")]
    if notes or own:
        dashes = "dashed: own choice" if own else ""
        entries += [("recorded", f"recorded{' (' * bool(own)}{dashes}{')' * bool(own)}")]
    plot.key(scene, RIGHT_X, floor + 36, entries + [("live", "live")] * bool(state.live), gap=14)


def _time(scene, state, time, record):
    """The step's time in parts, and what is on record of it."""
    y = 512
    scene.line(28, y, RIGHT, y)
    scene.text(28, y + 26, "predicted", bold=True, fill=style.PREDICTED)
    scene.text(118, y + 26, _predicted(time))
    rate = f"{style.size(time.bytes)} of K and V at {style.rate(time.bandwidth_bytes_per_s)}"
    scene.text(RIGHT, y + 26, rate, fill=style.MUTED, anchor="end")
    stamp = record.own_choice or next(iter(record.by_splits), None)
    scene.text(28, y + 49, "recorded", bold=True, fill=style.RECORDED if stamp else style.MUTED)
    words = _recorded(state, time, record).removeprefix("Recorded ").rstrip(".")
    scene.text(118, y + 49, words[0].lower() + words[1:], fill=style.INK if stamp else style.MUTED)
    if stamp:
        scene.text(RIGHT, y + 49, stamp.versions, size=style.SMALL, fill=style.MUTED, anchor="end")
    if state.live:
        scene.text(28, y + 72, "live", bold=True, fill=style.LIVE)
        scene.text(118, y + 72, _live(state))
    scene.text(28, y + 72 + 23 * bool(state.live), _cliff(state, state.grid), fill=style.MUTED)


def _to_occupancy(state: Launch) -> dict:
    """The compute capability, and what the decode kernel is compiled for; of a cache that it does not read, nothing."""
    same = {"cc": gpu(state.gpu).cc, "head_dim": state.head_dim, "group": state.heads_q // state.heads_kv}
    return same | ({"cache": KERNEL_CACHES[state.dtype]} if state.dtype in KERNEL_CACHES else {})


class SMGrid(Explorable):
    """A decode step on the SMs of a GPU: ``SMGrid(gpu="h200", batch=1, num_splits=16, ...)``.

    The fields are Launch's; ValueError says what is wrong with one. Hands its GPU and head_dim to an OccupancyScope,
    which hands the blocks per SM back. The prediction is of the tile that hardware.timing was fitted to (64 keys, 4
    warps); what is recorded is flashlab's own kernel. ``figure()`` draws it for a page without a kernel.
    """

    State = Launch
    picture = staticmethod(picture)
    columns = 3
    hands = {"OccupancyScope": _to_occupancy}

    def measure(self) -> None:
        """Time flashlab's kernel on this machine's GPU, by splits, and show it beside the prediction.

        Raises ValueError where this machine's GPU is not the one that is shown, and for caches that are not bf16 or do
        not pack GQA: those are not what is timed.
        """
        state = self.state
        require(state.dtype == "bf16" and state.pack_gqa, "cache", state.dtype, "bf16, with GQA packed, to be measured")
        self.update(live=live.decode(state.gpu, state.num_splits, state.most_splits, **state.shape))

    def make_controls(self, state):
        powers = lambda most: [2**n for n in range(most.bit_length())]
        return {
            "num_splits": slider(state, "num_splits", "splits", 1, state.most_splits),
            "batch": ladder(state, "batch", "batch", powers(256)),
            "seqlen_k": ladder(state, "seqlen_k", "context", [2**n for n in range(10, 21)], lambda n: f"{n:,}"),
            "gpu": menu(state, "gpu", "GPU", GPUS),
            "heads_q": ladder(state, "heads_q", "query heads", powers(128)),
            "heads_kv": ladder(state, "heads_kv", "kv heads", _divisors(state.heads_q)),
            "wave": slider(state, "wave", "wave", 1, state.filling.rounds),
            "blocks_per_sm": slider(state, "blocks_per_sm", "blocks per SM", 1, LIMITS["blocks_per_sm"]),
            "head_dim": ladder(state, "head_dim", "head_dim", [64, 128, 256]),
            "pack_gqa": check(state, "pack_gqa", "pack GQA"),
            "dtype": menu(state, "dtype", "cache", tuple(FORMATS)),
        }

    def show_controls(self, state):
        self.controls["num_splits"].max = state.most_splits
        self.controls["wave"].max = state.filling.rounds
        self.controls["wave"].disabled = state.filling.rounds == 1
        self.controls["heads_kv"].offer(_divisors(state.heads_q), state.heads_kv)
        super().show_controls(state)


def _divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]
