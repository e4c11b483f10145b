import functools
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashlab.reference.algebra import Partial, merge
from flashlab.reference.naive import attention

LSE = st.one_of(st.just(-math.inf), st.floats(-1, 1), st.floats(-1e4, 1e4))
HUGE = st.one_of(LSE, st.floats(-1e300, 1e300))  # where lse + log 2 rounds to lse: associative no longer, but never NaN
ROWS, HEAD_DIM = 3, 2


@st.composite
def partials(draw, count, lses=LSE):
    """Some partials of one shape; an empty one may hold any garbage in out."""
    parts = []
    for _ in range(count):
        lse = torch.tensor(draw(st.lists(lses, min_size=ROWS, max_size=ROWS)), dtype=torch.float64)
        out = torch.tensor(
            draw(st.lists(st.floats(-100, 100), min_size=ROWS * HEAD_DIM, max_size=ROWS * HEAD_DIM)),
            dtype=torch.float64,
        ).view(ROWS, HEAD_DIM)
        parts.append(Partial(out.masked_fill(lse[:, None] == -math.inf, draw(st.sampled_from([0.0, math.nan]))), lse))
    return parts


def assert_same(a, b, atol=1e-9):
    assert not torch.isnan(a.lse).any() and not torch.isnan(a.out).any()
    torch.testing.assert_close(a.lse, b.lse, rtol=1e-12, atol=atol)
    torch.testing.assert_close(a.out, b.out, rtol=0, atol=atol)


def normal(p):
    """An empty row's out counts for nothing: 0, as merge leaves it."""
    return Partial(p.out.masked_fill(p.lse[:, None] == -math.inf, 0), p.lse)


few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@few
@given(partials(1, HUGE))
def test_the_empty_partial_is_the_identity_exactly(parts):
    (a,) = parts
    empty = Partial.empty(ROWS, HEAD_DIM, dtype=torch.float64)
    for merged in (merge(a, empty), merge(empty, a), merge(a)):
        assert torch.equal(merged.out, normal(a).out) and torch.equal(merged.lse, a.lse)


@few
@given(partials(2, HUGE))
def test_merging_commutes(parts):
    a, b = parts
    assert_same(merge(a, b), merge(b, a))


@few
@given(partials(3))
def test_merging_associates(parts):
    a, b, c = parts
    assert_same(merge(merge(a, b), c), merge(a, merge(b, c)))


@few
@given(st.integers(1, 6).flatmap(partials))
def test_many_at_once_is_two_at_a_time(parts):
    assert_same(merge(*parts), functools.reduce(merge, parts, Partial.empty(ROWS, HEAD_DIM, dtype=torch.float64)))


def test_two_empty_partials_are_empty_and_not_nan():
    empty = Partial.empty(4, 8)
    merged = merge(empty, empty, empty)
    assert (merged.out == 0).all() and (merged.lse == -math.inf).all()


@pytest.mark.parametrize("cuts", [[], [1], [3, 3, 10], [0, 16], [2, 5, 7, 11]])
def test_keys_cut_anywhere_and_merged_give_attention(cuts):
    q, k, v = (torch.randn(1, n, 1, 8, dtype=torch.float64) for n in (5, 17, 17))
    out, lse = attention(q, k, v)
    scores = (q[0, :, 0] @ k[0, :, 0].T) * 8**-0.5
    edges = [0, *cuts, 17]
    parts = [Partial.of(scores[:, a:b], v[0, a:b, 0]) for a, b in zip(edges, edges[1:], strict=False)]
    assert_same(merge(*parts), Partial(out[0, :, 0], lse[0, 0]), atol=1e-12)


def test_the_base_is_kept_apart():
    a, b = (Partial(torch.randn(4, 8).double(), 5 * torch.randn(4).double()) for _ in range(2))
    a2, b2 = a.with_base(2), b.with_base(2)
    torch.testing.assert_close(2**a2.lse, torch.exp(a.lse))
    assert_same(merge(a2, b2).with_base(math.e), merge(a, b))
    with pytest.raises(ValueError, match="base 2 into base 2.71828"):
        merge(a, b2)


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="without its last dimension"):
        Partial(torch.zeros(3, 4), torch.zeros(4))
    with pytest.raises(ValueError, match="cannot merge out"):
        merge(Partial.empty(3, 4), Partial.empty(2, 4))
    with pytest.raises(ValueError, match="float64"):
        merge(Partial.empty(3, 4), Partial.empty(3, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"\+inf"):
        Partial(torch.zeros(1, 4), torch.tensor([math.inf]))
    with pytest.raises(ValueError, match="base is 1"):
        Partial(torch.zeros(1, 4), torch.zeros(1), 1)
    with pytest.raises(ValueError, match="at least one"):
        merge()
