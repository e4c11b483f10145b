"""Launching decode: what a kind of call fixes once, and what each call adds.

A ``Plan`` is a kind of call: shapes, strides, dtypes and options, but no length and no split count. It chooses the tile,
and keeps the compiled kernels. ``Plan.run`` chooses the splits and launches: one kernel where one split is enough, else
two, of which the second starts early (programmatic dependent launch) where the GPU can.

The split rule is hardware.splits_to_fill: floor(blocks_per_sm * SMs / rows), on real lengths. Lengths on the host give the
exact number of programs. Lengths on the device are never copied back: the grid gets the most splits any row may want, the
device shares them out (flashlab.kernels.decode), and ``SPARE_PROGRAMS`` bounds how many programs may find nothing to do.
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

MOST_ROWS = {1: 64, 0: 32}  # BLOCK_M at most, by AXIS; more rows become more tiles
LEAST_ROWS = {1: 16, 0: 8}  # the tensor core's own side
SMALLEST_BLOCK_E = 16  # the shortest inner dimension tl.dot multiplies
MOST_SPLITS = 256  # that the rule may choose: one kv head alone fills a GPU of that many SMs
SPARE_PROGRAMS = 32  # idle programs a device-length launch may carry, per SM
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


def choose_tile(table: str, format: str, itemsize: int, head_dim: int, queries: int, rows_per_sm: float) -> Tile:
    """The first row of the GPU's decode table that fits.

    queries: rows a kv head serves, query tokens times the heads of its group. rows_per_sm: programs before splitting, over SMs.
    """
    for row in configs.read_table(f"decode_{table}")["rows"]:
        if (
            row.get("format", format) == format
            and row.get("itemsize", itemsize) == itemsize
            and head_dim <= row.get("head_dim", head_dim)
            and queries <= row.get("queries", queries)
            and rows_per_sm <= row.get("rows_per_sm", rows_per_sm)
        ):
            return Tile(**row["tile"])
    raise LookupError(f"decode table {table} has no row for {format}, {itemsize} bytes, head_dim {head_dim}")


class Plan:
    """A kind of decode call. Arguments are already checked (flashlab.attention.decode).

    Args:
        index: of the CUDA device.
        shape_q: (batch, seqlen_q, heads_q, head_dim).
        shape_k: of the cache, (rows, capacity, heads_kv, words) or (pages, page_size, heads_kv, words).
        strides_q, strides_k, strides_v: (batch or page, token, head), in elements, of a quantised cache in 16-bit words.
        strides_scales: k_scale's three, then v_scale's; (0, 0, head) for scales per head; None where there are none.
        dtype: of q. format: of the cache, a key of FORMATS.
        table: (columns, stride) of block_table, or None.
        alibi_stride: elements between batch rows of alibi_slopes, or None without ALiBi.
        window: (left, right), -1 where open.
    """

    def __init__(
        self, index, shape_q, shape_k, strides_q, strides_k, strides_v, strides_scales, dtype, format, table,
        alibi_stride, window, softcap, ragged, batch_idx, leftpad,
    ):  # fmt: skip
        self.batch, self.seqlen_q, self.heads_q, head_dim = self.shape_q = shape_q
        self.heads_kv = shape_k[2]
        self.format, self.dtype = format, dtype
        self.capacity = shape_k[1] if table is None else shape_k[1] * table[0]
        self.window_left, window_right = window
        self.window_right = window_right if self.seqlen_q > 1 else -1  # a lone query stands at the last key
        where = self.device = device(index)
        self.interpreting = backend.interpreting()
        group = self.heads_q // self.heads_kv
        packed = self.seqlen_q * group
        self.tile = self._tile(where, format, dtype, head_dim, packed)
        axis = self.tile.AXIS
        block_m = _row_block(packed, axis)
        self.row_programs = self.heads_kv * math.ceil(packed / block_m)
        self.early_combine = where.capability >= (9, 0)
        planes = FORMATS[format]
        page_size = 0 if table is None else shape_k[1]
        token_scales = strides_scales is not None and any(strides_scales[:2])
        self.strides = (
            *strides_q, *strides_k, *strides_v, *(strides_scales or (0,) * 6),
            0 if table is None else table[1], alibi_stride or 0,
        )  # fmt: skip
        self.ragged = ragged
        self.indexed = ragged or batch_idx or leftpad or table is not None
        constants = (
            batch_idx, leftpad, page_size, softcap, alibi_stride is not None, self.window_left >= 0,
            self.window_right >= 0, format, planes, has_fast_path(format, where.capability), token_scales,
            strides_scales is not None and not token_scales, VALUE_BOOST[format], head_dim,
            max(SMALLEST_BLOCK_E, power_of_two(head_dim // planes)), block_m, self.tile.BLOCK_N, axis,
        )  # fmt: skip
        self.constants = {  # by (whether it splits, whether the device shares splits out)
            (split, balance): (group, ragged, balance, *constants, split, split and self.early_combine)
            for split, balance in itertools.product((False, True), repeat=2)
        }
        # The page number is a load of its own before K's and V's, which takes half the stages of the pipeline.
        stages = self.tile.num_stages if table is None else 2 * self.tile.num_stages - 1
        self.options = dict(num_warps=self.tile.num_warps, num_stages=stages)
        self.decode = Kept(decode_kernel)  # a plan fixes strides, dtypes and constants: whether it splits is the rest
        self.shape_lse = (self.batch, self.heads_q, self.seqlen_q)
        rows_o, rows_lse = math.prod(shape_q), math.prod(self.shape_lse)
        self.workspace = rows_o + rows_lse  # float32 numbers a split
        self.slots = self.tile.blocks_per_sm * where.sms
        self.rows = self.batch * self.row_programs
        self.combine = Combine(
            shape_q,
            (rows_o, rows_o // max(self.batch, 1), self.heads_q * head_dim, head_dim,
             rows_lse, self.heads_q * self.seqlen_q, self.seqlen_q, 1),
            self.early_combine,
        )  # fmt: skip

    def _tile(self, where, format, dtype, head_dim, packed):
        rows = self.batch * self.heads_kv * math.ceil(packed / MOST_ROWS[1])
        return choose_tile(where.table, format, dtype.itemsize, head_dim, packed, rows / where.sms)

    def splits(self, lengths: list[int] | None, given: int) -> tuple[int, int]:
        """(num_splits, slots) of a launch.

        num_splits: programs a row. slots: programs the GPU runs at once, which the device shares out in proportion to
        the rows' lengths; 0 where every row gets num_splits.

        Args:
            lengths: of every row, where they are known on the host; one number if all are alike.
            given: the caller's num_splits; 0 leaves the choice to the rule.
        """
        if given > 0:
            return given, 0
        if lengths is None and self.batch > 1:
            lone_row = splits_to_fill(self.row_programs, self.slots, 1, self._tiles(self.capacity), MOST_SPLITS)
            most = max(self.slots, SPARE_PROGRAMS * self.device.sms) // max(self.rows, 1)
            return max(1, min(lone_row, most)), self.slots
        if lengths is None:
            longest = self.capacity
        elif len(lengths) == 1 or min(lengths) == max(lengths):
            longest = lengths[0]
        else:
            tiles = [self._tiles(length) for length in lengths]
            share = max(tiles) * self.slots // (sum(tiles) * self.row_programs)
            return max(1, min(share, max(tiles), MOST_SPLITS)), self.slots
        return splits_to_fill(self.rows, self.slots, 1, self._tiles(longest), MOST_SPLITS), 0

    def _tiles(self, length: int) -> int:
        """Key tiles a row of that length visits, at most."""
        if self.window_left >= 0:
            length = min(length, self.window_left + self.seqlen_q + self.tile.BLOCK_N)
        return max(1, -(-length // self.tile.BLOCK_N))

    def run(
        self, q, k, v, k_scale, v_scale, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes,
        seqlen_k: int, seqlen_new: int, softmax_scale: float, softcap: float, lengths: list[int] | None, num_splits: int,
        want_lse: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        """(out, lse): out like q but contiguous, lse float32 (batch, heads_q, seqlen_q), natural, or None if not wanted.

        Args:
            cache_seqlens: (batch,) int32 on q's device, or None: every row then has seqlen_k keys.
            seqlen_new: keys appended after those.
            lengths, num_splits: as ``splits`` takes them.
        """
        out = torch.empty(self.shape_q, dtype=self.dtype, device=q.device)
        lse = torch.empty(self.shape_lse, dtype=torch.float32, device=q.device) if want_lse else None
        if self.rows == 0 or self.workspace == 0:
            return out, lse
        num_splits, slots = self.splits(lengths, num_splits)
        kind = split, balance = num_splits > 1, slots > 0
        target = torch.empty(num_splits * self.workspace, dtype=torch.float32, device=q.device) if split else out
        if self.format != "native":
            k, v = k.view(torch.int16), v.view(torch.int16)
        with backend.on_device_of(q):
            self.decode(
                (split, balance, want_lse),
                (self.rows, num_splits, 1),
                (q, k, v, k_scale, v_scale, target, None if split else lse,
                 cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes),
                (*self.strides, self.batch, self.seqlen_q, seqlen_k, seqlen_new, self.capacity, self.heads_kv, num_splits,
                 slots, softmax_scale, softcap, self.window_left, self.window_right, *self.constants[kind]),
                **self.options,
            )  # fmt: skip
            if split:
                self.combine(target, None, out, lse, num_splits)
        return out, lse


def _row_block(packed: int, axis: int) -> int:
    return min(MOST_ROWS[axis], max(LEAST_ROWS[axis], power_of_two(packed)))
