"""09.efficient_splits: FlashAttention-3's rule for the number of splits."""

import math

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.hardware import num_splits


def spec(rows, sms, key_tiles):
    return num_splits(blocks=rows, sms=sms, key_blocks=key_tiles)


def stub(rows, sms, key_tiles):
    """rows: programs before splitting. sms: how many run at once. key_tiles: tiles of keys in a row.

    Returns the number of splits by the rule above, an integer.
    """
    raise NotImplementedError


def solution(rows, sms, key_tiles):
    """rows: programs before splitting. sms: how many run at once. key_tiles: tiles of keys in a row.

    Returns the number of splits by the rule above, an integer.
    """
    if rows >= 0.8 * sms or key_tiles <= 4:
        return 1
    efficiency = {}
    for n in range(1, min(128, sms, key_tiles) + 1):
        waves = rows * n / sms
        efficiency[n] = waves / math.ceil(waves)
    enough = 0.85 * max(efficiency.values())
    return min(n for n, e in efficiency.items() if e >= enough)


def _search(rows, sms, key_tiles, efficiency=None, enough=0.85, relative=True, pick=min, most=None, busy=0.8, few=4):
    """The solution with one thing changed."""
    if rows >= busy * sms or key_tiles <= few:
        return 1
    efficiency = efficiency or (lambda waves: waves / math.ceil(waves))
    found = {n: efficiency(rows * n / sms) for n in range(1, (most or min(128, sms, key_tiles)) + 1)}
    enough *= max(found.values()) if relative else 1.0
    return pick((n for n, e in found.items() if e >= enough), default=1)


def waves_rounded_down(rows, sms, key_tiles):
    return _search(rows, sms, key_tiles, lambda waves: waves / max(1, math.floor(waves)))


def waves_not_rounded(rows, sms, key_tiles):
    return _search(rows, sms, key_tiles, lambda waves: 1.0)


def only_the_best(rows, sms, key_tiles):
    return _search(rows, sms, key_tiles, enough=1.0)


def not_against_the_best(rows, sms, key_tiles):
    return _search(rows, sms, key_tiles, relative=False)


def the_largest(rows, sms, key_tiles):
    return _search(rows, sms, key_tiles, pick=max)


def fill_one_wave(rows, sms, key_tiles):
    return max(1, min(sms // rows, key_tiles, 128))


def busy_gpu_forgotten(rows, sms, key_tiles):
    return _search(rows, sms, key_tiles, busy=math.inf)


def few_tiles_forgotten(rows, sms, key_tiles):
    return _search(rows, sms, key_tiles, few=0)


def four_tiles_are_split(rows, sms, key_tiles):
    return _search(rows, sms, key_tiles, few=3)


def last_count_missed(rows, sms, key_tiles):
    return _search(rows, sms, key_tiles, most=max(1, min(128, sms, key_tiles) - 1))


def more_splits_than_tiles(rows, sms, key_tiles):
    return _search(rows, sms, key_tiles, most=min(128, sms))


def _cases(*shapes):
    return [Case(f"{rows} rows, {sms} SMs, {tiles} key tiles", (rows, sms, tiles)) for rows, sms, tiles in shapes]


def _one_wave():
    return _cases((8, 132, 1024), (16, 108, 1024), (32, 132, 512))


def _more_waves():
    return _cases((48, 108, 64), (72, 132, 256), (100, 132, 256))


def _busy():
    return _cases((128, 132, 512), (87, 108, 64), (512, 132, 64))


def _short():
    return _cases((8, 132, 4), (8, 132, 1), (1, 108, 3))


def _few():
    return _cases((8, 132, 6), (1, 132, 12), (2, 108, 20))


EXERCISE = Exercise(
    id="09.efficient_splits",
    title="FlashAttention-3's number of splits",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "First the two ways out: rows at 80% of the SMs or more, or at most 4 key tiles: 1.",
        "Then for every n from 1 to min(128, sms, key_tiles): waves = rows * n / sms (a float), and "
        "waves / math.ceil(waves) is its efficiency.",
        "The answer is the smallest n whose efficiency is at least 0.85 times the largest of them all.",
    ),
    sub_checks=(
        SubCheck("few rows: splits within one wave", cases=_one_wave),
        SubCheck("many rows: more than one wave", cases=_more_waves),
        SubCheck("a GPU that is busy already", cases=_busy),
        SubCheck("very short contexts", cases=_short),
        SubCheck("fewer tiles than would fill the GPU", cases=_few),
    ),
    mistakes=(
        Mistake(
            waves_rounded_down,
            "This is what comes out when the waves are rounded down: 1.9 waves then look better than full.",
            "133 programs on 132 SMs: in how many rounds are they done?",
        ),
        Mistake(
            waves_not_rounded,
            "Every n looks equally good, so the first one is taken: nothing was rounded up, and waves / waves is 1.",
            "Where does a started wave count as a whole one?",
        ),
        Mistake(
            only_the_best,
            "This takes the n with the very best efficiency. The rule wants the smallest that is nearly as good: every "
            "split costs partial results.",
            "Which efficiency is good enough?",
        ),
        Mistake(
            not_against_the_best,
            "0.85 was taken as it stands. Where there are few tiles no n gets there; the rule asks for 85% of the best "
            "one that can be had.",
            "85% of what?",
        ),
        Mistake(
            the_largest,
            "This takes the largest n that is good enough, the rule the smallest.",
            "What does another split cost, when it brings nothing?",
        ),
        Mistake(
            fill_one_wave,
            "This is floor(SMs / rows): as many as fit into one wave. It is a good rule, and you will meet it below, but "
            "it is another one.",
            "48 rows on 108 SMs: which efficiency does each n have?",
        ),
        Mistake(
            busy_gpu_forgotten,
            "The GPU had enough rows before any split, and was split all the same.",
            "What does the rule say where rows are 80% of the SMs or more?",
        ),
        Mistake(
            few_tiles_forgotten,
            "Four tiles or fewer are not split: the second launch would cost more than it brings.",
            "What does the rule say of very short contexts?",
        ),
        Mistake(
            four_tiles_are_split,
            "Four tiles are too few as well: the rule begins to split at five.",
            "At most 4, or fewer than 4?",
        ),
        Mistake(
            last_count_missed,
            "The largest n that is allowed was never tried.",
            "Where does your range end, and is its end part of it?",
        ),
        Mistake(
            more_splits_than_tiles,
            "There are more splits than tiles: some of them will find nothing to do.",
            "What is the largest n that you try?",
        ),
    ),
    keep="Efficiency is waves over waves rounded up. Take the fewest splits that come within 15% of the best: each one costs.",
)
