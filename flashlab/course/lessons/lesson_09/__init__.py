"""Lesson 09: a decode step cut over the whole GPU, merged again, and how many cuts are enough."""

import math

from flashlab import kernels  # noqa: F401  before Triton, which is asked once where it runs
from flashlab.course.lessons.lesson_09 import (
    combine_partials,
    combine_splits,
    efficient_splits,
    end_to_end,
    recorded,
    split_decode,
    split_partials,
    split_range,
)
from flashlab.course.lessons.lesson_09.problems import even_splits
from flashlab.course.spec import Lesson, Prediction, Question
from flashlab.hardware import decode_time, gpu, measured, num_splits, waves
from flashlab.reference import traffic

HEADS_Q, HEADS_KV, HEAD_DIM = 32, 8, 128  # the shape of this lesson: one sequence, bf16
SEQLEN, SHORT = 131072, 2048
SPLITS = 33  # what the package takes for it on an H200
TILE = 32  # keys in a tile of the package's kernel there

__all__ = ["LESSON", "even_splits"]


def two_wave_percent(splits: int = 17) -> float:
    """Percent of the places of all started waves that hold a program, one program an SM."""
    return 100 * waves(blocks=HEADS_KV * splits, sms=recorded.SMS).efficiency


def step_bytes(seqlen: int, splits: int) -> traffic.Traffic:
    """Bytes of one kv head's decode step: its query heads are the rows of one tile."""
    group = HEADS_Q // HEADS_KV
    return traffic.split_kv(group, seqlen, HEAD_DIM, block_m=group, block_n=TILE, num_splits=splits)


def partials_percent(seqlen: int = SHORT, splits: int = SPLITS) -> float:
    """Partial results, written and read, in percent of K and V."""
    moved = step_bytes(seqlen, splits)
    partials = sum(side[kind] for side in (moved.reads, moved.writes) for kind in ("o_partial", "lse_partial"))
    return 100 * partials / (moved.reads["k"] + moved.reads["v"])


def predicted_us(splits: int, blocks_per_sm: int = 2) -> float:
    """flashlab.hardware's model of the step, fitted to tiles of 64 keys."""
    return decode_time(recorded.GPU, num_splits=splits, blocks_per_sm=blocks_per_sm, **measured.SPLIT_SHAPE).time_s * 1e6


def floor_us() -> float:
    """K and V of the step at the fastest read of the same GPU."""
    return 4 * SEQLEN * HEADS_KV * HEAD_DIM / recorded.read_bytes_per_s() * 1e6


def speedup(heads_kv: int) -> float:
    """Recorded: the package's kernel in one split over the same kernel split, 32 query heads, 131072 keys."""
    one, many = (recorded.decode(peer, heads_kv=heads_kv) for peer in ("flashlab-unsplit", "flashlab"))
    return one / many


def _waves(said, actual):
    return (
        f"17 x {HEADS_KV} = {17 * HEADS_KV} programs. {recorded.SMS} of them run in the first wave, 4 are left for a second "
        f"one of {recorded.SMS} places: {17 * HEADS_KV} of {2 * recorded.SMS}. With 16 splits it was one wave, 128 of 132."
    )


def _partials(said, actual):
    group = HEADS_Q // HEADS_KV
    partials, cache = 2 * SPLITS * group * (HEAD_DIM + 1) * 4, 4 * SHORT * HEAD_DIM
    return (
        f"A partial is {HEAD_DIM} + 1 float32 numbers for each of the {group} query heads, {group * (HEAD_DIM + 1) * 4} B. "
        f"{SPLITS} of them, written and read: {partials / 1e3:.0f} KB. K and V of {SHORT} keys: {cache / 1e3:.0f} KB. At "
        f"{SEQLEN} keys it is {partials_percent(SEQLEN):.1f}%: partials do not grow with the context."
    )


def _eight(said, actual):
    one = recorded.sweep()[1]
    return (
        f"8 splits are 64 programs, still fewer than {recorded.SMS} SMs, so each has an SM to itself and the time is about "
        f"an eighth: {one:.0f} / 8 = {one / 8:.0f} us. The rest is what more programs do not shrink: the start, and the second "
        f"launch that merges."
    )


def _best(said, actual):
    return (
        f"K and V are {4 * SEQLEN * HEADS_KV * HEAD_DIM / 1e6:.0f} MB. The fastest read in a run of the same day was "
        f"{recorded.read_bytes_per_s() / 1e9:.0f} GB/s: {floor_us():.0f} us. No number of splits gets below that. "
        f"({recorded.when('launch')}.)"
    )


def _fa3(said, actual):
    full = {n: waves(blocks=HEADS_KV * n, sms=recorded.SMS).efficiency for n in range(1, 129)}
    best = max(full, key=full.get)
    return (
        f"{actual:.0f} splits are {HEADS_KV * actual:.0f} of {recorded.SMS} places, {full[int(actual)]:.1%}. The "
        f"best there is: {best} splits, {best * HEADS_KV} programs, {full[best]:.0%}. So 85% is enough, and 14 "
        f"splits miss it by a hair: {full[14]:.1%}."
    )


def _speedup(said, actual):
    one, many = (recorded.decode(peer, heads_kv=1) for peer in ("flashlab-unsplit", "flashlab"))
    floor = 4 * SEQLEN * HEAD_DIM / recorded.read_bytes_per_s() * 1e6
    return (
        f"One kv head is one program: {one:.0f} us. Split, {many:.1f} us. Reading its {4 * SEQLEN * HEAD_DIM / 1e6:.0f} MB "
        f"takes {floor:.0f} us, so {one / floor:.0f} times would be the limit. In so short a step the start and the merge "
        f"count for as much as the reading. ({recorded.when()}.)"
    )


def _token(said, actual):
    us, model, rate = recorded.PUBLISHED[1, 65536], end_to_end.CODELLAMA_34B, gpu("A100-SXM-80GB").hbm_bytes_per_s
    layers, rest = model["num_hidden_layers"], end_to_end.weights_us(model, rate, gpus=4)
    return (
        f"Attention: {layers} x {us['flash2'] / 1e3:.2f} ms = {layers * us['flash2'] / 1e3:.0f} ms before, {layers} x "
        f"{us['split'] / 1e3:.3f} ms = {layers * us['split'] / 1e3:.1f} ms after. The weights, a quarter of "
        f"{4 * rest * rate / 1e15:.0f} GB at {rate / 1e9:.0f} GB/s, stay: {rest / 1e3:.1f} ms. The post measured up to 8; here "
        "nothing but weights and attention takes time."
    )


LESSON = Lesson(
    number="09",
    name="09_split_kv_decoding",
    title="Split-KV decoding",
    exercises=(
        split_range.EXERCISE,
        split_partials.EXERCISE,
        combine_partials.EXERCISE,
        split_decode.EXERCISE,
        combine_splits.EXERCISE,
        efficient_splits.EXERCISE,
    ),
    predictions=(
        Prediction(
            id="09.partials",
            question=(
                f"One sequence, {HEADS_Q} query heads on {HEADS_KV} kv heads, head_dim {HEAD_DIM}, bf16; {SPLITS} splits. "
                f"With only {SHORT} keys in the cache: how many percent of the bytes of K and V are the partial results, "
                "float32, written and read together?"
            ),
            unit="percent",
            answer=partials_percent,
            explain=_partials,
        ),
        Prediction(
            id="09.waves",
            question=(
                f"{HEADS_KV} kv heads, 17 splits, {recorded.SMS} SMs that hold one program each. Of all the places in the "
                "waves that this takes, how many percent hold a program?"
            ),
            unit="percent",
            answer=two_wave_percent,
            explain=_waves,
        ),
        Prediction(
            id="09.fa3",
            question=(
                f"FlashAttention-3's rule for {HEADS_KV} rows on {recorded.SMS} SMs and 1024 tiles of keys: how many splits?"
            ),
            unit="splits",
            answer=lambda: num_splits(blocks=HEADS_KV, sms=recorded.SMS, key_blocks=1024),
            explain=_fa3,
            source="Computed",
        ),
        Prediction(
            id="09.eight",
            question=(
                f"The package's kernel on an H200: one sequence, {HEADS_KV} kv heads, {SEQLEN} keys. In one split it takes "
                f"{recorded.sweep()[1]:.0f} us. How many us in 8 splits?"
            ),
            unit="us",
            answer=lambda: recorded.sweep()[8],
            explain=_eight,
            source="Recorded",
        ),
        Prediction(
            id="09.best",
            question="The same kernel: how many us does it take with the best number of splits?",
            unit="us",
            answer=lambda: min(recorded.sweep().values()),
            explain=_best,
            source="Recorded",
        ),
        Prediction(
            id="09.token",
            question=(
                f"CodeLlama-34B, fp16, over four A100-80GB, one sequence of 65536 tokens, "
                f"{end_to_end.CODELLAMA_34B['num_hidden_layers']} layers. Attention of a layer takes "
                f"{recorded.PUBLISHED[1, 65536]['flash2']:.0f} us before the split and "
                f"{recorded.PUBLISHED[1, 65536]['split']:.0f} us after, on each GPU. A token also reads all weights, at 2 TB/s. "
                "How many times faster does a token get?"
            ),
            unit="times",
            answer=end_to_end.published_token_factor,
            explain=_token,
            source="Computed",
        ),
        Prediction(
            id="09.one_head",
            question=(
                f"With {HEADS_KV} kv heads the split made the package's kernel {speedup(HEADS_KV):.1f} times faster. How many "
                f"times with one kv head, again {HEADS_Q} query heads and {SEQLEN} keys?"
            ),
            unit="times",
            answer=lambda: speedup(1),
            explain=_speedup,
            source="Recorded",
        ),
    ),
    questions=(
        Question(
            id="09.q1",
            text=(
                "Some keys are attended to by A, with lse 2, the others by B, with lse 2 + ln 3. They are merged. Which "
                "share of the merged out comes from B? (0 to 1)"
            ),
            answer=1 / (1 + math.exp(-math.log(3))),
            where="lesson 02, 'Two walks become one'",
        ),
        Question(
            id="09.q2",
            text=(
                "A decode step of one sequence, not split: 32 query heads on 8 kv heads, the heads of a group packed into "
                "one tile. How many programs does it launch?"
            ),
            answer=HEADS_KV,
            where="lesson 08, 'One query'",
        ),
    ),
)
