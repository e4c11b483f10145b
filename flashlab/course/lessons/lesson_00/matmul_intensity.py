"""00.matmul_intensity: FLOP per byte of a matrix product."""

import torch

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(m, n, k, element_bytes):
    from torch.utils.flop_counter import FlopCounterMode  # not at the top: it loads triton, and start() comes first

    a, b = torch.empty(m, k, device="meta"), torch.empty(k, n, device="meta")
    with FlopCounterMode(display=False) as counter:  # PyTorch counts its own FLOP
        c = a @ b
    return counter.get_total_flops() / (element_bytes * (a.numel() + b.numel() + c.numel()))


def stub(m, n, k, element_bytes):
    """(m, k) @ (k, n): FLOP per byte. Each matrix crosses the bus once. Arithmetic only."""
    raise NotImplementedError


def solution(m, n, k, element_bytes):
    """(m, k) @ (k, n): FLOP per byte. Each matrix crosses the bus once. Arithmetic only."""
    flops = 2 * m * n * k
    elements = m * k + k * n + m * n
    return flops / (elements * element_bytes)


def additions_forgotten(m, n, k, element_bytes):
    return m * n * k / ((m * k + k * n + m * n) * element_bytes)


def output_forgotten(m, n, k, element_bytes):
    return 2 * m * n * k / ((m * k + k * n) * element_bytes)


def elements_for_bytes(m, n, k, element_bytes):
    return 2 * m * n * k / (m * k + k * n + m * n)


def upside_down(m, n, k, element_bytes):
    return (m * k + k * n + m * n) * element_bytes / (2 * m * n * k)


def bytes_on_top(m, n, k, element_bytes):
    return 2 * m * n * k / element_bytes * (m * k + k * n + m * n)


def nothing_is_reused(m, n, k, element_bytes):
    return 2 * m * n * k / ((2 * m * n * k + m * n) * element_bytes)


def _square():
    return [Case(f"m = n = k = {n}, bf16", (n, n, n, 2)) for n in (64, 4096)]


def _vector():
    return [Case("one row: m = 1, n = k = 4096, bf16", (1, 4096, 4096, 2))]


def _rectangles():
    return [
        Case("m = 8, n = 14336, k = 4096, bf16", (8, 14336, 4096, 2)),
        Case("m = 3, n = 5, k = 7, bf16", (3, 5, 7, 2)),
    ]


def _widths():
    return [Case(f"m = n = k = 512, {b} bytes an element", (512, 512, 512, b)) for b in (1, 4)]


EXERCISE = Exercise(
    id="00.matmul_intensity",
    title="The arithmetic intensity of a matrix product",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Each of the m * n outputs is a sum of k products. A product is one FLOP, adding it to the sum is another.",
        "Three matrices cross the memory bus: (m, k) and (k, n) are read, (m, n) is written. Each element takes element_bytes.",
        "For m = n = k it comes to n / (1.5 * element_bytes). Does yours?",
    ),
    sub_checks=(
        SubCheck("square matrices", cases=_square),
        SubCheck("a matrix times one row", cases=_vector),
        SubCheck("rectangles", cases=_rectangles),
        SubCheck("wider and narrower elements", cases=_widths),
    ),
    mistakes=(
        Mistake(
            additions_forgotten,
            "This is half of what it should be: it counts the m * n * k multiplications and leaves out as many additions. "
            "GPUs are sold by multiply-adds counted as two.",
            "What happens to a product once it is computed?",
        ),
        Mistake(
            output_forgotten,
            "This is what comes out when only the two inputs are counted. The result has to be written, too; for one row it "
            "hardly shows, for a square matrix it is a third of the traffic.",
            "Where is the result when the product is done, and how did it get there?",
        ),
        Mistake(
            elements_for_bytes,
            "This is FLOP per element: element_bytes has no effect on it.",
            "How should the intensity change when the same matrices are stored in float32 instead of bf16?",
        ),
        Mistake(
            upside_down,
            "This is bytes per FLOP, the quotient upside down. A large matrix product should have a large intensity.",
            "The unit is FLOP per byte: which of the two goes on top?",
        ),
        Mistake(
            bytes_on_top,
            "This multiplies by the elements instead of dividing: a / b * c is (a / b) * c in Python.",
            "What belongs under the fraction bar, and do parentheses hold it together?",
        ),
        Mistake(
            nothing_is_reused,
            "This is what comes out when both factors of every product are fetched anew. Then no product has more than one "
            "FLOP an element. The point of on-chip memory is that an element is fetched once and used many times.",
            "How many elements do the two input matrices hold, and how often must each of them be read at least?",
        ),
    ),
    keep="Intensity is reuse: in bf16 a square product does n/3 FLOP for each byte, a single row about one.",
)
