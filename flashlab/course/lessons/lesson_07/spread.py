"""07.spread: the 20th percentile, the median and the 80th percentile of samples."""

import torch

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(samples):
    parts = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    p20, median, p80 = torch.quantile(torch.tensor(samples, dtype=torch.float64), parts).tolist()
    return p20, median, p80


def stub(samples):
    """samples: a list of numbers in any order. Returns (p20, median, p80).

    In the sorted list the p-th part lies at place p * (n - 1), counted from 0; between two places, on the straight line.
    """

    def at(part):
        place = part * (len(samples) - 1)
        low = int(place)
        high = min(low + 1, len(samples) - 1)
        return ...  # your line: a number between ordered[low] and ordered[high]

    ordered = sorted(samples)
    return at(0.2), at(0.5), at(0.8)


def solution(samples):
    """samples: a list of numbers in any order. Returns (p20, median, p80).

    In the sorted list the p-th part lies at place p * (n - 1), counted from 0; between two places, on the straight line.
    """

    def at(part):
        place = part * (len(samples) - 1)
        low = int(place)
        high = min(low + 1, len(samples) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    ordered = sorted(samples)
    return at(0.2), at(0.5), at(0.8)


def _each(samples, pick):
    ordered = sorted(samples)

    def at(part):
        place = part * (len(samples) - 1)
        low = int(place)
        return pick(ordered, low, min(low + 1, len(samples) - 1), place - low)

    return at(0.2), at(0.5), at(0.8)


def lower_neighbour(samples):
    return _each(samples, lambda x, low, high, rest: x[low])


def upper_neighbour(samples):
    return _each(samples, lambda x, low, high, rest: x[high] if rest else x[low])


def nearest(samples):
    return _each(samples, lambda x, low, high, rest: x[low] if rest < 0.5 else x[high])


def midpoint(samples):
    return _each(samples, lambda x, low, high, rest: (x[low] + x[high]) / 2)


def weights_swapped(samples):
    return _each(samples, lambda x, low, high, rest: x[low] * rest + x[high] * (1 - rest))


def rounded(samples):
    ordered = sorted(samples)
    return tuple(ordered[round(part * (len(samples) - 1))] for part in (0.2, 0.5, 0.8))


def weighted_by_the_part(samples):
    ordered = sorted(samples)

    def at(part):
        low = int(part * (len(samples) - 1))
        high = min(low + 1, len(samples) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * part

    return at(0.2), at(0.5), at(0.8)


def difference_alone(samples):
    return _each(samples, lambda x, low, high, rest: (x[high] - x[low]) * rest)


def not_sorted(samples):
    def at(part):
        place = part * (len(samples) - 1)
        low = int(place)
        high = min(low + 1, len(samples) - 1)
        return samples[low] + (samples[high] - samples[low]) * (place - low)

    return at(0.2), at(0.5), at(0.8)


def _odd():
    return [Case("six samples: places 1 and 4 are whole numbers", ([16.0, 16.1, 15.9, 16.3, 31.0, 15.8],))]


def _between():
    return [
        Case("four samples", ([3.0, 1.0, 2.0, 9.0],)),
        Case("nine samples", ([5.0, 1.0, 4.0, 8.0, 2.0, 9.0, 3.0, 7.0, 100.0],)),
    ]


def _few():
    return [Case("one sample", ([7.0],)), Case("two samples", ([8.0, 2.0],))]


def _disturbed(spread):
    quiet = [16.0 + 0.01 * i for i in range(20)]
    noisy = quiet[:-1] + [1000.0]
    moved = spread(noisy)[1] - spread(quiet)[1]
    if abs(moved) > 0.011:
        return f"20 samples near 16, the last one replaced by 1000: your median moves by {moved:.2f}"


EXERCISE = Exercise(
    id="07.spread",
    title="Median and spread",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "place - low, a number from 0 to 1, says how far place is on the way from low to high.",
        "On the way means: ordered[low] plus a part of the difference.",
        "ordered[low] + (ordered[high] - ordered[low]) * (place - low)",
    ),
    sub_checks=(
        SubCheck("six samples in any order", cases=_odd),
        SubCheck("places between two samples", cases=_between),
        SubCheck("one sample, two samples", cases=_few),
        SubCheck("one wild sample does not move the median", test=_disturbed),
    ),
    mistakes=(
        Mistake(
            lower_neighbour, "This is always the lower of the two samples.", "What does your line do with place - low?"
        ),
        Mistake(
            upper_neighbour, "This is always the upper of the two samples.", "What does your line do with place - low?"
        ),
        Mistake(
            nearest,
            "This is the nearer of the two samples. With four samples the median lies between two, and belongs to neither.",
            "What is the median of 1, 2, 3 and 9?",
        ),
        Mistake(
            rounded,
            "This is round(place), one of the samples. Between two samples the answer lies on the line from one to the other.",
            "What is the median of 1, 2, 3 and 9?",
        ),
        Mistake(
            weighted_by_the_part,
            "The weight is part, the same at every place. It should be how far place is past low: at a whole place, nothing.",
            "For six samples and part = 0.2 place is 1.0. How far is that from low?",
        ),
        Mistake(
            difference_alone,
            "This is the way from the lower sample, without the sample that it starts at.",
            "At a whole place your line gives 0. Which sample should it give?",
        ),
        Mistake(
            midpoint,
            "This is half way between the two samples, wherever the place is. Even a whole place is moved.",
            "Where is place 1.0 between places 1 and 2?",
        ),
        Mistake(
            weights_swapped,
            "The weights are swapped: the nearer sample counts less.",
            "For place = 2.1, which of the samples 2 and 3 should count 0.9?",
        ),
        Mistake(
            not_sorted,
            "These are places in the unsorted list: they depend on the order in which the samples came.",
            "Which list does your line read, samples or ordered?",
        ),
    ),
    keep="Report the median with its 20th and 80th percentile: one wild sample moves neither, and the spread says what to trust.",
)
