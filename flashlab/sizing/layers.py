"""One layer of a cache: what it keeps for a sequence of a given length.

    full      every token: kv_heads * (head_dim_k + head_dim_v) elements each
    sliding   the same for the last `window` tokens
    latent    every token once for K and V together (multi-head latent attention, arXiv 2405.04434 section 2.1):
              one vector of kv_lora_rank + qk_rope_head_dim elements, whatever the number of heads
    linear    a state that does not grow: a recurrent matrix a head, and the last inputs of a short convolution
"""

from typing import NamedTuple

from flashlab.hardware.checks import whole
from flashlab.sizing.formats import Format

KINDS = ("full", "sliding", "latent", "linear")


class Layer(NamedTuple):
    """One layer's cache. Head dimensions and states count elements; window counts tokens.

    A latent layer has one kv head whose K is the latent vector and whose V is empty, so there is no factor 2. A linear
    layer's kv_heads are the key heads that its state is split over.
    """

    kind: str
    kv_heads: int
    head_dim_k: int = 0
    head_dim_v: int = 0
    window: int | None = None
    conv_elements: int = 0
    recurrent_elements: int = 0

    def check(self) -> None:
        """Raise ValueError or TypeError where a field is no size, or fields contradict each other."""
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r}: must be one of {', '.join(KINDS)}")
        if (self.kind == "sliding") != (self.window is not None):
            raise ValueError(f"window {self.window}: a sliding layer has one and no other layer has")
        if self.window is not None:
            whole("window", self.window)
        whole("kv_heads", self.kv_heads)
        whole("head_dim_k", self.head_dim_k, 0 if self.kind == "linear" else 1)
        whole("head_dim_v", self.head_dim_v, 0)
        whole("conv_elements", self.conv_elements, 0)
        whole("recurrent_elements", self.recurrent_elements, 1 if self.kind == "linear" else 0)
        if self.kind == "latent" and (self.kv_heads, self.head_dim_v) != (1, 0):
            raise ValueError("latent layer: must have kv_heads 1 and head_dim_v 0, for the latent is both K and V")

    def tokens(self, tokens: int) -> int:
        """How many of a sequence's tokens this layer keeps."""
        if self.kind == "linear":
            return 0
        return tokens if self.window is None else min(tokens, self.window)

    def most_pages(self, page_size: int) -> int | None:
        """The most pages that a sequence of any length holds; None where they grow with it.

        A window of w tokens that has slid to an odd place can touch ceil((w - 1) / p) + 1 pages of p tokens (vLLM's
        SlidingWindowSpec adds such a page too).
        """
        if self.kind == "linear":
            return 0
        return None if self.window is None else -(-(self.window - 1) // page_size) + 1

    def pages(self, tokens: int, page_size: int) -> int:
        """The most pages that a sequence holds while it grows to this length."""
        pages, most = -(-tokens // page_size), self.most_pages(page_size)
        return pages if most is None else min(pages, most)

    @property
    def elements(self) -> int:
        """Elements of one kept token: K and V of every kv head."""
        return self.kv_heads * (self.head_dim_k + self.head_dim_v)

    def token_bytes(self, form: Format) -> int:
        """Bytes of one kept token: K and V of every kv head, with the scales that grow with them."""
        return self.kv_heads * (form.vector_bytes(self.head_dim_k) + form.vector_bytes(self.head_dim_v))

    def state_bytes(self, conv: Format, recurrent: Format) -> int:
        """Bytes that a sequence takes whatever its length."""
        return conv.vector_bytes(self.conv_elements) + recurrent.vector_bytes(self.recurrent_elements)

    def scale_bytes(self, form: Format) -> int:
        """Bytes of the scales that neither tokens nor sequences multiply."""
        halves = (self.head_dim_k > 0) + (self.head_dim_v > 0)
        return halves * form.constant_bytes(self.kv_heads)

    def shard(self, tp: int) -> "Layer":
        """What one of tp GPUs keeps. ValueError where heads cannot be dealt out evenly.

        kv heads are dealt out, and where GPUs outnumber them each is kept by several GPUs: never less than one a GPU. A
        latent has no heads to deal out: every GPU keeps all of it (as vLLM and SGLang do).
        """
        if self.kind == "latent":
            return self
        heads = self.kv_heads
        if self.kind == "linear":
            if heads % tp:
                raise ValueError(f"tp {tp}: must divide the {heads} key heads of the linear layers")
            return self._replace(
                kv_heads=heads // tp,
                conv_elements=self.conv_elements // tp,
                recurrent_elements=self.recurrent_elements // tp,
            )
        if heads % tp and tp % heads:
            raise ValueError(f"tp {tp}: must divide the {heads} kv heads or be a multiple of them")
        return self._replace(kv_heads=max(1, heads // tp))
