"""The KV planner: what a model's cache takes on a GPU, layer kind by layer kind, and what still fits.

Every byte is flashlab.sizing's, counted from a config.json; nothing here is measured. The shipped configs are those that
Hugging Face publishes, cut to the fields that decide about cache and weights; ``_source`` names the repository.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from textwrap import wrap

import ipywidgets

from flashlab.hardware.gpus import names
from flashlab.sizing import FORMATS, CacheSpec, explain, max_batch, plan, show_bytes
from flashlab.sizing.capacity import MODEL, WEIGHTS
from flashlab.widgets import plot, style
from flashlab.widgets.controls import LABEL, WIDTH, ladder, menu
from flashlab.widgets.explorable import Explorable
from flashlab.widgets.scene import Scene
from flashlab.widgets.state import Fields, gpu_name, require
from flashlab.widgets.style import count, number, size

CONFIGS = Path(__file__).with_name("configs")
MODELS = tuple(sorted(path.stem for path in CONFIGS.glob("*.json")))
PASTED = "pasted below"
HALF = "16 bits"
WEIGHTS_AS = (HALF, "fp8", "int8", "int4", "nvfp4")
LIMITS = {"batch": 2**16, "tokens": 2**24, "tp": 64}
COLOURS = {"full": "#0072b2", "sliding": "#56b4e9", "latent": "#e69f00", "linear": "#009e73"}


@lru_cache(maxsize=64)
def read(model: str, config: str, dtype: str, tp: int) -> CacheSpec:
    """The cache of a shipped model, or of a pasted config.json. Raises ValueError for what is no config."""
    text = config if model == PASTED else (CONFIGS / f"{model}.json").read_text()
    require(text.strip(), "config", text, "the text of a config.json: paste it below")
    try:
        fields = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"config is not JSON: {error}. Paste a whole config.json") from None
    require(isinstance(fields, dict), "config", type(fields).__name__, "one JSON object, a whole config.json")
    return CacheSpec.from_config(fields, dtype=dtype, tp=tp)


@dataclass(frozen=True)
class Need(Fields):
    """State: a model (one of MODELS, or "pasted below" with the text of its config.json), and what is asked of a GPU.

    tokens a sequence, input and output together; dtype is the cache's; tp is the number of GPUs that share the model;
    utilization is the share of the memory that may be used.
    """

    model: str = "llama-3.1-8b"
    tokens: int = 32768
    batch: int = 8
    dtype: str = "bf16"
    gpu: str = "H200"
    tp: int = 1
    weights: str = HALF
    config: str = ""
    utilization: float = 0.9

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "gpu", gpu_name(self.gpu, names()))
        choices = (*MODELS, PASTED)
        require(self.model in choices, "model", self.model, ", ".join(choices))
        for name, most in LIMITS.items():
            value = getattr(self, name)
            require(1 <= value <= most, name, value, f"a whole number from 1 to {most}")
        require(self.dtype in FORMATS, "dtype", self.dtype, ", ".join(FORMATS))
        require(self.weights in WEIGHTS_AS, "weights", self.weights, ", ".join(WEIGHTS_AS))
        require(0 < self.utilization <= 1, "utilization", self.utilization, "above 0 and at most 1")
        most = self.spec.max_context
        require(most is None or self.tokens <= most, "tokens", self.tokens, f"from 1 to the model's {most}")

    @property
    def spec(self) -> CacheSpec:
        """Of one GPU."""
        return read(self.model, self.config, self.dtype, self.tp)

    @property
    def plan(self):
        """flashlab.sizing.plan; without weights where they cannot be counted (``uncounted`` says why)."""
        return _plan(self)[0]

    @property
    def uncounted(self) -> str:
        return _plan(self)[1]

    @classmethod
    def settle(cls, fields, asked):
        """A pasted config is the model, choosing a model leaves the text alone, and tokens fall back to its longest."""
        fields = dict(fields)
        if "config" in asked and "model" not in asked:
            shipped = cls.model if fields["model"] == PASTED else fields["model"]
            fields["model"] = PASTED if fields["config"].strip() else shipped
        if "tokens" not in asked and fields["model"] in (*MODELS, PASTED) and fields["dtype"] in FORMATS:
            most = read(fields["model"], fields["config"], fields["dtype"], 1).max_context
            fields["tokens"] = min(fields["tokens"], most or fields["tokens"])
        return fields


@lru_cache(maxsize=64)
def _plan(state: Need):
    spec = state.spec
    asked = dict(tokens=state.tokens, batch=state.batch, utilization=state.utilization)
    try:
        form = spec.model.half_dtype() if state.weights == HALF else state.weights
        return plan(spec, state.gpu, **asked, weights_dtype=form), ""
    except ValueError as error:
        return plan(spec, state.gpu, **asked, weights=0), str(error)


@lru_cache(maxsize=64)
def frontier(spec: CacheSpec, cache_bytes: int, shortest: int, longest: int) -> tuple[tuple[int, int], ...]:
    """(tokens, largest batch) along lengths from the shortest to the longest, as far as one sequence fits."""
    lengths = {round(2 ** (k / 4)) for k in range(4 * longest.bit_length() + 1)} | {shortest, longest}
    lengths = sorted(tokens for tokens in lengths if shortest <= tokens <= longest)
    points = ((tokens, max_batch(spec, cache_bytes, tokens)) for tokens in lengths)
    return tuple((tokens, batch) for tokens, batch in points if batch)


def picture(state: Need) -> Scene:
    """Above the GPU's memory; left the cache by kind of layer, right what fits; below the formula with the numbers in it."""
    fit, spec = state.plan, state.spec
    headline, under = _words(state, fit)
    lines = explain(spec, state.batch, state.tokens, 0).formula
    scene = Scene(960, 640, " ".join(("KV planner.", headline, under, *_memory_words(state, fit), *(f"{x}." for x in lines))))
    scene.headline(headline, under)
    _memory(scene, state, fit)
    _kinds(scene, state)
    _fits(scene, state, fit)
    _formula(scene, lines)
    return scene


def _words(state, fit):
    need, room = state.spec.bytes(state.batch, state.tokens), fit.budget.cache
    where = f"the {state.gpu}" if state.tp == 1 else f"each of {state.tp} × {state.gpu}"
    verb = "takes" if state.batch == 1 else "take"
    asked = f"{count(state.batch, 'sequence')} of {count(state.tokens, 'token')} {verb} {size(need)}"
    if state.uncounted:
        headline = f"{asked}; {where} has {size(fit.budget.memory)}."
    elif need <= room:
        headline = f"{asked}: {number(100 * need / room)}% of what {where} has left for a cache."
    elif room > 0:
        headline = f"{asked}; {where} has {size(room)} left: that does not fit."
    else:
        headline = f"The weights alone do not fit: {where} has {size(int(fit.budget.memory * state.utilization))} to use."
    reason = "memory" if fit.limiter not in (WEIGHTS,) else "the weights"
    batch = f"largest batch at this context: {fit.max_batch:,} ({reason})"
    if fit.max_context is None:
        context = "any context at this batch"
    else:
        limit = "the model's longest" if fit.context_limiter == MODEL else reason
        context = f"longest context at this batch: {count(fit.max_context, 'token')} ({limit})"
    caution = " Weights left out!" if state.uncounted else ""
    return headline, f"{batch[0].upper()}{batch[1:]};  {context}.{caution}"


def _memory_words(state, fit):
    if state.uncounted:
        yield f"Weights are not counted ({state.uncounted})."
    else:
        yield f"Weights: {show_bytes(fit.budget.weights)}, {fit.budget.weights_source}."
    yield f"One more token takes {show_bytes(state.spec.bytes_per_token(state.tokens))} of cache."


def _kind_words(kind, n, window):
    return f"{n} {kind}" + (f", window {window:,}" if window else "")


def _parts(state):
    """(kind, words, bytes) for each kind of layer."""
    spec = state.spec
    windows = {layer.kind: layer.window for layer, _ in spec.groups()}
    counts = spec.kinds()
    return [
        (kind, _kind_words(kind, counts[kind], windows[kind]), taken)
        for kind, taken in spec.per_kind(state.batch, state.tokens).items()
    ]


LEFT, RIGHT = 28, 932


def _memory(scene, state, fit):
    """One bar is one GPU: the weights, then the cache, as far as it may be used; what is too much stands out beyond it."""
    budget, need = fit.budget, state.spec.bytes(state.batch, state.tokens)
    usable = int(budget.memory * budget.utilization)
    whole = max(budget.memory, budget.weights + need)
    top, high = 118, 34
    scale = (RIGHT - LEFT) / whole
    scene.text(LEFT, top - 12, f"memory of {'the GPU' if state.tp == 1 else 'one GPU'}, {show_bytes(budget.memory)}", bold=True)
    scene.rect(LEFT, top, budget.memory * scale, high, fill=style.FAINT)
    x = LEFT
    if budget.weights:
        scene.rect(x, top, budget.weights * scale, high, fill=style.SKIP)
        x += budget.weights * scale
    for kind, _, taken in _parts(state):
        scene.rect(x, top, taken * scale, high, fill=COLOURS[kind])
        x += taken * scale
    scene.rect(LEFT, top, budget.memory * scale, high, stroke=style.INK)
    edge = LEFT + usable * scale
    scene.line(edge, top - 5, edge, top + high + 5, stroke=style.INK, dashed=True)
    weights = f"weights {size(budget.weights)} ({state.weights})" if not state.uncounted else "weights not counted"
    spare = usable - budget.weights - need
    over = f"{size(spare)} left" if spare >= 0 else f"{size(-spare)} too much"
    entries = [(style.SKIP, weights), (None, f"cache {size(need)}"), (style.FAINT if spare >= 0 else None, over)]
    for kind, _, _ in _parts(state):
        entries.insert(-1, (COLOURS[kind], kind))
    x = LEFT
    for colour, words in entries:
        if colour:
            scene.rect(x, top + high + 12, 12, 12, fill=colour, radius=2)
            x += 18
        scene.text(x, top + high + 22, words, size=style.SMALL, fill=style.INK if "too much" in words else style.MUTED)
        x += plot.text_width(words, style.SMALL) + 20
    limit = f"dashed: {number(100 * budget.utilization)}% may be used"
    scene.text(RIGHT, top + high + 22, limit, size=style.SMALL, fill=style.MUTED, anchor="end")


def _kinds(scene, state):
    """A bar for each kind of layer."""
    y, wide = 222, 360
    scene.text(LEFT, y - 12, "cache by kind of layer", bold=True)
    parts = _parts(state)
    most = max(taken for _, _, taken in parts) or 1
    for kind, words, taken in parts:
        scene.text(LEFT, y + 14, words)
        scene.text(LEFT + wide, y + 14, size(taken), bold=True, anchor="end")
        scene.rect(LEFT, y + 22, wide, 14, fill=style.FAINT, radius=2)
        scene.rect(LEFT, y + 22, max(wide * taken / most, 1), 14, fill=COLOURS[kind], radius=2)
        y += 54
    spec = state.spec
    fresh, late = spec.bytes_per_token(), spec.bytes_per_token(state.tokens)
    scene.text(LEFT, y + 12, f"one more token takes {size(late)}")
    if late != fresh:
        scene.text(LEFT, y + 32, f"(the first took {size(fresh)}: windows are full now)", fill=style.MUTED)
    scene.text(LEFT, 460, "counted from the config.json; nothing here is measured", size=style.SMALL, fill=style.MUTED)


def _fits(scene, state, fit):
    """Context against batch: below the line fits. The mark is what is asked."""
    top, floor, left = 236, 424, 500
    longest = state.spec.max_context or LIMITS["tokens"]
    shortest = min(1024, state.tokens, longest)
    line = frontier(state.spec, fit.budget.cache, shortest, longest)
    scene.text(left - 46, top - 26, "what fits: batch against context", bold=True)
    highest = max([batch for _, batch in line] + [state.batch, 2])
    x = plot.Axis(shortest, max(longest, 2 * shortest), left, RIGHT, log=True)
    y = plot.Axis(1, 2 * highest, floor, top, log=True)
    powers = [2**k for k in range(25) if x.low <= 2**k <= x.high]
    sizes = [10**k for k in range(8) if 10**k <= y.high]
    every = -(-len(powers) // 6)
    plot.frame(scene, x, y, [(v, _short(v)) for v in powers[::-1][::every]], [(v, f"{v:,}") for v in sizes])
    scene.text(RIGHT, floor + 36, "tokens a sequence", size=style.SMALL, fill=style.MUTED, anchor="end")
    if len(line) > 1:
        scene.path([(x(tokens), y(batch)) for tokens, batch in line], stroke=style.PREDICTED)
        scene.text(left, floor + 36, "below the line fits", size=style.SMALL, fill=style.PREDICTED)
    else:
        scene.text(left + 20, (top + floor) / 2, "nothing fits beside these weights", fill=style.MUTED)
    px, py = x(state.tokens), y(state.batch)
    scene.line(px, py, px, floor, stroke=style.INK, dashed=True)
    scene.line(x.start, py, px, py, stroke=style.INK, dashed=True)
    fits = state.spec.bytes(state.batch, state.tokens) <= fit.budget.cache
    scene.mark(px, py, size=6, fill=style.PANEL if fits else style.ACCENT, stroke=style.PREDICTED if fits else style.ACCENT, line=2)
    end = px > (left + RIGHT) / 2
    words = "fits" if fits else "too much"
    scene.text(px + (-12 if end else 12), py - 9, words, size=style.SMALL, bold=True, anchor="end" if end else "start")


def _short(n):
    return f"{n // 1024}Ki" if n % 1024 == 0 and n >= 1024 else f"{n}"


WIDEST, MOST_LINES = 136, 7


def _formula(scene, lines):
    y = 492
    scene.line(LEFT, y - 12, RIGHT, y - 12)
    rows = [row for line in lines for row in wrap(line.replace(" x ", " × "), WIDEST, subsequent_indent="    ")]
    if len(rows) > MOST_LINES:
        rows = [*rows[: MOST_LINES - 2], "...", rows[-1]]
    for k, row in enumerate(rows):
        scene.text(LEFT, y + 10 + 20 * k, row, size=style.SMALL + 1, bold=row is rows[-1])


def _to_grid(state: Need) -> dict:
    """What one GPU launches for the layers that read most: its share of the heads."""
    layers = [layer for layer, _ in state.spec.groups() if layer.kind in ("full", "sliding")]
    require(layers, "model", state.model, "one with K and V a head: the grid reads no latent and no state")
    layer = max(layers, key=lambda layer: layer.tokens(state.tokens))
    heads_q = state.spec.model.heads_q // state.tp
    return dict(gpu=state.gpu, batch=state.batch, heads_q=heads_q, heads_kv=layer.kv_heads, head_dim=layer.head_dim_k,
                seqlen_k=layer.tokens(state.tokens), dtype=state.dtype)  # fmt: skip


class KVPlanner(Explorable):
    """What a model's KV cache takes and what fits: ``KVPlanner(model="llama-3.1-8b", tokens=32768, batch=8, gpu="h200")``,
    or ``KVPlanner(model="pasted below", config=text)``.

    The fields are Need's; ValueError says what is wrong with one. Hands its batch, heads, context and GPU to an SMGrid.
    ``figure()`` draws it for a page without a kernel.
    """

    State = Need
    picture = staticmethod(picture)
    columns = 3
    hands = {"SMGrid": _to_grid}

    def make_controls(self, state):
        return {
            "tokens": ladder(state, "tokens", "context", _lengths(state), lambda n: f"{n:,}"),
            "batch": ladder(state, "batch", "batch", [n << k for k in range(12) for n in (2, 3)] + [1], lambda n: f"{n:,}"),
            "model": menu(state, "model", "model", (*MODELS, PASTED)),
            "dtype": menu(state, "dtype", "cache", tuple(FORMATS)),
            "weights": menu(state, "weights", "weights", WEIGHTS_AS),
            "gpu": menu(state, "gpu", "GPU", tuple(names())),
            "tp": ladder(state, "tp", "GPUs (tp)", [1, 2, 4, 8]),
            "config": ipywidgets.Textarea(
                value=state.config, description="config.json", placeholder="paste a model's config.json, then press Tab",
                continuous_update=False, rows=2, style=LABEL, layout={"width": "99%", "max_width": f"{WIDTH}px"},
            ),
        }  # fmt: skip

    def show_controls(self, state):
        self.controls["tokens"].offer(_lengths(state), state.tokens)
        super().show_controls(state)


def _lengths(state):
    most = state.spec.max_context or LIMITS["tokens"]
    return [n << k for k in range(9, 24) for n in (2, 3) if n << k <= most] + [most]
