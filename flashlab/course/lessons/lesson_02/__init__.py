"""Lesson 02: softmax in one walk over the row, attention in one walk over the keys, and the merge of two walks."""

import math

from flashlab.course.lessons.data import normal
from flashlab.course.lessons.lesson_02 import (
    lse_from_base_two,
    merge_many,
    merge_two,
    online_attention,
    online_softmax,
    passes,
    running_max_and_sum,
)
from flashlab.course.spec import Lesson, Prediction, Question
from flashlab.hardware import decode_time, measured
from flashlab.reference import traffic

ROWS, COLUMNS = 8192, 32768  # 2^28 numbers: 1.07 GB in float32
SPLITS = 16


def softmax_gb(softmax) -> float:
    """GB moved for ROWS x COLUMNS float32, counted on four of the rows."""
    _, hbm = softmax(normal(0, 4, COLUMNS), block=4096)
    return hbm.traffic().total * (ROWS / 4) / 1e9


def saved_percent() -> float:
    return 100 * (1 - softmax_gb(passes.two_passes) / softmax_gb(passes.three_passes))


def growths(n: int, rows: int = 4096) -> float:
    """How often the running maximum of n random numbers grows, the first element not counted; mean of many rows."""
    running = normal(n, rows, n).cummax(dim=1).values
    return float((running[:, 1:] > running[:, :-1]).sum()) / rows


def partials_kb() -> float:
    """KB of partial results, written and read, for one query head against 131,072 keys in SPLITS splits."""
    moved = traffic.split_kv(1, 131072, 128, block_m=1, block_n=64, num_splits=SPLITS)
    return sum(side[kind] for side in (moved.reads, moved.writes) for kind in ("o_partial", "lse_partial")) / 1e3


def recorded_us(splits: int) -> float:
    return dict(measured.SPLIT_CURVE)[splits] * 1e6


def predicted_us(splits: int) -> float:
    return decode_time(measured.GPU, num_splits=splits, blocks_per_sm=2, **measured.SPLIT_SHAPE).time_s * 1e6


def _three(said, actual):
    once = ROWS * COLUMNS * 4 / 1e9
    return (
        f"{ROWS} x {COLUMNS} numbers of 4 bytes are {once:.2f} GB. They are read for the maximum, read for the sum, "
        f"read for the division, and written once: 4 x {once:.2f}."
    )


def _saved(said, actual):
    return (
        "Of three readings one goes away, but the answer must still be written: 4 movements become 3. The second "
        "reading stays, because no probability can be written before l is known."
    )


def _growths(said, actual):
    harmonic = sum(1 / j for j in range(2, 1025))
    return (
        "Number j is the largest so far with chance 1/j, so the count is 1/2 + 1/3 + ... + 1/1024, which is about ln "
        f"1024 - 0.42 = {math.log(1024) - 0.42:.1f} (exactly {harmonic:.2f}). Rescales that really change something "
        "are rare."
    )


def _partials(said, actual):
    cache = 2 * 131072 * 128 * 2
    return (
        f"A partial is 128 numbers of out and one lse, 4 bytes each: 516 B. {SPLITS} of them, written and read, are "
        f"{actual:.1f} KB. The K and V they summarise are {cache / 1e6:.1f} MB: {cache / (actual * 1e3):.0f} times "
        "more. Cutting the keys costs next to nothing."
    )


def _splits(said, actual):
    shape = measured.SPLIT_SHAPE
    cache = 4 * shape["seqlen_k"] * shape["heads_kv"] * shape["head_dim"]
    return (
        f"One split is 8 blocks on 132 SMs and takes {recorded_us(1):.0f} us; {SPLITS} splits are 128 blocks. It is "
        f"not 16 times faster, because memory takes over: {cache / 1e6:.0f} MB at "
        f"{measured.READ_BYTES_PER_S / 1e9:.0f} GB/s are {cache / measured.READ_BYTES_PER_S * 1e6:.0f} us. "
        f"({measured.GPU}, {measured.DATE}, torch 2.11.0, triton 3.6.0; our model says {predicted_us(SPLITS):.0f} us.)"
    )


LESSON = Lesson(
    number="02",
    name="02_online_softmax",
    title="Online softmax",
    exercises=(
        running_max_and_sum.EXERCISE,
        online_softmax.EXERCISE,
        online_attention.EXERCISE,
        lse_from_base_two.EXERCISE,
        merge_two.EXERCISE,
        merge_many.EXERCISE,
    ),
    predictions=(
        Prediction(
            id="02.three_passes",
            question=(
                f"Softmax of {ROWS} rows of {COLUMNS} float32 numbers, too long to stay on the chip, in three passes: "
                "maximum, sum, divide. How many GB move between HBM and the SMs, reads and writes together?"
            ),
            unit="GB",
            answer=lambda: softmax_gb(passes.three_passes),
            explain=_three,
        ),
        Prediction(
            id="02.saved",
            question=(
                "The same softmax, with maximum and sum found in one pass. By how many percent do the bytes that move "
                "fall?"
            ),
            unit="percent",
            answer=saved_percent,
            explain=_saved,
        ),
        Prediction(
            id="02.growths",
            question=(
                "1024 independent random scores arrive one after the other. How many times, on average, does the "
                "running maximum grow after the first one?"
            ),
            unit="times",
            answer=lambda: growths(1024),
            explain=_growths,
        ),
        Prediction(
            id="02.partials",
            question=(
                f"One query head, head_dim 128, 131072 keys. The keys are cut into {SPLITS} splits; each writes out "
                "(128 numbers) and lse (1 number) in float32, and a second kernel reads them all. How many KB is "
                "that, written and read together?"
            ),
            unit="KB",
            answer=partials_kb,
            explain=_partials,
        ),
        Prediction(
            id="02.splits",
            question=(
                "A decode step on an H200 (132 SMs, 4.8 TB/s): batch 1, 32 query heads on 8 KV heads, 131072 keys, "
                f"head_dim 128, bf16. As one walk per KV head it takes {recorded_us(1):.0f} us. How many us does it take "
                f"as {SPLITS} walks per KV head, merged at the end?"
            ),
            unit="us",
            answer=lambda: recorded_us(SPLITS),
            explain=_splits,
            source="Recorded",
        ),
    ),
    questions=(
        Question(
            id="02.q1",
            text=(
                "Naive attention writes the score matrix S to HBM. One head, 8192 queries, 8192 keys, bf16: how many "
                "MB (1 MB = 10^6 bytes) is S?"
            ),
            answer=8192 * 8192 * 2 / 1e6,
            where="lesson 01, 'The bill'",
        ),
        Question(
            id="02.q2",
            text=(
                "A softmax does about 5 FLOP for each bf16 score that it reads and each probability that it writes. "
                "An H200 does 989 TFLOP/s and moves 4.8 TB/s. What limits the softmax?"
            ),
            choices={
                "a": "the arithmetic: exp is expensive",
                "b": "the bandwidth of HBM",
                "c": "the number of SMs",
                "d": "nothing: both are used fully",
            },
            answer="b",
            feedback={
                "a": "How many FLOP does it do per byte, and how many could the GPU do per byte?",
                "c": "There are thousands of rows, so every SM has work. What do the SMs wait for?",
                "d": "Both are used fully only at the roofline's ridge, near 200 FLOP per byte. Where is 5 per 4?",
            },
            where="lesson 00, 'The roofline'",
        ),
    ),
)
