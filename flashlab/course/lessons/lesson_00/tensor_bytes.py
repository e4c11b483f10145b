"""00.tensor_bytes: what a tensor takes in memory. One line is left to fill in."""

import math

import torch

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(shape, dtype):
    return torch.empty(shape, dtype=dtype, device="meta").nbytes  # "meta": a tensor without memory


def stub(shape, dtype):
    """shape: a tuple of ints. dtype: torch.bfloat16, ... Returns an int, the tensor's bytes."""
    elements = math.prod(shape)
    return ...  # your line: from elements to bytes


def solution(shape, dtype):
    """shape: a tuple of ints. dtype: torch.bfloat16, ... Returns an int, the tensor's bytes."""
    elements = math.prod(shape)
    return elements * dtype.itemsize


def elements_only(shape, dtype):
    return math.prod(shape)


def always_four(shape, dtype):
    return math.prod(shape) * 4


def always_two(shape, dtype):
    return math.prod(shape) * 2


def bits(shape, dtype):
    return math.prod(shape) * dtype.itemsize * 8


def finfo_of_integers(shape, dtype):
    return math.prod(shape) * torch.finfo(dtype).bits // 8


def _weights():
    return [Case("a bfloat16 matrix, 4096 x 4096", ((4096, 4096), torch.bfloat16))]


def _dtypes():
    names = ("float16", "float32", "float64", "int64")
    return [Case(f"{name}, shape (3, 5, 7)", ((3, 5, 7), getattr(torch, name))) for name in names]


def _one_byte():
    return [Case(f"{name}, shape (2, 8, 1024, 128)", ((2, 8, 1024, 128), getattr(torch, name)))
            for name in ("int8", "float8_e4m3fn", "bool")]


def _edges():
    return [
        Case("a single number, shape ()", ((), torch.float32)),
        Case("an empty tensor, shape (0, 128)", ((0, 128), torch.bfloat16)),
    ]


EXERCISE = Exercise(
    id="00.tensor_bytes",
    title="The bytes of a tensor",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "A tensor of shape (3, 5) in float32 has 15 elements of 32 bits each. There are 8 bits in a byte.",
        "You need the bytes of one element, and a dtype knows them: look at dir(torch.bfloat16), or try "
        "torch.bfloat16.itemsize.",
    ),
    sub_checks=(
        SubCheck("a bf16 weight matrix", cases=_weights),
        SubCheck("every dtype has its own width", cases=_dtypes),
        SubCheck("one-byte formats, as in a small KV cache", cases=_one_byte),
        SubCheck("a single number and an empty tensor", cases=_edges),
    ),
    mistakes=(
        Mistake(
            elements_only,
            "This is the number of elements, not of bytes. It is right only where an element takes one byte.",
            "How many bytes does one element of this dtype take?",
        ),
        Mistake(
            always_four,
            "This is what comes out when every element takes 4 bytes, as float32 does. A model in bfloat16 would look twice "
            "as large as it is.",
            "Your line never asks the dtype anything: what does torch.bfloat16.itemsize say?",
        ),
        Mistake(
            always_two,
            "This is what comes out when every element takes 2 bytes, as bfloat16 does. That is the habit of people who size "
            "models, and an int8 cache breaks it.",
            "Your line never asks the dtype anything: what does torch.int8.itemsize say?",
        ),
        Mistake(
            bits,
            "This counts bits: it is 8 times too large. Memory and bandwidth are quoted in bytes, network links often in bits.",
            "Is itemsize already in bytes?",
        ),
        Mistake(
            finfo_of_integers,
            "torch.finfo knows floating-point formats only, and an int8 tensor is none: there it raises.",
            "What attribute do all dtypes have, integers and bool too?",
        ),
    ),
    keep="Bytes are elements times width: bf16 has 2, so a billion parameters are 2 GB.",
)
