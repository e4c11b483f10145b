"""Lesson 08: how few blocks a decode step has, what that costs, what a batch buys, and what memory forbids."""

from flashlab import kernels  # noqa: F401  before triton: it decides where kernels run

# isort: split
import math

from flashlab.course.lessons.lesson_08 import (
    decode_blocks,
    decode_us,
    largest_batch,
    packed_decode,
    recorded,
    sms_at_work,
    step_intensity,
)
from flashlab.course.spec import Lesson, Prediction, Question
from flashlab.hardware import decode_grid, gpu, measured, underuse
from flashlab.sizing import CacheSpec, plan

# meta-llama/Llama-3.1-8B's config.json, as far as sizes go.
LLAMA = dict(
    model_type="llama",
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
    max_position_embeddings=131072,
    tie_word_embeddings=False,
    torch_dtype="bfloat16",
)
HEADS_Q, HEADS_KV, HEAD_DIM, LAYERS = 32, 8, 128, 32
LONG = 131072
ON_EVERY_SM = 132  # blocks of lesson 00's curve, one for each SM of an H200
H200, A100 = gpu("h200"), gpu("a100")


def spec_of_llama() -> CacheSpec:
    return CacheSpec.from_config(LLAMA)


def full_batch(sms: int = H200.sms, blocks_of_one: int = HEADS_KV) -> int:
    """The smallest batch that gives every SM a block."""
    return math.ceil(sms / blocks_of_one)


def memory_percent(batch: int | None = None, tokens: int = LONG) -> float:
    """The caches of a batch, in percent of an H200's memory."""
    return 100 * spec_of_llama().bytes(batch or full_batch(), tokens) / H200.memory_bytes


def weights_bytes() -> int:
    return plan(spec_of_llama(), H200).budget.weights


def step_s(batch: int, tokens: int, bytes_per_s: float | None = None) -> float:
    """Seconds of a whole decode step that reads the weights once and every cache once, at the recorded read rate."""
    moved = weights_bytes() + spec_of_llama().bytes(batch, tokens)
    return moved / (bytes_per_s or recorded.gpu_bytes_per_s())


def attention_share(batch: int, tokens: int) -> float:
    """The caches' share of the bytes of a step, 0 to 1."""
    caches = spec_of_llama().bytes(batch, tokens)
    return caches / (caches + weights_bytes())


def intensity(batch: int, heads_q: int, heads_kv: int, tokens: int) -> float:
    """FLOP per byte of one decode step's attention, head_dim 128, 16 bits."""
    return step_intensity.solution(batch, heads_q, heads_kv, tokens, HEAD_DIM, 2)


def predicted_us(batch: int, heads_q: int, heads_kv: int, tokens: int) -> float:
    """Microseconds of an unsplit, packed decode step on an H200 by the two bounds, with the recorded read rates."""
    flop = 4 * batch * heads_q * tokens * HEAD_DIM
    rates = recorded.block_bytes_per_s(), recorded.gpu_bytes_per_s(), H200.dense_16bit_flops / H200.sms
    return decode_us.solution(recorded.kv_bytes(batch, heads_kv, tokens), flop, batch * heads_kv, H200.sms, *rates)


def batch_gain() -> float:
    """Intensity of attention at batch 64 over that at batch 1."""
    return intensity(64, HEADS_Q, HEADS_KV, 8192) / intensity(1, HEADS_Q, HEADS_KV, 8192)


def _grid(said, actual):
    return (
        f"One query token: the {HEADS_Q // HEADS_KV} query heads of a kv head are rows of one tile, so {HEADS_KV} kv "
        f"heads are {HEADS_KV} blocks. {LONG} keys are the length of each block's loop, and not one block more."
    )


def _percent(said, actual):
    share = underuse(batch=1, heads_q=HEADS_Q, heads_kv=HEADS_KV, sms=A100.sms)
    return (
        f"{HEADS_KV} blocks on {A100.sms} SMs. The other two readings: one block in all would be "
        f"{100 * share.batch_alone:.2f}%, one for each query head {100 * share.per_query_head:.1f}%."
    )


def _unsplit(said, actual):
    read = recorded.read_rate(HEADS_KV)
    size = recorded.kv_bytes(1, HEADS_KV, LONG)
    return (
        f"K and V are {size / 1e9:.2f} GB, and {HEADS_KV} blocks that only read got {read / 1e9:.0f} GB/s: "
        f"{size / read * 1e6:.0f} us. This kernel computes as well, and reached {size / actual / 1e3:.0f} GB/s."
    )


def _filled(said, actual):
    size = recorded.kv_bytes(1, HEADS_KV, LONG)
    least = size / recorded.gpu_bytes_per_s() * 1e6
    return (
        f"{size / 1e9:.2f} GB at the best recorded read, {recorded.gpu_bytes_per_s() / 1e9:.0f} GB/s, are {least:.0f} "
        f"us. The other {actual - least:.0f} us are a second launch, which puts the parts together, and starts and "
        "ends that are not full."
    )


def _gain(said, actual):
    return (
        "64 sequences do 64 times the FLOP and read 64 times the bytes, for each has a cache of its own. What a "
        "batch shares is the weights."
    )


def _full(said, actual):
    at = full_batch()
    return (
        f"{at - 1} x {HEADS_KV} = {(at - 1) * HEADS_KV} blocks leave {H200.sms - (at - 1) * HEADS_KV} of {H200.sms} "
        f"SMs without one; {at} x {HEADS_KV} = {at * HEADS_KV} are enough."
    )


def _memory(said, actual):
    one = spec_of_llama().bytes(1, LONG)
    return (
        f"One token keeps 2 x {LAYERS} x {HEADS_KV} x {HEAD_DIM} x 2 bytes = "
        f"{spec_of_llama().bytes_per_token() // 1024} KiB, one sequence {one / 1e9:.1f} GB, {full_batch()} of them "
        f"{full_batch() * one / 1e9:.0f} GB. The H200 has {H200.memory_bytes / 1e9:.0f} GB, and "
        f"{weights_bytes() / 1e9:.0f} of them hold the weights."
    )


LESSON = Lesson(
    number="08",
    name="08_decoding_underfills_the_gpu",
    title="Decoding underfills the GPU",
    exercises=(
        decode_blocks.EXERCISE,
        sms_at_work.EXERCISE,
        packed_decode.EXERCISE,
        step_intensity.EXERCISE,
        decode_us.EXERCISE,
        largest_batch.EXERCISE,
    ),
    predictions=(
        Prediction(
            id="08.blocks",
            question=(
                f"A decode step of batch 1: one query token, {HEADS_Q} query heads on {HEADS_KV} kv heads, {LONG} "
                "keys. The kernel packs the query heads of a kv head into one tile of up to 64 rows. How many blocks "
                "does one layer launch?"
            ),
            unit="blocks",
            answer=lambda: decode_grid(batch=1, heads_q=HEADS_Q, heads_kv=HEADS_KV, seqlen_k=LONG).blocks,
            explain=_grid,
        ),
        Prediction(
            id="08.percent",
            question=(
                f"The packed kernel again: batch 1, {HEADS_Q} query heads on {HEADS_KV} kv heads. What percentage of an "
                f"A100's {A100.sms} SMs get a block?"
            ),
            unit="percent",
            answer=lambda: 100 * underuse(batch=1, heads_q=HEADS_Q, heads_kv=HEADS_KV, sms=A100.sms).gqa_packed,
            explain=_percent,
            source="Computed",
        ),
        Prediction(
            id="08.batch_gain",
            question=(
                "Attention in a decode step, 8192 keys a sequence. By what factor does its intensity, FLOP per byte, "
                "grow when the batch grows from 1 to 64?"
            ),
            unit="times",
            answer=batch_gain,
            explain=_gain,
            source="Computed",
        ),
        Prediction(
            id="08.unsplit",
            question=(
                f"The same step on an H200, {LONG} keys, head_dim {HEAD_DIM}, bf16: {HEADS_KV} blocks, and one block "
                f"that only reads gets {recorded.block_bytes_per_s() / 1e9:.0f} GB/s. How many microseconds does the "
                "attention of one layer take?"
            ),
            unit="us",
            answer=lambda: recorded.decode(1, HEADS_Q, HEADS_KV, LONG, "flashlab-unsplit"),
            explain=_unsplit,
            source="Recorded",
        ),
        Prediction(
            id="08.filled",
            question=(
                "The same bytes, read by many more blocks than there are SMs (their keys split, as lesson 09 does it). "
                f"{recorded.gpu_bytes_per_s() / 1e9:.0f} GB/s is the best that was recorded. How many microseconds now?"
            ),
            unit="us",
            answer=lambda: recorded.decode(1, HEADS_Q, HEADS_KV, LONG),
            explain=_filled,
            source="Recorded",
        ),
        Prediction(
            id="08.full_batch",
            question=(
                f"Not one SM of an H200 ({H200.sms}) shall be without a block. Which batch is the smallest that does "
                f"that, with {HEADS_KV} kv heads, packed, no splits?"
            ),
            unit="sequences",
            answer=full_batch,
            explain=_full,
            source="Computed",
        ),
        Prediction(
            id="08.memory",
            question=(
                f"Llama-3.1-8B has {LAYERS} layers. That batch, each sequence with {LONG} tokens in a bf16 cache: "
                f"which percentage of the H200's memory (nvidia-smi: {H200.memory_mib:,} MiB) do the caches take?"
            ),
            unit="percent",
            answer=memory_percent,
            explain=_memory,
            source="Computed",
        ),
    ),
    questions=(
        Question(
            id="08.q1",
            text=(
                "FlashAttention-2's loops, one query, 131072 keys, head_dim 128, bf16, BLOCK_M = 64. How many MiB of "
                "K does one head load?"
            ),
            answer=32.0,
            tolerance=0.001,
            where="lesson 03, 'What it moves'",
        ),
        Question(
            id="08.q2",
            text=(
                f"In lesson 00, {ON_EVERY_SM} blocks of 256 threads, one on each SM of an H200, read "
                f"{dict(measured.UNDERFILL)[ON_EVERY_SM] / 1e9:.0f} of 4800 GB/s. Why not more?"
            ),
            choices={
                "a": "an SM can only reach its own part of the memory",
                "b": "each block has few bytes under way, and bandwidth is the bytes under way over the latency",
                "c": "blocks on neighbouring SMs get in each other's way",
                "d": "the datasheet's bandwidth is for matrix products alone",
            },
            answer="b",
            feedback={
                "a": "Every SM reaches all of HBM through the L2. What limits a block that waits for its loads?",
                "c": "264 blocks read nearly twice as much. What do more blocks add?",
                "d": "It is for reading and writing anything. Think of Little's law.",
            },
            where="lesson 00, 'Latency, and how it is hidden'",
        ),
    ),
)
