"""09.split_partials: what the programs of one kv head leave behind, in PyTorch."""

import math

import torch

from flashlab.course.lessons.lesson_09.problems import cache, decode_cases, even_splits
from flashlab.course.spec import Exercise, Mistake, SubCheck
from flashlab.reference.algebra import Partial, merge


def spec(q, k, v, length, block_n, num_splits):
    scores = q @ k[:length].T * q.shape[1] ** -0.5
    parts = [Partial.of(scores[:, a:b], v[a:b]) for a, b in even_splits(length, block_n, num_splits)]
    outs, lses = torch.stack([part.out for part in parts]), torch.stack([part.lse for part in parts])
    return outs, lses


def stub(q, k, v, length, block_n, num_splits):
    """q: (group, head_dim), the query heads of one kv head. k, v: (capacity, head_dim); only ``length`` keys are there.

    Returns outs (num_splits, group, head_dim), each normalised over its own keys, and lses (num_splits, group), natural
    logarithms. A split without keys leaves out 0 and lse -inf. The edges: even_splits(...), or your split_range.
    """
    raise NotImplementedError


def solution(q, k, v, length, block_n, num_splits):
    """q: (group, head_dim), the query heads of one kv head. k, v: (capacity, head_dim); only ``length`` keys are there.

    Returns outs (num_splits, group, head_dim), each normalised over its own keys, and lses (num_splits, group), natural
    logarithms. A split without keys leaves out 0 and lse -inf. The edges: even_splits(...), or your split_range.
    """
    outs = q.new_zeros(num_splits, *q.shape)
    lses = q.new_full((num_splits, q.shape[0]), -math.inf)
    for split, (start, end) in enumerate(even_splits(length, block_n, num_splits)):
        if start == end:
            continue
        s = q @ k[start:end].T * q.shape[1] ** -0.5
        m = s.amax(dim=1)
        p = torch.exp(s - m[:, None])
        l = p.sum(dim=1)
        outs[split] = p @ v[start:end] / l[:, None]
        lses[split] = m + torch.log(l)
    return outs, lses


def _variant(
    q, k, v, length, block_n, num_splits, edges=None, scale=None, divide=True, log=None, empty=(0.0, -math.inf)
):
    """The solution with one thing changed."""
    outs = q.new_full((num_splits, *q.shape), empty[0])
    lses = q.new_full((num_splits, q.shape[0]), empty[1])
    for split, (start, end) in enumerate(edges or even_splits(length, block_n, num_splits)):
        if start >= end:
            continue
        s = q @ k[start:end].T * (q.shape[1] ** -0.5 if scale is None else scale)
        m = s.amax(dim=1)
        p = torch.exp(s - m[:, None])
        l = p.sum(dim=1)
        outs[split] = p @ v[start:end] / (l[:, None] if divide else 1.0)
        lses[split] = (log or (lambda m, l: m + torch.log(l)))(m, l)
    return outs, lses


def capacity_for_length(q, k, v, length, block_n, num_splits):
    return _variant(q, k, v, len(k), block_n, num_splits)


def cut_from_capacity(q, k, v, length, block_n, num_splits):
    edges = [(min(a, length), min(b, length)) for a, b in even_splits(len(k), block_n, num_splits)]
    return _variant(q, k, v, length, block_n, num_splits, edges)


def last_split_dropped(q, k, v, length, block_n, num_splits):
    whole = length // block_n * block_n
    edges = [(min(a, whole), min(b, whole)) for a, b in even_splits(length, block_n, num_splits)]
    return _variant(q, k, v, length, block_n, num_splits, edges)


def overlapping_keys(q, k, v, length, block_n, num_splits):
    edges = [(a, min(b + 1, length) if a < b else b) for a, b in even_splits(length, block_n, num_splits)]
    return _variant(q, k, v, length, block_n, num_splits, edges)


def never_divided(q, k, v, length, block_n, num_splits):
    return _variant(q, k, v, length, block_n, num_splits, divide=False)


def divided_by_everything(q, k, v, length, block_n, num_splits):
    outs, lses = solution(q, k, v, length, block_n, num_splits)
    share = torch.exp(lses - torch.logsumexp(lses, dim=0)) if length else torch.zeros_like(lses)
    return outs * share[:, :, None], lses


def sum_for_lse(q, k, v, length, block_n, num_splits):
    return _variant(q, k, v, length, block_n, num_splits, log=lambda m, l: l)


def maximum_forgotten_in_lse(q, k, v, length, block_n, num_splits):
    return _variant(q, k, v, length, block_n, num_splits, log=lambda m, l: torch.log(l))


def base_two(q, k, v, length, block_n, num_splits):
    return _variant(q, k, v, length, block_n, num_splits, log=lambda m, l: m / math.log(2) + torch.log2(l))


def lse_is_the_largest(q, k, v, length, block_n, num_splits):
    return _variant(q, k, v, length, block_n, num_splits, log=lambda m, l: m)


def bases_mixed(q, k, v, length, block_n, num_splits):
    return _variant(q, k, v, length, block_n, num_splits, log=lambda m, l: m + torch.log2(l))


def weight_for_lse(q, k, v, length, block_n, num_splits):
    return _variant(q, k, v, length, block_n, num_splits, log=lambda m, l: torch.exp(m) * l)


def lse_overflows(q, k, v, length, block_n, num_splits):
    return _variant(q, k, v, length, block_n, num_splits, log=lambda m, l: torch.log(torch.exp(m) * l))


def raw_weights(q, k, v, length, block_n, num_splits):
    outs, lses = solution(q, k, v, length, block_n, num_splits)
    for split, (start, end) in enumerate(even_splits(length, block_n, num_splits)):
        outs[split] = torch.exp(q @ k[start:end].T * q.shape[1] ** -0.5) @ v[start:end]
    return outs, lses


def scale_forgotten(q, k, v, length, block_n, num_splits):
    return _variant(q, k, v, length, block_n, num_splits, scale=1.0)


def empty_weighs_something(q, k, v, length, block_n, num_splits):
    return _variant(q, k, v, length, block_n, num_splits, empty=(0.0, 0.0))


def zero_over_zero(q, k, v, length, block_n, num_splits):
    return _variant(q, k, v, length, block_n, num_splits, empty=(math.nan, -math.inf))


def without_the_maximum(q, k, v, length, block_n, num_splits):
    outs, lses = solution(q, k, v, length, block_n, num_splits)
    for split, (start, end) in enumerate(even_splits(length, block_n, num_splits)):
        if start < end:
            p = torch.exp(q @ k[start:end].T * q.shape[1] ** -0.5)
            outs[split], lses[split] = p @ v[start:end] / p.sum(dim=1)[:, None], torch.log(p.sum(dim=1))
    return outs, lses


def empty_is_nan(q, k, v, length, block_n, num_splits):
    return _variant(q, k, v, length, block_n, num_splits, empty=(math.nan, math.nan))


def _one():
    return decode_cases(10, (32, 8, 1))


def _several():
    return decode_cases(40, (32, 8, 4), (32, 8, 2), sharp=2.0)


def _ragged():
    return decode_cases(70, (37, 8, 2), (9, 4, 3))


def _empty():
    return decode_cases(110, (16, 8, 5), (0, 8, 2))


def _large():
    return decode_cases(150, (24, 8, 3), sharp=1000.0)


def _room():
    return decode_cases(180, (20, 4, 4), (3, 4, 2), capacity=64)


def _merge(split_partials):
    q, k, v = cache(230, 50, group=2, capacity=80)
    outs, lses = split_partials(q, k, v, 50, 8, 6)
    found = merge(*(Partial(out, lse) for out, lse in zip(outs, lses, strict=True))).out
    expected = torch.softmax(q @ k[:50].T * 0.5, dim=1) @ v[:50]
    off = float((found - expected).abs().max())
    if not off <= 1e-12:
        return f"50 keys in a cache of 80, 6 splits of tiles of 8: merged, they are off by {off:.4g}"


EXERCISE = Exercise(
    id="09.split_partials",
    title="The partial results of one kv head",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Start with outs = q.new_zeros(num_splits, *q.shape) and lses = q.new_full((num_splits, q.shape[0]), -math.inf): "
        "that is what a split without keys leaves. Then a loop over even_splits(length, block_n, num_splits).",
        "In the loop it is attention over k[start:end] and v[start:end] and nothing else: s, m = s.amax(dim=1), "
        "p = exp(s - m), l = p.sum(dim=1). Skip the split if start == end.",
        "outs[split] = p @ v[start:end] / l[:, None] and lses[split] = m + torch.log(l).",
    ),
    sub_checks=(
        SubCheck("one split is plain attention", cases=_one),
        SubCheck("equal splits", cases=_several),
        SubCheck("a length not divisible by the tile", cases=_ragged),
        SubCheck("splits without keys", cases=_empty),
        SubCheck("large scores", cases=_large),
        SubCheck("a cache longer than its keys", cases=_room),
        SubCheck("merged, they are the answer", test=_merge),
    ),
    mistakes=(
        Mistake(
            capacity_for_length,
            "This is what comes out when all of the cache is read. Past length there are no keys, only memory: here it "
            "is NaN, and elsewhere another sequence's keys.",
            "What is len(k), and what is length?",
        ),
        Mistake(
            cut_from_capacity,
            "The keys are the right ones, but the splits were cut from the cache's capacity: the first ones hold all the "
            "keys, the others are empty. Merged it is right; on a GPU it is as slow as fewer splits. FlashAttention had "
            "this fault (issue 1000).",
            "Which number do you hand to even_splits?",
        ),
        Mistake(
            last_split_dropped,
            "The short tile at the end is missing.",
            "37 keys in tiles of 8: which keys does your last split see?",
        ),
        Mistake(
            overlapping_keys,
            "Each split reads one key of its neighbour's: those keys count twice.",
            "Is the key number end in k[start:end]?",
        ),
        Mistake(
            never_divided,
            "outs are the weighted sums, not divided by their weights. An out that is not normalised fits no lse.",
            "What is the sum of p over a row, and where did you divide by it?",
        ),
        Mistake(
            divided_by_everything,
            "Each split was divided by the weight of all keys. The parts then add up to the answer, but a split cannot "
            "know the other splits' weights: that would need another trip to HBM.",
            "Which keys may the program of one split look at?",
        ),
        Mistake(
            sum_for_lse,
            "lses hold the sum of weights, not its logarithm.",
            "What does lse stand for?",
        ),
        Mistake(
            maximum_forgotten_in_lse,
            "lses hold log(l) alone: l was measured against m, and m is not there any more.",
            "What is the logarithm of exp(m) * l?",
        ),
        Mistake(
            base_two,
            "The lses are logarithms to base 2; natural ones were asked for.",
            "Which number times log2(x) is log(x)?",
        ),
        Mistake(
            lse_is_the_largest,
            "lses hold m, the largest score, alone: that says nothing of how many keys there were.",
            "What is the logarithm of exp(m) * l?",
        ),
        Mistake(
            bases_mixed,
            "lses add a natural m and a log2(l).",
            "In which base is m, and in which is log2?",
        ),
        Mistake(
            weight_for_lse,
            "lses hold the sum of exp(scores), not its logarithm.",
            "What does lse stand for?",
        ),
        Mistake(
            lse_overflows,
            "outs are right. For large scores the sum of exp(scores) overflows before its logarithm is taken.",
            "How do m and l give the same lse, with no large number passed to exp?",
        ),
        Mistake(
            raw_weights,
            "outs are exp(scores) @ v, not divided by the sum of these weights. An out that is not normalised fits no lse.",
            "What is the sum of your weights over a row?",
        ),
        Mistake(
            scale_forgotten,
            "This is what comes out when the scores are not multiplied by head_dim ** -0.5.",
            "Compare your scores with the first line of the spec.",
        ),
        Mistake(
            empty_weighs_something,
            "A split without keys says lse = 0. That is a weight of exp(0) = 1, as much as a key with score 0.",
            "Which lse makes exp(lse) nothing?",
        ),
        Mistake(
            without_the_maximum,
            "exp overflows: the scores were not measured against their maximum.",
            "What is the largest number that your code passes to exp?",
        ),
        Mistake(
            zero_over_zero,
            "Right wherever a split has keys. Without keys the sum of weights is 0, and out became 0 / 0.",
            "What should stand in outs where there is no key?",
        ),
        Mistake(
            empty_is_nan,
            "A split without keys leaves NaN: the maximum of nothing, or 0 / 0.",
            "What should stand in outs and lses before the loop begins?",
        ),
    ),
    keep="A split is attention over its own keys, normalised by itself: (out, lse). It needs to know nothing of the others.",
)
