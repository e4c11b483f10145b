"""08.step_intensity: FLOP per byte of the attention of one decode step."""

import torch

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    from torch.utils.flop_counter import FlopCounterMode  # not at the top: it loads triton, and start() comes first
    q = torch.empty(batch, heads_kv, heads_q // heads_kv, head_dim, device="meta")  # one query token, packed
    k, v = (torch.empty(batch, heads_kv, seqlen_k, head_dim, device="meta") for _ in range(2))
    with FlopCounterMode(display=False) as counted:
        o = (q @ k.mT) @ v
    moved = sum(x.numel() for x in (q, k, v, o)) * element_bytes  # each once
    return counted.get_total_flops() / moved


def stub(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    """FLOP per byte of one decode step: both products (no softmax); q, k, v and o moved once each, packed. A float."""
    raise NotImplementedError


def solution(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    """FLOP per byte of one decode step: both products (no softmax); q, k, v and o moved once each, packed. A float."""
    flop = 4 * batch * heads_q * seqlen_k * head_dim  # two products, two FLOP a multiply-add
    kv = 2 * batch * heads_kv * seqlen_k * head_dim
    qo = 2 * batch * heads_q * head_dim
    return flop / ((kv + qo) * element_bytes)


def k_without_v(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    flop = 4 * batch * heads_q * seqlen_k * head_dim
    return flop / ((batch * heads_kv * seqlen_k * head_dim + 2 * batch * heads_q * head_dim) * element_bytes)


def one_product(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    return solution(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes) / 2


def k_and_v_for_every_query_head(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    return solution(batch, heads_q, heads_q, seqlen_k, head_dim, element_bytes)


def work_of_kv_heads(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    flop = 4 * batch * heads_kv * seqlen_k * head_dim
    return flop / ((2 * batch * heads_kv * seqlen_k * head_dim + 2 * batch * heads_q * head_dim) * element_bytes)


def batch_shares_the_cache(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    flop = 4 * batch * heads_q * seqlen_k * head_dim
    return flop / ((2 * heads_kv * seqlen_k * head_dim + 2 * batch * heads_q * head_dim) * element_bytes)


def flop_of_one_sequence(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    return solution(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes) / batch


def q_without_o(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    flop = 4 * batch * heads_q * seqlen_k * head_dim
    return flop / ((2 * batch * heads_kv * seqlen_k * head_dim + batch * heads_q * head_dim) * element_bytes)


def width_forgotten(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    return solution(batch, heads_q, heads_kv, seqlen_k, head_dim, 1)


def always_two_bytes(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    return solution(batch, heads_q, heads_kv, seqlen_k, head_dim, 2)


def q_and_o_of_kv_heads(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    flop = 4 * batch * heads_q * seqlen_k * head_dim
    return flop / (2 * batch * heads_kv * (seqlen_k + 1) * head_dim * element_bytes)


def q_and_o_of_one_head(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    flop = 4 * batch * heads_q * seqlen_k * head_dim
    return flop / (2 * batch * (heads_kv * seqlen_k + 1) * head_dim * element_bytes)


def keys_and_values_alone(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    return 2 * (heads_q // heads_kv) / element_bytes


def scores_written(batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes):
    flop = 4 * batch * heads_q * seqlen_k * head_dim
    kv, qo = 2 * batch * heads_kv * seqlen_k * head_dim, 2 * batch * heads_q * head_dim
    return flop / ((kv + qo + 4 * batch * heads_q * seqlen_k) * element_bytes)


def _case(batch, heads_q, heads_kv, seqlen_k, head_dim=128, element_bytes=2):
    label = (
        f"batch {batch}, {heads_q} query and {heads_kv} kv heads, {seqlen_k} keys, head_dim {head_dim}, "
        f"{element_bytes} B an element"
    )
    return Case(label, (batch, heads_q, heads_kv, seqlen_k, head_dim, element_bytes))


def _multi_head():
    return [_case(1, 32, 32, 4096), _case(1, 16, 16, 1024, 64)]


def _grouped():
    return [_case(1, 32, 8, 131072), _case(1, 32, 1, 8192)]


def _batch():
    return [_case(64, 32, 8, 4096), _case(128, 64, 8, 1024)]


def _formats():
    return [_case(1, 32, 8, 131072, 128, 1), _case(3, 32, 8, 4096, 64, 4)]


def _short():
    return [_case(1, 32, 8, 8), _case(4, 16, 2, 3, 64)]


EXERCISE = Exercise(
    id="08.step_intensity",
    title="The intensity of a decode step",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Numerator: every query head multiplies its row with all keys and its weights with all values. Two products, "
        "and a multiply-add is two FLOP.",
        "Denominator: K and V have heads_kv heads, q and o have heads_q and one token. Each is moved once.",
        "flop = 4 * batch * heads_q * seqlen_k * head_dim; elements = 2 * batch * heads_kv * seqlen_k * head_dim + "
        "2 * batch * heads_q * head_dim.",
    ),
    sub_checks=(
        SubCheck("as many kv heads as query heads: about 1 in 16 bits", cases=_multi_head),
        SubCheck("grouped: about the group", cases=_grouped),
        SubCheck("the batch does not matter", cases=_batch),
        SubCheck("other element sizes", cases=_formats),
        SubCheck("a short cache, where q and o count too", cases=_short),
    ),
    mistakes=(
        Mistake(
            k_without_v,
            "About twice too much: only K is moved here. V is as large, and is read as well.",
            "Which two tensors does a cache hold?",
        ),
        Mistake(
            one_product,
            "Half of the work: there are two products, q with K and the probabilities with V, and a multiply-add "
            "counts as two FLOP in each.",
            "2 x 2 = 4: which of the two twos is missing?",
        ),
        Mistake(
            k_and_v_for_every_query_head,
            "K and V are counted once for every query head. Packed, the query heads of a group use the tile that is "
            "on the chip.",
            "How many heads does the cache have?",
        ),
        Mistake(
            work_of_kv_heads,
            "The work of the kv heads alone is counted. Every query head does its own two products.",
            "How many rows does the tile of a kv head have?",
        ),
        Mistake(
            batch_shares_the_cache,
            "The batch is in the FLOP but not in the bytes, as if all sequences shared one cache. That is true of "
            "weights; each sequence has K and V of its own.",
            "Whose keys does sequence 2 attend to?",
        ),
        Mistake(
            flop_of_one_sequence,
            "The batch is in the bytes but not in the FLOP: all sequences are read for the work of one.",
            "What happens to both numbers when batch doubles?",
        ),
        Mistake(
            q_without_o,
            "Almost: either q or o is missing. One is read, the other written, and they are of the same size.",
            "How many of the four tensors do you count?",
        ),
        Mistake(
            width_forgotten,
            "This is FLOP per element. An element has element_bytes bytes.",
            "What does your function say for 1 and for 4 bytes an element?",
        ),
        Mistake(
            always_two_bytes,
            "Right in 16 bits: 2 bytes an element are written into it. A cache in fp8 has 1.",
            "Which argument did you not use?",
        ),
        Mistake(
            q_and_o_of_kv_heads,
            "q and o are counted with the kv heads. Every query head has a row in both, packed or not.",
            "What is the shape of q?",
        ),
        Mistake(
            q_and_o_of_one_head,
            "q and o are counted for one head alone. Every query head has a row in both.",
            "What is the shape of q?",
        ),
        Mistake(
            keys_and_values_alone,
            "Right for a long cache: 2 x group / element_bytes. With 8 keys q and o are as large as K and V, and "
            "count.",
            "How many bytes are q and o when the cache holds 8 tokens?",
        ),
        Mistake(
            scores_written,
            "Scores and probabilities are moved here, as in the naive algorithm. They stay on the chip (and are "
            "small beside K and V when there is one query).",
            "Which tensors does the docstring list?",
        ),
    ),
    keep="Attention in a decode step does about group FLOP per byte in 16 bits, and no batch changes that.",
)
