"""Random tensors for a case: fresh, normally distributed, never zeros, which run faster than data does.

A quantised cache is made of random codes and scales, and is exactly what ``dequantise`` says it is.
"""

import dataclasses

import torch

from flashlab.bench.cases import Case

SPREAD = {"fp8": 32.0, "int4": 4.6}  # the standard deviation of a code; scales make the values' about 1


@dataclasses.dataclass
class Inputs:
    """q (batch, seqlen_q, heads_q, head_dim), k and v (batch, seqlen_k, heads_kv, ...), bfloat16 or codes.

    kv: k and v in one piece of memory, for reading them alone. k_scale, v_scale: float16 (batch, seqlen_k, heads_kv).
    do: the output's gradient, where the case trains.
    """

    q: torch.Tensor
    kv: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    do: torch.Tensor | None = None


def make(case: Case, device: str, seed: int) -> Inputs:
    """The same tensors for the same case, device and seed."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(torch.bfloat16)

    def filled(*shape):
        out = torch.empty(shape, device=device, dtype=torch.bfloat16)
        for part in out.flatten(0, 1):  # a slice at a time: the float32 draws of a whole cache need not fit
            part.copy_(torch.randn(part.shape, generator=generator, device=device))
        return out

    q = normal(case.batch, case.seqlen_q, case.heads_q, case.head_dim)
    shape = (case.batch, case.seqlen_k, case.heads_kv, case.head_dim)
    if case.cache == "bf16":
        kv = filled(2, *shape)
        do = normal(*q.shape) if case.kind == "train" else None
        return Inputs(q, kv, kv[0], kv[1], do=do)
    scales = (torch.rand((2, *shape[:3]), generator=generator, device=device) + 0.5) / SPREAD[case.cache.split()[0]]
    kv = _codes(case, shape, generator, device)
    k, v = (part.transpose(1, 2) if "head-major" in case.cache else part for part in kv)
    return Inputs(q, kv, k, v, *scales.to(torch.float16))


def _codes(case: Case, shape: tuple, generator: torch.Generator, device: str) -> torch.Tensor:
    batch, seqlen, heads, head_dim = shape
    if case.cache == "fp8":
        kv = torch.empty((2, *shape), dtype=torch.float8_e4m3fn, device=device)
        for part in kv.flatten(0, 1):
            part.copy_(torch.randn(part.shape, generator=generator, device=device) * SPREAD["fp8"])
        return kv
    rows = (heads, seqlen) if "head-major" in case.cache else (seqlen, heads)
    return torch.randint(0, 256, (2, batch, *rows, head_dim // 2), generator=generator, device=device, dtype=torch.uint8)


def dequantise(codes: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """What a cache means, (..., head_dim). int4: two a byte, the low nibble first, value + 8."""
    if codes.dtype is torch.uint8:
        values = torch.stack((codes & 15, codes >> 4), -1).flatten(-2).to(dtype) - 8
    else:
        values = codes.to(dtype)
    return values if scale is None else values * scale[..., None].to(dtype)
