"""Lesson 03: FlashAttention-1 and -2 as loops over tiles, and what each order of the loops moves."""

import math

from flashlab.course.lessons.lesson_03 import (
    causal_forward,
    causal_tile_bounds,
    k_bytes_read,
    keys_outside,
    tile_step,
    tiled_forward,
)
from flashlab.course.spec import Lesson, Prediction, Question
from flashlab.reference import traffic
from flashlab.reference.tiling import Tiling

SEQLEN, HEAD_DIM, HEADS = 4096, 128, 8 * 32  # the shape of this lesson: batch 8, 32 heads, bf16
BLOCK_M = BLOCK_N = 128
CHUNK = 512  # queries of the causal prediction, against SEQLEN keys


def fa2() -> traffic.Traffic:
    """Bytes of one head, queries outside."""
    return traffic.flash_attention_2(SEQLEN, SEQLEN, HEAD_DIM, BLOCK_M, BLOCK_N)


def fa1() -> traffic.Traffic:
    """Bytes of one head, keys outside."""
    return traffic.flash_attention_1(SEQLEN, SEQLEN, HEAD_DIM, BLOCK_M, BLOCK_N)


def intensity(block_m: int = BLOCK_M) -> float:
    """FLOP per byte of the tiled loops, queries outside."""
    moved = traffic.flash_attention_2(SEQLEN, SEQLEN, HEAD_DIM, block_m, BLOCK_N)
    return 4 * SEQLEN**2 * HEAD_DIM / moved.total


def paper_elements(head_dim: int, seqlen: int = 2**16, sram: int = 2**16) -> float:
    """Elements that FlashAttention-1 moves with the paper's blocks in an SRAM of ``sram`` elements."""
    block_m, block_n = traffic.paper_blocks(head_dim, sram)
    return traffic.flash_attention_1(seqlen, seqlen, head_dim, block_m, block_n, element_bytes=2).total / 2


def chunk_tiles() -> int:
    """Pairs of tiles that a chunk of CHUNK queries at the end of SEQLEN keys must visit."""
    tiling = Tiling(CHUNK, SEQLEN, BLOCK_M, BLOCK_N, causal=True)
    return sum(tiling.sees(rows, keys) for rows in tiling.q_tiles for keys in tiling.k_tiles)


def _k_bytes(said, actual):
    once = HEADS * SEQLEN * HEAD_DIM * 2 / 1e9
    return (
        f"K is {once:.2f} GB. There are {SEQLEN} / {BLOCK_M} = {SEQLEN // BLOCK_M} query tiles in every head, and "
        f"each of them reads all of its head's K again: {SEQLEN // BLOCK_M} x {once:.2f}."
    )


def _o_writes(said, actual):
    once = HEADS * SEQLEN * HEAD_DIM * 2 / 1e9
    return (
        f"O is {once:.2f} GB and FlashAttention-2 writes it once. Here each of the {SEQLEN // BLOCK_N} key tiles "
        "brings every row up to date and sends it back, and the zeros at the start are written too: "
        f"{SEQLEN // BLOCK_N + 1} x {once:.2f}."
    )


def _intensity(said, actual):
    return (
        "One pair of tiles is 4 x BLOCK_M x BLOCK_N x d FLOP on 2 x BLOCK_N x d x 2 bytes of K and V: BLOCK_M FLOP "
        f"per byte, {BLOCK_M}. Q and O, moved once, take a little off. The softmax by itself had about 1."
    )


def _head_dim(said, actual):
    return (
        "N^2 d^2 / M holds d squared. Rows twice as long leave room for half as many keys in SRAM, so there are twice "
        "as many passes, and each pass moves rows twice as long: 2 x 2."
    )


def _chunk(said, actual):
    q_tiles, k_tiles = math.ceil(CHUNK / BLOCK_M), math.ceil(SEQLEN / BLOCK_N)
    rows = " + ".join(str(k_tiles - q_tiles + 1 + i) for i in range(q_tiles))
    return (
        f"The chunk stands at the end of the keys. Its last tile sees all {k_tiles} key tiles, the one before it one "
        f"less: {rows} of {q_tiles} x {k_tiles} = {q_tiles * k_tiles}. A square problem skips almost half; a chunk at "
        "the end of a long cache skips almost nothing."
    )


LESSON = Lesson(
    number="03",
    name="03_tiled_attention",
    title="Tiled attention",
    exercises=(
        tile_step.EXERCISE,
        tiled_forward.EXERCISE,
        k_bytes_read.EXERCISE,
        keys_outside.EXERCISE,
        causal_tile_bounds.EXERCISE,
        causal_forward.EXERCISE,
    ),
    predictions=(
        Prediction(
            id="03.k_bytes",
            question=(
                f"Batch 8, 32 heads, {SEQLEN} queries and keys, head_dim {HEAD_DIM}, bf16. Queries outside, in tiles "
                f"of {BLOCK_M} x {BLOCK_N}. How many GB of K do the programs load, all heads together?"
            ),
            unit="GB",
            answer=lambda: HEADS * fa2().reads["k"] / 1e9,
            explain=_k_bytes,
        ),
        Prediction(
            id="03.intensity",
            question=(
                f"The same loops. How many FLOP do they do for each byte that they load or store? (One pair of tiles: "
                f"4 x BLOCK_M x BLOCK_N x head_dim FLOP; tiles of {BLOCK_M} x {BLOCK_N}.)"
            ),
            unit="FLOP_per_byte",
            answer=intensity,
            explain=_intensity,
        ),
        Prediction(
            id="03.o_writes",
            question=(
                "The same shape with the keys outside, FlashAttention-1's order. How many GB of O are written, all "
                "heads together?"
            ),
            unit="GB",
            answer=lambda: HEADS * fa1().writes["o"] / 1e9,
            explain=_o_writes,
        ),
        Prediction(
            id="03.head_dim",
            question=(
                "head_dim goes from 64 to 128; sequence length and SRAM stay. By what factor do the bytes that "
                "FlashAttention-1 moves grow, with the blocks that the paper picks?"
            ),
            unit="times",
            answer=lambda: paper_elements(128) / paper_elements(64),
            explain=_head_dim,
        ),
        Prediction(
            id="03.chunk",
            question=(
                f"Causal, aligned at the bottom right: the last {CHUNK} queries against all {SEQLEN} keys, tiles of "
                f"{BLOCK_M} x {BLOCK_N}. How many pairs of tiles must be computed?"
            ),
            unit="pairs",
            answer=chunk_tiles,
            explain=_chunk,
        ),
    ),
    questions=(
        Question(
            id="03.q1",
            text=(
                "A tile of keys raises a row's running maximum from 2 to 5. By which factor are its l and acc "
                "multiplied before the tile is added?"
            ),
            answer=math.exp(2 - 5),
            where="lesson 02, 'The maximum may grow'",
        ),
        Question(
            id="03.q2",
            text="Naive attention, 8192 queries and keys, head_dim 128, bf16. What is most of the bytes it moves?",
            choices={
                "a": "Q, K and V, which every query reads again",
                "b": "S and P, written and read once each",
                "c": "the output O",
                "d": "all five matrices alike",
            },
            answer="b",
            feedback={
                "a": "A matrix product on a GPU does share its inputs. Compare 8192 x 128 numbers with 8192 x 8192.",
                "c": "O is 8192 x 128 numbers, written once. Which matrix is 8192 x 8192?",
                "d": "Count the elements: which of them have 8192 columns, which 128?",
            },
            where="lesson 01, 'The bill'",
        ),
    ),
)
