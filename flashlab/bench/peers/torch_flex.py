"""FlexAttention, compiled anew for each shape.

Called uncompiled, or once torch.compile has given up on its shapes, FlexAttention stores the whole score matrix and is a
hundred times slower, with a warning at most. So the compiler starts afresh for every case, may not stop at a limit, must take
the whole graph, and has to have compiled one: otherwise the result is refused.
"""

import warnings

import torch
from torch.nn.attention import flex_attention as flex

from flashlab.bench.cases import Case
from flashlab.bench.inputs import Inputs
from flashlab.bench.peers import Refused, differentiate, leaves
from flashlab.bench.timing import Runner

NO_GIVING_UP = {"recompile_limit": 256, "fail_on_recompile_limit_hit": True}
FALLEN_BACK = "without torch.compile"


class Flex:
    name, title, role, kinds = "torch-flex", "FlexAttention (torch)", "rival", ("prefill", "train", "decode")
    compiles = True

    def version(self):
        return f"torch {torch.__version__}"

    def absent(self):
        return None

    def refuses(self, case: Case):
        return "no quantised cache" if case.cache != "bf16" else None

    def prepare(self, case: Case, inputs: Inputs) -> Runner:
        import torch._dynamo

        torch._dynamo.reset()
        for option, value in NO_GIVING_UP.items():
            if hasattr(torch._dynamo.config, option):
                setattr(torch._dynamo.config, option, value)
        compiled = torch.compile(flex.flex_attention, dynamic=False, fullgraph=True)
        options = dict(enable_gqa=case.heads_q != case.heads_kv)
        if case.causal:
            options["block_mask"] = flex.create_block_mask(
                lambda b, h, i, j: i >= j, None, None, case.seqlen_q, case.seqlen_k, device=inputs.q.device
            )

        def attend(q, k, v):
            return compiled(*(x.transpose(1, 2) for x in (q, k, v)), **options).transpose(1, 2)

        q, k, v = (inputs.q, inputs.k, inputs.v)
        if case.kind == "train":
            q, k, v = leaves(q, k, v)
        compiled_only(lambda: attend(q, k, v))
        if case.kind == "train":
            return Runner(lambda: differentiate(attend(q, k, v), q, k, v, inputs.do))
        return Runner(lambda: attend(q, k, v))


def compiled_only(call) -> None:
    """Make the first call. Raises Refused unless inductor was at work and torch did not warn of the slow path.

    The slow path compiles too, a wrapper of its own, though not with inductor: so that is whose counters are read.
    """
    getattr(flex, "_WARNINGS_SHOWN", set()).clear()  # torch warns once a process
    before = _inductor_work()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    if any(FALLEN_BACK in str(warning.message) for warning in caught):
        raise Refused("FlexAttention ran uncompiled and stored the scores: that time would mean nothing")
    if _inductor_work() == before:
        raise Refused("FlexAttention was not compiled for this shape: that time would mean nothing")


def _inductor_work() -> int:
    from torch._dynamo.utils import counters

    return sum(sum(counters[who].values()) for who in ("inductor", "aot_autograd"))
