import math

import pytest
import torch

from flashlab.reference.compare import assert_close, tolerance


def test_the_formula():
    ref = torch.tensor([0.1, 1.0, -2.0], dtype=torch.float64)
    low = ref.to(torch.bfloat16)
    rounding = ((low + 0.3 - 0.3) - low).abs().max().item()
    error = (low.double() - ref).abs().max().item()
    assert tolerance(ref, low) == pytest.approx(2 * error + 2 * rounding)
    assert tolerance(ref, low, factor=3, atol=3e-4) == pytest.approx(3 * error + 2 * rounding + 3e-4)


def test_as_good_as_low_passes_and_far_worse_fails():
    ref = torch.randn(50, dtype=torch.float64)
    low = ref.to(torch.bfloat16)
    assert_close(low, ref, low)
    limit = tolerance(ref, low)
    bad = ref.clone()
    bad[7] += 1.01 * limit
    with pytest.raises(AssertionError, match=r"at \(7,\).*1 of 50 off"):
        assert_close(bad, ref, low)
    bad[7] = ref[7] + 0.99 * limit
    assert_close(bad, ref, low)


def test_nan_fails_and_infinities_must_agree():
    ref = torch.tensor([1.0, -math.inf], dtype=torch.float64)
    low = ref.float()
    assert_close(low, ref, low)
    for wrong in ([1.0, math.nan], [1.0, math.inf], [1.0, -1e30], [math.inf, -math.inf]):
        with pytest.raises(AssertionError):
            assert_close(torch.tensor(wrong), ref, low)
    with pytest.raises(AssertionError, match="reference itself"):
        assert_close(low, ref * 0, low)
    with pytest.raises(AssertionError, match="shape"):
        assert_close(low[:1], ref, low)


def test_nothing_to_compare_is_close():
    nothing = torch.empty(0, 4)
    assert_close(nothing, nothing.double(), nothing)
