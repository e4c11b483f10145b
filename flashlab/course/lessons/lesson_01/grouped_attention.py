"""01.grouped_attention: query heads that share keys and values, without copying those."""

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(q, k, v):
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    return F.scaled_dot_product_attention(q, k, v)


def stub(q, k, v):
    """q: (heads_q, seqlen_q, head_dim). k, v: (heads_kv, seqlen_k, head_dim). o is shaped like q.

    Query head h reads KV head h // (heads_q // heads_kv). Do not copy k or v.
    """
    raise NotImplementedError


def solution(q, k, v):
    """q: (heads_q, seqlen_q, head_dim). k, v: (heads_kv, seqlen_k, head_dim). o is shaped like q.

    Query head h reads KV head h // (heads_q // heads_kv). Do not copy k or v.
    """
    heads_kv, _, head_dim = k.shape
    rows = q.reshape(heads_kv, -1, head_dim)  # the queries of a group, as rows of one matrix
    s = (rows * head_dim**-0.5) @ k.transpose(-2, -1)
    o = torch.softmax(s, dim=-1) @ v
    return o.reshape(q.shape)


def copied(q, k, v):
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    return torch.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1), dim=-1) @ v


def heads_in_turn(q, k, v):
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat(group, 1, 1), v.repeat(group, 1, 1)
    return torch.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1), dim=-1) @ v


def first_head_for_all(q, k, v):
    return torch.softmax((q * q.shape[-1] ** -0.5) @ k[0].T, dim=-1) @ v[0]


def scale_forgotten(q, k, v):
    rows = q.reshape(k.shape[0], -1, k.shape[-1])
    return (torch.softmax(rows @ k.transpose(-2, -1), dim=-1) @ v).reshape(q.shape)


def rows_shuffled(q, k, v):
    rows = q.transpose(0, 1).reshape(k.shape[0], -1, k.shape[-1])
    s = (rows * k.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    return (torch.softmax(s, dim=-1) @ v).reshape(q.shape)


def groups_dealt(q, k, v):
    heads_kv, _, head_dim = k.shape
    rows = q.reshape(-1, heads_kv, q.shape[1], head_dim).transpose(0, 1).reshape(heads_kv, -1, head_dim)
    s = (rows * head_dim**-0.5) @ k.transpose(-2, -1)
    return (torch.softmax(s, dim=-1) @ v).reshape(q.shape)


def left_folded(q, k, v):
    rows = q.reshape(k.shape[0], -1, k.shape[-1])
    return torch.softmax((rows * k.shape[-1] ** -0.5) @ k.transpose(-2, -1), dim=-1) @ v


def _qkv(seed, heads_q, heads_kv, queries, keys, head_dim):
    shapes = ((heads_q, queries), (heads_kv, keys), (heads_kv, keys))
    return tuple(normal(seed + i, *shape, head_dim) for i, shape in enumerate(shapes))


def _case(seed, *sizes):
    return Case("heads_q = {}, heads_kv = {}, seqlen_q = {}, seqlen_k = {}, head_dim = {}".format(*sizes), _qkv(seed, *sizes))


def _groups():
    return [_case(10, 8, 2, 5, 7, 4)]


def _odd_groups():
    return [_case(20, 9, 3, 4, 6, 8), _case(30, 12, 2, 4, 6, 8)]


def _extremes():
    return [_case(40, 4, 4, 3, 5, 8), _case(50, 4, 1, 3, 5, 8)]


def _decode():
    return [_case(60, 32, 8, 1, 33, 16)]


class _Largest(TorchDispatchMode):
    """The most elements that any tensor made in here has room for; a view has its base's room."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for made in tree_leaves(out):
            if isinstance(made, torch.Tensor):
                self.elements = max(self.elements, made.untyped_storage().nbytes() // made.element_size())
        return out


def _no_copy(grouped_attention):
    heads_q, heads_kv, keys, head_dim = 8, 2, 64, 32
    q, k, v = _qkv(70, heads_q, heads_kv, 1, keys, head_dim)
    with _Largest() as largest:
        grouped_attention(q, k, v)
    if largest.elements >= heads_q * keys * head_dim:
        return (
            f"k has {k.numel()} elements for its {heads_kv} heads; your code makes a tensor of {largest.elements}, "
            f"enough for {largest.elements * heads_kv // k.numel()} heads"
        )
    return None


EXERCISE = Exercise(
    id="01.grouped_attention",
    title="Grouped queries, nothing copied",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "With heads_q = 8 and heads_kv = 2, heads 0 to 3 read KV head 0 and heads 4 to 7 read KV head 1. You may loop over the "
        "heads and pick k[h // group].",
        "Or see it without a loop: four heads with 5 queries each are 20 queries of one KV head. Nothing in attention minds "
        "where a query comes from.",
        "q.reshape(heads_kv, -1, head_dim) makes those rows. Compute as ever, and reshape the result like q.",
    ),
    sub_checks=(
        SubCheck("four query heads a group", cases=_groups),
        SubCheck("groups of 3 and of 6", cases=_odd_groups),
        SubCheck("groups of one, and one group", cases=_extremes),
        SubCheck("a decode step", cases=_decode),
        SubCheck("k and v are not copied", test=_no_copy),
    ),
    mistakes=(
        Mistake(
            copied,
            "The numbers are right, but K and V were copied for every query head: group times the memory and the traffic, "
            "which is what sharing was to save. (Broadcasting in a matrix product, or expand and then reshape, copies as well.)",
            "Instead of bringing K to every query head: can you bring the queries of a group to their K?",
        ),
        Mistake(
            heads_in_turn,
            "This deals the KV heads out in turn, h % heads_kv: heads 0, 2, 4, ... read the same one. Groups are neighbours, "
            "h // (heads_q // heads_kv).",
            "With 8 query heads and 2 KV heads, which one should query head 1 read, and which does yours?",
        ),
        Mistake(
            first_head_for_all,
            "This gives every query head the first KV head. That is right when there is only one (multi-query attention).",
            "Where does the number of the query head enter?",
        ),
        Mistake(
            scale_forgotten,
            "This is what comes out without the scale head_dim ** -0.5.",
            "What stood in the first line of your attention?",
        ),
        Mistake(
            groups_dealt,
            "This cuts the query heads into (group, heads_kv) and then swaps the two, so that a KV head gets heads that are "
            "heads_kv apart. Neighbours share a KV head: the KV head is the slow dimension already, and nothing has to be swapped.",
            "Print q.reshape(...) for a q that holds its own head numbers: which heads stand beside KV head 0?",
        ),
        Mistake(
            left_folded,
            "This is right, but still folded: heads_kv tables, each with the rows of all heads of its group.",
            "Which shape has q, and in which order do your rows stand?",
        ),
        Mistake(
            rows_shuffled,
            "The rows of different groups are mixed: this brings the queries' dimension to the front before folding. It is "
            "right only where there is one query, or one group.",
            "Print q.reshape(...)[0] for a q that holds its own head numbers: which heads are in the first group?",
        ),
    ),
    keep="Heads that share keys are more rows of one matrix: K and V are read once for the whole group.",
)
