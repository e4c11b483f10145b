"""What arguments must be, said before anything is launched.

Shapes, dtypes, devices and strides cost a few microseconds and are always checked. The values inside an index tensor
(cu_seqlens, block_table) are checked when they lie on the host; on a GPU reading them waits for the device, so only after
``set_checks(True)``.
"""

import math
from typing import NamedTuple

import torch

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_HEAD_DIM = 256

_read_device_values = False


def set_checks(on: bool) -> bool:
    """Also check the values of index tensors that lie on a GPU, which synchronises every call. Returns what it was."""
    global _read_device_values
    before, _read_device_values = _read_device_values, bool(on)
    return before


def readable(index: torch.Tensor) -> bool:
    """Whether the values of an index tensor may be read: real, and on the host unless ``set_checks(True)``.

    While a CUDA graph is captured nothing on the GPU can be read.
    """
    if torch.compiler.is_compiling() or type(index) is not torch.Tensor:
        return False
    if index.device.type == "cpu":
        return True
    return _read_device_values and not torch.cuda.is_current_stream_capturing()


def no_dropout(dropout_p: float) -> None:
    """Raise NotImplementedError for any dropout."""
    if dropout_p != 0.0:
        raise NotImplementedError(f"dropout_p {dropout_p}: dropout is not built yet, only 0.0 is supported")


class Like(NamedTuple):
    """What the checks read of a tensor: hashable, so that a call like an earlier one need not be checked again."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


def like(tensor: torch.Tensor | None) -> Like | None:
    """What the checks read of a tensor."""
    return None if tensor is None else Like(tensor.shape, tensor.dtype, tensor.device)


def tensor(name: str, value, dims: int) -> None:
    """Raise unless value is a tensor of so many dimensions."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}: must be a tensor")
    if value.dim() != dims:
        raise ValueError(f"{name} has shape {tuple(value.shape)}: must have {dims} dimensions")


def same_kind(q: Like, **others: Like) -> None:
    """Raise unless q is of a supported dtype on a device that kernels run on, and the others match it."""
    if q.dtype not in DTYPES and not (q.dtype is torch.float64 and q.device.type == "cpu"):
        raise TypeError(f"q has dtype {q.dtype}: must be float16, bfloat16 or float32 (float64 on a CPU only)")
    for name, other in others.items():
        if other.dtype is not q.dtype:
            raise TypeError(f"{name} has dtype {other.dtype}: must be q's, {q.dtype}")
        if other.device != q.device:
            raise ValueError(f"{name} is on {other.device}: must be on q's device, {q.device}")
    where_kernels_run(q)


def where_kernels_run(q: Like | torch.Tensor) -> None:
    """Raise unless q is on a GPU, or on a CPU where the interpreter is on."""
    if q.device.type == "cuda" or q.device.type == "meta":
        return
    from flashlab.kernels import backend

    if q.device.type != "cpu" or not backend.interpreting():
        raise ValueError(f"q is on {q.device}: kernels run on {'cpu' if backend.interpreting() else 'cuda'} here")


def heads_and_dims(q: Like, k: Like, v: Like) -> None:
    """Raise unless heads divide, head_dim is one, and k and v are shaped alike."""
    heads_q, head_dim = q.shape[-2:]
    heads_kv = k.shape[-2]
    if k.shape != v.shape:
        raise ValueError(f"v has shape {tuple(v.shape)}: must be k's, {tuple(k.shape)}")
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"q has head_dim {head_dim}: must be from 1 to {MAX_HEAD_DIM}")
    if k.shape[-1] != head_dim:
        raise ValueError(f"k has head_dim {k.shape[-1]}: must be q's, {head_dim}")
    if heads_kv == 0 or heads_q % heads_kv:
        raise ValueError(f"q has {heads_q} heads and k has {heads_kv}: heads_q must be a multiple of heads_kv")


def scale(softmax_scale: float | None, head_dim: int) -> float:
    """softmax_scale, head_dim ** -0.5 unless given; raise unless it is a positive number."""
    if softmax_scale is None:
        return head_dim**-0.5
    if not 0.0 < softmax_scale < math.inf:
        raise ValueError(f"softmax_scale {softmax_scale}: must be positive and finite")
    return float(softmax_scale)


def cap(softcap: float) -> float:
    """Raise unless softcap is 0.0 (off) or a positive number."""
    if not 0.0 <= softcap < math.inf:
        raise ValueError(f"softcap {softcap}: must be 0.0 (off) or positive and finite")
    return float(softcap)


def edges(window_size: tuple[int, int], causal: bool, reach: int) -> tuple[int, int]:
    """(left, right) edges of the visible band, -1 where open.

    reach: an edge this far away hides nothing; seqlen_q + seqlen_k is always far enough.
    """
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise ValueError(f"window_size {window_size!r}: must be (left, right), -1 for an open side") from None
    if causal:
        right = 0 if right < 0 else min(right, 0)
    return (left if 0 <= left < reach else -1), (right if 0 <= right < reach else -1)


def slopes(alibi_slopes: Like | None, batch: int, heads: int, device: torch.device) -> None:
    """Raise unless alibi_slopes is None or float32 (heads,) or (batch, heads) on the device."""
    if alibi_slopes is None:
        return
    if alibi_slopes.dtype is not torch.float32:
        raise TypeError(f"alibi_slopes has dtype {alibi_slopes.dtype}: must be float32")
    if alibi_slopes.device != device:
        raise ValueError(f"alibi_slopes is on {alibi_slopes.device}: must be on q's device, {device}")
    if tuple(alibi_slopes.shape) not in ((heads,), (batch, heads)):
        raise ValueError(f"alibi_slopes has shape {tuple(alibi_slopes.shape)}: must be {(heads,)} or {(batch, heads)}")


def index(name: str, value: torch.Tensor, shape: tuple, device: torch.device) -> None:
    """Raise unless value is an int32 tensor of that shape (None: any size) on the device, last dimension contiguous."""
    tensor(name, value, len(shape))
    if value.dtype is not torch.int32:
        raise TypeError(f"{name} has dtype {value.dtype}: must be int32")
    if value.device != device:
        raise ValueError(f"{name} is on {value.device}: must be on q's device, {device}")
    if any(want is not None and have != want for have, want in zip(value.shape, shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {tuple(value.shape)}: must be ({wanted})")
    if value.shape[-1] > 1 and value.stride(-1) != 1:
        raise ValueError(f"{name} has strides {value.stride()}: its last dimension must be contiguous")


def cu_seqlens(name: str, value: torch.Tensor, total: int | None, max_seqlen: int) -> None:
    """Raise unless value starts at 0, never falls, ends at total, and holds no sequence longer than max_seqlen."""
    if not readable(value):
        return
    lengths = value.diff()
    if value[0] != 0 or (lengths < 0).any():
        raise ValueError(f"{name} {value.tolist()}: must start at 0 and never fall")
    if total is not None and value[-1] != total:
        raise ValueError(f"{name} ends at {int(value[-1])}: must end at the number of tokens, {total}")
    if lengths.numel() and lengths.max() > max_seqlen:
        raise ValueError(f"max_seqlen_{name[-1]} {max_seqlen}: the longest sequence of {name} is {int(lengths.max())}")


def pages(block_table: torch.Tensor, seqlens_k: torch.Tensor, num_pages: int, page_size: int) -> None:
    """Raise unless every row of block_table has a column for each page of its sequence, and points inside the cache."""
    if not (readable(block_table) and readable(seqlens_k)):
        return
    needed = (seqlens_k + page_size - 1) // page_size
    if needed.numel() and needed.max() > block_table.shape[1]:
        row = int(needed.argmax())
        raise ValueError(
            f"block_table has {block_table.shape[1]} columns of {page_size} tokens: "
            f"sequence {row} of {int(seqlens_k[row])} keys needs {int(needed[row])}"
        )
    used = torch.arange(block_table.shape[1], device=block_table.device) < needed[:, None]
    wrong = used & ((block_table < 0) | (block_table >= num_pages))
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"block_table[{row}, {column}] is {int(block_table[row, column])}: must be a page from 0 to {num_pages - 1}"
        )
