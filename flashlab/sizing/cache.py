"""CacheSpec: the bytes of a KV cache, for a whole model or for one GPU of a tensor-parallel group.

    bytes = sum over layers of  batch * tokens_in_layer * kv_heads * (d_k + d_v) * element bytes  +  scales  +  states

tokens_in_layer is what Layer.tokens says: all of them, at most the window, or none. For multi-head attention in 16 bits
this is 4 * batch * layers * hidden * tokens, with tokens = input + output at the end: FlexGen, arXiv 2303.06865
section 3. The K and V of the very last token are written and never read, so the need is one token less than the peak.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from flashlab.hardware.checks import whole
from flashlab.sizing.formats import FORMATS, kv_format
from flashlab.sizing.layers import KINDS, Layer
from flashlab.sizing.models import Model, read_model

BLOCK_TABLE_ENTRY = 4  # int32, as in flash-attn's and vLLM's block_table


class Paged(NamedTuple):
    """A paged cache. bytes holds everything: pages, states, scales and block tables; tail_bytes of it hold no token."""

    page_size: int
    pages: int
    bytes: int
    tail_bytes: int
    block_table_bytes: int

    @property
    def waste(self) -> float:
        """The share of the bytes that hold no token."""
        return self.tail_bytes / self.bytes if self.bytes else 0.0


class CacheSpec:
    """What a cache keeps: its layers, and the format of K and V.

    layers: Layer objects, first to last. dtype, scales: see kv_format. state_dtype: the recurrent state of linear
    layers, fp32 as transformers keeps it (vLLM's default is the model's dtype); their convolution inputs are kept in
    dtype, or in bf16 where dtype has less than 16 bits. Immutable.
    """

    def __init__(self, layers: Iterable[Layer], dtype="bf16", scales=None, state_dtype="fp32", *, model=None, tp=1):
        self.layers = tuple(layers)
        if not self.layers or not all(isinstance(layer, Layer) for layer in self.layers):
            raise ValueError("layers: must hold at least one Layer")
        for layer in set(self.layers):
            layer.check()
        self.format = kv_format(dtype, scales)
        self.state_format = kv_format(state_dtype, argument="state_dtype")
        if self.state_format.bits < 16:
            raise ValueError(f"state_dtype {self.state_format.name}: must be fp32, fp16 or bf16")
        self.conv_format = self.format if self.format.bits >= 16 else FORMATS["bf16"]
        self.model: Model | None = model
        self.tp = tp
        # Layers repeat: (layer, how many of it, bytes a token, bytes a sequence), so that sums are short.
        self._groups = [
            (layer, n, layer.token_bytes(self.format), layer.state_bytes(self.conv_format, self.state_format))
            for layer, n in Counter(self.layers).items()
        ]
        self.constant_bytes = sum(layer.scale_bytes(self.format) for layer in self.layers)

    @classmethod
    def from_config(cls, config, dtype=None, scales=None, state_dtype="fp32", tp: int = 1) -> "CacheSpec":
        """The cache of the model that a config.json (path, dict, or transformers config) describes.

        dtype: the cache's format; None is 16 bits: fp16 where the config names that for its weights, else bf16, also
        for weights published in fp32 (as vLLM's "auto").
        tp: GPUs that share the heads; above 1 the spec is that of one GPU. ValueError names whatever is wrong.
        """
        model = read_model(config)
        spec = cls(model.layers, model.half_dtype() if dtype is None else dtype, scales, state_dtype, model=model)
        return spec if tp == 1 else spec.shard(tp)

    def shard(self, tp: int) -> "CacheSpec":
        """The cache of one GPU of tp; kv heads fewer than GPUs are replicated, latents always are."""
        tp = whole("tp", tp)
        if self.tp != 1:
            raise ValueError(f"tp {tp}: this spec is already one GPU's of {self.tp}")
        if self.model and self.model.heads_q % tp:
            raise ValueError(f"tp {tp}: must divide the {self.model.heads_q} query heads")
        layers = [layer.shard(tp) for layer in self.layers]
        return CacheSpec(layers, self.format, None, self.state_format, model=self.model, tp=tp)

    @property
    def max_context(self) -> int | None:
        """The model's max_position_embeddings in tokens, None where no config says."""
        return self.model.max_context if self.model else None

    def bytes_per_token(self, after: int = 0) -> int:
        """Bytes that one more token adds to a sequence of `after` tokens.

        after=0 is the cost while every window still fills; a large `after` leaves only the layers that keep growing.
        """
        after = whole("after", after, 0)
        return sum(n * size * (layer.tokens(after + 1) - layer.tokens(after)) for layer, n, size, _ in self._groups)

    def sequence_bytes(self, tokens: int, page_size: int | None = None) -> int:
        """Bytes of one sequence of this many tokens, with its block tables where it is paged."""
        tokens = whole("tokens", tokens, 0)
        if page_size is None:
            return sum(n * (layer.tokens(tokens) * size + state) for layer, n, size, state in self._groups)
        page_size = whole("page_size", page_size)
        pages = {layer: layer.pages(tokens, page_size) for layer, *_ in self._groups}
        held = sum(n * (pages[layer] * page_size * size + state) for layer, n, size, state in self._groups)
        return held + self._table_entries(tokens, page_size) * BLOCK_TABLE_ENTRY

    def growth_bytes(self, first: int, last: int, page_size: int | None = None) -> int:
        """The sum of sequence_bytes over the lengths first ... last, in closed form; 1 <= first <= last.

        Divided by the number of lengths, what a sequence holds on average while it grows, a token a step.
        """
        first, page = whole("first", first), 1 if page_size is None else whole("page_size", page_size)
        last = whole("last", last, first)
        pages = lambda most: _pages_summed(last, page, most) - _pages_summed(first - 1, page, most)
        grown = sum(n * pages(layer.most_pages(page)) * page * size for layer, n, size, _ in self._groups)
        states = (last - first + 1) * self.sequence_bytes(0)
        return grown + states + (len(self._sorts()) * pages(None) * BLOCK_TABLE_ENTRY if page_size else 0)

    def bytes(self, batch: int, tokens: int, page_size: int | None = None) -> int:
        """Bytes of a batch of sequences of this many tokens each, in pages of page_size tokens if that is given."""
        batch = whole("batch", batch, 0)
        return self.constant_bytes + batch * self.sequence_bytes(tokens, page_size)

    def paged(self, batch: int, tokens: int, page_size: int) -> Paged:
        """The same in pages of page_size tokens: what the unfilled tails waste, and the block tables.

        pages counts those of one layer of each sort; each sort of layer (kind and window) has its own block table.
        """
        batch, tokens, page_size = whole("batch", batch, 0), whole("tokens", tokens, 0), whole("page_size", page_size)
        total = self.bytes(batch, tokens, page_size)
        tables = batch * self._table_entries(tokens, page_size) * BLOCK_TABLE_ENTRY
        tail = total - tables - self.bytes(batch, tokens)
        return Paged(page_size, batch * self._pages(tokens, page_size), total, tail, tables)

    def per_layer(self, batch: int = 1, tokens: int = 1) -> list[int]:
        """Bytes of each layer, first to last; their sum is bytes(batch, tokens)."""
        batch, tokens = whole("batch", batch, 0), whole("tokens", tokens, 0)
        size = {
            layer: layer.scale_bytes(self.format) + batch * (layer.tokens(tokens) * each + state)
            for layer, _, each, state in self._groups
        }
        return [size[layer] for layer in self.layers]

    def per_kind(self, batch: int = 1, tokens: int = 1) -> dict[str, int]:
        """Bytes of the layers of each kind that the model has; their sum is bytes(batch, tokens)."""
        total = dict.fromkeys((kind for kind in KINDS if any(layer.kind == kind for layer in self.layers)), 0)
        for layer, size in zip(self.layers, self.per_layer(batch, tokens), strict=True):
            total[layer.kind] += size
        return total

    def kinds(self) -> dict[str, int]:
        """How many layers of each kind the model has."""
        return dict(Counter(layer.kind for layer in self.layers))

    def groups(self) -> list[tuple[Layer, int]]:
        """The different layers and how many there are of each."""
        return [(layer, n) for layer, n, *_ in self._groups]

    def _sorts(self) -> set:
        return {(layer.kind, layer.window): layer for layer in self.layers if layer.kind != "linear"}

    def _pages(self, tokens: int, page_size: int) -> int:
        return sum(layer.pages(tokens, page_size) for layer in self._sorts().values())

    def _table_entries(self, tokens: int, page_size: int) -> int:
        """A block table has a column for every page since the start, slid out or not."""
        return len(self._sorts()) * -(-tokens // page_size)

    def __repr__(self):
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.kinds().items())
        name = self.model.model_type if self.model else "made by hand"
        return f"CacheSpec({name}: {kinds}; {self.format.name}{f'; 1 GPU of {self.tp}' if self.tp > 1 else ''})"


def _pages_summed(tokens: int, page_size: int, most: int | None) -> int:
    """The sum of min(ceil(t / page_size), most) over t = 1 ... tokens."""
    growing = tokens if most is None else min(tokens, most * page_size)
    full, rest = divmod(growing, page_size)
    return page_size * full * (full + 1) // 2 + rest * (full + 1) + (tokens - growing) * (most or 0)
