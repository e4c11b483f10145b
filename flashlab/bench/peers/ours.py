"""flashlab's own kernels, and what they are held against besides rivals: unsplit, unquantised, and loads alone."""

from flashlab import __version__
from flashlab.bench.cases import Case
from flashlab.bench.inputs import Inputs, make
from flashlab.bench.peers import differentiate, leaves
from flashlab.bench.timing import Runner


class Flashlab:
    """The public functions, as a user calls them."""

    name, title, role, kinds = "flashlab", "flashlab", "ours", ("prefill", "train", "decode")
    compiles = True
    num_splits = 0

    def version(self):
        return __version__

    def absent(self):
        return None

    def refuses(self, case: Case):
        return None

    def prepare(self, case: Case, inputs: Inputs) -> Runner:
        from flashlab.attention import flash_attn_func, flash_attn_with_kvcache

        q, k, v = inputs.q, inputs.k, inputs.v
        if case.kind == "decode":
            scales = {} if inputs.k_scale is None else dict(k_scale=inputs.k_scale, v_scale=inputs.v_scale)
            return Runner(lambda: flash_attn_with_kvcache(q, k, v, num_splits=self.num_splits, **scales))
        if case.kind == "prefill":
            return Runner(lambda: flash_attn_func(q, k, v, causal=case.causal))
        q, k, v = leaves(q, k, v)
        return Runner(lambda: differentiate(flash_attn_func(q, k, v, causal=case.causal), q, k, v, inputs.do))


class Unsplit(Flashlab):
    """The decode kernel with all keys of a row in one program: what splitting is worth."""

    name, title, role, kinds = "flashlab-unsplit", "flashlab, one split", "variant", ("decode",)
    num_splits = 1

    def refuses(self, case: Case):
        if case.batch * case.heads_kv > 8 or case.cache != "bf16":
            return "shown only where few rows leave the GPU empty"
        return None


class Unquantised(Flashlab):
    """The same context in a bfloat16 cache: what a quantised one is worth."""

    name, title, role, kinds = "flashlab-bf16", "flashlab, bf16 cache", "variant", ("decode",)

    def refuses(self, case: Case):
        return "the case is bf16 itself" if case.cache == "bf16" else None

    def prepare(self, case: Case, inputs: Inputs) -> Runner:
        plain = case.alike(cache="bf16")
        runner = super().prepare(plain, make(plain, inputs.q.device, seed=0))
        return runner._replace(checked=False)


class LoadsAlone(Flashlab):
    """A kernel that reads K and V and computes nothing: no kernel that must read them is faster."""

    name, title, role, kinds = "loads-alone", "loads alone", "floor", ("decode",)

    def prepare(self, case: Case, inputs: Inputs) -> Runner:
        from flashlab.bench.loads import reader

        return reader(inputs.kv.view(-1), 8 * _sms(inputs))._replace(checked=False)


def _sms(inputs: Inputs) -> int:
    import torch

    return torch.cuda.get_device_properties(inputs.q.device).multi_processor_count


PEERS = (Flashlab(), Unsplit(), Unquantised(), LoadsAlone())
