"""Lesson 00: what a GPU is in numbers, the roofline, and how this course works."""

from flashlab.course.lessons.lesson_00 import attainable, matmul_intensity, rows_to_fill, tensor_bytes
from flashlab.course.lessons.lesson_00.recorded import LATENCY_NS
from flashlab.course.spec import Lesson, Prediction, Question
from flashlab.hardware import gpu, measured

H200 = gpu("h200")
LLAMA_3_8B = 8_030_261_248  # parameters; the config is meta-llama/Meta-Llama-3-8B's
BLOCK_BYTES = 256 * 16  # supposed under way: a block of 256 threads, one 16-byte load each; not measured


def resident_threads() -> float:
    return H200.sms * H200.threads_per_sm


def weights_ms() -> float:
    return LLAMA_3_8B * 2 / H200.hbm_bytes_per_s * 1e3


def read_gb_per_s(blocks: int) -> float:
    """Recorded: what a streaming read by so many blocks of 256 threads reached."""
    return dict(measured.UNDERFILL)[blocks] / 1e9


def read_gb_per_s_by_latency(blocks: int) -> float:
    """Little's law: the bytes supposed under way over the time each load takes, and no more than the datasheet's rate."""
    latency = LATENCY_NS[-1][2] * 1e-9
    return min(blocks * BLOCK_BYTES / latency, H200.hbm_bytes_per_s) / 1e9


def matvec_percent() -> float:
    n = 4096
    return 100 * min(1.0, matmul_intensity.solution(1, n, n, 2) / H200.ridge)


def _threads(said, actual):
    return (
        f"{H200.sms} SMs hold {H200.threads_per_sm} threads each, as {H200.threads_per_sm // 32} warps of 32. They are all "
        "there at once, registers and all; that is how the wait for memory is hidden."
    )


def _weights(said, actual):
    compute = 2 * LLAMA_3_8B / H200.dense_16bit_flops * 1e6
    return (
        f"2 bytes x {LLAMA_3_8B / 1e9:.2f} billion = {LLAMA_3_8B * 2 / 1e9:.1f} GB, over {H200.hbm_bytes_per_s / 1e9:.0f} GB/s. "
        f"So one user gets at most {1e3 / actual:.0f} tokens a second. The arithmetic, two FLOP a parameter, would take "
        f"{compute:.0f} us: {actual * 1e3 / compute:.0f} times less."
    )


def _blocks(said, actual):
    sms = 132
    return (
        f"{sms} blocks read at best {sms}x what one does ({sms * read_gb_per_s(1):.0f} GB/s). Now every SM has a block, and "
        f"still it is {100 * actual * 1e9 / H200.hbm_bytes_per_s:.0f}% of the datasheet's 4800: bandwidth comes from bytes "
        f"that are under way, and {sms} such blocks do not have enough of them."
    )


def _matvec(said, actual):
    return (
        f"Each bf16 weight is 2 bytes and feeds 2 FLOP: intensity 1. The H200 needs {H200.ridge:.0f} FLOP per byte to be busy, "
        f"and 1/{H200.ridge:.0f} is {actual:.2f}%. No kernel, however good, can change that."
    )


LESSON = Lesson(
    number="00",
    name="00_start_here",
    title="Start here",
    exercises=(tensor_bytes.EXERCISE, matmul_intensity.EXERCISE, attainable.EXERCISE, rows_to_fill.EXERCISE),
    predictions=(
        Prediction(
            id="00.threads",
            question="How many threads can be resident on one H200 at the same moment?",
            unit="threads",
            answer=resident_threads,
            explain=_threads,
        ),
        Prediction(
            id="00.weights",
            question=(
                "Llama-3-8B has 8.03 billion parameters, in bf16. To make one token, every one of them is read from HBM. How "
                "long does that take on an H200 (4.8 TB/s), at least?"
            ),
            unit="ms",
            answer=weights_ms,
            explain=_weights,
            source="Computed",
        ),
        Prediction(
            id="00.one_block_per_sm",
            question=(
                "One block of 256 threads, alone on an H200, reads 10.5 GB/s from HBM. The GPU has 132 SMs and its datasheet "
                "says 4800 GB/s. How many GB/s do 132 such blocks read, one on every SM?"
            ),
            unit="GB_per_s",
            answer=lambda: read_gb_per_s(132),
            explain=_blocks,
            source="Recorded",
        ),
        Prediction(
            id="00.matvec",
            question=(
                "A 4096 x 4096 weight matrix in bf16 times a single vector, on an H200 (989 TFLOP/s, 4.8 TB/s). Which "
                "percentage of its peak arithmetic can it reach, at most?"
            ),
            unit="percent",
            answer=matvec_percent,
            explain=_matvec,
            source="Computed",
        ),
    ),
    questions=(
        Question(
            id="00.q1",
            text="q has shape (2, 8, 16, 64) and k has shape (2, 8, 1024, 64). What is the shape of q @ k.transpose(-2, -1)?",
            choices={
                "a": "(2, 8, 16, 1024)",
                "b": "(2, 8, 64, 64)",
                "c": "(2, 8, 1024, 16)",
                "d": "an error: 16 is not 1024",
            },
            answer="a",
            feedback={
                "b": "That would sum over the 16 and the 1024, which differ. The inner dimensions are the ones that meet.",
                "c": "Rows come from the left factor, q: how many does it have?",
                "d": "Only the inner dimensions have to agree: the last of q and, after the transpose, the last but one of k.",
            },
            where="any introduction to torch.matmul; nothing else is assumed of you beyond the chain rule",
        ),
        Question(
            id="00.q2",
            text="How many MiB (1 MiB = 1,048,576 bytes) does a bfloat16 tensor of shape (4096, 4096) take?",
            answer=32.0,
            tolerance=0.001,
            where="the section 'Bytes' below, and come back",
        ),
    ),
)
