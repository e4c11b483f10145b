"""Quantised keys and values: codes of 8 or 4 bits and a scale, such that  x = code * scale,  up to rounding.

    format   codes                                   largest code   |x - code * scale| at most
    fp8      float8_e4m3fn                           448            amax / 28    (half a step of 32 at the top)
    int8     int8                                    127            amax / 254
    int4     uint8, value + 8, two a byte            7              amax / 14
             (element n in byte n // 2, low first)

amax is the largest magnitude that shares the scale: of one token's head (scale per token and head), or of one head
(scale per head). Towards 0, fp8 is finer than its bound: half a step there is |x| / 16.

What the error does to attention: V's adds at most its own bound to the output, which is a weighted mean of values. K's
moves a score by at most  e = softmax_scale * |q|_1 * (K's bound),  so each weight by a factor within exp(+-2 e).

Everything here is torch, on any device: Triton's interpreter cannot cast fp8. Codes and scales lie head-major in memory
(rows, heads, tokens, ...) and are seen through a transpose as (rows, tokens, heads, ...): a kernel reads one head's
tokens one after another.

Formats: OCP 8-bit floating point (e4m3); per-token KV scales: KIVI, arXiv 2402.02750, compares the choices.
"""

import torch

from flashlab.attention import checks

CODE_DTYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8, "int4": torch.uint8}
LARGEST_CODE = {"fp8": 448.0, "int8": 127.0, "int4": 7.0}
HALF_STEPS = {"fp8": 28.0, "int8": 254.0, "int4": 14.0}
"""amax over the largest rounding error."""
SCALE_DTYPE = torch.float32


def new_cache(
    rows: int, tokens: int, heads_kv: int, head_dim: int, format: str, *, per: str = "token", device=None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Zero codes (rows, tokens, heads_kv, head_dim or head_dim / 2) and scales of 1.

    Args:
        rows, tokens: batch and capacity, or pages and page_size.
        per: "token": scales (rows, tokens, heads_kv); "head": (heads_kv,). float32.

    Raises:
        ValueError: an unknown format or per, or a head_dim the format cannot hold.
    """
    _check_format(format, head_dim)
    width = head_dim // 2 if format == "int4" else head_dim
    codes = torch.zeros(rows, heads_kv, tokens, width, dtype=torch.uint8, device=device)
    if format == "int4":
        codes.fill_(0x88)  # 0, which int4 stores as 8
    if _check_per(per) == "head":
        scale = torch.ones(heads_kv, dtype=SCALE_DTYPE, device=device)
    else:
        scale = torch.ones(rows, heads_kv, tokens, dtype=SCALE_DTYPE, device=device).transpose(1, 2)
    return codes.view(CODE_DTYPES[format]).transpose(1, 2), scale


def quantize(
    x: torch.Tensor, format: str, *, per: str = "token", scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, scale) of x (rows, tokens, heads, head_dim).

    Args:
        per: "token": one scale a token and head, (rows, tokens, heads); "head": one a head, (heads,).
        scale: use these, of either shape, instead; what is too large for them saturates.

    Returns:
        codes of the format's dtype, (rows, tokens, heads, head_dim) or head_dim / 2 for int4, and scale float32.

    Raises:
        TypeError, ValueError: an x or scale of the wrong shape or dtype, an unknown format or per, or a head_dim the format
            cannot hold.
    """
    checks.tensor("x", x, 4)
    if not x.is_floating_point():
        raise TypeError(f"x has dtype {x.dtype}: must be a floating dtype")
    _check_format(format, x.shape[-1])
    _check_per(per)
    if scale is not None and tuple(scale.shape) not in (tuple(x.shape[:3]), (x.shape[2],)):
        raise ValueError(f"scale has shape {tuple(scale.shape)}: must be {tuple(x.shape[:3])} or {(x.shape[2],)}")
    x = x.to(SCALE_DTYPE)
    if scale is None and x.numel() == 0:
        scale = _head_major(x.new_ones(x.shape[:3])) if per == "token" else x.new_ones(x.shape[2])
    if scale is None:
        amax = x.abs().amax(-1 if per == "token" else (0, 1, 3))
        scale = amax / LARGEST_CODE[format]
        scale = torch.where(scale > 0, scale, 1.0)  # all zero, or too small to hold: any scale does
        if per == "token":
            scale = _head_major(scale)
    return encode(x / scale[..., None], format), scale


def encode(x: torch.Tensor, format: str) -> torch.Tensor:
    """Codes of x already divided by its scale: rounded to nearest, saturated. Head-major in memory."""
    limit = LARGEST_CODE[format]
    x = x.clamp(-limit, limit)
    if format == "fp8":
        codes = x.to(torch.float8_e4m3fn).view(torch.uint8)
    elif format == "int8":
        codes = x.round().to(torch.int8).view(torch.uint8)
    else:
        nibbles = (x.round() + 8).to(torch.uint8)
        codes = nibbles[..., 0::2] | nibbles[..., 1::2] << 4
    return _head_major(codes).view(CODE_DTYPES[format])


def dequantize(codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """code * scale, (rows, tokens, heads, head_dim). scale as ``quantize`` returns it."""
    if format_of(codes) == "int4":
        values = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).to(SCALE_DTYPE) - 8
    else:
        values = codes.to(SCALE_DTYPE)
    return (values * scale[..., None]).to(dtype)


def append(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    cache_seqlens: torch.Tensor,
    *,
    block_table: torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
) -> None:
    """Quantise k and v (batch, seqlen_new, heads_kv, head_dim) into the caches, in place, after each row's keys.

    The format follows from the cache's dtype. Scales per token are written beside the codes; scales per head stay as they
    are, and what is too large for them saturates. Nothing is copied to the host: it may run inside a CUDA graph.

    Args:
        k_cache, v_cache, k_scale, v_scale: as ``new_cache`` makes them, as rows or, with block_table, as pages.
        cache_seqlens: (batch,), keys each row holds already.
        block_table: (batch, columns), as flash_attn_with_kvcache takes it.
        cache_batch_idx: (batch,), the cache's row of each batch row.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, shape, dtype or device, named; also, where their values may be
            read (on the host, or after set_checks(True)), lengths, rows and pages outside the cache. Nothing was changed.
    """
    _check_append(k, v, k_cache, v_cache, k_scale, v_scale, cache_seqlens, block_table, cache_batch_idx)
    positions = cache_seqlens.long()[:, None] + torch.arange(k.shape[1], device=k.device)
    if block_table is not None:
        page_size = k_cache.shape[1]
        rows = block_table.long().gather(1, positions // page_size)
        positions = positions % page_size
    elif cache_batch_idx is not None:
        rows = cache_batch_idx.long()[:, None].expand_as(positions)
    else:
        rows = torch.arange(k.shape[0], device=k.device)[:, None].expand_as(positions)
    for new, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        write(new, cache, scale, rows, positions)


def write(new: torch.Tensor, cache: torch.Tensor, scale: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
    """Quantise new (..., heads, head_dim) into cache[rows, slots], rows and slots of shape (...)."""
    per_head = scale.dim() == 1
    x, format = new.reshape(1, -1, *new.shape[-2:]), format_of(cache)
    codes, scales = quantize(x, format, scale=scale if per_head else None)
    if not per_head and scale.dtype is not SCALE_DTYPE:  # codes for the scales as they will be stored
        limits = torch.finfo(scale.dtype)
        scales = scales.clamp(limits.smallest_normal * limits.eps, limits.max).to(scale.dtype).to(SCALE_DTYPE)
        codes, scales = quantize(x, format, scale=scales)
    rows, slots = rows.flatten(), slots.flatten()
    cache.view(torch.uint8)[rows, slots] = codes.view(torch.uint8)[0]
    if not per_head:
        scale[rows, slots] = scales[0].to(scale.dtype)


def _check_append(k, v, k_cache, v_cache, k_scale, v_scale, cache_seqlens, block_table, cache_batch_idx) -> None:
    """Raise unless ``append`` can write all of k and v."""
    checks.tensor("k_cache", k_cache, 4)
    format, (rows, tokens, heads, width) = format_of(k_cache), k_cache.shape
    checks.tensor("k", k, 4)
    batch, new = k.shape[:2]
    wanted = (batch, new, heads, 2 * width if format == "int4" else width)
    for name, x in dict(k=k, v=v).items():
        checks.tensor(name, x, 4)
        if tuple(x.shape) != wanted:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: must be {wanted}")
        if not x.is_floating_point() or x.device != k_cache.device:
            raise TypeError(f"{name} is {x.dtype} on {x.device}: must be floating on {k_cache.device}")
    checks.tensor("v_cache", v_cache, 4)
    if v_cache.shape != k_cache.shape or v_cache.dtype is not k_cache.dtype or v_cache.device != k_cache.device:
        raise ValueError(
            f"v_cache is {v_cache.dtype} {tuple(v_cache.shape)} on {v_cache.device}: must be k_cache's, {k_cache.dtype} "
            f"{tuple(k_cache.shape)} on {k_cache.device}"
        )
    for name, scale in dict(k_scale=k_scale, v_scale=v_scale).items():
        if not isinstance(scale, torch.Tensor) or not scale.is_floating_point() or scale.device != k_cache.device:
            raise TypeError(f"{name}: must be a floating tensor on {k_cache.device}")
        if tuple(scale.shape) not in ((rows, tokens, heads), (heads,)):
            raise ValueError(f"{name} has shape {tuple(scale.shape)}: must be {(rows, tokens, heads)} or {(heads,)}")
    for name, index, dims in (
        ("cache_seqlens", cache_seqlens, 1), ("block_table", block_table, 2), ("cache_batch_idx", cache_batch_idx, 1)
    ):  # fmt: skip
        if index is None and name != "cache_seqlens":
            continue
        checks.tensor(name, index, dims)
        if index.dtype not in (torch.int32, torch.int64) or index.device != k_cache.device:
            raise TypeError(f"{name} is {index.dtype} on {index.device}: must be int32 on {k_cache.device}")
        if index.shape[0] != batch:
            raise ValueError(f"{name} has shape {tuple(index.shape)}: must begin with k's batch, {batch}")
    if block_table is not None and cache_batch_idx is not None:
        raise ValueError("cache_batch_idx: block_table already says where each row's keys are")
    if block_table is None and cache_batch_idx is None and rows != batch:
        raise ValueError(f"k_cache has {rows} rows: must be k's batch, {batch}, without cache_batch_idx or block_table")
    if batch == 0 or new == 0 or not checks.readable(cache_seqlens):
        return
    low, high = (int(x) for x in torch.aminmax(cache_seqlens))
    capacity = tokens if block_table is None else tokens * block_table.shape[1]
    if low < 0 or high + new > capacity:
        raise ValueError(f"cache_seqlens from {low} to {high}, {new} new: must lie from 0 to {capacity}")
    if block_table is not None:
        checks.pages(block_table, cache_seqlens + new, rows, tokens)
    if cache_batch_idx is not None and not (0 <= cache_batch_idx.min() and cache_batch_idx.max() < rows):
        raise ValueError(f"cache_batch_idx {cache_batch_idx.tolist()}: must lie from 0 to {rows - 1}")


def format_of(codes: torch.Tensor) -> str:
    """The format that stores codes of that dtype. ValueError if none does."""
    for format, dtype in CODE_DTYPES.items():
        if codes.dtype is dtype:
            return format
    raise ValueError(f"codes have dtype {codes.dtype}: must be one of {list(CODE_DTYPES.values())}")


def _head_major(x: torch.Tensor) -> torch.Tensor:
    """(rows, tokens, heads, ...) as before, but with each head's tokens side by side in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _check_format(format: str, head_dim: int) -> None:
    if format not in CODE_DTYPES:
        raise ValueError(f"format {format!r}: must be one of {', '.join(CODE_DTYPES)}")
    multiple = 4 if format == "int4" else 2
    if head_dim % multiple:
        raise ValueError(f"head_dim {head_dim}: {format} needs a multiple of {multiple}")


def _check_per(per: str) -> str:
    if per not in ("token", "head"):
        raise ValueError(f"per {per!r}: must be 'token' or 'head'")
    return per
