"""The offload race: a prefix's KV cache fetched over a link, against the same cache computed again.

Times are flashlab.hardware's (links, offload), bytes and parameters flashlab.sizing's, and the diamonds are transfers that
flashlab bench recorded. The models are dense ones with full attention in every layer: for those the parameters that a
token passes through are all of them, and every token costs the same bytes.
"""

from dataclasses import dataclass
from functools import lru_cache

from flashlab.hardware import gpu, link, offload_or_recompute
from flashlab.hardware.gpus import names
from flashlab.hardware.links import HOST_TO_DEVICE, MAX_RETIMERS, PCIE_LANES
from flashlab.hardware.offload import EFFICIENCY
from flashlab.sizing import FORMATS
from flashlab.sizing.parameters import count_parameters
from flashlab.widgets import live, plot, recorded, style
from flashlab.widgets.controls import check, ladder, menu, slider
from flashlab.widgets.explorable import Explorable
from flashlab.widgets.kv_planner import MODELS, read
from flashlab.widgets.scene import Scene
from flashlab.widgets.state import Fields, gpu_name, require
from flashlab.widgets.style import number, rate, seconds, size

LINKS = {
    "PCIe 3.0": ("pcie", 3), "PCIe 4.0": ("pcie", 4), "PCIe 5.0": ("pcie", 5), "PCIe 6.0": ("pcie", 6),
    "NVLink 3": ("nvlink", 3), "NVLink 4": ("nvlink", 4), "NVLink 5": ("nvlink", 5), "NVLink-C2C": ("c2c", None),
}  # fmt: skip
RACERS = ("PCIe 3.0", "PCIe 4.0", "PCIe 5.0", "PCIe 6.0", "NVLink 4", "NVLink-C2C")
DENSE = tuple(
    model for model in MODELS
    if set(read(model, "", "bf16", 1).kinds()) == {"full"}
    and not any("expert" in field for field in read(model, "", "bf16", 1).model.outer)
)  # fmt: skip
LONGEST = 2**20
SIZES = (4096, 2**36)  # bytes, from one page on, of the plot


@dataclass(frozen=True)
class Race(Fields):
    """State: a prefix of ``tokens`` of a model's cache, the GPU that would compute it, and the link it would come over.

    lanes, retimers and pinned are of PCI Express; efficiency_percent is the share of the dense rate that a
    prefill reaches. live holds (bytes, bytes per second) that were measured over such a link here.
    """

    tokens: int = 32768
    model: str = "llama-3.1-8b"
    link: str = "PCIe 5.0"
    gpu: str = "H200"
    dtype: str = "bf16"
    lanes: int = 16
    retimers: int = 0
    pinned: bool = True
    efficiency_percent: int = round(100 * EFFICIENCY)
    live: tuple[tuple[int, float], ...] = ()

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "gpu", gpu_name(self.gpu, names()))
        for name, allowed in (("model", DENSE), ("link", LINKS), ("dtype", FORMATS), ("lanes", PCIE_LANES),
                              ("retimers", range(MAX_RETIMERS + 1))):  # fmt: skip
            value = getattr(self, name)
            require(value in allowed, name, value, ", ".join(map(str, allowed)))
        most = min(self.spec.max_context, LONGEST)
        require(1 <= self.tokens <= most, "tokens", self.tokens, f"from 1 to {most}")
        percent = self.efficiency_percent
        require(1 <= percent <= 100, "efficiency_percent", percent, "from 1 to 100")

    @property
    def spec(self):
        return read(self.model, "", self.dtype, 1)

    @property
    def bytes(self) -> int:
        return self.spec.bytes(1, self.tokens)

    def over(self, name: str | None = None, bytes: int | None = None, retimers: int | None = None):
        """The transfer over this link or another, with this state's settings where it is PCI Express."""
        kind, gen = LINKS[name or self.link]
        options = dict(gen=gen, bytes=bytes or self.bytes, direction=HOST_TO_DEVICE)
        if kind == "pcie":
            retimers = self.retimers if retimers is None else retimers
            options |= dict(lanes=self.lanes, retimers=retimers, pinned=self.pinned)
        return link(kind, **options)

    def choice(self, name: str | None = None, tokens: int | None = None):
        """offload_or_recompute over a link, for this prefix or one of another length."""
        tokens, spec = tokens or self.tokens, self.spec
        layer = spec.layers[0]
        return offload_or_recompute(
            self.gpu, self.over(name), tokens=tokens, bytes_per_token=spec.bytes(1, tokens) / tokens,
            parameters=count_parameters(spec.model), layers=len(spec.layers), heads_q=spec.model.heads_q,
            head_dim=layer.head_dim_k, efficiency=self.efficiency_percent / 100,
        )  # fmt: skip

    def recorded(self) -> tuple[recorded.Point, ...]:
        """Recorded rates by size of transfers over such a link."""
        kind, gen = LINKS[self.link]
        return recorded.link_rates(gen, self.lanes, HOST_TO_DEVICE, self.pinned) if kind == "pcie" else ()

    @classmethod
    def settle(cls, fields, asked):
        """Tokens fall back to the model's longest; another link drops what was measured over this one."""
        if asked & {"link", "gpu", "lanes", "retimers", "pinned"}:
            fields = fields | {"live": ()}
        if "tokens" in asked or fields["model"] not in DENSE:
            return fields
        return fields | {"tokens": min(fields["tokens"], read(fields["model"], "", "bf16", 1).max_context)}


@lru_cache(maxsize=128)
def turning_point(state: Race) -> int | None:
    """The fewest tokens from which on fetching is the sooner; None where recomputing always is, up to the longest prefix."""
    low, high = 0, min(state.spec.max_context, LONGEST)  # fetching grows slower with every token than recomputing
    sooner = lambda tokens: state.choice(tokens=tokens).sooner == "fetch"
    if not sooner(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if sooner(middle) else (middle, high)
    return high


def picture(state: Race) -> Scene:
    """Left the race, every link and the recomputation; right the link's rate by size of transfer; below the formulas."""
    choice, over = state.choice(), state.over()
    headline, under = _words(state, choice)
    formulas, notes = [*_formulas(state, choice, over)], [*_notes(state, over)]
    scene = Scene(960, 612, " ".join(("Offload race.", headline, under, *(f"{line}." for line in formulas), *notes)))
    scene.headline(headline, under)
    _race(scene, state, choice)
    _rates(scene, state, over)
    scene.line(LEFT, 488, RIGHT, 488)
    for k, line in enumerate(formulas):
        word, _, rest = line.partition(" ")
        scene.text(LEFT, 514 + 22 * k, word, bold=True, fill=style.PREDICTED if k < 2 else style.INK)
        scene.text(LEFT + 96, 514 + 22 * k, rest)
    for k, note in enumerate(notes):
        scene.text(LEFT, 584 + 18 * k, note, size=style.SMALL, fill=style.MUTED)
    return scene


def _words(state, choice):
    link_name = _name(state, state.link)
    if choice.sooner == "fetch":
        headline = f"Fetch it: over {link_name} {seconds(choice.fetch_s)}, {number(choice.speedup)}× sooner than recomputing."
    else:
        headline = f"Recompute it: {seconds(choice.recompute_s)}, {number(choice.speedup)}× sooner than over {link_name}."
    turn = turning_point(state)
    edge = "recomputing is sooner at any length" if turn is None else f"fetching is sooner from {style.count(turn, 'token')} on"
    under = (
        f"{style.count(state.tokens, 'token')} of {state.model} take {size(state.bytes)} of cache.  "
        f"Both take as long at {rate(choice.break_even_bytes_per_s)};  over this link {edge}."
    )
    return headline, under


def _name(state, name):
    return f"{name} x{state.lanes}" if name.startswith("PCIe") else name


def _formulas(state, choice, over):
    retimers = f" + {state.retimers} × {seconds(over.retimer_s / state.retimers)} of retimers" if over.retimer_s else ""
    yield (
        f"fetch {seconds(choice.fetch_s)} = start {seconds(over.start_s)}{retimers} + "
        f"{size(state.bytes)} / {rate(over.rate_bytes_per_s)}"
    )
    part, spec = gpu(state.gpu), state.spec
    yield (
        f"recompute {seconds(choice.recompute_s)} = (2 × {number(count_parameters(spec.model) / 1e9)}e9 parameters × "
        f"{style.count(state.tokens, 'token')} + attention) / ({state.efficiency_percent}% of "
        f"{part.name}'s {number(part.dense_16bit_flops / 1e12)} TFLOP/s)"
    )
    if over.payload_efficiency:
        yield (
            f"rate {rate(over.rate_bytes_per_s)}: the wire brings {rate(over.wire_bytes_per_s)}, of which packets carry "
            f"{number(100 * over.payload_efficiency)}% payload; half of it from {size(over.half_rate_bytes)} on"
        )
    else:
        yield f"rate {rate(over.rate_bytes_per_s)}: the wire's; half of it from {size(over.half_rate_bytes)} on"


def _notes(state, over):
    """What is recorded nearest to this size, and what the prediction rests on."""
    points = state.recorded()
    if points:
        near = min(points, key=lambda point: max(point.x / state.bytes, state.bytes / point.x))
        predicted = state.over(bytes=near.x).bandwidth_bytes_per_s
        yield (
            f"Recorded nearest to it: {size(near.x)} at {rate(near.y)}, predicted {rate(predicted)} "
            f"({near.where}, PCIe 5.0 x16, {near.versions})."
        )
    else:
        yield "No transfer over such a link is on record."
    if state.live:
        n, reached = max(state.live, key=lambda point: point[1])
        yield f"Live: up to {rate(reached)}, at {size(n)}, on this machine's {state.gpu}. Predicted from: {over.basis}."
    else:
        yield f"Predicted from: {over.basis}."


LEFT, RIGHT = 28, 932


def _race(scene, state, choice):
    """A track a racer, with a mark where it arrives; time is logarithmic."""
    racers = list(RACERS) if state.link in RACERS else [*RACERS[:-1], state.link]
    times = {name: state.choice(name).fetch_s for name in racers}
    rows = [("recompute", choice.recompute_s), *((_name(state, name), times[name]) for name in racers)]
    first = min(s for _, s in rows)
    left, right, y = LEFT + 130, 412, 140
    x = plot.Axis(first / 2, 2 * max(s for _, s in rows), left, right, log=True)
    scene.text(LEFT, y - 20, "who is there first (time, logarithmic; all predicted)", bold=True)
    ticks = plot.steps_of_ten(x.low, x.high, (1,))
    for tick in ticks[:: -(-len(ticks) // 4)]:
        scene.line(x(tick), y - 6, x(tick), y + 44 * len(rows) - 22, stroke=style.RULE)
        words = seconds(tick)
        scene.text(x(tick), y + 44 * len(rows) - 6, words, size=style.SMALL, fill=style.MUTED, anchor="middle")
    own = f"PCIe {gpu(state.gpu).pcie_gen}.0"
    for name, s in rows:
        chosen, computes = name == _name(state, state.link), name == "recompute"
        colour = style.NOW if computes else style.READ
        scene.text(LEFT, y + 14, name, bold=chosen or computes)
        scene.line(left, y + 9, right, y + 9, stroke=style.FAINT, line=6)
        if chosen or computes:
            scene.line(left, y + 9, x(s), y + 9, stroke=colour, line=6)
        scene.mark(x(s), y + 9, size=7, fill=style.PANEL, stroke=colour, line=2.5)
        scene.text(right + 12, y + 14, seconds(s), bold=s == first)
        if name.startswith(own):
            scene.text(LEFT, y + 28, f"the {state.gpu}'s own port", size=style.SMALL - 1, fill=style.MUTED)
        y += 44
    scene.text(LEFT, y + 22, "orange computes; bold: the chosen link, and the soonest time", size=style.SMALL, fill=style.MUTED)


def _rates(scene, state, over):
    """What a transfer of each size reaches, with the retimers and without, and what was recorded."""
    top, floor, left = 140, 398, 566
    points = state.recorded()
    x = plot.Axis(*SIZES, left, RIGHT, log=True)
    curve = _curve(state, state.retimers)
    rates = [v for _, v in (*curve, *state.live)] + [point.y for point in points]
    slowest, fastest = min(rates), max(rates)
    y = plot.Axis(slowest / 1.5, fastest * 2, floor, top, log=True)
    scene.text(left - 60, top - 20, f"rate by size of a transfer, {_name(state, state.link)}", bold=True)
    sizes = [(2**k, words) for k, words in ((12, "4 KiB"), (18, "256 KiB"), (24, "16 MiB"), (30, "1 GiB"), (36, "64 GiB"))]
    ticks = plot.steps_of_ten(y.low, y.high, (1,))
    plot.frame(scene, x, y, sizes, [(v, rate(v)) for v in ticks])
    if over.retimer_s:
        scene.path([(x(n), y(v)) for n, v in _curve(state, 0)], stroke=style.SKIP, line=1.5)
    scene.path([(x(n), y(v)) for n, v in curve], stroke=style.PREDICTED)
    for point in points:
        plot.mark(scene, x(point.x), y(point.y), "recorded", 4)
    for n, v in state.live:
        plot.mark(scene, x(n), y(v), "live", 4.5)
    here = min(max(state.bytes, SIZES[0]), SIZES[1])
    scene.line(x(here), top, x(here), floor, stroke=style.INK, dashed=True)
    plot.mark(scene, x(here), y(over.bandwidth_bytes_per_s), "predicted", 6)
    end = x(here) > (left + RIGHT) / 2
    words = f"{size(state.bytes)} at {rate(over.bandwidth_bytes_per_s)}"
    scene.text(x(here) + (-10 if end else 10), top + 10, words, size=style.SMALL, bold=True, anchor="end" if end else "start")
    entries = [("predicted", "predicted")] + [("recorded", f"recorded, {point.where}") for point in points[:1]]
    entries += [("live", "live")] * bool(state.live)
    at = plot.key(scene, left - 60, floor + 44, entries, gap=12)
    if over.retimer_s:
        scene.line(at, floor + 40, at + 18, floor + 40, stroke=style.SKIP, line=1.5)
        scene.text(at + 24, floor + 44, "no retimers", size=style.SMALL, fill=style.MUTED)


def _curve(state, retimers):
    steps = [round(SIZES[0] * (SIZES[1] / SIZES[0]) ** (k / 48)) for k in range(49)]
    return [(n, state.over(bytes=n, retimers=retimers).bandwidth_bytes_per_s) for n in steps]


class OffloadRace(Explorable):
    """Fetch a prefix's cache or compute it again: ``OffloadRace(model="llama-3.1-8b", tokens=32768, link="PCIe 5.0")``.

    The fields are Race's; ValueError says what is wrong with one. ``figure()`` draws it for a page without a kernel.
    """

    State = Race
    picture = staticmethod(picture)
    columns = 3

    def measure(self) -> None:
        """Time transfers between this machine's host and GPU and show them beside the prediction.

        Raises ValueError where this machine's GPU is not the one that is shown, or the link is not its own PCIe port.
        """
        state = self.state
        require(state.link == f"PCIe {gpu(state.gpu).pcie_gen}.0", "link", state.link, f"the {state.gpu}'s own port")
        self.update(live=live.transfers(state.gpu, HOST_TO_DEVICE, state.pinned))

    def make_controls(self, state):
        return {
            "tokens": ladder(state, "tokens", "prefix", _lengths(state), lambda n: f"{n:,}"),
            "link": menu(state, "link", "link", tuple(LINKS)),
            "model": menu(state, "model", "model", DENSE),
            "retimers": slider(state, "retimers", "retimers", 0, MAX_RETIMERS),
            "lanes": ladder(state, "lanes", "lanes", PCIE_LANES),
            "gpu": menu(state, "gpu", "GPU", tuple(names())),
            "efficiency_percent": slider(state, "efficiency_percent", "prefill at %", 1, 100),
            "pinned": check(state, "pinned", "pinned memory"),
            "dtype": menu(state, "dtype", "cache", tuple(FORMATS)),
        }

    def show_controls(self, state):
        self.controls["tokens"].offer(_lengths(state), state.tokens)
        for name in ("retimers", "lanes", "pinned"):
            self.controls[name].disabled = not state.link.startswith("PCIe")
        super().show_controls(state)


def _lengths(state):
    most = min(state.spec.max_context, LONGEST)
    return [2**k for k in range(21) if 2**k < most] + [most]
