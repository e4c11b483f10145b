"""05.row_offset: where a row of a (batch, seqlen, heads, head_dim) tensor begins, whatever its strides."""

from flashlab.course.lessons.data import normal
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(x, batch, token, head):
    return x[batch, token, head].storage_offset() - x.storage_offset()


def stub(x, batch, token, head):
    """x: (batch, seqlen, heads, head_dim), any strides. Elements from x's first one to x[batch, token, head, 0]."""
    stride_b, stride_t, stride_h, _ = x.stride()
    return ...


def solution(x, batch, token, head):
    """x: (batch, seqlen, heads, head_dim), any strides. Elements from x's first one to x[batch, token, head, 0]."""
    stride_b, stride_t, stride_h, _ = x.stride()
    return batch * stride_b + token * stride_t + head * stride_h


def from_the_shape(x, batch, token, head):
    _, seqlen, heads, head_dim = x.shape
    return ((batch * seqlen + token) * heads + head) * head_dim


def heads_before_tokens(x, batch, token, head):
    _, seqlen, heads, head_dim = x.shape
    return ((batch * heads + head) * seqlen + token) * head_dim


def strides_swapped(x, batch, token, head):
    stride_b, stride_t, stride_h, _ = x.stride()
    return batch * stride_b + token * stride_h + head * stride_t


def batch_forgotten(x, batch, token, head):
    _, stride_t, stride_h, _ = x.stride()
    return token * stride_t + head * stride_h


def token_forgotten(x, batch, token, head):
    stride_b, _, stride_h, _ = x.stride()
    return batch * stride_b + head * stride_h


def head_forgotten(x, batch, token, head):
    stride_b, stride_t, _, _ = x.stride()
    return batch * stride_b + token * stride_t


def head_dim_for_the_head(x, batch, token, head):
    stride_b, stride_t, _, _ = x.stride()
    return batch * stride_b + token * stride_t + head * x.shape[3]


def in_bytes(x, batch, token, head):
    return solution(x, batch, token, head) * x.element_size()


def _case(label, x, *places):
    return [Case(f"{label}, batch {b}, token {t}, head {h}", (x, b, t, h)) for b, t, h in places]


def _contiguous():
    return _case("contiguous (2, 5, 3, 4)", normal(1, 2, 5, 3, 4), (0, 2, 0), (0, 0, 2), (1, 4, 2))


def _heads_first():
    x = normal(2, 2, 3, 5, 4).transpose(1, 2)
    return _case("made as (2, 3, 5, 4), seen as (2, 5, 3, 4)", x, (0, 2, 0), (0, 0, 2), (1, 4, 2))


def _slices():
    fused = normal(3, 2, 5, 3, 3, 4)
    parts = _case("the k of a fused qkv (2, 5, 3, 3, 4)", fused[:, :, 1], (0, 1, 1), (1, 4, 2))
    return parts + _case("every second token and head of (2, 10, 6, 8)", normal(4, 2, 10, 6, 8)[:, ::2, ::2], (1, 3, 1))


EXERCISE = Exercise(
    id="05.row_offset",
    title="Where a row begins",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "A stride says how many elements lie between two neighbours along one dimension. Going from token 0 to token t "
        "is t such steps.",
        "The three steps are independent of each other: their lengths add up.",
        "batch * stride_b + two more terms of the same form. Nothing else: no shape appears.",
    ),
    sub_checks=(
        SubCheck("a contiguous tensor", cases=_contiguous),
        SubCheck("heads before tokens in memory", cases=_heads_first),
        SubCheck("slices of larger tensors", cases=_slices),
    ),
    mistakes=(
        Mistake(
            from_the_shape,
            "This is worked out from the shape. It is right for a contiguous tensor and wrong for every other one.",
            "A transposed tensor and a contiguous one can have the same shape. What tells them apart?",
        ),
        Mistake(
            heads_before_tokens,
            "This is the layout (batch, heads, seqlen, head_dim), worked out from the shape. Our tensors are (batch, "
            "seqlen, heads, head_dim), and in memory they may lie in any order.",
            "Which number of the function's second line says how far the next token is?",
        ),
        Mistake(
            strides_swapped,
            "The strides of token and head are swapped: the next token's row is taken from the next head.",
            "Which stride belongs to token?",
        ),
        Mistake(
            batch_forgotten,
            "Every batch reads the rows of batch 0.",
            "How far is it from one sequence to the next?",
        ),
        Mistake(
            token_forgotten,
            "Every token has the row of token 0.",
            "How far is it from one token to the next?",
        ),
        Mistake(
            head_forgotten,
            "Every head has the row of head 0.",
            "How far is it from one head to the next?",
        ),
        Mistake(
            head_dim_for_the_head,
            "Heads are taken to lie head_dim apart. They do where the tensor is contiguous.",
            "Between token 0 of head 0 and token 0 of head 1: is there always exactly one row?",
        ),
        Mistake(
            in_bytes,
            "This is in bytes. A pointer in Triton moves by elements: it knows its own type.",
            "Where does element_size come in?",
        ),
    ),
    keep="A row begins at batch * stride_b + token * stride_t + head * stride_h; the shape has no part in it.",
)
