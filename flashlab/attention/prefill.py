"""Attention over whole sequences, padded or packed, with gradients.

Two operators are registered with torch.library, ``flashlab::prefill`` and ``flashlab::prefill_backward``; each has a fake,
so torch.compile traces through them, and the first has the second as its gradient. The dispatcher costs tens of
microseconds a call, so plain eager tensors take the same two steps through an autograd.Function instead. The LSE is
differentiable too.
"""

import functools
import types

import torch
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from flashlab.attention import checks


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor, None]:
    """softmax(softmax_scale * q k^T) v, with flash-attn 2's arguments and meanings.

    Args:
        q: (batch, seqlen_q, heads_q, head_dim) float16, bfloat16 or float32; head_dim from 1 to 256.
        k, v: (batch, seqlen_k, heads_kv, head_dim) of q's dtype. heads_q is a multiple of heads_kv: query head h reads kv
            head h // (heads_q // heads_kv). Any strides; a last dimension that is not contiguous is copied.
        dropout_p: must be 0.0.
        softmax_scale: head_dim ** -0.5 unless given.
        causal: query i sees keys up to i + seqlen_k - seqlen_q (aligned at the bottom right).
        window_size: (left, right): query i sees keys from i + seqlen_k - seqlen_q - left to
            i + seqlen_k - seqlen_q + right, both included; -1 leaves a side open.
        softcap: scores become softcap * tanh(score / softcap); 0.0 is off.
        alibi_slopes: float32 (heads_q,) or (batch, heads_q); adds -slope * |i + seqlen_k - seqlen_q - j|.
        deterministic: accepted; the backward is always deterministic, bit for bit.
        return_attn_probs: return (out, lse, None) instead of out.

    Returns:
        out (batch, seqlen_q, heads_q, head_dim) of q's dtype; lse float32 (batch, heads_q, seqlen_q), natural logarithm. A
        query that sees no key gives 0 and -inf.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, shape, dtype or device, named.
        NotImplementedError: dropout_p is not 0.0.
        ImportError: Triton is not installed.
    """
    q, k, v = _ready("q", q, 4), _ready("k", k, 4), _ready("v", v, 4)
    numbers = _remembered(_dense_numbers)(
        *map(checks.like, (q, k, v, alibi_slopes)), dropout_p, softmax_scale, causal, _hashable(window_size), softcap
    )
    out, lse = _attention(q, k, v, None, None, alibi_slopes, None, *numbers)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor, None]:
    """``flash_attn_func`` over sequences packed one after another, each of its own length, 0 allowed.

    Args:
        q: (total_q, heads_q, head_dim).
        k, v: (total_k, heads_kv, head_dim); with block_table (pages, page_size, heads_kv, head_dim).
        cu_seqlens_q, cu_seqlens_k: (batch + 1,) int32 on q's device: sequence b is tokens cu[b] to cu[b + 1] - 1.
        max_seqlen_q, max_seqlen_k: the longest sequences, or more; they size the launch.
        block_table: (batch, columns) int32: key j of sequence b lies in page block_table[b, j // page_size]. Forward only.
        alibi_slopes: float32 (heads_q,) or (batch, heads_q).

    The other arguments are ``flash_attn_func``'s.

    Returns:
        out (total_q, heads_q, head_dim); with return_attn_probs (out, lse, None), lse float32 (heads_q, total_q).

    Raises:
        TypeError, ValueError: as ``flash_attn_func``; also, where their values lie on the host or after set_checks(True),
            cu_seqlens that fall or end elsewhere, and a block_table too narrow or pointing outside the cache.
        NotImplementedError: dropout_p is not 0.0, or gradients are asked of a paged cache.
        ImportError: Triton is not installed.
    """
    kv_dims = 3 if block_table is None else 4
    q, k, v = _ready("q", q, 3), _ready("k", k, kv_dims), _ready("v", v, kv_dims)
    checks.index("cu_seqlens_q", cu_seqlens_q, (None,), q.device)
    checks.index("cu_seqlens_k", cu_seqlens_k, tuple(cu_seqlens_q.shape), q.device)
    batch = cu_seqlens_q.shape[0] - 1
    numbers = _remembered(_varlen_numbers)(
        *map(checks.like, (q, k, v, alibi_slopes)), batch, max_seqlen_q, max_seqlen_k,
        dropout_p, softmax_scale, causal, _hashable(window_size), softcap,
    )  # fmt: skip
    checks.cu_seqlens("cu_seqlens_q", cu_seqlens_q, q.shape[0], max_seqlen_q)
    checks.cu_seqlens("cu_seqlens_k", cu_seqlens_k, k.shape[0] if block_table is None else None, max_seqlen_k)
    if block_table is not None:
        checks.index("block_table", block_table, (batch, None), q.device)
        checks.pages(block_table, cu_seqlens_k.diff(), k.shape[0], k.shape[1])
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            raise NotImplementedError("block_table: a paged cache has no gradients; call under torch.no_grad()")
    out, lse = _attention(q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, block_table, *numbers)
    return (out, lse, None) if return_attn_probs else out


def _ready(name: str, tensor: torch.Tensor, dims: int) -> torch.Tensor:
    """The tensor with a contiguous last dimension and, where autocast is on, in its dtype."""
    checks.tensor(name, tensor, dims)
    if tensor.dtype is torch.float32 and torch.is_autocast_enabled(tensor.device.type):
        tensor = tensor.to(torch.get_autocast_dtype(tensor.device.type))
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        tensor = tensor.contiguous()
    return tensor


def _hashable(window_size):
    return tuple(window_size) if isinstance(window_size, list) else window_size


def _dense_numbers(q, k, v, slopes, dropout_p, softmax_scale, causal, window_size, softcap):
    """Check padded arguments; what ``flashlab::prefill`` takes after its tensors."""
    if k.shape[0] != q.shape[0]:
        raise ValueError(f"k has batch {k.shape[0]}: must be q's, {q.shape[0]}")
    return _varlen_numbers(
        q, k, v, slopes, q.shape[0], q.shape[1], k.shape[1], dropout_p, softmax_scale, causal, window_size, softcap
    )


def _varlen_numbers(
    q, k, v, slopes, batch, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size, softcap
):
    """Check what padded and packed arguments share; what ``flashlab::prefill`` takes after its tensors."""
    checks.no_dropout(dropout_p)
    checks.same_kind(q, k=k, v=v)
    checks.heads_and_dims(q, k, v)
    checks.slopes(slopes, batch, q.shape[-2], q.device)
    left, right = checks.edges(window_size, causal, max_seqlen_q + max_seqlen_k)
    scale, cap = checks.scale(softmax_scale, q.shape[-1]), checks.cap(softcap)
    return max_seqlen_q, max_seqlen_k, scale, left, right, cap


_memories = {function: functools.lru_cache(maxsize=4096)(function) for function in (_dense_numbers, _varlen_numbers)}


def _remembered(function):
    """The function with a memory, so that arguments like earlier ones are not checked again. A compiler traces it bare."""
    return function if torch.compiler.is_compiling() else _memories[function]


def _attention(q, k, v, *arguments):
    """``flashlab::prefill``, without the dispatcher where nothing listens to it."""
    if not _eager(q, k, v):
        return _prefill(q, k, v, *arguments)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _Prefill.apply(q, k, v, *arguments)
    return _kernels().forward(q, k, v, *arguments)


def _eager(*tensors: torch.Tensor) -> bool:
    """Whether these are ordinary tensors, and no compiler, mode or function transform wants to see the operator."""
    return (
        not torch.compiler.is_compiling()
        and all(type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter for tensor in tensors)
        and not is_in_torch_dispatch_mode()
        and not torch._C._are_functorch_transforms_active()
    )


@functools.cache
def _kernels():
    """The launchers, imported at the first call: Triton need not exist before."""
    from flashlab.kernels.backward import backward
    from flashlab.kernels.forward import forward

    return types.SimpleNamespace(forward=forward, backward=backward)


@torch.library.custom_op("flashlab::prefill", mutates_args=())
def _prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    block_table: torch.Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    window_left: int,
    window_right: int,
    softcap: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse); see flashlab.kernels.forward.forward."""
    return _kernels().forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, block_table, max_seqlen_q, max_seqlen_k,
        softmax_scale, window_left, window_right, softcap,
    )  # fmt: skip


@_prefill.register_fake
def _(q, k, v, cu_seqlens_q, *_):
    dtype = torch.float64 if q.dtype is torch.float64 else torch.float32
    if cu_seqlens_q is not None:
        return q.new_empty(q.shape), q.new_empty((q.shape[1], q.shape[0]), dtype=dtype)
    return q.new_empty(q.shape), q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=dtype)


@torch.library.custom_op("flashlab::prefill_backward", mutates_args=())
def _prefill_backward(
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    window_left: int,
    window_right: int,
    softcap: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dq, dk, dv); see flashlab.kernels.backward.backward."""
    return _kernels().backward(
        dout, dlse, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_q, max_seqlen_k,
        softmax_scale, window_left, window_right, softcap,
    )  # fmt: skip


@_prefill_backward.register_fake
def _(dout, dlse, q, k, v, *_):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _remember(ctx, inputs, output):
    q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, _, *ctx.numbers = inputs
    ctx.save_for_backward(q, k, v, *output, cu_seqlens_q, cu_seqlens_k, alibi_slopes)
    ctx.set_materialize_grads(False)


def _gradients(ctx, dout, dlse, backward=_prefill_backward):
    q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, alibi_slopes = ctx.saved_tensors
    if dout is None and dlse is None:
        return (None,) * 13
    if dout is None:
        dout = torch.zeros_like(out)
    gradients = backward(dout, dlse, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, alibi_slopes, *ctx.numbers)
    return *gradients, *(None,) * 10


_prefill.register_autograd(_gradients, setup_context=_remember)


class _Prefill(torch.autograd.Function):
    """The same two steps for plain eager tensors."""

    @staticmethod
    def forward(ctx, *inputs):
        output = _kernels().forward(*inputs)
        _remember(ctx, inputs, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, dout, dlse):
        return _gradients(ctx, dout, dlse, _kernels().backward)
