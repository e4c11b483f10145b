"""torch's scaled_dot_product_attention with each of its backends forced: none falls back to another in silence.

It gets the tensors where they lie, as (batch, heads, seqlen, head_dim) views. Its is_causal is aligned top left, which is
the same where queries and keys are as many.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashlab.bench.cases import Case
from flashlab.bench.inputs import Inputs
from flashlab.bench.peers import differentiate, leaves
from flashlab.bench.timing import Runner

MOST_SCORE_BYTES = 8 * 2**30  # what math, which stores the scores, may take


class Sdpa:
    role, compiles = "rival", False

    def __init__(self, name: str, title: str, backend: SDPBackend, kinds=("prefill", "train", "decode")):
        self.name, self.title, self.backend, self.kinds = name, title, backend, kinds

    def version(self):
        if self.backend is SDPBackend.CUDNN_ATTENTION and torch.backends.cudnn.is_available():
            return f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
        return f"torch {torch.__version__}"

    def absent(self):
        return None

    def refuses(self, case: Case):
        if case.cache != "bf16":
            return "no quantised cache"
        scores = 4 * case.batch * case.heads_q * case.seqlen_q * case.seqlen_k
        if self.backend is SDPBackend.MATH and scores > MOST_SCORE_BYTES:
            return f"its scores would take {scores / 2**30:.0f} GiB"
        return None

    def prepare(self, case: Case, inputs: Inputs) -> Runner:
        options = dict(is_causal=case.causal, enable_gqa=case.heads_q != case.heads_kv)

        def attend(q, k, v):
            return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), **options).transpose(1, 2)

        def scope():
            return sdpa_kernel(self.backend)

        if case.kind != "train":
            return Runner(lambda: attend(inputs.q, inputs.k, inputs.v), scope)
        q, k, v = leaves(inputs.q, inputs.k, inputs.v)
        return Runner(lambda: differentiate(attend(q, k, v), q, k, v, inputs.do), scope)


PEERS = (
    Sdpa("torch-cudnn", "cuDNN (torch)", SDPBackend.CUDNN_ATTENTION),
    Sdpa("torch-flash", "FlashAttention-2 (torch)", SDPBackend.FLASH_ATTENTION),
    Sdpa("torch-efficient", "memory-efficient (torch)", SDPBackend.EFFICIENT_ATTENTION, ("prefill", "train")),
    Sdpa("torch-math", "math (torch)", SDPBackend.MATH, ("prefill",)),
)
