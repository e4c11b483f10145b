"""01.masked_attention: everything so far in one function, with the log-sum-exp handed out."""

import math

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.reference import naive


def spec(q, k, v, causal):
    batched = (x.transpose(0, 1)[None] for x in (q, k, v))  # (batch, seqlen, heads, head_dim)
    o, lse = naive.attention(*batched, causal=causal)
    return o[0].transpose(0, 1), lse[0]


def stub(q, k, v, causal):
    """q: (heads, seqlen_q, head_dim). k, v: (heads, seqlen_k, head_dim). causal: a bool, bottom right.

    Returns o, shaped like q, and lse, (heads, seqlen_q). A query that sees no key: o = 0, lse = -inf.
    """
    raise NotImplementedError


def solution(q, k, v, causal):
    """q: (heads, seqlen_q, head_dim). k, v: (heads, seqlen_k, head_dim). causal: a bool, bottom right.

    Returns o, shaped like q, and lse, (heads, seqlen_q). A query that sees no key: o = 0, lse = -inf.
    """
    s = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if causal:
        seqlen_q, seqlen_k = s.shape[-2:]
        i, j = torch.arange(seqlen_q)[:, None], torch.arange(seqlen_k)
        s = s.masked_fill(j > i + seqlen_k - seqlen_q, -math.inf)
    lse = torch.logsumexp(s, dim=-1)
    p = torch.exp(s - lse.masked_fill(lse == -math.inf, 0)[..., None])
    return p @ v, lse


def _scores(q, k, hidden, causal, fill=-math.inf):
    s = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if causal:
        i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        s = s.masked_fill(hidden(i, j, k.shape[-2] - q.shape[-2]), fill)
    return s


def _bottom_right(i, j, offset):
    return j > i + offset


def empty_row_is_nan(q, k, v, causal):
    s = _scores(q, k, _bottom_right, causal)
    return torch.softmax(s, dim=-1) @ v, torch.logsumexp(s, dim=-1)


def own_maximum_is_nan(q, k, v, causal):
    s = _scores(q, k, _bottom_right, causal)
    m = s.amax(dim=-1, keepdim=True)
    e = torch.exp(s - m)
    l = e.sum(dim=-1, keepdim=True)
    return e / l @ v, (m + torch.log(l)).squeeze(-1)


def minus_a_billion(q, k, v, causal):
    s = _scores(q, k, _bottom_right, causal, fill=-1e9)
    return torch.softmax(s, dim=-1) @ v, torch.logsumexp(s, dim=-1)


def hidden_is_zero(q, k, v, causal):
    s = _scores(q, k, _bottom_right, causal, fill=0.0)
    return torch.softmax(s, dim=-1) @ v, torch.logsumexp(s, dim=-1)


def always_causal(q, k, v, causal):
    return solution(q, k, v, True)


def never_causal(q, k, v, causal):
    return solution(q, k, v, False)


def not_divided(q, k, v, causal):
    s = _scores(q, k, _bottom_right, causal)
    m = s.amax(dim=-1, keepdim=True)
    e = torch.exp(s - m.masked_fill(m == -math.inf, 0))
    return e @ v, torch.logsumexp(s, dim=-1)


def top_left(q, k, v, causal):
    s = _scores(q, k, lambda i, j, offset: j > i, causal)
    return torch.softmax(s, dim=-1) @ v, torch.logsumexp(s, dim=-1)


def masked_after_softmax(q, k, v, causal):
    s = _scores(q, k, _bottom_right, causal)
    p = torch.softmax(_scores(q, k, _bottom_right, False), dim=-1).masked_fill(s == -math.inf, 0)
    return p @ v, torch.logsumexp(s, dim=-1)


def lse_of_all_keys(q, k, v, causal):
    s = _scores(q, k, _bottom_right, causal)
    lse = torch.logsumexp(s, dim=-1)
    p = torch.exp(s - lse.masked_fill(lse == -math.inf, 0)[..., None])
    return p @ v, torch.logsumexp(_scores(q, k, _bottom_right, False), dim=-1)


def lse_without_scale(q, k, v, causal):
    s = _scores(q, k, _bottom_right, causal)
    lse = torch.logsumexp(s, dim=-1)
    p = torch.exp(s - lse.masked_fill(lse == -math.inf, 0)[..., None])
    return p @ v, torch.logsumexp(_scores(q * q.shape[-1] ** 0.5, k, _bottom_right, causal), dim=-1)


def _case(seed, heads, queries, keys, head_dim, causal, scale=1.0, tolerance=1e-9):
    rows = (queries, keys, keys)
    q, k, v = (normal(seed + i, heads, n, head_dim) for i, n in enumerate(rows))
    label = f"heads = {heads}, seqlen_q = {queries}, seqlen_k = {keys}, head_dim = {head_dim}, causal = {causal}"
    return Case(label + (f", q times {scale:g}" if scale != 1 else ""), (scale * q, k, v, causal), tolerance)


def _full():
    return [_case(10, 2, 5, 5, 4, False), _case(20, 1, 3, 9, 8, False)]


def _causal():
    return [_case(30, 2, 6, 6, 4, True)]


def _cache():
    return [_case(40, 2, 1, 9, 4, True), _case(50, 2, 3, 9, 4, True)]


def _nothing_to_see():
    return [_case(60, 1, 5, 3, 4, True, tolerance=1e-6)]  # room for the rounding of lse beside scores of -1e9


def _large():
    return [_case(70, 1, 4, 6, 4, True, scale=1000.0)]


EXERCISE = Exercise(
    id="01.masked_attention",
    title="Masked attention, and its log-sum-exp",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Scores first, then the mask, then everything else. A hidden score is -inf, so that its exp is 0: "
        "s.masked_fill(hidden, -math.inf).",
        "You may use torch.logsumexp, and then need no softmax: the weights are exp(s - lse), with lse as a column.",
        "A row that sees nothing has lse = -inf and s - lse = NaN. Take 0 for lse there (and there only), when you compute the "
        "weights: they come out as 0. Return the lse as it was.",
    ),
    sub_checks=(
        SubCheck("no mask: o and lse", cases=_full),
        SubCheck("causal, as many queries as keys", cases=_causal),
        SubCheck("causal after a cache", cases=_cache),
        SubCheck("a query that sees no key", cases=_nothing_to_see),
        SubCheck("large scores", cases=_large),
    ),
    mistakes=(
        Mistake(
            empty_row_is_nan,
            "This is right until a query sees no key: softmax of a row of -inf is 0 / 0 = NaN. Padded batches "
            "have such rows, and a NaN spoils all that it touches later.",
            "What does torch.softmax give for a row of -inf, and what should o be there?",
        ),
        Mistake(
            own_maximum_is_nan,
            "This is right until a query sees no key. Then its maximum is -inf, and s - m is -inf - -inf = NaN: o and lse are both "
            "spoilt.",
            "What did you do about a row of -inf in logsumexp?",
        ),
        Mistake(
            minus_a_billion,
            "This hides a key with -1e9 instead of -inf. A query that sees nothing then sees everything a little: the softmax "
            "of equal numbers is flat, and o is the average of all values.",
            "With all of a row at -1e9, what does the softmax give?",
        ),
        Mistake(
            hidden_is_zero,
            "This sets hidden scores to 0. exp(0) is 1: a hidden key weighs as much as any other with a score of 0.",
            "Which score has a weight of exactly 0?",
        ),
        Mistake(
            always_causal,
            "This masks always. Without causal every query sees every key.",
            "Where does your function ask for causal?",
        ),
        Mistake(
            never_causal,
            "This never masks: causal has no effect on it.",
            "Which scores must be hidden when causal is True?",
        ),
        Mistake(
            not_divided,
            "lse is right. o is a sum of values weighted by exp(s - m), not an average: the weights do not add up to 1.",
            "exp(s - m) has to be divided by something, or m has to be something else. Which sum is missing?",
        ),
        Mistake(
            top_left,
            "This aligns query 0 with key 0. It is right for a square; with a cache in front the new queries see too little.",
            "At which key does the last query stand?",
        ),
        Mistake(
            masked_after_softmax,
            "This masks the weights after the softmax. They no longer add up to 1: what the hidden keys had is lost.",
            "Which sum does the softmax divide by: over all keys, or over those that may be seen?",
        ),
        Mistake(
            lse_of_all_keys,
            "o is right. lse is taken over all keys, the hidden ones too, so it is too large.",
            "Which scores go into lse: those before the mask, or after?",
        ),
        Mistake(
            lse_without_scale,
            "o is right. lse is taken over unscaled scores: exp(s - lse) would not give the weights back.",
            "Are the scores in lse the very ones in the softmax?",
        ),
    ),
    keep="o and lse are all that anyone later needs to know about these keys: lessons 02, 06 and 09 live on that pair.",
)
