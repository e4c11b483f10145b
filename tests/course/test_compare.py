from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from flashlab.course.compare import first_difference

NAN, INF = float("nan"), float("inf")


@dataclass
class Pair:
    out: torch.Tensor
    lse: float


class Named(NamedTuple):
    out: float
    lse: float


def t(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


EQUAL = [
    (t(1.0, 2.0), t(1.0, 2.0 + 1e-12)),
    (t(NAN, INF, -INF), t(NAN, INF, -INF)),
    (t(), t()),
    (1.0, 1.0 + 1e-12),
    (t(3.0)[0], 3.0),
    (3.0, 3),
    (True, True),
    (torch.tensor(True), True),
    (None, None),
    ("row", "row"),
    ((1.0, t(2.0)), [1.0, t(2.0)]),
    ({"a": 1, "b": (2.0,)}, {"b": (2.0,), "a": 1}),
    (Pair(t(1.0), 2.0), Pair(t(1.0), 2.0)),
    (t(1, 2, dtype=torch.int64), t(1, 2, dtype=torch.int64)),
    (10**20, 10**20),
]


@pytest.mark.parametrize("yours, spec", EQUAL)
def test_equal(yours, spec):
    assert first_difference(yours, spec, 1e-9) is None


DIFFERENT = [
    (t(1.0, 2.5), t(1.0, 2.0), "entry 1: yours 2.5, spec 2"),
    (t(1.0, 2.0000001), t(1.0, 2.0), "entry 1: yours 2.0000001, spec 2"),
    (t((1.0, 2.0), (3.0, 5.0)), t((1.0, 2.0), (3.0, 4.0)), "row 1, column 1: yours 5, spec 4"),
    (torch.ones(2, 1, 2), torch.zeros(2, 1, 2), "index (0, 0, 0): yours 1, spec 0"),
    (t(1.0, NAN), t(1.0, 2.0), "entry 1: yours nan, spec 2"),
    (t(1.0, 2.0), t(1.0, NAN), "entry 1: yours 2, spec nan"),
    (t(1.0, -INF), t(1.0, INF), "entry 1: yours -inf, spec inf"),
    (t(1.0, 1e308), t(1.0, INF), "entry 1: yours 1e+308, spec inf"),
    (t(1, 2, dtype=torch.int64), t(1, 3, dtype=torch.int64), "entry 1: yours 2, spec 3"),
    (2**60, 2**60 + 1, "yours 1152921504606846976, spec 1152921504606846977"),
    (t(1.0), t(1.0, 2.0), "your result has shape (1,), spec (2,)"),
    (t(1.0, dtype=torch.float32), t(1.0), "your result is float32, spec float64"),
    (None, t(1.0), "yours is None (is a return missing?), spec a float64 tensor of shape (1,)"),
    (..., t(1.0), "yours is Ellipsis, spec a float64 tensor of shape (1,)"),
    ([1.0], t(1.0), "yours is a list of 1, spec a float64 tensor of shape (1,)"),
    (True, 1.0, "yours is the bool True, spec the float 1.0"),
    (1, True, "yours is the int 1, spec the bool True"),
    ("a", "b", "yours 'a', spec 'b'"),
    ((1.0, 2.0), (1.0, 3.0), "item 1: yours 2, spec 3"),
    ((1.0, 2.0), Named(1.0, 3.0), "item 1 (lse): yours 2, spec 3"),
    ((1.0,), (1.0, 2.0), "you return 1 items, spec 2"),
    ({"a": 1}, {"b": 1}, "your dict has no 'b', but 'a'"),
    ({"a": (1.0, t(2.0))}, {"a": (1.0, t(3.0))}, "['a'], item 1, entry 0: yours 2, spec 3"),
    (Pair(t(1.0), 2.0), Pair(t(1.0), 3.0), ".lse: yours 2, spec 3"),
    ((t(1.0), 2.0), Pair(t(1.0), 2.0), "yours is a tuple of 2, spec a Pair"),
    (torch.sin, t(1.0), "yours is the function sin, spec a float64 tensor of shape (1,)"),
]


@pytest.mark.parametrize("yours, spec, said", DIFFERENT, ids=[case[2][:40] for case in DIFFERENT])
def test_different(yours, spec, said):
    assert str(first_difference(yours, spec, 1e-9)) == said


def test_the_tolerance_is_absolute_and_relative_to_the_largest_entry():
    spec = t(0.0, 1000.0)
    assert first_difference(spec + t(1.0, 0.0), spec, 1e-3) is None
    assert first_difference(spec + t(1.1, 0.0), spec, 1e-3) is not None


def test_an_infinity_in_the_spec_does_not_loosen_the_tolerance():
    assert first_difference(t(INF, 1.1), t(INF, 1.0), 1e-3) is not None


def test_the_sign_of_a_difference_within_exactly_equal_texts_is_still_told():
    a, b = 1.0, 1.0 + 2**-52
    assert str(first_difference(t(b), t(a), 0.0)) == "entry 0: yours 1.0000000000000002, spec 1"
