"""Attention against a cache of keys and values: flash_attn_with_kvcache.

Two operators are registered with torch.library. ``flashlab::append_kv`` changes the caches in place and rotates the queries,
``flashlab::decode`` attends; torch.compile traces through both. Called on plain tensors the function goes past the
dispatcher, which would cost more than the launch.

What depends only on shapes, strides, dtypes and options is checked once a kind of call (``_plan``); each call then checks
only its own numbers.
"""

import functools

import torch

from flashlab.attention import checks

QUANTISED = {torch.float8_e4m3fn: "fp8", torch.int8: "int8", torch.uint8: "int4"}
SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
PAGE_SIZE_STEP = 16
MOST_SPLITS = 128


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of a few new queries over a cache, with flash-attn 2's arguments and meanings, and quantised caches.

    If k and v are given they are first written into the cache, in place, after each row's cache_seqlens keys.

    Args:
        q: (batch, seqlen_q, heads_q, head_dim) float16, bfloat16 or float32; head_dim from 1 to 256.
        k_cache, v_cache: (rows, capacity, heads_kv, head_dim) of q's dtype; with block_table (pages, page_size, heads_kv,
            head_dim), page_size a multiple of 16. Any strides with a contiguous last dimension. heads_q is a multiple of
            heads_kv. Quantised: float8_e4m3fn or int8 of even head_dim; or uint8 (..., head_dim / 2), two int4 a byte, of
            head_dim a multiple of 4 (flashlab.kvcache.quantize makes them).
        k, v: (batch, seqlen_new, heads_kv, head_dim) of the cache's dtype. Not for quantised caches.
        rotary_cos, rotary_sin: (positions, rotary_dim / 2). Rotate k at positions cache_seqlens, cache_seqlens + 1, ...;
            and q there too if causal or windowed, else every query at cache_seqlens. Need k, and a row for each of these.
        cache_seqlens: how many keys each row holds: int32 (batch,), 0 allowed, or one int for all. Default: all of it.
            On the GPU it is never copied back; on the host it gives the split rule the real lengths.
        cache_batch_idx: int32 (batch,), the cache's row of each batch row. Not with block_table.
        cache_leftpad: int32 (batch,), where each row's keys begin.
        block_table: int32 (batch, columns): key j of row b lies in page block_table[b, j // page_size].
        softmax_scale: head_dim ** -0.5 unless given.
        causal: query i sees keys up to i + seqlen_k - seqlen_q (aligned at the bottom right).
        window_size: (left, right): query i sees keys from i + seqlen_k - seqlen_q - left to
            i + seqlen_k - seqlen_q + right, both included; -1 leaves a side open.
        softcap: scores become softcap * tanh(score / softcap); 0.0 is off.
        rotary_interleaved: pairs (2 i, 2 i + 1) if true, else (i, i + rotary_dim / 2).
        alibi_slopes: float32 (heads_q,) or (batch, heads_q); adds -slope * |i + seqlen_k - seqlen_q - j|.
        num_splits: programs a row's keys are cut over, 1 to 128; 0 chooses by hardware.splits_to_fill on real lengths.
        return_softmax_lse: return (out, lse).
        k_scale, v_scale: what a quantised cache's codes are multiplied by, per token and head in the shape of the cache
            without its last dimension, or per head (heads_kv,). Default 1.

    Returns:
        out (batch, seqlen_q, heads_q, head_dim) of q's dtype, contiguous; lse float32 (batch, heads_q, seqlen_q), natural
        logarithm. A query that sees no key gives 0 and -inf. There is no gradient.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, shape, dtype or device, named; also, where their values lie on
            the host or after set_checks(True), lengths, rows and pages outside the cache, or positions outside the rotary
            tables. A call that raises has changed no cache.
        ImportError: Triton is not installed.
    """
    length = -1
    if isinstance(cache_seqlens, int):
        if cache_seqlens < 0:
            raise ValueError(f"cache_seqlens {cache_seqlens}: must not be negative")
        length, cache_seqlens = cache_seqlens, None
    eager = type(q) is torch.Tensor and not torch.compiler.is_compiling()
    if not eager and not isinstance(q, torch.Tensor):
        raise TypeError(f"q is a {type(q).__name__}: must be a tensor")
    left, right = _pair(window_size)
    seqlen_new = 0
    if k is not None or v is not None or rotary_cos is not None or rotary_sin is not None:
        if k is None or v is None:
            raise ValueError(f"{'k' if k is None else 'v'} is None: k, v and rotary tables are for appending, which needs both")
        if cache_seqlens is None and length < 0:
            raise ValueError("cache_seqlens is None: it says where k and v go")
        rotated = (_append if eager else _append_op)(
            q, k, v, k_cache, v_cache, rotary_cos, rotary_sin, k_scale, v_scale, cache_seqlens, cache_batch_idx,
            cache_leftpad, block_table, alibi_slopes, length, rotary_interleaved, softmax_scale, causal, left, right, softcap,
            num_splits,
        )  # fmt: skip
        q = q if rotary_cos is None else rotated
        seqlen_new = k.shape[1]
    if eager:
        out, lse = _decode(
            q, k_cache, v_cache, k_scale, v_scale, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes,
            length, seqlen_new, softmax_scale, causal, left, right, softcap, num_splits, return_softmax_lse,
        )  # fmt: skip
    else:
        out, lse = _decode_op(
            q, k_cache, v_cache, k_scale, v_scale, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes,
            length, seqlen_new, softmax_scale, causal, left, right, softcap, num_splits,
        )  # fmt: skip
    return (out, lse) if return_softmax_lse else out


@torch.library.custom_op("flashlab::decode", mutates_args=())
def _decode_op(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    cache_batch_idx: torch.Tensor | None,
    cache_leftpad: torch.Tensor | None,
    block_table: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    length: int,
    seqlen_new: int,
    softmax_scale: float | None,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    num_splits: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse). length: every row's keys where cache_seqlens is None, -1 for the whole capacity."""
    return _decode(
        q, k_cache, v_cache, k_scale, v_scale, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes,
        length, seqlen_new, softmax_scale, causal, window_left, window_right, softcap, num_splits, True,
    )  # fmt: skip


def _decode(
    q, k_cache, v_cache, k_scale, v_scale, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes,
    length, seqlen_new, softmax_scale, causal, window_left, window_right, softcap, num_splits, want_lse,
):  # fmt: skip
    """Check, plan and run; lse is None unless wanted."""
    plan, length, seqlen_new, lengths = _prepare(
        q, k_cache, v_cache, k_scale, v_scale, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes,
        length, seqlen_new, softmax_scale, causal, window_left, window_right, softcap, num_splits,
    )  # fmt: skip
    if cache_seqlens is not None and cache_seqlens.device != q.device:
        cache_seqlens = cache_seqlens.to(q.device, non_blocking=True)
    if plan.interpreting and torch.bfloat16 in (q.dtype, k_scale is not None and k_scale.dtype):
        from flashlab.kernels.backend import widen

        wide = [t if t is None else widen(t) for t in (q, k_cache, v_cache, k_scale, v_scale)]
        out, lse = _decode(
            *wide, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes, length, seqlen_new,
            softmax_scale, causal, window_left, window_right, softcap, num_splits, want_lse,
        )  # fmt: skip
        return out.to(q.dtype), lse
    return plan.run(
        q, k_cache, v_cache, k_scale, v_scale, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes,
        length, seqlen_new, lengths, num_splits, want_lse,
    )  # fmt: skip


def _prepare(
    q, k_cache, v_cache, k_scale, v_scale, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes,
    length, seqlen_new, softmax_scale, causal, window_left, window_right, softcap, num_splits,
):  # fmt: skip
    """Check a call. (plan, length, seqlen_new, lengths): with one length for all rows it counts the new keys already;
    lengths are all rows', or one for all, where they are known on the host."""
    plan = _plan(
        _kind("q", q), _kind("k_cache", k_cache), _kind("v_cache", v_cache), _kind_or_none("k_scale", k_scale),
        _kind_or_none("v_scale", v_scale), _kind_or_none("cache_seqlens", cache_seqlens),
        _kind_or_none("cache_batch_idx", cache_batch_idx), _kind_or_none("cache_leftpad", cache_leftpad),
        _kind_or_none("block_table", block_table), _kind_or_none("alibi_slopes", alibi_slopes),
        *_options(softmax_scale, causal, window_left, window_right, softcap),
    )  # fmt: skip
    if plan.format != "native":
        for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
            if cache.storage_offset() % 2:
                raise ValueError(f"{name} begins at byte {cache.storage_offset()}: a quantised cache is read two bytes at a time")
    if not isinstance(num_splits, int):
        raise TypeError(f"num_splits is a {type(num_splits).__name__}: must be an int")
    if not 0 <= num_splits <= MOST_SPLITS:
        raise ValueError(f"num_splits {num_splits}: must be from 1 to {MOST_SPLITS}, or 0 to choose")
    lengths = None
    if cache_seqlens is None:
        length = plan.capacity if length < 0 else length + seqlen_new
        if length > plan.capacity:
            raise ValueError(f"cache_seqlens {length - seqlen_new} + {seqlen_new} new: the cache holds {plan.capacity}")
        lengths, length, seqlen_new = [length], length, 0
    elif cache_seqlens.device.type == "cpu":
        lengths = [length + seqlen_new for length in cache_seqlens.tolist()]  # int32 would wrap
    if plan.indexed:
        _check_values(plan, k_cache, cache_seqlens, lengths, cache_batch_idx, cache_leftpad, block_table, seqlen_new)
    return plan, length, seqlen_new, lengths


def _append(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rotary_cos: torch.Tensor | None,
    rotary_sin: torch.Tensor | None,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    cache_batch_idx: torch.Tensor | None,
    cache_leftpad: torch.Tensor | None,
    block_table: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    length: int,
    interleaved: bool,
    softmax_scale: float | None,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    num_splits: int,
) -> torch.Tensor:
    """Write k and v into the caches; q rotated, or an empty tensor without rotary (an operator may not return its input).

    What only the attention that follows reads is checked here too: a call that raises has changed nothing."""
    from flashlab.kernels.append import append

    _check_append(
        _kind("q", q), _kind("k", k), _kind("v", v), _kind("k_cache", k_cache), _kind("v_cache", v_cache),
        _kind_or_none("rotary_cos", rotary_cos), _kind_or_none("rotary_sin", rotary_sin),
        _kind_or_none("cache_batch_idx", cache_batch_idx), _kind_or_none("block_table", block_table),
    )  # fmt: skip
    _, _, _, lengths = _prepare(
        q, k_cache, v_cache, k_scale, v_scale, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes,
        length, k.shape[1], softmax_scale, causal, window_left, window_right, softcap, num_splits,
    )  # fmt: skip
    queries_move = causal or window_left >= 0 or window_right >= 0
    if rotary_cos is not None:
        if lengths is None and checks.readable(cache_seqlens):
            lengths = [have + k.shape[1] for have in cache_seqlens.tolist()]
        reach = max(k.shape[1], (q.shape[1] if queries_move else 1) if q.shape[1] else 0)
        needed = 0 if not (lengths and q.shape[0] and reach) else max(lengths) - k.shape[1] + reach
        if needed > rotary_cos.shape[0]:
            raise ValueError(f"rotary_cos has {rotary_cos.shape[0]} positions: this call needs {needed}")
    if cache_seqlens is None:
        cache_seqlens = torch.full((q.shape[0],), length, dtype=torch.int32, device=q.device)
    else:
        cache_seqlens = cache_seqlens.to(q.device, non_blocking=True)
    rotated = append(
        q, k, v, k_cache, v_cache, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, block_table, interleaved,
        queries_move,
    )  # fmt: skip
    return q.new_empty(0) if rotary_cos is None else rotated


_append_op = torch.library.custom_op("flashlab::append_kv", _append, mutates_args=("k_cache", "v_cache"))


@_decode_op.register_fake
def _(q, *_):
    batch, seqlen_q, heads_q, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((batch, heads_q, seqlen_q), dtype=torch.float32)


@_append_op.register_fake
def _(q, k, v, k_cache, v_cache, rotary_cos, *_):
    return q.new_empty(0) if rotary_cos is None else q.new_empty(q.shape)


def _kind(name: str, tensor: torch.Tensor):
    """What of a tensor decides how a call is checked and launched: everything but its numbers."""
    if not isinstance(tensor, torch.Tensor):
        also = " or an int" if name == "cache_seqlens" else ""
        raise TypeError(f"{name} is a {type(tensor).__name__}: must be a tensor{also}")
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.device


def _kind_or_none(name: str, tensor: torch.Tensor | None):
    return None if tensor is None else _kind(name, tensor)


def _pair(window_size) -> tuple[int, int]:
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise ValueError(f"window_size {window_size!r}: must be (left, right), -1 for an open side") from None
    return left, right


def _options(softmax_scale, causal, left, right, softcap):
    """The options as given. Raise unless they are plain numbers, which a plan may be kept by."""
    for side in (left, right):
        if not isinstance(side, int):
            raise TypeError(f"window_size ({left!r}, {right!r}): must be two ints, -1 for an open side")
    if not isinstance(causal, (bool, int)):
        raise TypeError(f"causal is a {type(causal).__name__}: must be a bool")
    if softmax_scale is not None and not isinstance(softmax_scale, (float, int)):
        raise TypeError(f"softmax_scale is a {type(softmax_scale).__name__}: must be a float or None")
    if not isinstance(softcap, (float, int)):
        raise TypeError(f"softcap is a {type(softcap).__name__}: must be a float")
    return softmax_scale, causal, left, right, softcap


@functools.lru_cache(maxsize=1024)
def _plan(
    q, k_cache, v_cache, k_scale, v_scale, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes,
    softmax_scale, causal, window_left, window_right, softcap,
):  # fmt: skip
    """The checked plan of a kind of call: tensors are given as _kind's (dtype, shape, strides, device)."""
    from flashlab.kernels.decode_plan import Plan
    from flashlab.kernels.decode_plan import device as running_on

    format = _check_cache(q, k_cache, v_cache, cache_batch_idx, block_table)
    dtype, (batch, seqlen_q, heads_q, head_dim), strides_q, device = q
    if strides_q[3] != 1 and head_dim > 1:
        raise ValueError(f"q has strides {strides_q}: its last dimension must be contiguous")
    checks.where_kernels_run(torch.empty(0, device=device))
    _check_index("cache_seqlens", cache_seqlens, (batch,), device, host=True)
    _check_index("cache_leftpad", cache_leftpad, (batch,), device)
    _check_alibi(alibi_slopes, batch, heads_q, device)
    strides_scales = _check_scales(k_scale, v_scale, k_cache, format)
    columns = 1 if block_table is None else block_table[1][1]
    reach = seqlen_q + k_cache[1][1] * columns
    per_word = 1 if format == "native" else 2  # a quantised cache's elements are bytes, read by 16-bit words
    return Plan(
        running_on(device.index), (batch, seqlen_q, heads_q, head_dim), k_cache[1], strides_q[:3],
        *(tuple(stride // per_word for stride in cache[2][:3]) for cache in (k_cache, v_cache)), strides_scales, dtype, format,
        None if block_table is None else (columns, block_table[2][0]),
        None if alibi_slopes is None else (alibi_slopes[2][0] if len(alibi_slopes[1]) == 2 else 0),
        checks.edges((window_left, window_right), causal, reach), checks.scale(softmax_scale, head_dim), checks.cap(softcap),
        cache_seqlens is not None, cache_batch_idx is not None, cache_leftpad is not None,
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _check_append(q, k, v, k_cache, v_cache, rotary_cos, rotary_sin, cache_batch_idx, block_table) -> None:
    """Raise unless k and v can be written into the caches."""
    format = _check_cache(q, k_cache, v_cache, cache_batch_idx, block_table)
    if format != "native":
        raise ValueError(f"k: a quantised cache ({k_cache[0]}) is appended to by flashlab.kvcache.quantize, not here")
    for name, (_, shape, strides, _) in (("k_cache", k_cache), ("v_cache", v_cache)):
        if any(stride == 0 and size > 1 for size, stride in zip(shape, strides, strict=True)):
            raise ValueError(f"{name} has strides {strides}: rows that share memory cannot be appended to")
    dtype, (batch, _, _, head_dim), _, device = q
    heads_kv = k_cache[1][2]
    for name, new in (("k", k), ("v", v)):
        if len(new[1]) != 4 or new[1][0] != batch or new[1][2:] != (heads_kv, head_dim) or new[1][1] != k[1][1]:
            raise ValueError(f"{name} has shape {tuple(new[1])}: must be ({batch}, seqlen_new, {heads_kv}, {head_dim})")
        if new[0] is not dtype or new[3] != device:
            raise TypeError(f"{name} is {new[0]} on {new[3]}: must be the cache's {dtype} on {device}")
        if new[2][3] != 1 and head_dim > 1:
            raise ValueError(f"{name} has strides {new[2]}: its last dimension must be contiguous")
    if (rotary_cos is None) != (rotary_sin is None):
        raise ValueError("rotary_cos and rotary_sin are given together or not at all")
    for name, table in (("rotary_cos", rotary_cos), ("rotary_sin", rotary_sin)):
        if table is None:
            continue
        if len(table[1]) != 2 or table[1] != rotary_cos[1] or 2 * table[1][1] > head_dim:
            raise ValueError(
                f"{name} has shape {tuple(table[1])}: must be (positions, rotary_dim / 2), rotary_dim at most {head_dim}"
            )
        if not table[0].is_floating_point or table[0] is not rotary_cos[0] or table[3] != device:
            raise TypeError(f"{name} is {table[0]} on {table[3]}: both tables must be of one floating dtype on {device}")
        if table[2][1] != 1 and table[1][1] > 1:
            raise ValueError(f"{name} has strides {table[2]}: its last dimension must be contiguous")


def _check_cache(q, k_cache, v_cache, cache_batch_idx, block_table) -> str:
    """Raise unless the caches fit q; their format."""
    if len(q[1]) != 4:
        raise ValueError(f"q has shape {tuple(q[1])}: must have 4 dimensions")
    dtype, (batch, _, heads_q, head_dim), _, device = q
    if dtype not in checks.DTYPES:
        raise TypeError(f"q has dtype {dtype}: must be float16, bfloat16 or float32")
    if not 1 <= head_dim <= checks.MAX_HEAD_DIM:
        raise ValueError(f"q has head_dim {head_dim}: must be from 1 to {checks.MAX_HEAD_DIM}")
    format = "native" if k_cache[0] is dtype else QUANTISED.get(k_cache[0])
    if format is None:
        raise TypeError(f"k_cache has dtype {k_cache[0]}: must be q's, {dtype}, or one of {list(QUANTISED)}")
    if v_cache[0] is not k_cache[0]:
        raise TypeError(f"v_cache has dtype {v_cache[0]}: must be k_cache's, {k_cache[0]}")
    multiple = {"native": 1, "int4": 4}.get(format, 2)
    if head_dim % multiple:
        raise ValueError(f"q has head_dim {head_dim}: an {format} cache needs a multiple of {multiple}")
    last = head_dim // 2 if format == "int4" else head_dim
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        _, shape, strides, where = cache
        if len(shape) != 4 or shape[3] != last:
            raise ValueError(f"{name} has shape {tuple(shape)}: must be 4-dimensional and end in {last}")
        if shape != k_cache[1]:
            raise ValueError(f"{name} has shape {tuple(shape)}: must be k_cache's, {tuple(k_cache[1])}")
        if where != device:
            raise ValueError(f"{name} is on {where}: must be on q's device, {device}")
        if strides[3] != 1 and last > 1:
            raise ValueError(f"{name} has strides {strides}: its last dimension must be contiguous")
        if format != "native" and any(stride % 2 for stride in strides[:3]):
            raise ValueError(f"{name} has strides {strides}: a quantised cache is read two bytes at a time, so even ones")
    if shape[2] == 0 or heads_q % shape[2]:
        raise ValueError(f"q has {heads_q} heads and k_cache {shape[2]}: heads_q must be a multiple of heads_kv")
    if block_table is not None:
        _check_index("block_table", block_table, (batch, None), device)
        if shape[1] == 0 or shape[1] % PAGE_SIZE_STEP:
            raise ValueError(f"k_cache has pages of {shape[1]} tokens: must be a multiple of {PAGE_SIZE_STEP}")
        if cache_batch_idx is not None:
            raise ValueError("cache_batch_idx: block_table already says where each row's keys are")
    elif cache_batch_idx is None and shape[0] != batch:
        raise ValueError(f"k_cache has {shape[0]} rows: must be q's batch, {batch}, without cache_batch_idx or block_table")
    _check_index("cache_batch_idx", cache_batch_idx, (batch,), device)
    return format


def _check_scales(k_scale, v_scale, k_cache, format):
    """Raise unless the scales fit the cache; their strides for a plan, or None."""
    if (k_scale is None) != (v_scale is None):
        raise ValueError(f"{'k_scale' if k_scale is None else 'v_scale'} is None: both scales are given, or none")
    if k_scale is None:
        return None
    if format == "native":
        raise ValueError(f"k_scale: a {k_cache[0]} cache has no scales, only quantised ones do")
    shape, heads_kv = tuple(k_cache[1][:3]), k_cache[1][2]
    strides = ()
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if tuple(scale[1]) not in (shape, (heads_kv,)) or scale[1] != k_scale[1]:
            raise ValueError(f"{name} has shape {tuple(scale[1])}: both must be {shape}, or both ({heads_kv},)")
        if scale[0] not in SCALE_DTYPES or scale[0] is not k_scale[0] or scale[3] != k_cache[3]:
            raise TypeError(f"{name} is {scale[0]} on {scale[3]}: both must be of one floating dtype on {k_cache[3]}")
        strides += scale[2] if len(scale[1]) == 3 else (0, 0, scale[2][0])
    return strides


def _check_index(name, kind, shape, device, host=False) -> None:
    """Raise unless kind is None or int32 of that shape (None: any size) on the device, or on the host where that serves."""
    if kind is None:
        return
    dtype, have, strides, where = kind
    if dtype is not torch.int32:
        raise TypeError(f"{name} has dtype {dtype}: must be int32")
    if where != device and not (host and where.type == "cpu"):
        raise ValueError(f"{name} is on {where}: must be on q's device, {device}")
    if len(have) != len(shape) or any(want is not None and want != size for size, want in zip(have, shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {tuple(have)}: must be ({wanted})")
    if strides[-1] != 1 and have[-1] > 1:
        raise ValueError(f"{name} has strides {strides}: its last dimension must be contiguous")


def _check_alibi(kind, batch, heads, device) -> None:
    if kind is None:
        return
    dtype, shape, strides, where = kind
    if dtype is not torch.float32 or where != device:
        raise TypeError(f"alibi_slopes is {dtype} on {where}: must be float32 on {device}")
    if tuple(shape) not in ((heads,), (batch, heads)) or (strides[-1] != 1 and heads > 1):
        raise ValueError(f"alibi_slopes has shape {tuple(shape)}: must be {(heads,)} or {(batch, heads)}, contiguous")


def _check_values(
    plan, k_cache, cache_seqlens, lengths, cache_batch_idx, cache_leftpad, block_table, seqlen_new
) -> None:
    """Raise where a value that can be read points outside the cache."""
    low, high = seqlen_new, 0  # of an empty batch
    if lengths:
        low, high = min(lengths), max(lengths)
    elif lengths is None and cache_seqlens.numel() and checks.readable(cache_seqlens):
        low, high = (int(x) + seqlen_new for x in torch.aminmax(cache_seqlens))
    if high > plan.capacity and block_table is not None:
        columns, page_size = block_table.shape[1], k_cache.shape[1]
        raise ValueError(
            f"block_table has {columns} columns of {page_size} tokens: a row of {high} keys needs {-(-high // page_size)}"
        )
    if low < seqlen_new or high > plan.capacity:
        raise ValueError(
            f"cache_seqlens from {low - seqlen_new} to {high - seqlen_new}, {seqlen_new} new: must lie from 0 to {plan.capacity}"
        )
    for name, index, limit in (
        ("cache_batch_idx", cache_batch_idx, k_cache.shape[0] - 1), ("cache_leftpad", cache_leftpad, plan.capacity)
    ):  # fmt: skip
        if index is not None and index.numel() and checks.readable(index):
            if index.min() < 0 or index.max() > limit:
                raise ValueError(f"{name} {index.tolist()}: must lie from 0 to {limit}")
    if block_table is not None and checks.readable(block_table):
        if cache_seqlens is None:
            held = torch.full((block_table.shape[0],), lengths[0], device=block_table.device)
        else:
            held = cache_seqlens.to(block_table.device) + seqlen_new
        checks.pages(block_table, held, k_cache.shape[0], k_cache.shape[1])
