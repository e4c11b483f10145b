"""A paged cache for a model: sequences share one pool of pages, and prefixes share pages.

Each sequence is a list of pages and a length; token j lies in page j // page_size, slot j % page_size. All layers use the
same lists, so one block table serves them all. Pages are counted by reference: ``fork`` shares every page of a sequence,
and a shared page that is about to be written is copied first (copy on write). Only a sequence's last page is ever written
to, so only that one is ever copied.

Whatever needs pages works out how many first, and raises OutOfPages before it changes anything.

Paged attention: Kwon et al., arXiv 2309.06180.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from flashlab.attention import checks
from flashlab.kvcache.pages import Pages
from flashlab.kvcache.quantize import CODE_DTYPES

PAGE_SIZE_STEP = 16
HOLE = -1  # a column whose page was dropped; nothing reads it


class OutOfPages(RuntimeError):
    """The pool has fewer free pages than were asked for. Nothing was changed."""


class Utilisation(NamedTuple):
    """How full a pool is. tokens counts what sequences hold, shared tokens each time; slots_unused are empty slots of used
    pages; pages_shared_saved is how many more pages there would be without sharing."""

    pages_used: int
    pages_total: int
    tokens: int
    slots_unused: int
    pages_shared_saved: int
    bytes_used: int

    @property
    def fraction(self) -> float:
        """Pages used of all pages."""
        return self.pages_used / self.pages_total


class _BySequence(dict):
    """What is kept for each sequence; asking for one that is not there says so."""

    def __missing__(self, sequence):
        raise KeyError(f"sequence {sequence}: not in the pool (never allocated, or freed)")


class PagedKVCache:
    """Pages of K and V for all layers of a model, and the sequences that own them.

    Args:
        layers, heads_kv, head_dim: the model's.
        num_pages, page_size: the pool's; page_size is a multiple of 16.
        format: "native" stores dtype; "fp8", "int8", "int4" store codes and float32 scales (flashlab.kvcache.quantize).
            A list gives each layer its own.

    Raises:
        TypeError, ValueError: a size that is no positive int, a page_size that is no multiple of 16, a head_dim past 256, an
            unknown format, a dtype that attention does not take.
    """

    def __init__(
        self,
        layers: int,
        heads_kv: int,
        head_dim: int,
        *,
        num_pages: int,
        page_size: int = 64,
        format: str | Sequence[str] = "native",
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str | None = None,
    ):
        sizes = dict(layers=layers, heads_kv=heads_kv, head_dim=head_dim, num_pages=num_pages)
        for name, value in (sizes | dict(page_size=page_size)).items():
            if not isinstance(value, int):
                raise TypeError(f"{name} is a {type(value).__name__}: must be an int")
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} {value}: must be at least 1")
        if page_size < 1 or page_size % PAGE_SIZE_STEP:
            raise ValueError(f"page_size {page_size}: must be a multiple of {PAGE_SIZE_STEP}")
        formats = [format] * layers if isinstance(format, str) else list(format)
        if len(formats) != layers:
            raise ValueError(f"format lists {len(formats)} layers: must list {layers}")
        for name in formats:
            if name != "native" and name not in CODE_DTYPES:
                raise ValueError(f"format {name!r}: must be one of native, {', '.join(CODE_DTYPES)}")
        if head_dim > checks.MAX_HEAD_DIM:
            raise ValueError(f"head_dim {head_dim}: must be at most {checks.MAX_HEAD_DIM}")
        if dtype not in checks.DTYPES:
            raise TypeError(f"dtype {dtype}: must be float16, bfloat16 or float32")
        self.page_size, self.num_pages, self.heads_kv, self.head_dim = page_size, num_pages, heads_kv, head_dim
        self.device = torch.device(device or "cpu")
        self.layers = [Pages(num_pages, page_size, heads_kv, head_dim, f, dtype, self.device) for f in formats]
        self._free = list(range(num_pages - 1, -1, -1))  # popped from the end: low pages first
        self._owners = [0] * num_pages
        self._pages: dict[int, list[int]] = _BySequence()
        self._lengths: dict[int, int] = _BySequence()
        self._next = 0
        self._tables: dict[tuple, tuple[torch.Tensor, torch.Tensor]] = {}

    # Sequences.

    def allocate(self) -> int:
        """A new, empty sequence; its number."""
        self._next += 1
        self._pages[self._next], self._lengths[self._next] = [], 0
        return self._next

    def free(self, sequence: int) -> None:
        """Give a sequence up; pages that no other shares become free. KeyError if there is no such sequence."""
        self._release(page for page in self._pages[sequence] if page != HOLE)
        del self._pages[sequence], self._lengths[sequence]
        self._tables.clear()

    def fork(self, sequence: int) -> int:
        """A new sequence that shares every page of another. No tensor is copied until one of them grows."""
        pages, length = self._pages[sequence], self._lengths[sequence]
        copy = self.allocate()
        self._pages[copy], self._lengths[copy] = list(pages), length
        self._hold(pages)
        return copy

    def length(self, sequence: int) -> int:
        """Tokens a sequence holds, dropped ones (drop_front) counted."""
        return self._lengths[sequence]

    def dropped(self, sequence: int) -> int:
        """Tokens in front whose pages were dropped (drop_front)."""
        return self.page_size * sum(page == HOLE for page in self._pages[sequence])

    def pages(self, sequence: int) -> tuple[int, ...]:
        """A sequence's pages in order; HOLE where one was dropped."""
        return tuple(self._pages[sequence])

    @property
    def sequences(self) -> tuple[int, ...]:
        """All sequences, oldest first."""
        return tuple(self._pages)

    # Growing.

    def append(self, sequences: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        """Add tokens to several sequences in every layer.

        Args:
            k, v: (layers, len(sequences), new, heads_kv, head_dim).

        Raises:
            OutOfPages: too few free pages; nothing was changed.
            KeyError: no such sequence.
            TypeError, ValueError: a wrong shape, dtype or device, or a sequence listed twice; nothing was changed.
        """
        new = self._check_new(k, v, (len(self.layers), len(sequences), None, self.heads_kv, self.head_dim))
        self.extend(sequences, new)
        for layer in range(len(self.layers)):
            self.write(layer, sequences, k[layer], v[layer])

    def extend(self, sequences: Sequence[int], new: int) -> None:
        """Make room for ``new`` more tokens in each sequence; ``write`` then fills it, layer by layer.

        Raises:
            OutOfPages: too few free pages; nothing was changed.
            KeyError: no such sequence.
            ValueError: a sequence listed twice, or new is negative.
        """
        if not isinstance(new, int):
            raise TypeError(f"new is a {type(new).__name__}: must be an int")
        if new < 0:
            raise ValueError(f"new {new}: must not be negative")
        if len(set(sequences)) != len(sequences):
            raise ValueError(f"sequences {list(sequences)}: each may be listed once")
        # Of the sequences that share a last page, all but one must copy it; the one left over then owns it alone.
        sharers, copies = {}, []
        for sequence in sequences:
            if new and self._lengths[sequence] % self.page_size:
                last = self._pages[sequence][-1]
                sharers[last] = sharers.get(last, 0) + 1
                if self._owners[last] - sharers[last] >= 1:
                    copies.append(sequence)
        grown = {s: self._columns(self._lengths[s] + new) - len(self._pages[s]) for s in sequences}
        needed = len(copies) + sum(grown.values())
        if needed > len(self._free):
            raise OutOfPages(
                f"{new} more tokens for {len(sequences)} sequences need {needed} pages: {len(self._free)} of "
                f"{self.num_pages} are free. Free or evict sequences, or build a larger pool"
            )
        for sequence in copies:
            self._copy_last_page(sequence)
        for sequence, count in grown.items():
            self._pages[sequence] += [self._take() for _ in range(count)]
            self._lengths[sequence] += new
        self._tables.clear()

    def write(self, layer: int, sequences: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        """Fill the last k.shape[1] tokens of each sequence in one layer: k, v (len(sequences), new, heads_kv, head_dim).

        Raises:
            KeyError, IndexError: no such sequence or layer.
            TypeError, ValueError: a wrong shape, dtype or device, more tokens than a sequence holds, or a token in a page
                that was dropped or that another sequence shares (``extend`` makes room that is a sequence's own).
        """
        new = self._check_new(k, v, (len(sequences), None, self.heads_kv, self.head_dim))
        pages = self._layer(layer)
        for sequence in sequences:
            held = self._lengths[sequence]
            if new > held:
                raise ValueError(f"k has {new} tokens: sequence {sequence} holds {held}")
            for page in self._pages[sequence][(held - new) // self.page_size :] if new else ():
                if page == HOLE or self._owners[page] > 1:
                    state = "dropped" if page == HOLE else "shared"
                    raise ValueError(f"k has {new} tokens: a page of sequence {sequence} that they lie in is {state}")
        places = [self._place(s, self._lengths[s] - new + t) for s in sequences for t in range(new)]
        pages.write(*self._index(places), k.flatten(0, 1), v.flatten(0, 1))

    # Reading.

    def arguments(self, layer: int, sequences: Sequence[int]) -> dict[str, torch.Tensor]:
        """What flash_attn_with_kvcache takes beside q: the layer's pages and scales, block_table and cache_seqlens.

        Where pages were dropped (drop_front) also cache_leftpad, so that no query reads what lies in their place.
        """
        block_table, cache_seqlens = self.tables(sequences)
        given = dict(**self._layer(layer).arguments(), block_table=block_table, cache_seqlens=cache_seqlens)
        dropped = [self.dropped(sequence) for sequence in sequences]
        if any(dropped):
            given["cache_leftpad"] = torch.tensor(dropped, dtype=torch.int32).to(self.device)
        return given

    def tables(self, sequences: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """block_table (len(sequences), columns) and cache_seqlens (len(sequences),), int32 on the device."""
        key = tuple(sequences)
        if key not in self._tables:
            columns = max((len(self._pages[s]) for s in key), default=0)
            rows = [[max(page, 0) for page in self._pages[s]] + [0] * (columns - len(self._pages[s])) for s in key]
            table = torch.tensor(rows, dtype=torch.int32).reshape(len(key), columns)
            lengths = torch.tensor([self._lengths[s] for s in key], dtype=torch.int32)
            self._tables[key] = table.to(self.device), lengths.to(self.device)
        return self._tables[key]

    def read(self, layer: int, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a sequence, (tokens, heads_kv, head_dim); dequantised to float32 if quantised.

        ValueError if pages were dropped from it (drop_front): their tokens are gone.
        """
        if HOLE in self._pages[sequence]:
            raise ValueError(f"sequence {sequence} has dropped pages: it can be attended to with a window, not read whole")
        return self._layer(layer).read(*self._index([self._place(sequence, t) for t in range(self._lengths[sequence])]))

    def utilisation(self) -> Utilisation:
        """How full the pool is."""
        used = self.num_pages - len(self._free)
        held = sum(1 for pages in self._pages.values() for page in pages if page != HOLE)
        filled = {}
        for sequence, pages in self._pages.items():
            for column, page in enumerate(pages):
                if page != HOLE:
                    slots = min(self.page_size, self._lengths[sequence] - column * self.page_size)
                    filled[page] = max(filled.get(page, 0), slots)
        return Utilisation(
            used, self.num_pages, sum(self._lengths.values()), used * self.page_size - sum(filled.values()), held - used,
            used * self.page_bytes,
        )  # fmt: skip

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, K and V, scales included."""
        return sum(layer.page_bytes for layer in self.layers)

    # Shrinking and tidying.

    def drop_front(self, sequence: int, tokens: int) -> int:
        """Free the pages that hold none but the first ``tokens`` tokens; positions stay, and ``arguments`` hides them.

        Returns how many pages the sequence gave up. ValueError if tokens is negative.
        """
        if tokens < 0:
            raise ValueError(f"tokens {tokens}: must not be negative")
        pages = self._pages[sequence]
        gone = [c for c in range(min(tokens, self._lengths[sequence]) // self.page_size) if pages[c] != HOLE]
        self._release(pages[column] for column in gone)
        for column in gone:
            pages[column] = HOLE
        self._tables.clear()
        return len(gone)

    def keep(self, sequence: int, tokens: Sequence[int]) -> int:
        """Hold only these tokens, in this order, moved together; their positions become 0, 1, ...

        Pages in front that keep every token stay as they are, shared or not; what follows is written into pages of its own.

        Returns:
            How many fewer pages the sequence has.

        Raises:
            OutOfPages: pages that are shared leave no room to write beside them; nothing was changed.
            IndexError: a token the sequence does not hold.
        """
        pages, length = self._pages[sequence], self._lengths[sequence]
        tokens = list(tokens)
        for token in tokens:
            if not 0 <= token < length or pages[token // self.page_size] == HOLE:
                raise IndexError(f"token {token}: sequence {sequence} holds {length} tokens, dropped ones excepted")
        same = next((i for i, token in enumerate(tokens) if token != i), len(tokens))
        stay = same // self.page_size
        if len(tokens) == same == length:
            return 0
        mine = [page for page in pages[stay:] if page != HOLE and self._owners[page] == 1]
        columns = self._columns(len(tokens))
        short = columns - stay - len(mine)
        if short > len(self._free):
            raise OutOfPages(f"keeping {len(tokens)} tokens of shared pages needs {short} pages: {len(self._free)} are free")
        target = pages[:stay] + (mine + [self._take() for _ in range(max(short, 0))])[: columns - stay]
        moved = tokens[stay * self.page_size :]
        old = self._index([self._place(sequence, token) for token in moved])
        self._pages[sequence], self._lengths[sequence] = target, len(tokens)
        new = self._index([self._place(sequence, stay * self.page_size + i) for i in range(len(moved))])
        for layer in self.layers:
            layer.move(*old, *new)
        kept = set(target)
        self._release(page for page in pages[stay:] if page != HOLE and page not in kept)
        self._tables.clear()
        return sum(page != HOLE for page in pages) - len(target)

    def defragment(self) -> int:
        """Move pages to the front of the pool, in the order sequences read them. Returns how many moved."""
        order = list(dict.fromkeys(page for pages in self._pages.values() for page in pages if page != HOLE))
        place = {page: index for index, page in enumerate(order)}
        moved = [page for page in order if place[page] != page]
        if moved:
            old = torch.tensor(moved, device=self.device)
            new = torch.tensor([place[page] for page in moved], device=self.device)
            for layer in self.layers:
                layer.move_pages(old, new)
        owners = [self._owners[page] for page in order]
        self._owners = owners + [0] * (self.num_pages - len(order))
        self._free = list(range(self.num_pages - 1, len(order) - 1, -1))
        self._pages = _BySequence({s: [place.get(page, HOLE) for page in pages] for s, pages in self._pages.items()})
        self._tables.clear()
        return len(moved)

    # Pages.

    def _layer(self, layer: int) -> Pages:
        if not 0 <= layer < len(self.layers):
            raise IndexError(f"layer {layer}: must be from 0 to {len(self.layers) - 1}")
        return self.layers[layer]

    def _check_new(self, k: torch.Tensor, v: torch.Tensor, shape: tuple[int | None, ...]) -> int:
        """Raise unless k and v are floating tensors of that shape on the pool's device; the size that None stands for."""
        for name, tensor in dict(k=k, v=v).items():
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                raise TypeError(f"{name} is {getattr(tensor, 'dtype', type(tensor).__name__)}: must be a floating tensor")
            if tensor.dim() != len(shape) or any(want not in (None, have) for have, want in zip(tensor.shape, shape, strict=True)):
                wanted = ", ".join("new" if size is None else str(size) for size in shape)
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}: must be ({wanted})")
            if tensor.shape != k.shape:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}: must be k's, {tuple(k.shape)}")
            if tensor.device != self.layers[0].k.device:
                raise ValueError(f"{name} is on {tensor.device}: must be on the pool's device, {self.layers[0].k.device}")
        return k.shape[shape.index(None)]

    def _columns(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _place(self, sequence: int, token: int) -> tuple[int, int]:
        return self._pages[sequence][token // self.page_size], token % self.page_size

    def _index(self, places) -> tuple[torch.Tensor, torch.Tensor]:
        index = torch.tensor(places, dtype=torch.long).reshape(-1, 2).to(self.device)
        return index[:, 0], index[:, 1]

    def _take(self) -> int:
        page = self._free.pop()
        self._owners[page] = 1
        return page

    def _hold(self, pages) -> None:
        for page in pages:
            if page != HOLE:
                self._owners[page] += 1

    def _release(self, pages) -> None:
        for page in pages:
            self._owners[page] -= 1
            if self._owners[page] == 0:
                self._free.append(page)

    def _copy_last_page(self, sequence: int) -> None:
        shared = self._pages[sequence][-1]
        own = self._take()
        for layer in self.layers:
            layer.move_pages(*(torch.tensor([page], device=self.device) for page in (shared, own)))
        self._pages[sequence][-1] = own
        self._release([shared])
