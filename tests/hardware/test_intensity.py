"""The roofline of attention."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlab.hardware import gpu, roofline
from flashlab.hardware.gpus import names

SHAPE = dict(heads_q=32, heads_kv=8, head_dim=128)
sizes = st.integers(1, 300)


def test_decode_is_bound_by_memory_and_prefill_by_compute():
    decode = roofline("h200", seqlen_q=1, seqlen_k=131072, **SHAPE).fused
    prefill = roofline("h200", seqlen_q=4096, seqlen_k=4096, **SHAPE).fused
    assert (decode.bound, prefill.bound) == ("memory", "compute")
    assert prefill.attainable_flops == gpu("h200").dense_16bit_flops


def test_decode_by_hand():
    """K and V of 8 heads are read for the 32 query heads: 2 * 2 * 32 * d FLOP a key against 2 * 8 * d * 2 bytes."""
    step = roofline("h200", seqlen_q=1, seqlen_k=10**6, **SHAPE).fused
    assert step.intensity == pytest.approx(4, rel=0.02)
    assert step.time_s == pytest.approx(2 * 8 * 128 * 2 * 10**6 / 4.8e12, rel=1e-3)
    assert step.attainable_flops == pytest.approx(step.intensity * 4.8e12)


def test_the_corner_is_reached_at_the_ridge():
    """With one kv head, packed query heads raise a decode step's intensity one for one."""
    ridge = roofline("h200", heads_q=1, heads_kv=1, head_dim=128, seqlen_q=1, seqlen_k=9).ridge
    assert ridge == pytest.approx(989e12 / 4.8e12)
    few = roofline("h200", heads_q=8, heads_kv=1, head_dim=128, seqlen_q=1, seqlen_k=10**6)
    many = roofline("h200", heads_q=256, heads_kv=1, head_dim=128, seqlen_q=1, seqlen_k=10**6)
    assert (few.fused.bound, many.fused.bound) == ("memory", "compute")


def test_unfused_prefill_spends_its_time_on_scores():
    found = roofline("h200", seqlen_q=8192, seqlen_k=8192, **SHAPE)
    scores = 32 * 8192 * 8192 * 2
    assert found.softmax.bytes == 2 * scores
    assert found.softmax.bound == "memory"
    assert found.unfused_s > 3 * found.fused.time_s
    assert [step.name for step in found.steps] == ["qk", "softmax", "pv", "fused"]


def test_every_tensor_moves_once():
    """q and o of 32 heads, k and v of 8, scores of 32: 3 sequences, 5 queries, 7 keys, 16-bit."""
    found = roofline("h200", batch=3, seqlen_q=5, seqlen_k=7, **SHAPE)
    q = o = 3 * 32 * 5 * 128 * 2
    k = v = 3 * 8 * 7 * 128 * 2
    scores = 3 * 32 * 5 * 7 * 2
    assert [step.bytes for step in found.steps] == [q + k + scores, 2 * scores, scores + v + o, q + k + v + o]
    assert found.fused.flop == sum(step.flop for step in found.steps[:3])


@given(sizes, sizes)
def test_causal_pairs_are_those_of_the_mask(seqlen_q, seqlen_k):
    pairs = sum(max(0, min(seqlen_k, i + seqlen_k - seqlen_q + 1)) for i in range(seqlen_q))
    found = roofline("a100", heads_q=1, heads_kv=1, head_dim=1, seqlen_q=seqlen_q, seqlen_k=seqlen_k, causal=True)
    assert found.qk.flop == 2 * pairs
    assert found.softmax.flop == 5 * pairs


@given(st.sampled_from(names()), sizes, sizes, st.integers(1, 64))
def test_no_step_leaves_the_roof(name, seqlen_q, seqlen_k, batch):
    part = gpu(name)
    for step in roofline(part, batch=batch, seqlen_q=seqlen_q, seqlen_k=seqlen_k, **SHAPE).steps:
        assert step.attainable_flops <= part.dense_16bit_flops
        assert step.attainable_flops <= step.intensity * part.hbm_bytes_per_s * (1 + 1e-12)
        assert step.time_s == pytest.approx(step.flop / step.attainable_flops)


def test_bad_arguments_are_named():
    for bad, words in (
        (dict(heads_kv=5), "heads_kv must divide heads_q 32, got 5"),
        (dict(seqlen_q=0), "seqlen_q must be at least 1"),
        (dict(element_bytes=-1), "element_bytes must be above 0"),
    ):
        with pytest.raises(ValueError, match=words):
            roofline("h200", **(dict(seqlen_q=1, seqlen_k=9, **SHAPE) | bad))
