"""05.kv_head: which kv head a query head reads, for any number of query heads to a kv head."""

import torch

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(head, heads_q, heads_kv):
    return torch.arange(heads_kv).repeat_interleave(heads_q // heads_kv)[head].item()


def stub(head, heads_q, heads_kv):
    """The kv head of query head ``head``; heads_kv divides heads_q. An integer, by integer arithmetic alone."""
    return ...


def solution(head, heads_q, heads_kv):
    """The kv head of query head ``head``; heads_kv divides heads_q. An integer, by integer arithmetic alone."""
    return head // (heads_q // heads_kv)


def modulo_heads_kv(head, heads_q, heads_kv):
    return head % heads_kv


def over_heads_kv(head, heads_q, heads_kv):
    return head // heads_kv


def modulo_the_group(head, heads_q, heads_kv):
    return head % (heads_q // heads_kv)


def its_own_number(head, heads_q, heads_kv):
    return head


def a_shift(head, heads_q, heads_kv):
    return head >> ((heads_q // heads_kv).bit_length() - 1)


def a_float(head, heads_q, heads_kv):
    return head / (heads_q // heads_kv)


def _heads(heads_q, heads_kv):
    label = f"{heads_q} query heads, {heads_kv} kv heads, query head"
    return [Case(f"{label} {head}", (head, heads_q, heads_kv)) for head in range(heads_q)]


def the_group(head, heads_q, heads_kv):
    return heads_q // heads_kv


EXERCISE = Exercise(
    id="05.kv_head",
    title="The kv head of a query head",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "heads_q // heads_kv query heads share one kv head. Call that the group.",
        "The query heads of a group are neighbours: with a group of 3, heads 0, 1, 2 read kv head 0, heads 3, 4, 5 read "
        "kv head 1.",
        "How many whole groups lie before this head? One integer division.",
    ),
    sub_checks=(
        SubCheck("as many kv heads as query heads", cases=lambda: _heads(6, 6)),
        SubCheck("one kv head for all (MQA)", cases=lambda: _heads(6, 1)),
        SubCheck("groups of four", cases=lambda: _heads(32, 8)),
        SubCheck("groups of three", cases=lambda: _heads(12, 4) + _heads(24, 8)),
        SubCheck("groups larger than the number of kv heads", cases=lambda: _heads(14, 2)),
    ),
    mistakes=(
        Mistake(
            modulo_heads_kv,
            "This is head % heads_kv: neighbours get different kv heads, as if the kv heads were dealt out like cards. "
            "The model was trained with whole groups of neighbours.",
            "With 6 query heads and 2 kv heads the spec gives 0 0 0 1 1 1. What does yours give?",
        ),
        Mistake(
            over_heads_kv,
            "This is head // heads_kv. It divides by the number of kv heads, and should divide by the size of a group. "
            "The two are the same only where heads_q = heads_kv ** 2.",
            "32 query heads, 8 kv heads: how many query heads share one, 8 or 4?",
        ),
        Mistake(
            modulo_the_group,
            "This is the head's place within its group, not the group's number.",
            "Heads 0 and 1 of a group: should they read the same kv head?",
        ),
        Mistake(
            its_own_number,
            "Query head h reads kv head h. That is right without sharing; with it, most heads read past the end of K.",
            "Which kv head does the last query head read, and is there one?",
        ),
        Mistake(
            a_shift,
            "A shift divides by a power of two. A group may have 3 heads, or 7.",
            "24 query heads, 8 kv heads: what is the size of a group, and what do you divide by?",
        ),
        Mistake(
            the_group,
            "This is the size of a group. The head's number has no part in it.",
            "How many whole groups lie before head 5, if a group has 3?",
        ),
        Mistake(
            a_float,
            "This is a true division. An address needs a whole head.",
            "Which of Python's two divisions rounds down?",
        ),
    ),
    keep="kv head = head // (heads_q // heads_kv): neighbours share, and the group may have any size.",
)
