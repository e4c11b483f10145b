"""Lesson 06: the backward pass. D, dV, dK and dQ, tile by tile, with p computed again instead of stored."""

import math

import torch

from flashlab import kernels  # noqa: F401  first: it decides where kernels run, before triton is imported
from flashlab.attention import flash_attn_func
from flashlab.bench.cases import Case
from flashlab.course.lessons.data import normal
from flashlab.course.lessons.lesson_06 import (
    attention,
    delta,
    dkdv,
    naive,
    recorded,
    softmax_gradient,
    tiled_dkdv,
    tiled_dq,
)
from flashlab.course.spec import Lesson, Prediction, Question
from flashlab.course.trace import Trace, trace
from flashlab.reference import traffic
from flashlab.reference.tiling import Tiling

LAYERS = 32
BLOCK_M, BLOCK_N = 128, 64  # queries of a dq program, keys of a dkdv program: the package's own on an H200
GROUPED = Case("train", 4, 32, 8, 4096, 4096, 128)  # the grid's prediction: 32 query heads on 8


def rows() -> int:
    """Batch times heads of this lesson's shape."""
    return recorded.FULL.batch * recorded.FULL.heads_q


def stored_gb(layers: int = LAYERS) -> float:
    """GB of P in bf16, kept for the backward pass of every layer."""
    case = recorded.FULL
    return layers * rows() * traffic.naive(case.seqlen_q, case.seqlen_k, case.head_dim).writes["p"] / 1e9


def kept_gb(layers: int = LAYERS) -> float:
    """GB of lse, float32, kept instead."""
    return layers * rows() * recorded.FULL.seqlen_q * 4 / 1e9


def flop_ratio(seqlen: int = 64, head_dim: int = 16) -> float:
    """FLOP of naive.backward over those of naive.forward."""
    q, k, v, do = (normal(seed, seqlen, head_dim) for seed in range(4))
    o, lse = naive.forward(q, k, v)
    return naive.products(naive.backward, q, k, v, o, lse, do).flop / naive.products(naive.forward, q, k, v).flop


def break_even() -> float:
    """The head_dim at which making P again takes as long as writing and reading it, at the H200's recorded rates."""
    return 4 / recorded.copy_bytes_per_s() * recorded.matmul_flop_per_s() / 2


def programs(case: Case) -> dict[str, int]:
    """Programs of the two backward kernels."""
    tiling = Tiling(case.seqlen_q, case.seqlen_k, BLOCK_M, BLOCK_N, case.causal)
    return {
        "dkdv": case.batch * case.heads_kv * len(tiling.k_tiles),
        "dq": case.batch * case.heads_q * len(tiling.q_tiles),
    }


def atomic_gb() -> float:
    """GB of float32 dq that one backward kernel would add to memory: each key tile adds to every row that sees it."""
    case = recorded.FULL
    tiling = Tiling(case.seqlen_q, case.seqlen_k, BLOCK_M, BLOCK_N)
    added = sum(r.stop - r.start for r in tiling.q_tiles for keys in tiling.k_tiles if tiling.sees(r, keys))
    return rows() * added * case.head_dim * 4 / 1e9


def backward_bytes(tokens: int = 256, heads_q: int = 4, heads_kv: int = 2, head_dim: int = 32):
    """What the package's backward kernels load and store on one float32 sequence, in the interpreter: a Trace."""
    q, k, v, do = (
        normal(seed, 1, tokens, heads, head_dim).float()
        for seed, heads in enumerate((heads_q, heads_kv, heads_kv, heads_q))
    )
    inputs = [x.requires_grad_() for x in (q, k, v)]
    seen = trace(lambda: torch.autograd.grad(flash_attn_func(*inputs), inputs, do))
    return Trace(tuple(launch for launch in seen.launches if launch.kernel in ("dkdv_kernel", "dq_kernel")))


def do_kb() -> float:
    """KB of dO that dkdv loads there."""
    return next(launch.loaded["do"] for launch in backward_bytes().launches if launch.kernel == "dkdv_kernel") / 1e3


def _stored(said, actual):
    one = stored_gb(1)
    return (
        f"P of one layer is 4 x 16 heads x 4096 x 4096 x 2 bytes = {one:.2f} GB, and {LAYERS} layers wait for their "
        f"backward pass at the same time. lse in its place is {kept_gb() * 1e3:.0f} MB for all layers, "
        f"{stored_gb() / kept_gb():.0f} times less."
    )


def _ratio(said, actual):
    return (
        "Forward: Q K^T and P V, two products. Backward: Q K^T again, then dV, dP, dQ and dK, five products, and all "
        "seven are of the same size. With P stored it would be four, a ratio of 2."
    )


def _break_even(said, actual):
    ridge = recorded.matmul_flop_per_s() / recorded.copy_bytes_per_s()
    return (
        "An entry of P is written (2 bytes) and read (2 bytes); making it again is 2 x head_dim FLOP. In the time of "
        f"one byte this GPU does {ridge:.0f} FLOP, so 2 x head_dim = 4 x {ridge:.0f}. Below that head_dim the product "
        "is quicker than the bytes."
    )


def _do(said, actual):
    return (
        "A program owns 64 keys, so there are 256 / 64 = 4 key tiles, and each walks past all queries of the two "
        "query heads that share its kv head. Every row of dO is read once for each key tile: 4 x 131 KB."
    )


def _programs(said, actual):
    return (
        f"A program owns {BLOCK_N} keys of one kv head: {GROUPED.batch} x {GROUPED.heads_kv} x "
        f"{GROUPED.seqlen_k // BLOCK_N}. The {GROUPED.heads_q // GROUPED.heads_kv} query heads that share the kv head "
        "are a loop inside it, so that one program holds the whole sum. dq has one program for each tile of "
        f"{BLOCK_M} queries of each *query* head: {programs(GROUPED)['dq']}."
    )


def _atomic(said, actual):
    case = recorded.FULL
    once, tiles = rows() * case.seqlen_q * case.head_dim * 4 / 1e9, case.seqlen_k // BLOCK_N
    return (
        f"dq in float32 is {once:.3f} GB, and each of the {tiles} key tiles of a head adds to all of its rows: "
        f"{tiles} x {once:.3f}. An atomic addition reads and writes, and it happens in the L2, in whatever order the "
        "programs get there."
    )


def _train(said, actual):
    case = recorded.FULL
    forward = recorded.forward_ms(case)
    return (
        f"Nine products instead of two would be 4.5 x {forward:.2f} = {4.5 * forward:.2f} ms at the forward's pace. "
        f"The backward took {recorded.backward_ms(case):.2f} ms for seven, {recorded.backward_ms(case) / 7:.2f} ms "
        f"each, where the forward needs {forward / 2:.2f}: more products share one exp, and no maximum is looked for. "
        f"({recorded.when()}.)"
    )


LESSON = Lesson(
    number="06",
    name="06_backward_pass",
    title="The backward pass",
    exercises=(
        softmax_gradient.EXERCISE,
        delta.EXERCISE,
        tiled_dq.EXERCISE,
        tiled_dkdv.EXERCISE,
        dkdv.EXERCISE,
        attention.EXERCISE,
    ),
    predictions=(
        Prediction(
            id="06.flop_ratio",
            question=(
                "The backward pass as naive.backward writes it, scores computed again. How many times the FLOP of "
                "the forward pass are that? Count products of matrices; exp and the rest are small beside them."
            ),
            unit="times",
            answer=flop_ratio,
            explain=_ratio,
        ),
        Prediction(
            id="06.stored_gb",
            question=(
                f"Batch 4, 16 heads, 4096 queries and keys, {LAYERS} layers. How many GB would P take, in bf16, if "
                "the forward pass kept it for the backward pass?"
            ),
            unit="GB",
            answer=stored_gb,
            explain=_stored,
        ),
        Prediction(
            id="06.break_even",
            question=(
                "Keeping an entry of P costs 4 bytes of traffic: written once, read once, bf16. Making it again costs "
                f"2 x head_dim FLOP. An H200 was recorded at {recorded.copy_bytes_per_s() / 1e9:.0f} GB/s and "
                f"{recorded.matmul_flop_per_s() / 1e12:.0f} TFLOP/s. At which head_dim do both take the same time?"
            ),
            unit="head_dim",
            answer=break_even,
            explain=_break_even,
            source="Computed",
        ),
        Prediction(
            id="06.atomic_gb",
            question=(
                f"One kernel with keys outside, {BLOCK_N} to a tile, that also adds its part of dq "
                "to memory in float32. Batch 4, 16 heads, 4096 queries and keys, head_dim 128, no mask. How many GB of "
                "additions are that?"
            ),
            unit="GB",
            answer=atomic_gb,
            explain=_atomic,
        ),
        Prediction(
            id="06.do_kb",
            question=(
                "One sequence of 256 tokens, 4 query heads on 2 kv heads, head_dim 32, float32, tiles of 64 x 64, no "
                "mask. How many KB of dO do the programs of dkdv load?"
            ),
            unit="KB",
            answer=do_kb,
            explain=_do,
        ),
        Prediction(
            id="06.programs",
            question=(
                f"Batch {GROUPED.batch}, {GROUPED.heads_q} query heads on {GROUPED.heads_kv} kv heads, "
                f"{GROUPED.seqlen_k} queries and keys. dkdv owns tiles of {BLOCK_N} keys and adds up over the group. "
                "How many programs does it have?"
            ),
            unit="programs",
            answer=lambda: programs(GROUPED)["dkdv"],
            explain=_programs,
        ),
        Prediction(
            id="06.train_ms",
            question=(
                "Batch 4, 16 heads, 4096 queries and keys, head_dim 128, bf16, no mask, on an H200. The package's "
                f"forward takes {recorded.forward_ms(recorded.FULL):.2f} ms. How many ms do forward and backward take "
                "together?"
            ),
            unit="ms",
            answer=lambda: recorded.milliseconds(recorded.FULL)[recorded.OURS],
            explain=_train,
            source="Recorded",
        ),
    ),
    questions=(
        Question(
            id="06.q1",
            text=(
                "The forward pass gave a row lse = 4. One of its scores is 2. What is the probability of that key? "
                "(Two digits.)"
            ),
            answer=math.exp(2 - 4),
            where="lesson 02, 'Attention does not need the probabilities'",
        ),
        Question(
            id="06.q2",
            text=(
                "Causal, aligned at the bottom right, 8 queries and 24 keys. Which is the first query that sees key "
                "20? (Queries and keys are counted from 0.)"
            ),
            choices={"a": "query 20", "b": "query 4", "c": "query 0", "d": "none: there are only 8 queries"},
            answer="b",
            feedback={
                "a": "That would be aligned at the top left. Which key does the last query see?",
                "c": "Query 0 stands at key 24 - 8. Does it see what comes later?",
                "d": "The last query sees all 24 keys. Count back from it.",
            },
            where="lesson 03, 'Causal: which tiles?'",
        ),
    ),
)
