"""Lesson 05: batch, heads, GQA, causal and ragged lengths in one kernel, and what the compiler makes of it."""

from functools import cache

from flashlab import kernels  # noqa: F401  (decides where kernels run, before Triton is imported)
from flashlab.course.lessons.data import normal
from flashlab.course.lessons.lesson_05 import (
    base_two,
    flash_attention,
    kv_head,
    loop_bounds,
    recorded,
    row_offset,
)
from flashlab.course.lessons.lesson_05.grid import finish, grid_walks, schedule
from flashlab.course.spec import Lesson, Prediction, Question
from flashlab.hardware import gpu, occupancy
from flashlab.hardware.launch import prefill_grid

BATCH, HEADS_Q, HEADS_KV, SEQLEN_Q, BLOCK_M = 3, 24, 8, 1000, 64  # the grid to be predicted
SEQLEN = 4096  # of the causal predictions, in tiles of 64 x 64
HEADS = 16
BLOCKS_PER_SM = 2
BIG_TILE = dict(block_m=128, block_n=128, head_dim=128, threads=128)
COMPILED = dict(threads=128, registers=173, shared_memory=114688)  # the forward kernel, sm_90, head_dim 128, Triton 3.7.1
EXPONENTIALS_PER_S = 3.9e12  # of an H100 SXM, an H200's chip: Shah et al., FlashAttention-3, arXiv 2407.08608, section 3
FULL, CAUSAL = "B4 H16 S4096 D128", "B4 H16 S4096 D128 causal"


def places() -> int:
    """Programs that an H200 runs at a time."""
    return gpu("h200").sms * BLOCKS_PER_SM


def small(heads_q: int, heads_kv: int, seqlen: int = 128, head_dim: int = 16):
    """q, k and v of one sequence in float32, small enough for the interpreter."""
    return tuple(normal(seed, 1, seqlen, h, head_dim).float() for seed, h in ((1, heads_q), (2, heads_kv), (3, heads_kv)))


@cache
def k_bytes(heads_kv: int, heads_q: int = 8) -> int:
    """Bytes of K that the programs of the package's kernel load, counted while it runs."""
    from flashlab import flash_attn_func
    from flashlab.course import trace

    q, k, v = small(heads_q, heads_kv)
    return trace(lambda: flash_attn_func(q, k, v)).loaded["k"]


def tiles(block: int = 64) -> tuple[int, int]:
    """(masked, computed) pairs of tiles of a causal head of SEQLEN tokens."""
    bounds = [loop_bounds.solution(tile, block, block, SEQLEN, SEQLEN, True) for tile in range(SEQLEN // block)]
    masked = sum(-(-(stop - full) // block) for full, stop in bounds)
    return masked, masked + sum(full // block for full, _ in bounds)


@cache
def finishes() -> tuple[int, int]:
    """(short first, long first): when the last program of a causal grid ends, in key tiles."""
    return tuple(finish(schedule(grid_walks(SEQLEN, HEADS, 64, 64, long), places())) for long in (False, True))


def exponential_share(head_dim: int) -> float:
    """Time of one exponential over that of the 4 * head_dim FLOP of products that go with it, on an H200's datasheet."""
    return gpu("h200").dense_16bit_flops / EXPONENTIALS_PER_S / (4 * head_dim)


def accumulators(block_m: int, block_n: int, head_dim: int, threads: int) -> dict[str, float]:
    """Registers a thread that the two float32 tiles alone take."""
    return {"acc": block_m * head_dim / threads, "scores": block_m * block_n / threads}


def _programs(said, actual):
    return (
        f"{SEQLEN_Q} / {BLOCK_M} = {SEQLEN_Q / BLOCK_M:.2f}, so {-(-SEQLEN_Q // BLOCK_M)} query tiles, the last one "
        f"short; times {HEADS_Q} query heads, times {BATCH}. A kv head has no program of its own: it is only read."
    )


def _gqa(said, actual):
    return (
        "Not at all. Each query head's program walks over the keys of its kv head, whoever else does so: 8 query heads "
        "load 8 times a head's K. What shrinks is K itself, so the programs that share a kv head find each other's tiles "
        "in the L2, and the cache that decoding reads is smaller (lessons 08 and 10)."
    )


def _masked(said, actual):
    masked, computed = tiles()
    return (
        f"Of 64 x 64 = 4096 pairs, {computed} are computed: 1 + 2 + .. + 64. One in each row of tiles is cut by the "
        f"diagonal: {masked} of {computed}."
    )


def _long_first(said, actual):
    short, long = finishes()
    return (
        f"All programs together are {sum(grid_walks(SEQLEN, HEADS, 64, 64, True)) / places():.0f} key tiles for each of "
        f"the {places()} places. Long ones first: done after {long}, because the short ones fill the gaps at the end. "
        f"Short ones first: after {short}, because the last to start are the ones that take 64."
    )


def _registers(said, actual):
    took = accumulators(**BIG_TILE)
    return (
        f"acc is 128 x 128 floats over 128 threads: {took['acc']:g} registers each. The scores are as many. A thread can "
        "have 255, and q, the addresses, m, l and the probabilities in bf16 want some too. What finds no place is spilled."
    )


def _blocks(said, actual):
    fit = occupancy("9.0", **COMPILED)
    by_shared, by_registers = fit.limits["shared_memory"], fit.limits["registers"]
    return (
        f"Shared memory: 228 KiB over 113 KiB (112, and 1 that CUDA keeps): {by_shared}. Registers: 65,536 over 128 x "
        f"176 (a warp's are rounded up): {by_registers}. So {actual:g} blocks, {fit.warps_per_sm} of 64 warps: "
        f"{fit.percent:g}% occupancy."
    )


def _exponentials(said, actual):
    return (
        "A score costs 4 x 64 = 256 FLOP of products and one exponential. 989e12 / 256 = 3.9e12 scores a second: as many "
        f"as there are exponentials. At head_dim 128 it is {100 * exponential_share(128):.0f}%."
    )


def _causal_time(said, actual):
    full = recorded.prefill()[FULL].seconds[recorded.OURS] * 1e6
    return (
        f"Half of {full:.0f} us would be {full / 2:.0f}. The diagonal's tiles are computed whole ({32.5 / 32 - 1:.1%} "
        "more than half), they pay for the mask, and walks of 1 to 64 tiles keep the SMs less evenly busy than walks of "
        "64."
    )


LESSON = Lesson(
    number="05",
    name="05_flash_attention_2",
    title="FlashAttention-2",
    exercises=(
        row_offset.EXERCISE,
        kv_head.EXERCISE,
        loop_bounds.EXERCISE,
        base_two.EXERCISE,
        flash_attention.EXERCISE,
    ),
    predictions=(
        Prediction(
            id="05.programs",
            question=(
                f"Batch {BATCH}, {HEADS_Q} query heads, {HEADS_KV} kv heads, {SEQLEN_Q} queries, BLOCK_M = {BLOCK_M}. "
                "How many programs?"
            ),
            unit="programs",
            answer=lambda: prefill_grid(
                batch=BATCH, heads_q=HEADS_Q, heads_kv=HEADS_KV, seqlen_q=SEQLEN_Q, block_m=BLOCK_M
            ).blocks,
            explain=_programs,
            source="Computed",
        ),
        Prediction(
            id="05.gqa_bytes",
            question=(
                "8 query heads. The kv heads go from 8 down to 2, so K itself is 4 times smaller. By what factor do the "
                "bytes of K that the programs load fall?"
            ),
            unit="times",
            answer=lambda: k_bytes(8) / k_bytes(2),
            explain=_gqa,
        ),
        Prediction(
            id="05.masked_tiles",
            question=(
                f"Causal, {SEQLEN} queries and keys, tiles of 64 x 64. Of the pairs of tiles that are computed, how many "
                "percent go through the masked loop?"
            ),
            unit="percent",
            answer=lambda: 100 * tiles()[0] / tiles()[1],
            explain=_masked,
        ),
        Prediction(
            id="05.long_first",
            question=(
                f"Causal, {SEQLEN} tokens, {HEADS} heads, tiles of 64 x 64: 1024 programs that walk over 1 to 64 key "
                f"tiles, and an H200 with room for {places()} at a time. How many percent longer does it take if the "
                "short walks start first, instead of the long ones?"
            ),
            unit="percent",
            answer=lambda: 100 * (finishes()[0] / finishes()[1] - 1),
            explain=_long_first,
            source="Simulated",
        ),
        Prediction(
            id="05.acc_registers",
            question=(
                "BLOCK_M = BLOCK_N = 128, head_dim 128, 4 warps: 128 threads. acc and the tile of scores are float32 and "
                "live in registers, a register for each number. How many registers a thread do these two alone take?"
            ),
            unit="registers",
            answer=lambda: sum(accumulators(**BIG_TILE).values()),
            explain=_registers,
            source="Computed",
        ),
        Prediction(
            id="05.blocks",
            question=(
                "Our forward kernel on an H200, head_dim 128: 128 threads, 173 registers a thread (allotted to a warp in "
                "portions of 256), 112 KiB of shared memory (CUDA adds 1). An SM has 65,536 registers and 228 KiB. How "
                "many blocks does it hold?"
            ),
            unit="blocks",
            answer=lambda: occupancy("9.0", **COMPILED).blocks_per_sm,
            explain=_blocks,
            source="Computed",
        ),
        Prediction(
            id="05.exponentials",
            question=(
                "An H200 does 989e12 FLOP of products a second, and 3.9e12 exponentials. At head_dim 64, how many percent "
                "of the time of its products do the exponentials of a tile take?"
            ),
            unit="percent",
            answer=lambda: 100 * exponential_share(64),
            explain=_exponentials,
            source="Computed",
        ),
        Prediction(
            id="05.causal_us",
            question=(
                "Batch 4, 16 heads, 4096 tokens, head_dim 128, bf16 on an H200: flashlab's forward takes "
                f"{recorded.prefill()[FULL].seconds[recorded.OURS] * 1e6:.0f} us without a mask. How many us with the "
                "causal one?"
            ),
            unit="us",
            answer=lambda: recorded.prefill()[CAUSAL].seconds[recorded.OURS] * 1e6,
            explain=_causal_time,
            source="Recorded",
        ),
    ),
    questions=(
        Question(
            id="05.q1",
            text=(
                "Causal, 512 queries and 512 keys, BLOCK_N = 64. How many key tiles does the query tile of rows 128 to "
                "191 visit?"
            ),
            answer=3,
            where="lesson 03, 'Causal: which tiles?'",
        ),
        Question(
            id="05.q2",
            text=(
                "A key tile reaches past the end of K and is loaded with other=0. What must become of the scores in "
                "those columns?"
            ),
            choices={
                "a": "nothing: a key of zeros scores 0, and 0 adds nothing",
                "b": "-inf, before the maximum is taken",
                "c": "0, after the maximum is taken",
                "d": "nothing: V is 0 there as well, so they cannot reach the output",
            },
            answer="b",
            feedback={
                "a": "exp of a score of 0 is 1, not 0.",
                "c": "The score of 0 is what they have already. What is its exponential?",
                "d": "acc would be right. What about l, by which it is divided?",
            },
            where="lesson 04, 'Attention of one head'",
        ),
    ),
)
