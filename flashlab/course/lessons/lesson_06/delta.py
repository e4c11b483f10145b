"""06.delta: D, the weighted mean of a row's dp, over the keys and over the features."""

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.lessons.lesson_03.watch import Watch
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(p, v, do, o):
    by_keys = torch.einsum("ij,id,jd->i", p, do, v)
    by_features = torch.einsum("id,id->i", do, o)
    return by_keys, by_features


def stub(p, v, do, o):
    """p: (seqlen_q, seqlen_k), v: (seqlen_k, head_dim), do and o: (seqlen_q, head_dim).

    Returns D (seqlen_q,) twice: by_keys from p, v and do, without o; by_features from do and o, without p or v.
    """
    raise NotImplementedError


def solution(p, v, do, o):
    """p: (seqlen_q, seqlen_k), v: (seqlen_k, head_dim), do and o: (seqlen_q, head_dim).

    Returns D (seqlen_q,) twice: by_keys from p, v and do, without o; by_features from do and o, without p or v.
    """
    dp = do @ v.T
    by_keys = (p * dp).sum(dim=1)
    by_features = (do * o).sum(dim=1)
    return by_keys, by_features


def p_forgotten(p, v, do, o):
    return (do @ v.T).sum(dim=1), (do * o).sum(dim=1)


def do_forgotten(p, v, do, o):
    return p.sum(dim=1), (do * o).sum(dim=1)


def o_squared(p, v, do, o):
    return (p * (do @ v.T)).sum(dim=1), (o * o).sum(dim=1)


def mean_of_features(p, v, do, o):
    return (p * (do @ v.T)).sum(dim=1), (do * o).mean(dim=1)


def one_for_all_rows(p, v, do, o):
    return (p * (do @ v.T)).sum(), (do * o).sum()


def the_other_dimension(p, v, do, o):
    return (p * (do @ v.T)).sum(dim=0), (do * o).sum(dim=0)


def only_by_keys(p, v, do, o):
    by_keys = (p * (do @ v.T)).sum(dim=1)
    return by_keys, by_keys.clone()


def only_by_features(p, v, do, o):
    by_features = (do * o).sum(dim=1)
    return by_features, by_features.clone()


def the_other_order(p, v, do, o):
    return (do * o).sum(dim=1), (p * (do @ v.T)).sum(dim=1)


def diagonal_of_a_product(p, v, do, o):
    return (p * (do @ v.T)).sum(dim=1), torch.diagonal(do @ o.T).clone()


def _parts(seed, seqlen_q, seqlen_k, head_dim):
    p, v = torch.softmax(normal(seed, seqlen_q, seqlen_k), dim=1), normal(seed + 1, seqlen_k, head_dim)
    return p, v, normal(seed + 2, seqlen_q, head_dim), p @ v


def _shapes():
    return [
        Case(f"{sq} queries, {sk} keys, head_dim {d}", _parts(seed, sq, sk, d))
        for seed, (sq, sk, d) in enumerate(((4, 6, 3), (1, 9, 5), (7, 1, 2)), 10)
    ]


def _square():
    return [Case("5 queries, 5 keys, head_dim 5", _parts(30, 5, 5, 5))]


def _foreign():
    p, v, do, _ = _parts(40, 5, 7, 4)
    return [Case("5 queries, 7 keys, head_dim 4, an o that is not p v", (p, v, do, normal(50, 5, 4)))]


def _lean(delta):
    p, v, do, o = _parts(60, 96, 4, 4)
    with Watch(do) as seen:
        delta(p, v, do, o)
    if seen.largest > 96 * 8:
        return f"96 queries, 4 keys, head_dim 4: a tensor of {seen.largest} elements was made; do and o have {96 * 4}"


EXERCISE = Exercise(
    id="06.delta",
    title="D by two ways",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "by_keys is the mean of softmax_gradient, for all rows at once. First dp = do @ v.T, (seqlen_q, seqlen_k).",
        "p * dp has one entry for each query and key; sum over the keys: dim=1.",
        "by_features: row i needs the dot product of row i of do with row i of o: multiply entry by entry, sum over "
        "dim=1.",
    ),
    sub_checks=(
        SubCheck("both ways, several shapes", cases=_shapes),
        SubCheck("square, where a wrong dimension does not show in the shape", cases=_square),
        SubCheck("each way uses its own inputs: told apart by an o that is not p v", cases=_foreign),
        SubCheck("nothing of seqlen_q x seqlen_q is made", test=_lean),
    ),
    mistakes=(
        Mistake(
            p_forgotten,
            "by_keys adds up dp without weights: p is missing.",
            "The mean of a row's dp is weighted. With what?",
        ),
        Mistake(
            do_forgotten,
            "by_keys is the row sum of p alone, which is 1 for every row. The gradient do never came in.",
            "Which matrix is multiplied with p before the sum over the keys?",
        ),
        Mistake(
            o_squared,
            "by_features is o . o. The output's gradient is missing: D is do . o.",
            "Which two tensors does D multiply?",
        ),
        Mistake(
            mean_of_features,
            "by_features is head_dim times too small: a mean over the features was taken where a sum is needed.",
            "Is a dot product a sum or a mean?",
        ),
        Mistake(
            one_for_all_rows,
            "All rows were added up into one number. Every row has its own softmax, and so its own D.",
            "Over which dimension does your sum run?",
        ),
        Mistake(
            the_other_dimension,
            "The sums run over the queries instead of over keys and features: dim=0 where dim=1 was meant.",
            "How many numbers should come out, seqlen_q or seqlen_k?",
        ),
        Mistake(
            only_by_keys,
            "by_features was computed from p and v as well. It looks right, because both ways agree on any real o; a "
            "kernel could not do it without all keys at hand.",
            "Can you compute the second D if somebody takes p and v away?",
        ),
        Mistake(
            only_by_features,
            "by_keys was computed from o. It looks right, because both ways agree on any real o.",
            "Compute the first D as softmax_gradient does, from p and dp.",
        ),
        Mistake(
            the_other_order,
            "Both are there, in the other order: by_features came first.",
            "Which of the two does the docstring name first?",
        ),
        Mistake(
            diagonal_of_a_product,
            "The numbers are right, but do @ o.T makes seqlen_q x seqlen_q numbers to keep its diagonal.",
            "Only row i of do meets row i of o. Which product of tensors does just that?",
        ),
    ),
    keep="D = rowsum(dO * O): one number a row, from two tensors that lie in HBM anyway. No key is needed for it.",
)
