"""Attention of other packages, where they are installed: flash-attn, FlashAttention-4, FlashInfer, xFormers."""

import importlib.util

import torch

from flashlab.bench import machine
from flashlab.bench.cases import Case
from flashlab.bench.inputs import Inputs
from flashlab.bench.peers import differentiate, leaves
from flashlab.bench.timing import Runner

PAGE_SIZE = 16  # FlashInfer's batches are paged: a cache without gaps is one whose pages follow one another
WORKSPACE_BYTES = 256 * 2**20


class Installed:
    """A peer that is a package. Subclasses say how to call it on q, k, v (batch, seqlen, heads, head_dim)."""

    role, compiles = "rival", False
    name: str
    title: str
    kinds = ("prefill", "train", "decode")
    distribution: str
    module: str

    def version(self):
        return machine.installed(self.distribution)

    def absent(self):
        try:
            found = importlib.util.find_spec(self.module)
        except ImportError:
            found = None
        return None if found else f"{self.distribution} is not installed here"

    def refuses(self, case: Case):
        return None if case.cache == "bf16" else "only bf16 caches are tried"

    def attention(self, case: Case):
        """A function of q, k, v."""
        raise NotImplementedError

    def prepare(self, case: Case, inputs: Inputs) -> Runner:
        attend = self.attention(case)
        if case.kind != "train":
            return Runner(lambda: attend(inputs.q, inputs.k, inputs.v))
        q, k, v = leaves(inputs.q, inputs.k, inputs.v)
        return Runner(lambda: differentiate(attend(q, k, v), q, k, v, inputs.do))


class FlashAttention2(Installed):
    name, title, distribution, module = "flash-attn", "flash-attn 2", "flash-attn", "flash_attn.flash_attn_interface"

    def attention(self, case):
        from flash_attn import flash_attn_func, flash_attn_with_kvcache

        if case.kind == "decode":
            return flash_attn_with_kvcache
        return lambda q, k, v: flash_attn_func(q, k, v, causal=case.causal)


class FlashAttention4(Installed):
    name, title, distribution, module = "flash-attn-4", "FlashAttention-4", "flash-attn-4", "flash_attn.cute"
    compiles = True

    def attention(self, case):
        from flash_attn.cute import flash_attn_func

        def attend(q, k, v):
            result = flash_attn_func(q, k, v, causal=case.causal)
            return result[0] if isinstance(result, tuple) else result

        return attend


class FlashInfer(Installed):
    name, title, distribution, module = "flashinfer", "FlashInfer", "flashinfer-python", "flashinfer"
    kinds, compiles = ("prefill", "decode"), True

    def refuses(self, case):
        if case.kind == "prefill" and case.batch > 1:
            return "its single prefill takes one sequence"
        return super().refuses(case)

    def attention(self, case):
        import flashinfer

        if case.kind == "prefill":
            return lambda q, k, v: flashinfer.single_prefill_with_kv_cache(q[0], k[0], v[0], causal=case.causal)[None]
        if case.batch == 1:
            return lambda q, k, v: flashinfer.single_decode_with_kv_cache(q[0, 0], k[0], v[0], kv_layout="NHD")[None, None]
        return self._paged(flashinfer, case)

    def _paged(self, flashinfer, case):
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        pages = case.seqlen_k // PAGE_SIZE
        indptr = torch.arange(case.batch + 1, dtype=torch.int32, device="cuda") * pages
        indices = torch.arange(case.batch * pages, dtype=torch.int32, device="cuda")
        last = torch.full((case.batch,), PAGE_SIZE, dtype=torch.int32, device="cuda")
        wrapper.plan(indptr, indices, last, case.heads_q, case.heads_kv, case.head_dim, PAGE_SIZE,
                     q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)  # fmt: skip
        shape = (-1, PAGE_SIZE, case.heads_kv, case.head_dim)
        return lambda q, k, v: wrapper.run(q[:, 0], (k.reshape(shape), v.reshape(shape)))[:, None]


class XFormers(Installed):
    name, title, distribution, module = "xformers", "xFormers", "xformers", "xformers.ops"
    kinds = ("prefill", "train")

    def attention(self, case):
        from xformers.ops import LowerTriangularMask, memory_efficient_attention

        bias = LowerTriangularMask() if case.causal else None
        return lambda q, k, v: memory_efficient_attention(q, k, v, attn_bias=bias)


PEERS = (FlashAttention2(), FlashAttention4(), FlashInfer(), XFormers())
