import math

import pytest
import torch

from flashlab.reference import online
from flashlab.reference.algebra import Partial


def run(scores, values, block_n):
    state = online.start(len(scores), values.shape[1])
    for n in range(0, scores.shape[1], block_n):
        state = online.step(state, scores[:, n : n + block_n], values[n : n + block_n])
    return online.finish(state)


@pytest.mark.parametrize("block_n", [1, 3, 4, 17, 20])
@pytest.mark.parametrize("scale", [1, 1e4])
def test_the_block_size_does_not_change_the_answer(block_n, scale):
    scores, values = scale * torch.randn(5, 17).double(), torch.randn(17, 4).double()
    scores[1, :6] = -math.inf  # a first tile that is all masked
    scores[2] = -math.inf
    out, lse = run(scores, values, block_n)
    whole = Partial.of(scores, values)
    torch.testing.assert_close(out, whole.out, rtol=0, atol=1e-12)
    torch.testing.assert_close(lse, whole.lse, rtol=1e-14, atol=1e-12)
    assert (out[2] == 0).all() and lse[2] == -math.inf


def test_the_rescale_is_one_unless_the_maximum_grows():
    m = torch.tensor([0.0, 1.0, -math.inf, -math.inf])
    m_new = torch.tensor([0.0, 3.0, 2.0, -math.inf])
    torch.testing.assert_close(online.rescale(m, m_new), torch.tensor([1.0, math.exp(-2), 0.0, 0.0]))
