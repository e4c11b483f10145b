"""The largest batch, the largest context, and how many requests of a mix run at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlab.sizing import CacheSpec, GiB, Layer, concurrency, max_batch, max_context, plan

SPECS = [
    CacheSpec([Layer("full", 8, 128, 128)] * 4),
    CacheSpec([Layer("sliding", 4, 64, 64, 500), Layer("full", 4, 64, 64)], "fp8"),
    CacheSpec([Layer("latent", 1, 576)] * 3, "int4"),
    CacheSpec([Layer("linear", 4, conv_elements=4096, recurrent_elements=65536), Layer("full", 2, 256, 256)]),
]
specs, rooms = st.sampled_from(SPECS), st.integers(0, 2**32)
pages = st.sampled_from([None, 1, 16, 256])


@given(specs, rooms, st.integers(1, 100_000), pages)
def test_one_sequence_more_would_not_fit(spec, room, tokens, page):
    most = max_batch(spec, room, tokens, page)
    assert spec.bytes(most, tokens, page) <= room or most == 0
    assert spec.bytes(most + 1, tokens, page) > room


@given(specs, rooms, st.integers(1, 500), pages)
def test_one_token_more_would_not_fit(spec, room, batch, page):
    most = max_context(spec, room, batch, page)
    assert spec.bytes(batch, most, page) <= room or most == 0
    assert spec.bytes(batch, most + 1, page) > room


def test_a_full_window_never_ends():
    spec = CacheSpec([Layer("sliding", 8, 128, 128, 4096)] * 32)
    full = spec.sequence_bytes(4096)
    assert max_context(spec, full) is None
    assert max_context(spec, full - 1) == 4095


def test_the_models_own_maximum_ends_a_context(spec):
    fit = plan(spec("llama-3-8b"), "h200", tokens=1000)
    assert (fit.max_context, fit.context_limiter, fit.limiter) == (8192, "model", "cache")


def test_weights_that_do_not_fit_limit_everything(spec):
    fit = plan(spec("llama-3-70b"), "h100")
    assert (fit.max_batch, fit.limiter, fit.max_context, fit.context_limiter) == (0, "weights", 0, "weights")
    assert fit.budget.cache < 0


def test_the_cache_limits_a_context(spec):
    fit = plan(spec("llama-3.1-405b"), "h200", tp=8, batch=64)
    assert fit.context_limiter == "cache" and 0 < fit.max_context < 131072
    assert fit.tokens == 131072 and fit.largest_kind == "full"


def test_nothing_limits_a_window_without_a_maximum(config):
    spec = CacheSpec.from_config(config("mistral-7b-v0.1", max_position_embeddings=None))
    fit = plan(spec, "h200", tokens=10**6)
    assert (fit.max_context, fit.context_limiter) == (None, "nothing")
    with pytest.raises(ValueError, match="tokens: must be given, as no max_position_embeddings is known"):
        plan(spec, "h200")


def test_tp_is_the_same_as_a_shard(spec):
    by_tp, by_shard = plan(spec("llama-3-70b"), "h200", tp=2), plan(spec("llama-3-70b", tp=2), "h200")
    assert by_tp == by_shard and by_tp.max_batch > 0


def test_a_context_beyond_the_model_is_refused(spec):
    with pytest.raises(ValueError, match="tokens 8193: the model's max_position_embeddings is 8192"):
        plan(spec("llama-3-8b"), "h200", tokens=8193)


def test_largest_kind(spec):
    gemma = spec("gemma-3-27b")
    kinds = [plan(gemma, "h200", tokens=tokens).largest_kind for tokens in (1000, 131072)]
    assert kinds == ["sliding", "full"]
    assert plan(spec("qwen3-next-80b-a3b"), "h200", tokens=10).largest_kind == "linear"


def test_windows_and_latents_buy_batch(spec):
    """What the architectures are for: at 131072 tokens on the same budget."""
    room = 100 * GiB
    full = max_batch(CacheSpec([Layer("full", 16, 128, 128)] * 62), room, 131072)
    assert max_batch(spec("gemma-3-27b"), room, 131072) == 9 and full == 1
    assert max_batch(spec("deepseek-v3"), room, 131072) == 11


def test_concurrency_by_hand():
    """A stays 1 step at 11 tokens; B stays 3 steps at 5, 6 and 7. Met 1 : 3, they hold (11 + 5 + 6 + 7) / 4 on average."""
    spec = CacheSpec([Layer("full", 1, 64, 64)])
    room = 1000 * spec.bytes_per_token()
    runs = concurrency(spec, room, [(10, 1), (4, 3)])
    assert runs.longest == pytest.approx(1000 / 11)
    assert runs.own == pytest.approx(1000 / ((11 + 3 * 7) / 4))
    assert runs.growing == pytest.approx(1000 / ((11 + 5 + 6 + 7) / 4))
    paged = concurrency(spec, room, [(10, 1), (4, 3)], page_size=1)
    assert paged.growing < runs.growing  # block tables


@given(specs, st.lists(st.tuples(st.integers(0, 500), st.integers(1, 50), st.floats(0.1, 9)), min_size=1, max_size=5), pages)
def test_growing_beats_own_beats_longest(spec, mix, page):
    runs = concurrency(spec, GiB, mix, page)
    assert runs.longest <= runs.own * (1 + 1e-12) <= runs.growing * (1 + 1e-9)


@given(specs, st.lists(st.tuples(st.integers(0, 500), st.integers(1, 50)), min_size=1, max_size=4), st.integers(2, 5))
def test_only_the_ratio_of_weights_matters(spec, mix, factor):
    once = concurrency(spec, GiB, mix)
    many = concurrency(spec, GiB, [(*one, factor) for one in mix])
    assert once.own == pytest.approx(many.own) and once.growing == pytest.approx(many.growing)


@pytest.mark.parametrize("lengths", [[], [(10, 5, 0)], [(10, 0)], [(-1, 5)], [(10, 5, -1)], [(10, 5, float("inf"))], [(10,)], [(10, 5, 1, 1)], [5]])
def test_impossible_mixes_are_refused(lengths):
    with pytest.raises(ValueError):
        concurrency(SPECS[0], GiB, lengths)


@given(specs, st.integers(0, 600), st.integers(1, 700), pages)
def test_growing_is_the_sum_over_every_length(spec, inputs, outputs, page):
    lengths = range(inputs + 1, inputs + outputs + 1)
    held = sum(spec.sequence_bytes(tokens, page) for tokens in lengths)
    assert spec.growth_bytes(lengths[0], lengths[-1], page) == held
    assert concurrency(spec, GiB, [(inputs, outputs)], page).growing == (GiB - spec.constant_bytes) * outputs / held


def test_a_workspace_that_leaves_no_room_is_not_blamed_on_the_weights(spec):
    llama = spec("llama-3-8b")
    assert plan(llama, "h200", tokens=1, workspace=200 * GiB).limiter == "workspace"
    assert plan(llama, "h200", tokens=1, workspace=200 * GiB, weights=200 * GiB).limiter == "weights"


@pytest.mark.parametrize("room", [80e9, float("nan"), "80GB", None])
def test_room_that_is_no_whole_number_is_refused(room):
    for ask in (lambda: max_batch(SPECS[0], room, 5), lambda: max_context(SPECS[0], room), lambda: concurrency(SPECS[0], room, [(1, 1)])):
        with pytest.raises(TypeError, match="cache_bytes must be an integer"):
            ask()


def test_a_negative_budget_holds_nothing():
    assert max_batch(SPECS[0], -1, 5) == max_context(SPECS[0], -1) == concurrency(SPECS[0], -1, [(1, 1)]).own == 0
