"""01.naive_bytes: what three separate kernels move."""

import torch

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes):
    q = o = torch.empty(heads_q, seqlen_q, head_dim, device="meta")
    k = v = torch.empty(heads_kv, seqlen_k, head_dim, device="meta")
    s = p = torch.empty(heads_q, seqlen_q, seqlen_k, device="meta")
    moved = [q, k, s] + [s, p] + [p, v, o]  # what each of the three kernels reads and writes
    return element_bytes * sum(x.numel() for x in moved)


def stub(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes):
    """Bytes that naive attention moves to and from HBM, all heads together. Plain arithmetic."""
    raise NotImplementedError


def solution(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes):
    """Bytes that naive attention moves to and from HBM, all heads together. Plain arithmetic."""
    queries_and_output = 2 * heads_q * seqlen_q * head_dim
    keys_and_values = 2 * heads_kv * seqlen_k * head_dim
    scores_and_weights = 4 * heads_q * seqlen_q * seqlen_k  # each written once and read once
    return element_bytes * (queries_and_output + keys_and_values + scores_and_weights)


def _bytes(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes, *, scores=4, score_heads=None, kv_heads=None):
    narrow = 2 * heads_q * seqlen_q * head_dim + 2 * (kv_heads or heads_kv) * seqlen_k * head_dim
    return element_bytes * (narrow + scores * (score_heads or heads_q) * seqlen_q * seqlen_k)


def never_read_back(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes):
    return _bytes(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes, scores=2)


def inputs_and_output_only(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes):
    return _bytes(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes, scores=0)


def scores_of_kv_heads(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes):
    return _bytes(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes, score_heads=heads_kv)


def keys_for_every_query_head(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes):
    return _bytes(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes, kv_heads=heads_q)


def one_length_for_all(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes):
    return element_bytes * heads_q * (4 * seqlen_q * head_dim + 4 * seqlen_q * seqlen_k)


def square_scores(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes):
    wide = 4 * heads_q * (seqlen_q * seqlen_q - seqlen_q * seqlen_k)
    return _bytes(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes) + element_bytes * wide


def output_forgotten(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes):
    output = element_bytes * heads_q * seqlen_q * head_dim
    return _bytes(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes) - output


def elements(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes):
    return _bytes(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, 1)


def one_head(seqlen_q, seqlen_k, head_dim, heads_q, heads_kv, element_bytes):
    return _bytes(seqlen_q, seqlen_k, head_dim, 1, 1, element_bytes)


def _case(*sizes):
    names = ("seqlen_q", "seqlen_k", "head_dim", "heads_q", "heads_kv", "element_bytes")
    return Case(", ".join(f"{name} = {size}" for name, size in zip(names, sizes, strict=True)), sizes)


def _one():
    return [_case(1024, 1024, 64, 1, 1, 2)]


def _many():
    return [_case(4096, 4096, 128, 16, 16, 2)]


def _grouped():
    return [_case(8192, 8192, 128, 32, 8, 2)]


def _decode():
    return [_case(1, 131072, 128, 32, 8, 2)]


def _wide():
    return [_case(512, 2048, 64, 8, 8, 4)]


EXERCISE = Exercise(
    id="01.naive_bytes",
    title="What naive attention moves",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Take the tensors one by one: how many elements, and how often do they cross the bus? q, k, v and o once each.",
        "The scores S are written by the first kernel and read by the second. The weights P are written by the second and "
        "read by the third. There is one S for every query head.",
        "2 heads_q seqlen_q head_dim for q and o; 2 heads_kv seqlen_k head_dim for k and v; 4 heads_q seqlen_q seqlen_k for "
        "S and P. Times element_bytes.",
    ),
    sub_checks=(
        SubCheck("one head", cases=_one),
        SubCheck("many heads", cases=_many),
        SubCheck("grouped heads read K and V once", cases=_grouped),
        SubCheck("a decode step", cases=_decode),
        SubCheck("float32, and more keys than queries", cases=_wide),
    ),
    mistakes=(
        Mistake(
            never_read_back,
            "This writes S and P, but never reads them. A kernel leaves its result in HBM, and the next one has to fetch it.",
            "How does the second kernel get the scores that the first one computed?",
        ),
        Mistake(
            inputs_and_output_only,
            "This is what has to move in any case: q, k, v and o. It is the traffic of a perfect kernel. The naive one also "
            "stores its intermediate results.",
            "Where do the scores wait between the first kernel and the second?",
        ),
        Mistake(
            scores_of_kv_heads,
            "This makes one score matrix for each KV head. Heads that share keys still have their own queries, so each query "
            "head has its own scores.",
            "q has heads_q heads: what is the shape of q k^T?",
        ),
        Mistake(
            keys_for_every_query_head,
            "This reads K and V once for every query head, as if they had been copied. A group reads them once.",
            "How many heads do k and v have?",
        ),
        Mistake(
            one_length_for_all,
            "This is 4 N d + 4 N^2 with one N and one number of heads: right for a square, where all four narrow tensors have the "
            "same shape. k and v have their own length and their own heads, and in a decode step they are nearly everything.",
            "For one query and 131,072 keys: how large is q, and how large is k?",
        ),
        Mistake(
            square_scores,
            "This takes S for a square of seqlen_q x seqlen_q. It has a row for each query and a column for each key.",
            "One query, 131,072 keys: how many scores are there?",
        ),
        Mistake(
            output_forgotten,
            "This leaves out one of the tensors that are as large as q: q is read, and o is written.",
            "Where is the result when the third kernel is done, and how did it get there?",
        ),
        Mistake(
            elements,
            "This counts elements. In bf16 each takes 2 bytes.",
            "Where does element_bytes enter?",
        ),
        Mistake(
            one_head,
            "This is the traffic of one head.",
            "How many score matrices are there?",
        ),
    ),
    keep="Naive attention moves 4 N^2 elements a head for scores, against 4 N d for everything that had to move.",
)
