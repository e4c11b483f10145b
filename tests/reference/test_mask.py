import pytest
import torch

from flashlab.reference.mask import allowed, mask


def test_causal_is_aligned_at_the_bottom_right():
    assert mask(2, 4, causal=True).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert mask(4, 2, causal=True).int().tolist() == [[0, 0], [0, 0], [1, 0], [1, 1]]


def test_a_window_is_inclusive_on_both_sides():
    assert mask(1, 10, window_size=(3, 0)).int().tolist() == [[0] * 6 + [1] * 4]  # L + 1 keys, the oldest one too
    assert mask(3, 5, window_size=(1, 1)).int().tolist() == [[0, 1, 1, 1, 0], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]]
    assert mask(3, 3, window_size=(0, -1)).int().tolist() == [[1, 1, 1], [0, 1, 1], [0, 0, 1]]


def test_causal_closes_the_right_side_of_a_window():
    assert torch.equal(mask(5, 9, causal=True, window_size=(2, 4)), mask(5, 9, window_size=(2, 0)))


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (1, 6)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window_size", [(-1, -1), (2, 0), (1, 2), (-1, 1)])
def test_one_pair_at_a_time_gives_the_same(shape, causal, window_size):
    options = {"causal": causal, "window_size": window_size}
    whole = mask(*shape, **options)
    for i in range(shape[0]):
        for j in range(shape[1]):
            assert allowed(i, j, *shape, **options) is bool(whole[i, j])


def test_positions_outside_their_sequence_are_never_allowed():
    assert not allowed(3, 0, 3, 5)
    assert not allowed(0, 5, 3, 5)
