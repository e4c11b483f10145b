"""Lesson 01: attention as the formula says it, and what that costs in bytes."""

import math

import torch

from flashlab.course.lessons.lesson_01 import (
    attention,
    causal_mask,
    grouped_attention,
    logsumexp,
    masked_attention,
    naive_bytes,
)
from flashlab.course.lessons.lesson_01.recorded import DECODE
from flashlab.course.spec import Lesson, Prediction, Question
from flashlab.hardware import gpu

H200 = gpu("h200")
LLAMA = dict(head_dim=128, heads_q=32, heads_kv=8, element_bytes=2)  # a layer of Llama-3-8B in bf16
PROMPT, CONTEXT = 8192, 131072  # tokens


def largest_exponent() -> float:
    return math.log(torch.finfo(torch.float16).max)


def prefill_gb() -> float:
    return naive_bytes.solution(PROMPT, PROMPT, **LLAMA) / 1e9


def scores_gib() -> float:
    return LLAMA["heads_q"] * CONTEXT**2 * LLAMA["element_bytes"] / 2**30


def decode_share() -> float:
    """Percent of a naive decode step's traffic that S and P cause."""
    return 100 * (1 - naive_bytes.inputs_and_output_only(1, CONTEXT, **LLAMA) / naive_bytes.solution(1, CONTEXT, **LLAMA))


def decode_us() -> float:
    return cache_bytes() / H200.hbm_bytes_per_s * 1e6


def cache_bytes() -> int:
    """K and V of one layer."""
    return 2 * LLAMA["heads_kv"] * CONTEXT * LLAMA["head_dim"] * LLAMA["element_bytes"]


def _exponent(said, actual):
    return (
        f"float16 ends at 65504, and log(65504) = {actual:.2f}: exp(11) is 59874, exp(12) is inf. bfloat16 and float32 last to "
        "88.7, float64 to 709.8. An unscaled score of a 128-wide head is easily larger than the first of these."
    )


def _prefill(said, actual):
    narrow = naive_bytes.inputs_and_output_only(PROMPT, PROMPT, **LLAMA) / 1e9
    return (
        f"S and P, each written and read: 4 x 32 heads x 8192^2 x 2 bytes = {actual - narrow:.1f} GB. q, k, v and o together "
        f"are {narrow:.2f} GB, {(actual - narrow) / narrow:.0f} times less."
    )


def _scores(said, actual):
    holds = H200.memory_bytes / 2**30
    return (
        f"32 heads x 131072^2 x 2 bytes = 2^40: a tebibyte for the S of one layer, and P is as large. An H200 has {holds:.0f} "
        f"GiB. Twice the tokens would be four times that."
    )


def _share(said, actual):
    return (
        f"A score is 2 bytes, moved 4 times for S and P: 8 bytes a key and query head, 256 bytes a key. Its key and value "
        f"are 2 x 8 heads x 128 x 2 = 4096 bytes. So reading K and V is {100 - actual:.0f}% of the traffic."
    )


def _decode(said, actual):
    recorded = DECODE[(1, 32, 8, 1, CONTEXT, 128)]
    naive = recorded["scores"] + recorded["softmax"] + recorded["output"]
    return (
        f"K and V are 2 x 8 heads x 131072 x 128 x 2 bytes = {cache_bytes() / 1e6:.0f} MB, over 4.8 TB/s. Recorded on an H200: "
        f"{naive:.0f} us for three separate steps, {recorded['fused']:.0f} us for PyTorch's fused kernel."
    )


LESSON = Lesson(
    number="01",
    name="01_naive_attention",
    title="Naive attention",
    exercises=(
        attention.EXERCISE,
        logsumexp.EXERCISE,
        causal_mask.EXERCISE,
        grouped_attention.EXERCISE,
        masked_attention.EXERCISE,
        naive_bytes.EXERCISE,
    ),
    predictions=(
        Prediction(
            id="01.fp16_limit",
            question="What is the largest score whose exp is still finite in float16?",
            unit="score",
            answer=largest_exponent,
            explain=_exponent,
            source="Computed",
        ),
        Prediction(
            id="01.prefill_traffic",
            question=(
                "One layer of Llama-3-8B: 32 query heads, 8 KV heads, head_dim 128, bf16. A prompt of 8192 tokens. How many GB "
                "do the three steps of naive attention move to and from HBM?"
            ),
            unit="GB",
            answer=prefill_gb,
            explain=_prefill,
        ),
        Prediction(
            id="01.scores_size",
            question="The same layer, a prompt of 131,072 tokens. How many GiB does the score matrix S take, all 32 heads?",
            unit="GiB",
            answer=scores_gib,
            explain=_scores,
            source="Computed",
        ),
        Prediction(
            id="01.decode_share",
            question=(
                "The same layer makes one new token after 131,072: one query. Of all the bytes that naive attention moves in "
                "this step, which percentage is S and P?"
            ),
            unit="percent",
            answer=decode_share,
            explain=_share,
        ),
        Prediction(
            id="01.decode_time",
            question="That same decode step: how long does an H200 (4.8 TB/s) need at least, for K and V alone?",
            unit="us",
            answer=decode_us,
            explain=_decode,
            source="Computed",
        ),
    ),
    questions=(
        Question(
            id="01.q1",
            text="A kernel does 40 FLOP for each byte it moves. An H200's ridge is at 206 FLOP per byte. What can it reach at most?",
            choices={
                "a": "the full 989 TFLOP/s: it has 132 SMs to do it with",
                "b": "about 19% of the peak: memory is the limit",
                "c": "40% of the peak: that is its intensity",
                "d": "nothing can be said without knowing the latency",
            },
            answer="b",
            feedback={
                "a": "The SMs compute on data, and the data does not arrive that fast. Which of the two rates is smaller?",
                "c": "40 is in FLOP per byte, not in percent. What is it to be compared with?",
                "d": "Latency tells how many loads must be under way. The roofline supposes that enough of them are.",
            },
            where="lesson 00, The roofline",
        ),
        Question(
            id="01.q2",
            text="How many microseconds does it take at least to read 512 MiB from an H200's memory (4.8 TB/s)?",
            answer=512 * 2**20 / 4.8e12 * 1e6,
            where="lesson 00, Time is bytes over bandwidth (mind MiB and TB: 2^20 and 10^12)",
        ),
    ),
)
