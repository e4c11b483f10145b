"""The formula with the numbers in it, and what the well-known wrong formulas would have said.

The right general form is FlexGen's 4 * b * l * h * (s + n) (arXiv 2303.06865 section 3), opened up for fewer kv heads,
explicit head dimensions, windows, latents and other formats. Each wrong form below is one that a published calculator
or article really used.
"""

from typing import NamedTuple

from flashlab.hardware.checks import whole
from flashlab.sizing.cache import CacheSpec
from flashlab.sizing.units import show_bytes


class Wrong(NamedTuple):
    """A wrong formula: what it forgets, its numbers, the bytes it gives, and those bytes over the right ones."""

    name: str
    formula: str
    bytes: int
    ratio: float
    why: str


class Explanation(NamedTuple):
    """formula: one line for each sort of layer, and the total. bytes: at the peak, input + output tokens.

    needed_bytes: what is ever read, one token less, for the last token's K and V are written and never read.
    """

    formula: list[str]
    bytes: int
    needed_bytes: int
    wrong: list[Wrong]

    def __str__(self):
        lines = [*self.formula, f"needed: the last token's K and V are never read: {show_bytes(self.needed_bytes)}"]
        for wrong in self.wrong:
            size = f"{show_bytes(wrong.bytes)}, {wrong.ratio:.3g}x"
            lines.append(f"wrong ({wrong.name}): {wrong.formula} gives {size}. {wrong.why}")
        return "\n".join(lines)


def explain(spec: CacheSpec, batch: int = 1, input: int = 1024, output: int = 1024) -> Explanation:
    """How spec.bytes(batch, input + output) comes about. input and output are tokens of each sequence."""
    batch, input, output = whole("batch", batch), whole("input", input, 0), whole("output", output, 0)
    tokens = whole("input + output", input + output)
    total = spec.bytes(batch, tokens)
    wrong = [*_wrong_shapes(spec, batch, tokens), *_wrong_kinds(spec, batch, tokens), *_article(spec, input, output)]
    made = [Wrong(name, text, size, size / total, why) for name, text, size, why in wrong if size != total]
    return Explanation(formula(spec, batch, tokens), total, spec.bytes(batch, tokens - 1), made)


def formula(spec: CacheSpec, batch: int, tokens: int) -> list[str]:
    """The sum over layers with the numbers substituted, a line for each sort of layer."""
    lines = [_line(spec, layer, n, batch, tokens) for layer, n in spec.groups()]
    if spec.constant_bytes:
        lines.append(f"scales: {spec.constant_bytes} bytes, whatever the batch and the length")
    where = f" on one GPU of {spec.tp}" if spec.tp > 1 else ""
    return [*lines, f"total{where}: {spec.bytes(batch, tokens):,} bytes = {show_bytes(spec.bytes(batch, tokens))}"]


def _line(spec: CacheSpec, layer, n: int, batch: int, tokens: int) -> str:
    each = layer.state_bytes(spec.conv_format, spec.state_format)
    if layer.kind == "linear":
        return (
            f"linear: batch {batch} x {n} layers x (state {layer.recurrent_elements} {spec.state_format.name} + "
            f"convolution {layer.conv_elements} {spec.conv_format.name}) = {batch * n * each:,} bytes, at any length"
        )
    kept = f"{tokens} tokens" if layer.window is None else f"min({tokens}, window {layer.window}) tokens"
    if layer.kind == "latent":
        inside = f"one latent of {layer.head_dim_k} (K and V together, no factor 2)"
    elif layer.head_dim_k == layer.head_dim_v:
        inside = f"2 (K and V) x {layer.kv_heads} kv heads x {layer.head_dim_k} head_dim"
    else:
        inside = f"{layer.kv_heads} kv heads x ({layer.head_dim_k} + {layer.head_dim_v})"
    inside += f" x {_element(spec, layer.head_dim_k)}"
    size = batch * n * layer.tokens(tokens) * layer.token_bytes(spec.format)
    return f"{layer.kind}: batch {batch} x {n} layers x {kept} x {inside} = {size:,} bytes"


def _element(spec: CacheSpec, dim: int) -> str:
    form = spec.format
    bare, stored = form.element_bytes, form.vector_bytes(dim) / dim
    name = form.name if bare == stored else f"{form.name}, {bare:g} and its scales"
    return f"{stored:g} bytes ({name})"


def _wrong_shapes(spec: CacheSpec, batch: int, tokens: int):
    """Slips about heads, halves and units."""
    form = spec.format
    size = lambda token_bytes: _with(spec, batch, tokens, token_bytes)
    if spec.model is not None and spec.tp == 1:
        heads_q, hidden = spec.model.heads_q, spec.model.hidden_size
        layer = next(layer for layer in spec.layers if layer.kind != "linear")
        heads, dim = layer.kv_heads, layer.head_dim_k
        stored = form.vector_bytes(dim) / dim
        vectors = lambda heads, dim: lambda layer: round(2 * heads * dim * stored)
        if layer.kind == "latent":
            why = "Latent attention keeps one compressed vector a token, not K and V of every head."
            yield "latent counted as full heads", f"2 x hidden {hidden} elements", size(vectors(1, hidden)), why
            yield "K and V counted apart", "2 x latent", size(vectors(1, dim)), "The latent serves both."
        else:
            if hidden != dim * heads_q:
                guess = hidden // heads_q
                why = f"The config says head_dim {dim}; hidden / heads is only a default."
                text = f"head_dim {guess} from {hidden} / {heads_q}"
                yield "hidden / heads for head_dim", text, size(vectors(heads, guess)), why
            if heads != heads_q:
                why = f"{heads_q // heads} query heads share each kv head; only kv heads are kept."
                yield "kv heads ignored", f"{heads_q} heads instead of {heads}", size(vectors(heads_q, dim)), why
    if not any(layer.kind == "latent" for layer in spec.layers):
        only_k = size(lambda layer: layer.kv_heads * form.vector_bytes(layer.head_dim_k))
        yield "K without V", "no V", only_k, "K and V are both kept."
    why = f"An element has {form.bits} bits, {form.element_bytes:g} bytes."
    bits = lambda layer: layer.token_bytes(form) + round(layer.elements * (form.bits - form.element_bytes))
    yield "bits taken for bytes", f"{form.bits} bytes an element", size(bits), why


def _wrong_kinds(spec: CacheSpec, batch: int, tokens: int):
    """Slips about which layers grow."""
    kinds, form = spec.per_kind(batch, tokens), spec.format
    total = sum(kinds.values())
    if "sliding" in kinds:
        sliding = [layer for layer in spec.layers if layer.kind == "sliding"]
        slid_out = sum(layer.token_bytes(form) * (tokens - layer.tokens(tokens)) for layer in sliding)
        why = "A window keeps its last tokens only."
        yield "windows ignored", "every token in every layer", total + batch * slid_out, why
        if "full" in kinds:
            why = "Sliding layers keep a window each."
            yield "sliding layers dropped", "full layers alone", total - kinds["sliding"], why
    if "linear" in kinds and "full" in kinds:
        full = next(layer for layer in spec.layers if layer.kind == "full")
        as_full = CacheSpec([full] * len(spec.layers), form).bytes(batch, tokens)
        yield "linear layers counted as attention", f"all {len(spec.layers)} layers", as_full, "A state does not grow."


def _article(spec: CacheSpec, input: int, output: int):
    """4 * n * m * h, from an article on FlashAttention and KV caches; right would be 4 * b * l * h * (n + m)."""
    if spec.model is not None and spec.tp == 1:
        hidden = spec.model.hidden_size
        why = "It lost batch and layers, and multiplied the lengths that it should have added."
        yield "4 n m h", f"4 x {input} x {output} x {hidden}", 4 * input * output * hidden, why


def _with(spec: CacheSpec, batch: int, tokens: int, token_bytes) -> int:
    """The bytes if a kept token of an attention layer took token_bytes(layer), everything else being right."""
    total = spec.bytes(batch, tokens)
    for layer in spec.layers:
        if layer.kind != "linear":
            total += batch * layer.tokens(tokens) * (token_bytes(layer) - layer.token_bytes(spec.format))
    return total
