"""The variants of each kernel that flashlab.kernels.inspect compiles: what a launch for that GPU would pass."""

import dataclasses
import importlib
from typing import Any, NamedTuple

import torch

from flashlab.hardware import gpu
from flashlab.kernels import configs

LONG = 4096  # the sequence length whose row of the launch table is compiled
HEADS_KV = 8  # of a decode launch
CACHE = 32768  # keys of each
ROTARY_DIM = 32
PARTS = {(8, 0): "A100-80GB", (8, 6): "RTX 3090", (9, 0): "H200", (10, 0): "B200"}  # whose SMs a decode launch fills
ROW, TOKEN, HEAD = 1 << 20, 1 << 10, 1 << 7  # strides that a launch would find divisible by 16


@dataclasses.dataclass(frozen=True)
class Request:
    """Which variant of which kernel, for which GPU. A window is (left, right) as in flash_attn_func.

    ``tile`` is (BLOCK_M, BLOCK_N, num_warps, num_stages) in place of the launch table's (not for decode).

    The last five are decode's: the cache's format (native, fp8, int8, int4), query tokens, batch rows, whether the keys
    are split (for one batch row they always would be), and whether rows of different lengths share the programs out.
    """

    kernel: str
    arch: str
    dtype: str = "bfloat16"
    head_dim: int = 128
    causal: bool = False
    window: bool = False
    softcap: bool = False
    alibi: bool = False
    varlen: bool = False
    page_size: int = 0
    group: int = 1
    seqlen: int = LONG
    tile: tuple[int, int, int, int] | None = None
    cache: str = "native"
    seqlen_q: int = 1
    batch: int = 1
    split: bool = True
    balance: bool = False


class Variant(NamedTuple):
    """A kernel and what a launch passes.

    Attributes:
        function: the jit function.
        values: of its constexprs, and None for the pointers that are absent.
        pointees: what its pointers point to, as Triton writes dtypes, where inspect.POINTEES does not say.
        launch: the tile and its warps, for people.
        options: the compiler's.
    """

    function: Any
    values: dict
    pointees: dict
    launch: dict
    options: dict


PREFILL = {
    "forward": ("flashlab.kernels.forward", "forward_kernel"),
    "preprocess": ("flashlab.kernels.backward", "preprocess_kernel"),
    "dkdv": ("flashlab.kernels.backward", "dkdv_kernel"),
    "dq": ("flashlab.kernels.backward", "dq_kernel"),
}


def _prefill(request: Request, capability: tuple[int, int]) -> Variant:
    module, name = PREFILL[request.kernel]
    banded = request.causal or request.window
    itemsize = getattr(torch, request.dtype).itemsize
    launch = configs.lookup(
        configs.table_of(*capability), request.kernel, itemsize, request.head_dim, request.seqlen, banded
    )
    if request.tile is not None:
        launch = configs.Launch(launch.BLOCK_D, *request.tile, launch.heads_together)
    values = dict(
        GROUP=request.group, VARLEN=request.varlen, PAGE_SIZE=request.page_size, SOFTCAP=request.softcap,
        ALIBI=request.alibi, HAS_LEFT=request.window, HAS_RIGHT=banded, WIDE=False, HEAD_DIM=request.head_dim,
        **dict(zip(("BLOCK_D", "BLOCK_M", "BLOCK_N", "HEAD_GROUP"), launch.blocks(heads=16), strict=True)),
        DLSE=False, p_dlse=None,
    )  # fmt: skip
    given = dict(p_cu_seqlens_q=request.varlen, p_cu_seqlens_k=request.varlen, p_alibi_slopes=request.alibi,
                 p_block_table=request.page_size)  # fmt: skip
    values |= {pointer: None for pointer, is_given in given.items() if not is_given}
    return Variant(
        getattr(importlib.import_module(module), name), values, {}, dataclasses.asdict(launch), launch.options
    )


def _plan(request: Request, capability: tuple[int, int]):
    """The decode plan of such a launch, its lengths on the device."""
    from flashlab.kernels import decode_plan

    where = decode_plan.Device(configs.table_of(*capability), gpu(PARTS[capability]).sms, capability)
    strides = (ROW, TOKEN, HEAD)
    return decode_plan.Plan(
        where,
        (request.batch, request.seqlen_q, HEADS_KV * request.group, request.head_dim),
        (request.batch, request.page_size or CACHE, HEADS_KV, request.head_dim),
        strides, strides, strides, None if request.cache == "native" else strides * 2, getattr(torch, request.dtype),
        request.cache, (CACHE // request.page_size, CACHE // request.page_size) if request.page_size else None,
        0 if request.alibi else None,
        (request.seqlen if request.window else -1, 0 if request.causal or request.window else -1),
        request.head_dim**-0.5, 30.0 if request.softcap else 0.0, True, False, False,
    )  # fmt: skip


def _decode(request: Request, capability: tuple[int, int]) -> Variant:
    from flashlab.kernels.decode import decode_kernel

    plan = _plan(request, capability)
    names = decode_kernel.arg_names
    split = request.split or request.balance
    values = dict(zip(names[names.index("num_splits") + 1 :], plan.numbers[split, request.balance], strict=True))
    given = dict(
        p_k_scale=request.cache != "native", p_v_scale=request.cache != "native", p_parts=split, p_cache_batch_idx=False,
        p_cache_leftpad=False, p_block_table=request.page_size, p_alibi_slopes=request.alibi,
    )
    values |= {pointer: None for pointer, is_given in given.items() if not is_given}
    words = {} if request.cache == "native" else dict(p_k="i16", p_v="i16")
    tile = dict(BLOCK_D=values["BLOCK_E"] * values["PLANES"], BLOCK_M=values["BLOCK_M"], **plan.tile._asdict())
    return Variant(decode_kernel, values, words, tile | plan.options, plan.options)


def _combine(request: Request, capability: tuple[int, int]) -> Variant:
    from flashlab.kernels import combine

    merge = _plan(request, capability).combine[request.balance]
    block_n = merge.block_n or combine.WIDE
    names = combine.combine_kernel.arg_names
    values = dict(zip(names[names.index("num_partials") + 1 :], merge.numbers[block_n], strict=True), p_lse_parts=None)
    tile = dict(BLOCK_D=values["BLOCK_D"], BLOCK_N=block_n, num_warps=4)
    return Variant(combine.combine_kernel, values, {}, tile, dict(num_warps=4) | merge.options)


def _append(request: Request, capability: tuple[int, int]) -> Variant:
    from flashlab.kernels import append

    values = dict(
        BATCH_IDX=False, PAGE_SIZE=request.page_size, ROTARY_DIM=min(ROTARY_DIM, request.head_dim // 2 * 2),
        INTERLEAVED=True, QUERIES_MOVE=request.causal, HEAD_DIM=request.head_dim, BLOCK_H=append.HEADS_TOGETHER,
        BLOCK_D=1 << (request.head_dim - 1).bit_length(), p_cache_batch_idx=None,
    )  # fmt: skip
    if not request.page_size:
        values["p_block_table"] = None
    return Variant(append.append_kernel, values, {}, dict(BLOCK_D=values["BLOCK_D"], num_warps=4), dict(num_warps=4))


KERNELS = dict.fromkeys(PREFILL, _prefill) | {"decode": _decode, "combine": _combine, "append": _append}


def variant(request: Request, capability: tuple[int, int]) -> Variant:
    """What compiling a request needs. Triton must not be interpreting."""
    return KERNELS[request.kernel](request, capability)
