"""Lesson 07: a benchmark that does not lie, occupancy by hand and its cliffs, and the roof over each kernel."""

from flashlab import kernels  # noqa: F401  before triton: it decides where kernels run

# isort: split
import statistics

from flashlab.course.lessons.lesson_07 import benchmark, blocks_per_sm, bytes_to_give_up, place, recorded, spread
from flashlab.course.lessons.lesson_07.model_gpu import COMPILE_S, Kernel, ModelGPU
from flashlab.course.spec import Lesson, Prediction, Question
from flashlab.hardware import gpu, occupancy, waves

H200 = gpu("h200")
OLD = Kernel("old", 80e6)  # reads a cache in bf16: more than the L2 holds
NEW = Kernel("new", 40e6)  # the same cache in fp8: it fits into the L2
SAMPLES = (16.0,) * 9 + (96.0,)  # microseconds: ten runs, one of them disturbed


def one_byte() -> int:
    """Shared memory of the recorded staircase with one block an SM: a byte more than half an SM."""
    return recorded.shared_memory()["1 an SM"]


def fit(shared_memory: int):
    """The staircase's block: 128 threads and few registers, and so much shared memory."""
    return occupancy(cc=H200.cc, threads=128, registers=32, shared_memory=shared_memory)


def step_up() -> float:
    """Recorded time of 133 blocks over that of 132, one block an SM."""
    stairs = recorded.staircase()["1 an SM"]
    return stairs[H200.sms + 1] / stairs[H200.sms]


def share_of_matmul(batch: int = 2, seqlen: int = 8192) -> float:
    """Percent of the recorded matrix product that our prefill reaches."""
    return 100 * recorded.prefill(batch, seqlen).flops() / recorded.matmul_flop_per_s()


def share_of_roof() -> float:
    """Percent of what reading at the recorded ceiling allows that our decode step over 131072 keys reaches."""
    step = recorded.longest_step()
    return 100 * step.case.bytes / (step.device_us * 1e-6) / recorded.read_bytes_per_s()


def _unsynchronised(said, actual):
    step = recorded.longest_step()
    return (
        f"The host needs {actual:.0f} us to issue two launches, and then your clock stops. The GPU works for "
        f"{step.device_us:.0f} us, most of it after that. With 8192 keys the same clock says "
        f"{recorded.shortest_step().host_us:.0f} us, and the GPU needs {recorded.shortest_step().device_us:.0f}."
    )


def _mean(said, actual):
    return (
        f"(9 x {SAMPLES[0]:.0f} + {SAMPLES[-1]:.0f}) / 10. The median is {statistics.median(SAMPLES):.0f}: half of the "
        "runs are at most that, whatever the wild one does."
    )


def _wave(said, actual):
    return (
        f"{H200.sms} blocks run side by side. The 133rd waits for a free SM, and then everybody waits for it: "
        f"{waves(blocks=133, sms=H200.sms).rounds} rounds instead of 1."
    )


def _byte(said, actual):
    fewer, more = fit(one_byte() - 1).blocks_per_sm, fit(one_byte()).blocks_per_sm
    return (
        f"A block takes what it asks for, and 1024 bytes more, rounded up to 128. {one_byte() - 1:,} + 1024 is 116,736, "
        f"half of 233,472: {fewer} blocks. One byte more is rounded up to 116,864: {more}."
    )


def _prefill(said, actual):
    return (
        f"{recorded.prefill(2, 8192).flops() / 1e12:.0f} of {recorded.matmul_flop_per_s() / 1e12:.0f} TFLOP/s. Softmax and the "
        "products of one block do not overlap, because Triton's compiler waits for each product. cuDNN overlaps them, and "
        f"reaches {recorded.prefill(2, 8192).flops(recorded.CUDNN) / 1e12:.0f}."
    )


LESSON = Lesson(
    number="07",
    name="07_measure",
    title="Measure",
    exercises=(
        spread.EXERCISE,
        benchmark.EXERCISE,
        blocks_per_sm.EXERCISE,
        bytes_to_give_up.EXERCISE,
        place.EXERCISE,
    ),
    predictions=(
        Prediction(
            id="07.unsynchronised",
            question=(
                "A decode step over 131072 keys keeps an H200 busy for 126 us. It is two launches. You read the host's clock "
                "before and after the call, and do not wait for the GPU. How many us does your clock say?"
            ),
            unit="us",
            answer=lambda: recorded.longest_step().host_us,
            explain=_unsynchronised,
            source="Recorded",
        ),
        Prediction(
            id="07.mean",
            question="Ten runs of a kernel: nine take 16 us, one is disturbed and takes 96 us. What is the mean?",
            unit="us",
            answer=lambda: statistics.mean(SAMPLES),
            explain=_mean,
            source="Computed",
        ),
        Prediction(
            id="07.wave",
            question=(
                "Each block does the same fixed piece of work, and an SM holds one of them. 132 blocks take 453 us on an H200 "
                "(132 SMs). How many times as long do 133 blocks take?"
            ),
            unit="times",
            answer=step_up,
            explain=_wave,
            source="Recorded",
        ),
        Prediction(
            id="07.byte",
            question=(
                "An SM of an H200 holds two blocks that ask for 115,712 bytes of shared memory each. Now they ask for one byte "
                "more. How many blocks does it hold?"
            ),
            unit="blocks",
            answer=lambda: fit(one_byte()).blocks_per_sm,
            explain=_byte,
            source="Computed",
        ),
        Prediction(
            id="07.prefill",
            question=(
                "Batch 2, 16 heads, 8192 tokens, head_dim 128, forward, no mask: 4096 FLOP per byte, so no byte is in the way. "
                f"A large matrix product reaches {recorded.matmul_flop_per_s() / 1e12:.0f} TFLOP/s on that GPU. How many percent "
                "of that does this package's kernel reach?"
            ),
            unit="percent",
            answer=share_of_matmul,
            explain=_prefill,
            source="Recorded",
        ),
    ),
    questions=(
        Question(
            id="07.q1",
            text=(
                "Which of these can the interpreter of lesson 04 tell you about your kernel?"
            ),
            choices={
                "a": "how many bytes it loads",
                "b": "whether two of its programs race",
                "c": "how fast it is",
                "d": "whether it spills registers",
            },
            answer="a",
            feedback={
                "b": "In which order does the interpreter run programs?",
                "c": "What does the interpreter run on?",
                "d": "Registers are dealt out by a compiler. Does the interpreter compile?",
            },
            where="lesson 04, on what the interpreter does not show",
        ),
        Question(
            id="07.q2",
            text=(
                "A step does 4 FLOP for each byte it reads, on an H200 (4.8 TB/s, 989 TFLOP/s). How many TFLOP/s can it reach at "
                "most?"
            ),
            answer=min(H200.dense_16bit_flops, 4 * H200.hbm_bytes_per_s) / 1e12,
            where="lesson 00, the roofline",
        ),
    ),
)

__all__ = [
    "COMPILE_S", "H200", "LESSON", "NEW", "OLD", "SAMPLES", "Kernel", "ModelGPU", "fit", "one_byte", "share_of_matmul",
    "share_of_roof", "step_up",
]  # fmt: skip
