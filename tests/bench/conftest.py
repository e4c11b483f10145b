"""A clock that is told what to say, peers that are right, wrong, broken or absent, and a record made with them."""

import copy

import pytest

import flashlab.kernels  # noqa: F401  before torch's compiler brings in Triton: it decides where kernels run

# isort: split
import torch.nn.functional as F

from flashlab.bench import session, timing
from flashlab.bench.cases import Case
from flashlab.bench.peers import differentiate, leaves
from flashlab.bench.timing import Runner, Samples

TINY = Case("prefill", 2, 4, 2, 40, 40, 16)
MACHINE = {
    "gpu": "NVIDIA H200", "compute_capability": "9.0", "sms": 132, "memory_mib": 143771, "driver": "580.1", "cuda": "13.0",
    "cudnn": "91000", "torch": "2.11.0", "triton": "3.6.0", "python": "3.12.3", "power_limit_w": 700.0,
    "at_rest": {"sm_mhz": 345.0, "memory_mhz": 3201.0, "power_w": 80.0, "temperature_c": 30.0},
}  # fmt: skip
CEILINGS = {"copy_bytes_per_s": 4.2e12, "read_bytes_per_s": 4.4e12, "matmul_flop_per_s": 7e14}


class Clock:
    """A timer by script: seconds by call number, the same for every contender unless told by ``says``."""

    def __init__(self, seconds=1e-3, says=None):
        self.seconds, self.says, self.log = seconds, says or {}, []

    def heat(self):
        self.log.append("heat")

    def samples(self, runner: Runner, count: int) -> Samples:
        with runner.scope():
            runner.call()
        self.log.append((runner.call, count))
        seconds = self.says.get(runner.call, self.seconds)
        return Samples([seconds] * count, 1e-5)


class Torch:
    """Attention by torch, on whatever device the tensors are."""

    title, role, kinds, seconds = "torch", "rival", ("prefill", "train", "decode"), 1e-3
    compiles = False
    off = 0.0

    def __init__(self, name, role="rival", off=0.0):
        self.name, self.title, self.role, self.off = name, name, role, off

    def version(self):
        return "1"

    def absent(self):
        return None

    def refuses(self, case):
        return None

    def prepare(self, case, inputs):
        def attend(q, k, v):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=q.shape[1] != k.shape[1])
            return out.transpose(1, 2) + self.off

        if case.kind != "train":
            return Runner(lambda: attend(inputs.q, inputs.k, inputs.v))
        q, k, v = leaves(inputs.q, inputs.k, inputs.v)
        return Runner(lambda: differentiate(attend(q, k, v), q, k, v, inputs.do))


class Absent(Torch):
    def absent(self):
        return f"{self.name} is not installed here"


class Broken(Torch):
    def prepare(self, case, inputs):
        raise RuntimeError("no kernel image")


def measured(peers, cases=(TINY,), clock=None, **options) -> dict:
    """A record of these peers on a CPU, timed by the scripted clock."""
    record = session.skeleton(cases[0].kind, "quick", 7, timing.STANDARD, 0, copy.deepcopy(MACHINE), dict(CEILINGS))
    return session.run_cases(record, cases, peers, clock or Clock(), device="cpu", **options)


@pytest.fixture
def bench():
    """What the tests of this folder share."""
    import types

    return types.SimpleNamespace(
        TINY=TINY, Clock=Clock, Torch=Torch, Absent=Absent, Broken=Broken, measured=measured, CEILINGS=CEILINGS
    )


@pytest.fixture
def record(bench):
    """A whole and honest record: ours, a rival, one absent."""
    return measured([Torch("flashlab", "ours"), Torch("rival"), Absent("gone")])
