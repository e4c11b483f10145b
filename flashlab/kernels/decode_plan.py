"""Launching decode: what a kind of call fixes once, and what each call adds.

A ``Plan`` is a kind of call: shapes, strides, dtypes and options, but no length and no split count. It chooses the tile,
and keeps the compiled kernels. ``Plan.run`` chooses the splits and launches: one kernel where one split is enough, else
two, of which the second starts early (programmatic dependent launch) where the GPU can.

The split rule is hardware.splits_to_fill: floor(blocks_per_sm * SMs / rows), on real lengths. A batch whose lengths differ,
or lie on the device, is shared out there in proportion to them (BALANCE in flashlab.kernels.decode): nothing is copied back,
and the grid holds as many programs as any lengths may need, slots / programs of one batch row + batch.
"""

import functools
import itertools
import math
from typing import NamedTuple

import torch

from flashlab.hardware.splits import splits_to_fill
from flashlab.kernels import backend, configs
from flashlab.kernels.combine import Combine
from flashlab.kernels.decode import decode_kernel
from flashlab.kernels.dequantise import FORMATS, has_fast_path
from flashlab.kernels.kept import Kept, power_of_two

MOST_QUERIES = {1: 64, 0: 32}  # BLOCK_M at most, by AXIS; more become more tiles
LEAST_QUERIES = {1: 16, 0: 8}  # the tensor core's own side
SMALLEST_BLOCK_E = 16  # the shortest inner dimension tl.dot multiplies
MOST_SPLITS = 256  # that the rule may choose: one kv head alone fills a GPU of that many SMs
INTERPRETER_SMS = 8  # as if, so that the interpreter splits too
VALUE_BOOST = {"native": 1.0, "fp8": 256.0, "int8": 128.0, "int4": 8.0}
"""A token's value scale is its largest value over the format's largest code. Times this it is about that largest value,
and a probability times that keeps clear of float16's subnormals."""

class Tile(NamedTuple):
    """A launch configuration. AXIS: where the keys of a score tile lie; blocks_per_sm: what the split rule fills."""

    BLOCK_N: int
    num_warps: int
    num_stages: int
    blocks_per_sm: int
    AXIS: int


class Device(NamedTuple):
    """What launching needs to know of where it runs; capability (0, 0) is the interpreter."""

    table: str
    sms: int
    capability: tuple[int, int]


@functools.cache
def device(index: int | None) -> Device:
    """The CUDA device of that index, or the interpreter."""
    if backend.interpreting():
        return Device("interpreter", INTERPRETER_SMS, (0, 0))
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    return Device(configs.table_of(*capability), properties.multi_processor_count, capability)


def choose_tile(
    table: str, format: str, itemsize: int, head_dim: int, queries: int, rows_per_sm: float, paged: bool
) -> Tile:
    """The first row of the GPU's decode table that fits.

    queries: rows a kv head serves, query tokens times the heads of its group. rows_per_sm: programs before splitting, over SMs.
    """
    for row in configs.read_table(f"decode_{table}")["rows"]:
        if (
            row.get("format", format) == format
            and row.get("itemsize", itemsize) == itemsize
            and head_dim <= row.get("head_dim", head_dim)
            and queries <= row.get("queries", queries)
            and row.get("paged", paged) == paged
            and rows_per_sm <= row.get("rows_per_sm", rows_per_sm)
        ):
            return Tile(**row["tile"])
    raise LookupError(f"decode table {table} has no row for {format}, {itemsize} bytes, head_dim {head_dim}")


class Plan:
    """A kind of decode call. Arguments are already checked (flashlab.attention.decode).

    Args:
        where: it runs (``device``).
        shape_q: (batch, seqlen_q, heads_q, head_dim).
        shape_k: of the cache, (rows, capacity, heads_kv, words) or (pages, page_size, heads_kv, words).
        strides_q, strides_k, strides_v: (batch or page, token, head), in elements, of a quantised cache in 16-bit words.
        strides_scales: k_scale's three, then v_scale's; (0, 0, head) for scales per head; None where there are none.
        dtype: of q. format: of the cache, a key of FORMATS.
        table: (columns, stride) of block_table, or None.
        alibi_stride: elements between batch rows of alibi_slopes, or None without ALiBi.
        window: (left, right), -1 where open.
        softcap: 0.0 is off.
    """

    def __init__(
        self, where: Device, shape_q, shape_k, strides_q, strides_k, strides_v, strides_scales, dtype, format, table,
        alibi_stride, window, softmax_scale, softcap, ragged, batch_idx, leftpad,
    ):  # fmt: skip
        self.batch, self.seqlen_q, self.heads_q, head_dim = shape_q
        self.format, self.heads_kv = format, shape_k[2]
        self.device, self.interpreting = where, where.capability == (0, 0)
        self.capacity = shape_k[1] if table is None else shape_k[1] * table[0]
        self.window = window[0], window[1] if self.seqlen_q > 1 else -1  # a lone query stands at the last key
        self.indexed = ragged or batch_idx or leftpad or table is not None

        group = self.heads_q // self.heads_kv
        queries = self.seqlen_q * group
        rows = self.batch * self.heads_kv * math.ceil(queries / MOST_QUERIES[1])
        tile = self.tile = choose_tile(
            self.device.table, format, dtype.itemsize, head_dim, queries, rows / self.device.sms, table is not None
        )
        block_m = min(MOST_QUERIES[tile.AXIS], max(LEAST_QUERIES[tile.AXIS], power_of_two(queries)))
        self.row_programs = self.heads_kv * math.ceil(queries / block_m)
        self.rows = self.batch * self.row_programs
        self.slots = tile.blocks_per_sm * self.device.sms
        # The page number is a load of its own before K's and V's, which takes half the stages of the pipeline.
        self.options = dict(
            num_warps=tile.num_warps, num_stages=tile.num_stages if table is None else 2 * tile.num_stages - 1
        )

        early = self.device.capability >= (9, 0)
        token_scales = strides_scales is not None and any(strides_scales[:2])
        head_scales = strides_scales is not None and not token_scales
        planes = FORMATS[format]
        numbers = (
            *strides_q, *strides_k, *strides_v, *(strides_scales or (0,) * 6), table[1] if table else 0, alibi_stride or 0,
            self.batch, self.seqlen_q, self.capacity, self.heads_kv, self.slots, softmax_scale, softcap, *self.window,
        )  # fmt: skip
        constants = (
            batch_idx, leftpad, 0 if table is None else shape_k[1], softcap > 0.0, alibi_stride is not None,
            self.window[0] >= 0, self.window[1] >= 0, format, planes, has_fast_path(format, self.device.capability),
            token_scales, head_scales, VALUE_BOOST[format], head_dim,
            max(SMALLEST_BLOCK_E, power_of_two(head_dim // planes)), block_m, tile.BLOCK_N, tile.AXIS,
        )  # fmt: skip
        self.numbers = {  # all the kernel's but the three that change; by (whether it splits, whether it balances)
            (split, balance): (*numbers, group, ragged, balance, *constants, split, split and early)
            for split, balance in itertools.product((False, True), repeat=2)
        }
        self.decode = Kept(decode_kernel)  # a plan fixes strides, dtypes and constants: whether it splits is the rest

        self.shape_lse = (self.batch, self.heads_q, self.seqlen_q)
        answers = self.seqlen_q * self.heads_q  # of a batch row
        self.slot_size = answers * (head_dim + 1)  # float32 numbers of a partial: o and LSE
        self.combine = {}
        for balance in (False, True):
            slots, rows = (1, 0) if balance else (self.batch, 1)  # a slot is one row's partial, or all rows'
            strides_o = (slots * answers * head_dim, rows * answers * head_dim, self.heads_q * head_dim, head_dim)
            strides_lse = (slots * answers, rows * answers, self.seqlen_q, 1)
            self.combine[balance] = Combine(shape_q, (*strides_o, *strides_lse), balance, early)

    def splits(self, lengths: list[int] | None, given: int) -> tuple[int, bool]:
        """(num_splits, balance) of a launch: programs a row, all alike; or, to balance, programs of all batch rows together.

        Args:
            lengths: of every row, where they are known on the host; one number if all are alike.
            given: the caller's num_splits; 0 leaves the choice to the rule.
        """
        if given > 0:
            return given, False
        if lengths is None:
            lengths = [self.capacity] if self.batch == 1 else [self.capacity, 0]
        if len(lengths) == 1 or min(lengths) == max(lengths):
            return splits_to_fill(self.rows, self.slots, 1, self._tiles(lengths[0]), MOST_SPLITS), False
        most_tiles = self.batch * self._tiles(max(lengths))
        return self.batch + min(self.slots // self.row_programs, most_tiles), True

    def _tiles(self, length: int) -> int:
        """Key tiles a row of that length visits, at most."""
        if self.window[0] >= 0:
            length = min(length, self.window[0] + self.seqlen_q + self.tile.BLOCK_N)
        return max(1, -(-length // self.tile.BLOCK_N))

    def run(
        self, q, k, v, k_scale, v_scale, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes,
        seqlen_k: int, seqlen_new: int, lengths: list[int] | None, num_splits: int, want_lse: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        """(out, lse): out like q but contiguous, lse float32 (batch, heads_q, seqlen_q), natural, or None if not wanted.

        Args:
            cache_seqlens: (batch,) int32 on q's device, or None: every row then has seqlen_k keys.
            seqlen_new: keys appended after those.
            lengths, num_splits: as ``splits`` takes them.
        """
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        lse = q.new_empty(self.shape_lse, dtype=torch.float32) if want_lse else None
        if self.rows == 0 or self.slot_size == 0:
            return out, lse
        num_splits, balance = self.splits(lengths, num_splits)
        split = balance or num_splits > 1
        workspace = None
        if split:
            slots = num_splits if balance else num_splits * self.batch
            workspace = q.new_empty(slots * self.slot_size + 2 * self.batch, dtype=torch.float32)
        if self.format != "native":
            k, v = k.view(torch.int16), v.view(torch.int16)
        with backend.on_device_of(q):
            self.decode(
                (split, balance, want_lse),
                (self.row_programs if balance else self.rows, num_splits, 1),
                (q, k, v, k_scale, v_scale, out, lse, workspace,
                 cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes),
                (seqlen_k, seqlen_new, num_splits, *self.numbers[split, balance]),
                **self.options,
            )  # fmt: skip
            if split:
                self.combine[balance](workspace, None, out, lse, num_splits)
        return out, lse
