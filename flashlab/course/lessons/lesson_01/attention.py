"""01.attention: the formula. One line is left to fill in."""

import torch
import torch.nn.functional as F

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def stub(q, k, v):
    """q: (..., seqlen_q, head_dim). k, v: (..., seqlen_k, head_dim). Returns o, shaped like q."""
    scale = q.shape[-1] ** -0.5
    s = ...  # your line: the scores, (..., seqlen_q, seqlen_k)
    p = torch.softmax(s, dim=-1)
    return p @ v


def solution(q, k, v):
    """q: (..., seqlen_q, head_dim). k, v: (..., seqlen_k, head_dim). Returns o, shaped like q."""
    scale = q.shape[-1] ** -0.5
    s = (q * scale) @ k.transpose(-2, -1)
    p = torch.softmax(s, dim=-1)
    return p @ v


def scale_forgotten(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v


def divided_by_head_dim(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1], dim=-1) @ v


def multiplied_by_the_root(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** 0.5, dim=-1) @ v


def softmax_over_queries(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, dim=-2) @ v


def no_softmax(q, k, v):
    return q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 @ v


def all_dimensions_reversed(q, k, v):
    return torch.softmax(q @ k.permute(*reversed(range(k.dim()))) * q.shape[-1] ** -0.5, dim=-1) @ v


def _qkv(seed, queries, keys, head_dim, *leading):
    return tuple(normal(seed + i, *leading, rows, head_dim) for i, rows in enumerate((queries, keys, keys)))


def _one_head():
    return [Case("5 queries, 5 keys, head_dim = 4", _qkv(10, 5, 5, 4))]


def _lengths():
    return [
        Case("1 query, 9 keys, head_dim = 8", _qkv(20, 1, 9, 8)),
        Case("7 queries, 3 keys, head_dim = 8", _qkv(30, 7, 3, 8)),
    ]


def _leading():
    return [Case("2 batches, 3 heads, 4 queries, 6 keys, head_dim = 8", _qkv(40, 4, 6, 8, 2, 3))]


def _wide():
    return [Case("4 queries, 16 keys, head_dim = 256", _qkv(50, 4, 16, 256))]


def _average(attention):
    q, k, _ = _qkv(60, 3, 8, 4)
    o = attention(q, k, torch.ones(8, 4, dtype=torch.float64))
    worst = (o - 1).abs().max().item()
    return f"every value is 1, so their average is 1: yours is off by {worst:.4f}" if not worst < 1e-9 else None


EXERCISE = Exercise(
    id="01.attention",
    title="Attention in five lines",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Score (i, j) is the dot product of query i with key j. A matrix product computes all of them, if the rows of k stand "
        "as columns.",
        "k.transpose(-2, -1) swaps the last two dimensions and leaves heads and batches where they are.",
        "Multiply by scale once: q * scale is a small tensor, the scores may be a large one.",
    ),
    sub_checks=(
        SubCheck("one head", cases=_one_head),
        SubCheck("as many keys as you like", cases=_lengths),
        SubCheck("batches and heads in front", cases=_leading),
        SubCheck("wide heads need their scale", cases=_wide),
        SubCheck("each output is an average of values", test=_average),
    ),
    mistakes=(
        Mistake(
            scale_forgotten,
            "This is what comes out without the scale. The scores are sqrt(head_dim) times too large, so the softmax "
            "gives nearly everything to one key.",
            "scale is computed in the first line. Where do you use it?",
        ),
        Mistake(
            divided_by_head_dim,
            "This divides by head_dim instead of its square root. The scores are too small, and the softmax is nearly flat.",
            "A sum of head_dim products of standard normal numbers: how large is its standard deviation?",
        ),
        Mistake(
            multiplied_by_the_root,
            "This multiplies by sqrt(head_dim) where it should divide: the scores are head_dim times too large.",
            "scale is already head_dim ** -0.5. Do you divide by it?",
        ),
        Mistake(
            softmax_over_queries,
            "This is what comes out when the softmax runs down the columns: for each key the queries share a weight of 1, "
            "and a query's own weights no longer add up to 1.",
            "Rows are queries, columns are keys. Over which of them does one query distribute its attention?",
        ),
        Mistake(
            no_softmax,
            "This is (q k^T) v without a softmax: linear in the scores, and no average of the values.",
            "Which line turns scores into weights that are positive and add up to 1?",
        ),
        Mistake(
            all_dimensions_reversed,
            "k.T reverses all dimensions, batches and heads too. With one head there are only two, and it works.",
            "Which two dimensions of k have to change places, and which must stay where they are?",
        ),
    ),
    keep="Attention is an average of values; the softmax of scaled dot products chooses the weights.",
)
