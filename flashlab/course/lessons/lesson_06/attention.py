"""06.attention: an autograd.Function with grouped heads that passes gradcheck."""

import torch

from flashlab.course.compare import first_difference
from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(q, k, v):
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1) @ v


def stub(q, k, v):
    """q: (heads_q, seqlen_q, head_dim), k, v: (heads_kv, seqlen_k, head_dim). Returns o, like q, with gradients.

    Query head h reads kv head h // group, group = heads_q // heads_kv.
    """
    group, scale = q.shape[0] // k.shape[0], q.shape[-1] ** -0.5

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            s = q @ k.repeat_interleave(group, dim=0).mT * scale
            lse = torch.logsumexp(s, dim=-1)
            o = torch.exp(s - lse[..., None]) @ v.repeat_interleave(group, dim=0)
            ctx.save_for_backward(q, k, v, o, lse)  # neither s nor p
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, lse = ctx.saved_tensors
            dq, dk, dv = ...  # your lines
            return dq, dk, dv

    return Attention.apply(q, k, v)


def solution(q, k, v):
    """q: (heads_q, seqlen_q, head_dim), k, v: (heads_kv, seqlen_k, head_dim). Returns o, like q, with gradients.

    Query head h reads kv head h // group, group = heads_q // heads_kv.
    """
    group, scale = q.shape[0] // k.shape[0], q.shape[-1] ** -0.5

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            s = q @ k.repeat_interleave(group, dim=0).mT * scale
            lse = torch.logsumexp(s, dim=-1)
            o = torch.exp(s - lse[..., None]) @ v.repeat_interleave(group, dim=0)
            ctx.save_for_backward(q, k, v, o, lse)  # neither s nor p
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, lse = ctx.saved_tensors
            wide_k, wide_v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
            p = torch.exp(q @ wide_k.mT * scale - lse[..., None])
            ds = p * (do @ wide_v.mT - (do * o).sum(dim=-1, keepdim=True))
            dq = ds @ wide_k * scale
            dk = (ds.mT @ q * scale).unflatten(0, (-1, group)).sum(dim=1)
            dv = (p.mT @ do).unflatten(0, (-1, group)).sum(dim=1)
            return dq, dk, dv

    return Attention.apply(q, k, v)


def _attention(q, k, v, *, delta=True, scale_q=1.0, scale_k=1.0, gather=None, dv_of_ds=False, swapped=False):
    """The solution with one part of its backward exchanged."""
    group, scale = q.shape[0] // k.shape[0], q.shape[-1] ** -0.5
    gather = gather or (lambda x: x.unflatten(0, (-1, group)).sum(dim=1))

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            s = q @ k.repeat_interleave(group, dim=0).mT * scale
            lse = torch.logsumexp(s, dim=-1)
            o = torch.exp(s - lse[..., None]) @ v.repeat_interleave(group, dim=0)
            ctx.save_for_backward(q, k, v, o, lse)
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, lse = ctx.saved_tensors
            wide_k, wide_v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
            p = torch.exp(q @ wide_k.mT * scale - lse[..., None])
            ds = p * (do @ wide_v.mT - (do * o).sum(dim=-1, keepdim=True) * delta)
            dq = ds @ wide_k * scale * scale_q
            dk, dv = gather(ds.mT @ q * scale * scale_k), gather((ds if dv_of_ds else p).mT @ do)
            return (dq, dv, dk) if swapped else (dq, dk, dv)

    return Attention.apply(q, k, v)


def delta_forgotten(q, k, v):
    return _attention(q, k, v, delta=False)


def scale_missing_in_dq(q, k, v):
    return _attention(q, k, v, scale_q=q.shape[-1] ** 0.5)


def scale_missing_in_dk(q, k, v):
    return _attention(q, k, v, scale_k=q.shape[-1] ** 0.5)


def dv_from_ds(q, k, v):
    return _attention(q, k, v, dv_of_ds=True)


def group_not_summed(q, k, v):
    return _attention(q, k, v, gather=lambda x: x)


def group_mean(q, k, v):
    return _attention(q, k, v, gather=lambda x: x.unflatten(0, (k.shape[0], -1)).mean(dim=1))


def first_of_the_group(q, k, v):
    return _attention(q, k, v, gather=lambda x: x.unflatten(0, (k.shape[0], -1))[:, 0])


def group_interleaved(q, k, v):
    return _attention(q, k, v, gather=lambda x: x.unflatten(0, (-1, k.shape[0])).sum(dim=0))


def swapped(q, k, v):
    return _attention(q, k, v, swapped=True)


def _inputs(seed, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim):
    return (
        normal(seed, heads_q, seqlen_q, head_dim).requires_grad_(),
        normal(seed + 1, heads_kv, seqlen_k, head_dim).requires_grad_(),
        normal(seed + 2, heads_kv, seqlen_k, head_dim).requires_grad_(),
    )


def _same_output():
    return [Case("4 query heads on 2, 5 queries, 7 keys", _inputs(10, 4, 2, 5, 7, 4))]


def _compared(attention, inputs, do) -> str | None:
    """Which gradient is not autograd's through the spec, and by how much."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    got = torch.autograd.grad(attention(*inputs), inputs, do)
    wanted = torch.autograd.grad(spec(*inputs), inputs, do)
    wrong = [
        f"{name}, {difference}"
        for name, yours, right in zip(("dq", "dk", "dv"), got, wanted, strict=True)
        if (difference := first_difference(yours, right, 1e-9))
    ]
    return f"{len(wrong)} of 3 gradients are wrong: {wrong[0]}" if wrong else None


def _gradients(seed, heads_q, heads_kv):
    def test(attention):
        inputs = _inputs(seed, heads_q, heads_kv, 3, 4, 4)
        return _compared(attention, inputs, normal(seed + 3, heads_q, 3, 4))

    return test


def _gradcheck(attention):
    inputs = _inputs(60, 4, 2, 3, 5, 4)
    if torch.autograd.gradcheck(attention, inputs, raise_exception=False):
        return None
    worst = _compared(attention, inputs, normal(63, 4, 3, 4))
    return f"torch.autograd.gradcheck, 4 query heads on 2, 3 queries, 5 keys: False ({worst or 'not repeatable'})"


def _stride_zero(attention):
    inputs = _inputs(70, 2, 2, 3, 4, 4)
    return _compared(attention, inputs, torch.ones((), dtype=torch.float64).expand(2, 3, 4))


EXERCISE = Exercise(
    id="06.attention",
    title="An autograd.Function that passes gradcheck",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Begin with one query head for each kv head: the lines of naive.backward, with .mT for .T (heads are in "
        "front) and dim=-1 for dim=1.",
        "Grouped heads: compute with wide copies, wide_k = k.repeat_interleave(group, dim=0), as the forward does. "
        "dq is done then; dk and dv come out with heads_q heads.",
        "Each kv head was read by group query heads, next to each other. Its gradient is their sum: "
        "dk.unflatten(0, (-1, group)).sum(dim=1).",
    ),
    sub_checks=(
        SubCheck("the output is still right", cases=_same_output),
        SubCheck("one head: dq, dk and dv", test=_gradients(20, 1, 1)),
        SubCheck("two heads", test=_gradients(30, 2, 2)),
        SubCheck("grouped heads, 6 on 2", test=_gradients(40, 6, 2)),
        SubCheck("torch.autograd.gradcheck", test=_gradcheck),
        SubCheck("a gradient of stride 0, as out.sum().backward() sends it", test=_stride_zero),
    ),
    mistakes=(
        Mistake(
            delta_forgotten,
            "dv is right, dq and dk are what comes out without D: ds = p * dp.",
            "What does softmax_gradient take off dp?",
        ),
        Mistake(
            scale_missing_in_dq,
            "dk and dv are right, dq is sqrt(head_dim) too large: its scale is missing.",
            "What is the derivative of scale * q . k with respect to q?",
        ),
        Mistake(
            scale_missing_in_dk,
            "dq and dv are right, dk is sqrt(head_dim) too large: its scale is missing.",
            "What is the derivative of scale * q . k with respect to k?",
        ),
        Mistake(
            dv_from_ds,
            "dv was made from ds. No score depends on v: it is p that weighs the values.",
            "o = p v. Which matrix multiplies v there?",
        ),
        Mistake(
            group_not_summed,
            "dk and dv came out with heads_q heads. A kv head has one gradient, the sum over the query heads that "
            "read it; autograd refuses any other shape.",
            "How many rows of heads has k, and how many has your dk?",
        ),
        Mistake(
            group_mean,
            "dk and dv are the mean over the group. A tensor that is used three times receives the sum of three "
            "gradients.",
            "y = x + x + x: what is dy/dx?",
        ),
        Mistake(
            first_of_the_group,
            "dk and dv are those of the first query head of each group. The others read the same keys.",
            "Which query heads read kv head 0 when 6 share 2?",
        ),
        Mistake(
            group_interleaved,
            "The heads were grouped the wrong way: with 6 heads on 2, query heads 0, 1, 2 read kv head 0, not 0, 2, 4.",
            "repeat_interleave puts the copies next to each other. Which dimension of your view is the group?",
        ),
        Mistake(
            swapped,
            "dk and dv change places on the way out.",
            "In which order did forward take its arguments?",
        ),
    ),
    keep="backward recomputes p from lse, takes D off, and sums dk and dv over the query heads that share a kv head.",
)
