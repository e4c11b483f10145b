"""Lesson 04: programs, pointers, masks; softmax and attention of one head as Triton kernels."""

from flashlab import kernels  # noqa: F401  before triton: it decides where kernels run

# isort: split
import math

from flashlab.course.lessons.in_triton import matrix
from flashlab.course.lessons.lesson_04 import attention_head, recorded, row_max, row_softmax, row_sums, tile_sums
from flashlab.course.spec import Lesson, Prediction, Question
from flashlab.course.trace import trace

VECTOR, BLOCK = 1_000_000, 1024  # of the first prediction
ROWS, WIDTH = 33, 129  # of the softmax
SEQLEN_Q, SEQLEN_K, TILE = 100, 200, 32  # of the attention head


def block_of(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def lanes_off(n: int) -> float:
    """Percent of the lanes of a row of n that stand for nothing."""
    return 100 * (1 - n / block_of(n))


def softmax_bytes() -> int:
    """What the solution's kernel loads and stores, counted."""
    x = matrix(1, ROWS, WIDTH, device="cpu")
    return trace(lambda: row_softmax.solution(x)).total


def tile_steps() -> int:
    """Pairs of tiles of the attention head of this lesson."""
    return math.ceil(SEQLEN_Q / TILE) * math.ceil(SEQLEN_K / TILE)


def _programs(said, actual):
    return (
        f"{VECTOR:,} / {BLOCK} is {VECTOR / BLOCK:.2f}, and the rest needs a program too: triton.cdiv rounds up. The "
        f"last one has {VECTOR % BLOCK} elements and {BLOCK - VECTOR % BLOCK} lanes that are off."
    )


def _lanes(said, actual):
    return (
        f"The next power of two after {WIDTH} is {block_of(WIDTH)}: {block_of(WIDTH) - WIDTH} of its lanes are off. "
        f"A row of 128 would waste none. The arithmetic is paid for all lanes, the bytes only for those that are on."
    )


def _bytes(said, actual):
    return (
        f"{ROWS} x {WIDTH} x 4 bytes in and as many out. Lanes that are off load nothing, and nothing is read twice: "
        f"the row stays on the chip."
    )


def _steps(said, actual):
    q, k = math.ceil(SEQLEN_Q / TILE), math.ceil(SEQLEN_K / TILE)
    return f"{q} programs, each with a loop of {k}: both lengths are rounded up to whole tiles of {TILE}."


def _rate(said, actual):
    one, n = recorded.read_rates()[1] / 1e9, recorded.sms()
    return (
        f"{n} times as many would read {n} x {one:.1f} = {n * one:.0f} GB/s, but the memory of this GPU gives "
        f"{recorded.ceiling() / 1e9:.0f} at most, and near that they begin to wait for one another. It takes two "
        f"programs for each SM to get there."
    )


LESSON = Lesson(
    number="04",
    name="04_first_triton_kernel",
    title="Your first Triton kernel",
    exercises=(
        tile_sums.EXERCISE,
        row_sums.EXERCISE,
        row_softmax.EXERCISE,
        row_max.EXERCISE,
        attention_head.EXERCISE,
    ),
    predictions=(
        Prediction(
            id="04.programs",
            question=f"A vector of {VECTOR:,} elements, {BLOCK} a program. How many programs are launched?",
            unit="programs",
            answer=lambda: math.ceil(VECTOR / BLOCK),
            explain=_programs,
            source="Computed",
        ),
        Prediction(
            id="04.lanes_off",
            question=(
                f"A row of {WIDTH} elements, held by one program. What share of the program's lanes stands for nothing?"
            ),
            unit="percent",
            answer=lambda: lanes_off(WIDTH),
            explain=_lanes,
            source="Computed",
        ),
        Prediction(
            id="04.softmax_bytes",
            question=(
                f"Softmax of {ROWS} rows of {WIDTH} float32, a program a row. How many KB are loaded and stored "
                "together?"
            ),
            unit="KB",
            answer=lambda: softmax_bytes() / 1e3,
            explain=_bytes,
        ),
        Prediction(
            id="04.tile_steps",
            question=(
                f"{SEQLEN_Q} queries, {SEQLEN_K} keys, tiles of {TILE} x {TILE}. How many steps do all programs do "
                "together?"
            ),
            unit="steps",
            answer=tile_steps,
            explain=_steps,
        ),
        Prediction(
            id="04.read_rate",
            question=(
                f"On an H200 one program of 256 threads reads {recorded.read_rates()[1] / 1e9:.1f} GB/s. How many "
                f"GB/s do {recorded.sms()} programs read together, one for each SM?"
            ),
            unit="GB_per_s",
            answer=lambda: recorded.read_rates()[recorded.sms()] / 1e9,
            explain=_rate,
            source="Recorded",
        ),
    ),
    questions=(
        Question(
            id="04.q1",
            text="FlashAttention-2's loops, 1000 queries in tiles of 64. How many programs can a head keep busy?",
            answer=16,
            where="lesson 03, 'Queries outside: FlashAttention-2'",
        ),
        Question(
            id="04.q2",
            text="A row of scores is padded with entries that must not change its softmax. What are they set to?",
            choices={"a": "0", "b": "-inf", "c": "NaN", "d": "the row's mean"},
            answer="b",
            feedback={
                "a": "A score of 0 becomes a weight of exp(0 - m): as much as any key with that score.",
                "c": "NaN is not ignored: one of them makes the sum, and with it the whole row, NaN.",
                "d": "Then every padding entry gets a weight, about that of an average key.",
            },
            where="lesson 02, 'Merging is addition in disguise', on the empty partial",
        ),
    ),
)
