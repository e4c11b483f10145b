"""02.online_attention: attention of one query in one pass over the keys. The probabilities are never written."""

import math

import torch

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(q, k, v, block):
    s = k @ q * q.shape[0] ** -0.5
    out, lse = torch.softmax(s, dim=0) @ v, torch.logsumexp(s, dim=0)
    return out, lse


def stub(q, k, v, block):
    """q: (head_dim,), k: (n, head_dim), v: (n, head_dim_v); keys are read `block` at a time, each once.

    Returns out (head_dim_v,) and lse (), the natural log of the sum of exp(scores).
    """
    raise NotImplementedError


def solution(q, k, v, block):
    """q: (head_dim,), k: (n, head_dim), v: (n, head_dim_v); keys are read `block` at a time, each once.

    Returns out (head_dim_v,) and lse (), the natural log of the sum of exp(scores).
    """
    scale = q.shape[0] ** -0.5
    m, l, acc = q.new_tensor(-math.inf), q.new_tensor(0.0), q.new_zeros(v.shape[1])
    for start in range(0, k.shape[0], block):
        s = k[start : start + block] @ q * scale
        m_new = torch.maximum(m, s.max())
        rescale = torch.exp(m - m_new)
        p = torch.exp(s - m_new)
        l = l * rescale + p.sum()
        acc = acc * rescale + p @ v[start : start + block]
        m = m_new
    return acc / l, m + torch.log(l)


def acc_not_rescaled(q, k, v, block):
    m, l, acc = q.new_tensor(-math.inf), q.new_tensor(0.0), q.new_zeros(v.shape[1])
    for start in range(0, k.shape[0], block):
        s = k[start : start + block] @ q * q.shape[0] ** -0.5
        m_new = torch.maximum(m, s.max())
        p = torch.exp(s - m_new)
        l = l * torch.exp(m - m_new) + p.sum()
        acc = acc + p @ v[start : start + block]
        m = m_new
    return acc / l, m + torch.log(l)


def nothing_rescaled(q, k, v, block):
    m, l, acc = q.new_tensor(-math.inf), q.new_tensor(0.0), q.new_zeros(v.shape[1])
    for start in range(0, k.shape[0], block):
        s = k[start : start + block] @ q * q.shape[0] ** -0.5
        m = torch.maximum(m, s.max())
        p = torch.exp(s - m)
        l = l + p.sum()
        acc = acc + p @ v[start : start + block]
    return acc / l, m + torch.log(l)


def scale_forgotten(q, k, v, block):
    return solution(q * q.shape[0] ** 0.5, k, v, block)


def scale_twice(q, k, v, block):
    return solution(q * q.shape[0] ** -0.5, k, v, block)


def divided_in_every_block(q, k, v, block):
    m, l, acc = q.new_tensor(-math.inf), q.new_tensor(0.0), q.new_zeros(v.shape[1])
    for start in range(0, k.shape[0], block):
        s = k[start : start + block] @ q * q.shape[0] ** -0.5
        m_new = torch.maximum(m, s.max())
        rescale = torch.exp(m - m_new)
        p = torch.exp(s - m_new)
        l = l * rescale + p.sum()
        acc = (acc * rescale + p @ v[start : start + block]) / l
        m = m_new
    return acc, m + torch.log(l)


def new_part_divided(q, k, v, block):
    m, l, acc = q.new_tensor(-math.inf), q.new_tensor(0.0), q.new_zeros(v.shape[1])
    for start in range(0, k.shape[0], block):
        s = k[start : start + block] @ q * q.shape[0] ** -0.5
        m_new = torch.maximum(m, s.max())
        p = torch.exp(s - m_new)
        l = l * torch.exp(m - m_new) + p.sum()
        acc = acc * torch.exp(m - m_new) + p @ v[start : start + block] / l
        m = m_new
    return acc, m + torch.log(l)


def never_divided(q, k, v, block):
    out, lse = solution(q, k, v, block)
    m = (k @ q * q.shape[0] ** -0.5).max()
    return out * torch.exp(lse - m), lse


def last_block_dropped(q, k, v, block):
    whole = k.shape[0] // block * block
    return solution(q, k[:whole], v[:whole], block)


def lse_without_the_maximum(q, k, v, block):
    out, lse = solution(q, k, v, block)
    return out, lse - (k @ q * q.shape[0] ** -0.5).max()


def _problem(seed, n, head_dim=8, head_dim_v=8):
    return normal(seed, head_dim), normal(seed + 1, n, head_dim), normal(seed + 2, n, head_dim_v)


def _one_block():
    return [Case("n = 16, block = 16", (*_problem(10, 16), 16))]


def _block_sizes():
    return [Case(f"n = 16, block = {block}", (*_problem(20, 16), block)) for block in (8, 2, 1)]


def _ragged():
    return [Case(f"n = {n}, block = {block}", (*_problem(n, n), block)) for n, block in ((17, 8), (129, 32))]


def _growing():
    q, k, v = _problem(30, 12)
    k = q * torch.arange(12.0, dtype=torch.float64)[:, None]
    return [Case("n = 12, scores rising from key to key, block = 4", (q, k, v, 4))]


def _large():
    q, k, v = _problem(40, 16)
    return [Case("n = 16, scores up to several thousand, block = 4", (1000 * q, k, v, 4))]


def _wide():
    return [Case("n = 24, head_dim = 4, head_dim_v = 6, block = 8", (*_problem(50, 24, 4, 6), 8))]


EXERCISE = Exercise(
    id="02.online_attention",
    title="Attention of one query, in one pass over the keys",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "The skeleton is your online softmax for a single row: the scores of a block are k[block] @ q * head_dim ** "
        "-0.5, and m and l are single numbers.",
        "A third thing travels along: acc, of shape (head_dim_v,), the sum of p_j * v_j so far. Its terms hold the "
        "same exp(s - m) as those of l.",
        "So acc is treated exactly as l: acc * exp(m - m_new) + p @ v[block]. Compute the factor once, use it twice.",
        "Divide once, after the loop: out = acc / l. And lse = m + log(l), because l was measured against m.",
    ),
    sub_checks=(
        SubCheck("one block equals softmax(q k^T) v", cases=_one_block),
        SubCheck("block size does not change the answer", cases=_block_sizes),
        SubCheck("length not divisible by the block", cases=_ragged),
        SubCheck("a later, larger score rescales what came before", cases=_growing),
        SubCheck("large scores do not overflow", cases=_large),
        SubCheck("values of another width than keys", cases=_wide),
    ),
    mistakes=(
        Mistake(
            acc_not_rescaled,
            "This is what comes out when l is rescaled but acc is not: the earlier values keep weights measured "
            "against an older, smaller maximum, so they weigh too much.",
            "acc and l are sums over the same exp(s - m). Do both get the same treatment when m grows?",
        ),
        Mistake(
            nothing_rescaled,
            "This is what comes out when neither l nor acc is rescaled. Both hold terms measured against different "
            "maxima.",
            "What happens to l and acc on the line where m changes?",
        ),
        Mistake(
            scale_forgotten,
            "This is what comes out when the scores are not multiplied by head_dim ** -0.5: the softmax is too sharp.",
            "Compare the line that computes s with the first line of the spec.",
        ),
        Mistake(
            scale_twice,
            "This is what comes out when the scores are divided by head_dim, where its square root is asked for; or by "
            "the root twice, once with q and once with s. The softmax is too flat.",
            "Compare the line that computes s with the first line of the spec. Is there a second scale?",
        ),
        Mistake(
            divided_in_every_block,
            "This is what comes out when acc is divided by l in every block. With a single block it is right; with "
            "more, the earlier values are divided again and again.",
            "How many times should each p_j * v_j be divided by l, and when is the final l known?",
        ),
        Mistake(
            new_part_divided,
            "This is what comes out when each block's part is divided by the l of that moment. The parts of earlier "
            "blocks were divided by another number than the later ones.",
            "How many times should each p_j * v_j be divided, by which l, and when is that l known?",
        ),
        Mistake(
            never_divided,
            "This is what comes out when acc is returned undivided: the weights exp(s - m) add up to l, not to 1.",
            "Which number turns the sum of exp(s - m) * v into a weighted average of v?",
        ),
        Mistake(
            last_block_dropped,
            "This is what comes out when the shorter block at the end is never read: n // block whole blocks are "
            "counted.",
            "Which keys does your loop read for n = 17 and block = 8?",
        ),
        Mistake(
            lse_without_the_maximum,
            "out is right, but lse is log(l) alone. l was measured against m: the sum of exp(s) is exp(m) * l.",
            "What is the logarithm of exp(m) * l?",
        ),
    ),
    keep="acc is one more running sum: rescale it with l, divide once at the end, and no probability is ever stored.",
)
