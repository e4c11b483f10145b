"""What an H200 did, read from the package's records: the staircase, host against device, and our kernels and their rivals.

The stories at the end of the lesson are numbers of docs/kernels-notes.md and docs/decode-notes.md, of the same GPU.
"""

from functools import cache
from typing import NamedTuple

from flashlab.bench import records
from flashlab.bench.cases import Case
from flashlab.bench.figures import lines

OURS, CUDNN, FA2, FLEX = "flashlab", "torch-cudnn", "torch-flash", "torch-flex"
PEERS = {OURS: "flashlab", CUDNN: "cuDNN", FA2: "FlashAttention-2", FLEX: "FlexAttention"}
ONE_LAUNCH = (16, 8192)  # batch and keys of a decode step that one kernel does

# docs/kernels-notes.md, B4 H16 S4096 D128, causal, TFLOP/s of the forward: each form has all that the one before it has.
THREE_LOOPS, FOUR_HEADS_TOGETHER, TWO_LOOPS, TWO_BLOCKS_AN_SM = 404, 429, 466, 483
# ... and in percent, what was written down before each of the last three ran.
FOUR_HEADS_PREDICTED, TWO_LOOPS_PREDICTED, TWO_BLOCKS_PREDICTED = 5, 4, 0
# ... and milliseconds of dK/dV, causal: predicted for the change from three loops to two, and measured.
DKDV_BEFORE, DKDV_PREDICTED, DKDV_AFTER = 1.47, 1.2, 1.10


@cache
def _record(kind: str) -> dict:
    return records.load(kind)


def when(kind: str) -> str:
    """Where a record comes from: GPU, date, versions, commit."""
    record = _record(kind)
    machine, commit = record["machine"], record["package"]["commit"][:7]
    return f"one {machine['gpu']}, {record['date'][:10]}, torch {machine['torch']}, triton {machine['triton']}, commit {commit}"


def read_bytes_per_s() -> float:
    """Reading and nothing else."""
    return _record("decode")["ceilings"]["read_bytes_per_s"]


def matmul_flop_per_s() -> float:
    """A product of 8192 x 8192 bf16 matrices."""
    return _record("prefill")["ceilings"]["matmul_flop_per_s"]


def clocks_mhz() -> tuple[float, float]:
    """The SMs' clock at rest, and under products of matrices without a pause."""
    machine = _record("prefill")["machine"]
    return machine["at_rest"]["sm_mhz"], machine["under_load"]["sm_mhz"]


def staircase() -> dict[str, dict[int, float]]:
    """"1 an SM" and "2 an SM" -> blocks -> microseconds. A block does a fixed piece of work and holds so much shared memory."""
    (curve,) = [curve for curve in _record("launch")["curves"] if curve["name"] == "staircase"]
    return {
        series["label"].split(": ")[1]: {point["x"]: point["time"]["median_s"] * 1e6 for point in series["points"]}
        for series in curve["series"]
    }


def shared_memory() -> dict[str, int]:
    """The bytes of shared memory a block of each staircase holds."""
    (curve,) = [curve for curve in _record("launch")["curves"] if curve["name"] == "staircase"]
    return {s["label"].split(": ")[1]: int(s["label"].split(" bytes")[0].replace(",", "")) for s in curve["series"]}


class Step(NamedTuple):
    """A decode step of our kernel: on the device, issued call by call, issued as a CUDA graph. Microseconds."""

    case: Case
    device_us: float
    host_us: float
    graph_host_us: float


def decode_steps() -> list[Step]:
    """The ten bf16 shapes."""
    steps = []
    for result in _record("decode")["results"]:
        case = Case(**result["case"])
        times = {e["mode"]: e["time"] for e in result["entries"] if e["peer"] == OURS and e["status"] == "ok"}
        if case.cache == "bf16":
            eager, graph = times["eager"], times["graph"]
            steps.append(Step(case, eager["median_s"] * 1e6, eager["host_s"] * 1e6, graph["host_s"] * 1e6))
    return steps


def issue_s() -> float:
    """Seconds the host took to issue a decode step that is one launch."""
    (step,) = [s for s in decode_steps() if (s.case.batch, s.case.seqlen_k) == ONE_LAUNCH]
    return step.host_us * 1e-6


def longest_step() -> Step:
    """Batch 1, 32 query heads on 8 kv heads, 131072 keys."""
    return next(s for s in decode_steps() if (s.case.batch, s.case.heads_kv, s.case.seqlen_k) == (1, 8, 131072))


def shortest_step() -> Step:
    return min(decode_steps(), key=lambda step: step.device_us)


class Point(NamedTuple):
    """A recorded shape and its seconds by peer."""

    case: Case
    seconds: dict[str, float]

    @property
    def intensity(self) -> float:
        """FLOP per byte, each tensor counted once."""
        c = self.case
        moved = 2 * c.head_dim * c.batch * (2 * c.seqlen_q * c.heads_q + 2 * c.seqlen_k * c.heads_kv)
        return c.flop / moved

    def flops(self, peer: str = OURS) -> float:
        return self.case.flop / self.seconds[peer]


def points(kind: str) -> list[Point]:
    """Every recorded bf16 shape of a kind, prefill or decode."""
    found = []
    for result in _record(kind)["results"]:
        case = Case(**result["case"])
        times = {
            e["peer"]: e["time"]["median_s"]
            for e in result["entries"]
            if e["peer"] in PEERS and e["mode"] == "eager" and e["status"] == "ok"
        }
        if case.cache == "bf16":
            found.append(Point(case, times))
    return found


def prefill(batch: int, seqlen: int, causal: bool = False) -> Point:
    """A recorded prefill of 16 heads of 128."""
    wanted = dict(batch=batch, heads_q=16, seqlen_q=seqlen, head_dim=128, causal=causal)
    (point,) = [p for p in points("prefill") if all(getattr(p.case, name) == value for name, value in wanted.items())]
    return point


def losses(kind: str) -> dict[str, tuple[str, float]]:
    """Shapes of a kind where a rival is faster, called one by one: shape -> (who is fastest, our share of its speed)."""
    record, found = _record(kind), {}
    for ours in lines(record):
        if ours.peer == OURS and ours.mode == "eager" and (ours.to_best_rival or 1.0) < 1.0:
            rivals = [x for x in lines(record) if x.case == ours.case and x.mode == "eager" and x.role == "rival" and x.rate]
            found[ours.case.label] = max(rivals, key=lambda rival: rival.rate).title, ours.to_best_rival
    return found


def fp8_gain() -> dict[str, float]:
    """Decode steps over a cache in fp8: shape -> how many times as fast as over the same cache in bf16."""
    found = {}
    for result in _record("decode")["results"]:
        times = {e["peer"]: e["time"]["median_s"] for e in result["entries"] if e["mode"] == "eager" and e["status"] == "ok"}
        if result["case"]["cache"] == "fp8":
            found[Case(**result["case"]).label] = times["flashlab-bf16"] / times[OURS]
    return found
