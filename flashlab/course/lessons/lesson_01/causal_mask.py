"""01.causal_mask: who may look at whom, when there are more keys than queries."""

import torch

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(seqlen_q, seqlen_k):
    n = max(seqlen_q, seqlen_k)
    square = torch.ones(n, n, dtype=torch.bool).tril()  # a whole sequence looking at itself
    return square[n - seqlen_q :, n - seqlen_k :]  # our queries and keys are its last ones


def stub(seqlen_q, seqlen_k):
    """Returns a bool tensor (seqlen_q, seqlen_k): True where query i may look at key j.

    Compare positions, as a kernel does: no tril, no n x n square.
    """
    i = torch.arange(seqlen_q)[:, None]
    j = torch.arange(seqlen_k)[None, :]
    raise NotImplementedError


def solution(seqlen_q, seqlen_k):
    """Returns a bool tensor (seqlen_q, seqlen_k): True where query i may look at key j.

    Compare positions, as a kernel does: no tril, no n x n square.
    """
    i = torch.arange(seqlen_q)[:, None]
    j = torch.arange(seqlen_k)[None, :]
    return j <= i + seqlen_k - seqlen_q


def top_left(seqlen_q, seqlen_k):
    return torch.arange(seqlen_k)[None, :] <= torch.arange(seqlen_q)[:, None]


def itself_hidden(seqlen_q, seqlen_k):
    return torch.arange(seqlen_k)[None, :] < torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q


def inverted(seqlen_q, seqlen_k):
    return torch.arange(seqlen_k)[None, :] > torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q


def future_only(seqlen_q, seqlen_k):
    return torch.arange(seqlen_k)[None, :] >= torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q


def shifted_the_wrong_way(seqlen_q, seqlen_k):
    return torch.arange(seqlen_k)[None, :] <= torch.arange(seqlen_q)[:, None] + seqlen_q - seqlen_k


def ones_and_zeros(seqlen_q, seqlen_k):
    return torch.ones(seqlen_q, seqlen_k).tril(seqlen_k - seqlen_q)


def _cases(*shapes):
    return lambda: [Case(f"seqlen_q = {q}, seqlen_k = {k}", (q, k)) for q, k in shapes]


EXERCISE = Exercise(
    id="01.causal_mask",
    title="The causal mask, bottom right",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "The last query stands at the last key. So at which key does query i stand? Try it for seqlen_q = 1.",
        "Query i stands at key i + seqlen_k - seqlen_q. It may look at that one and at all before it.",
    ),
    sub_checks=(
        SubCheck("a square is the ordinary triangle", cases=_cases((1, 1), (5, 5))),
        SubCheck("decoding: one query sees every key", cases=_cases((1, 8))),
        SubCheck("a chunk of new tokens after a cache", cases=_cases((3, 8), (17, 33))),
        SubCheck("more queries than keys: the first see nothing", cases=_cases((5, 3))),
    ),
    mistakes=(
        Mistake(
            top_left,
            "This aligns query 0 with key 0, at the top left. It is right for a square only. In a decode step it lets the new "
            "token see nothing but the first one.",
            "Your mask for seqlen_q = 1, seqlen_k = 8: how many keys does the one query see?",
        ),
        Mistake(
            itself_hidden,
            "This leaves out the diagonal: a token may not look at itself, and the first one has nothing to look at.",
            "Should the comparison hold when j is the query's own position?",
        ),
        Mistake(
            inverted,
            "This is True where a key is hidden: the opposite. Some libraries want it so; here, and in PyTorch's attn_mask, "
            "True means may look.",
            "What does True say about a query and a key?",
        ),
        Mistake(
            future_only,
            "This looks forward: every token sees itself and what comes after it.",
            "Key j comes before query i when j is smaller or larger?",
        ),
        Mistake(
            shifted_the_wrong_way,
            "The offset has the wrong sign: the queries stand seqlen_k - seqlen_q places before their keys instead of behind.",
            "With 8 keys and 1 query, at which j does the query stand, and what does your formula say?",
        ),
        Mistake(
            ones_and_zeros,
            "The right corner, but in numbers: a mask is a bool tensor, which masked_fill takes as it is. A kernel has no tril, "
            "either; it compares the positions i and j.",
            "What type does a comparison of i and j give?",
        ),
    ),
    keep="The last query stands at the last key: query i sees keys up to i + seqlen_k - seqlen_q.",
)
