"""What a cache of some batch and length takes: layers, kinds, windows, pages and tensor parallelism."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlab.sizing import CacheSpec, Layer

heads = st.sampled_from([1, 2, 4, 8, 16])
dims = st.sampled_from([32, 64, 96, 128, 256])
windows = st.integers(1, 5000)
full = st.builds(lambda h, d, e: Layer("full", h, d, e), heads, dims, dims)
sliding = st.builds(lambda h, d, w: Layer("sliding", h, d, d, w), heads, dims, windows)
latent = st.builds(lambda d: Layer("latent", 1, d), dims)
state = st.tuples(st.integers(0, 99), st.integers(1, 99))
linear = st.builds(lambda h, size: Layer("linear", h, 0, 0, None, 16 * size[0], 16 * size[1]), heads, state)
layer = st.one_of(full, sliding, latent, linear)
specs = st.builds(CacheSpec, st.lists(layer, min_size=1, max_size=8), st.sampled_from(["bf16", "fp8", "int4", "q8_0", "nvfp4"]))
batches, lengths, pages = st.integers(0, 64), st.integers(0, 20_000), st.integers(1, 300)


@given(specs, batches, lengths)
def test_the_parts_add_up(spec, batch, tokens):
    total = spec.bytes(batch, tokens)
    assert sum(spec.per_layer(batch, tokens)) == sum(spec.per_kind(batch, tokens).values()) == total
    assert len(spec.per_layer()) == len(spec.layers) == sum(spec.kinds().values())


@given(specs, lengths)
def test_a_sequence_is_its_states_and_its_tokens(spec, tokens):
    grown = sum(spec.bytes_per_token(after=i) for i in range(min(tokens, 300)))
    assert spec.sequence_bytes(min(tokens, 300)) == spec.sequence_bytes(0) + grown


@given(specs, lengths)
def test_an_element_by_element_count_agrees(spec, tokens):
    """The sum over layers, heads and K and V of one sequence, written out."""
    total = 0
    for layer in spec.layers:
        kept = {"full": tokens, "latent": tokens, "linear": 0, "sliding": min(tokens, layer.window or 0)}[layer.kind]
        for _ in range(layer.kv_heads if layer.kind != "linear" else 0):
            total += kept * (spec.format.vector_bytes(layer.head_dim_k) + spec.format.vector_bytes(layer.head_dim_v))
        total += 2 * layer.conv_elements + 4 * layer.recurrent_elements
    assert spec.sequence_bytes(tokens) == total


@given(specs, st.integers(1, 10_000))
def test_doubling_the_tokens_doubles_full_and_latent_layers_exactly(spec, tokens):
    once, twice = spec.per_kind(1, tokens), spec.per_kind(1, 2 * tokens)
    none = spec.per_kind(1, 0)
    for kind in once.keys() & {"full", "latent"}:
        assert twice[kind] - none[kind] == 2 * (once[kind] - none[kind]) > 0


@given(st.lists(st.one_of(sliding, linear), min_size=1), st.integers(5000, 10**9))
def test_windows_and_states_stop_growing(layers, tokens):
    spec = CacheSpec(layers)
    assert spec.bytes(3, tokens) == spec.bytes(3, 5000) and spec.bytes_per_token(after=tokens) == 0
    assert max(layer.pages(tokens, 16) for layer in layers) <= 5000 // 16 + 2


@given(specs, batches, lengths, pages)
def test_pages_lose_no_token_and_waste_less_than_a_page_each(spec, batch, tokens, page):
    paged = spec.paged(batch, tokens, page)
    assert paged.bytes == spec.bytes(batch, tokens) + paged.tail_bytes + paged.block_table_bytes
    assert spec.bytes(batch, tokens, page) == paged.bytes
    assert paged.tail_bytes >= 0
    worst = 0
    for layer in spec.layers:
        assert layer.pages(tokens, page) * page >= layer.tokens(tokens)
        spare = 2 * page - 2 if layer.kind == "sliding" else page - 1  # a window straddles a page at both ends
        worst += layer.token_bytes(spec.format) * spare * (layer.kind != "linear")
    assert paged.tail_bytes <= batch * worst


@given(windows, st.integers(1, 64), st.integers(1, 12_000))
def test_the_pages_of_a_window_are_enough_at_every_step(window, page, tokens):
    layer = Layer("sliding", 1, 64, 64, window)
    first, last = max(0, tokens - window), tokens - 1
    assert last // page - first // page + 1 <= layer.pages(tokens, page)


def test_pages_of_one_token_waste_nothing():
    spec = CacheSpec([Layer("full", 8, 128, 128)])
    assert spec.paged(4, 1000, 1).tail_bytes == 0
    paged = spec.paged(4, 1001, 16)
    assert (paged.pages, paged.block_table_bytes) == (4 * 63, 4 * 63 * 4)
    assert paged.tail_bytes == 4 * 7 * spec.bytes_per_token()


@given(specs, batches, lengths, st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_more_gpus_never_store_less_in_total(spec, batch, tokens, tp):
    try:
        shard = spec.shard(tp)
    except ValueError:
        return
    assert tp * shard.bytes(batch, tokens) >= spec.bytes(batch, tokens)
    assert shard.bytes(batch, tokens) <= spec.bytes(batch, tokens)
    for whole, part in zip(spec.layers, shard.layers, strict=True):
        assert part.kv_heads >= 1
        if whole.kind == "latent":
            assert part == whole
        elif whole.kv_heads >= tp:
            assert part.kv_heads * tp == whole.kv_heads


def test_kv_heads_are_replicated_and_never_split(spec):
    assert spec("llama-3-70b", tp=8).bytes_per_token() == 327680 // 8
    assert spec("llama-3-70b", tp=16).bytes_per_token() == 327680 // 8  # half of a head is no head
    assert spec("llama-3-70b", tp=64).bytes_per_token() == 327680 // 8
    assert spec("falcon-7b", tp=71).bytes_per_token() == spec("falcon-7b").bytes_per_token()


def test_latents_are_whole_on_every_gpu(spec):
    assert spec("deepseek-v3", tp=8).bytes_per_token() == 70272


def test_linear_states_are_dealt_out(spec):
    whole, shard = spec("qwen3-next-80b-a3b"), spec("qwen3-next-80b-a3b", tp=8)
    assert shard.bytes(1, 0) * 8 == whole.bytes(1, 0)
    assert shard.bytes_per_token() * 2 == whole.bytes_per_token()  # 2 kv heads over 8 GPUs


@pytest.mark.parametrize("name, tp, message", [
    ("llama-3-8b", 3, "tp 3: must divide the 32 query heads"),
    ("phi-4", 8, "tp 8: must divide the 10 kv heads or be a multiple of them"),
    ("llama-3-8b", 64, "tp 64: must divide the 32 query heads"),
    ("llama-3-8b", 0, "tp must be at least 1"),
    ("llama-3-8b", -2, "tp must be at least 1"),
])  # fmt: skip
def test_impossible_tensor_parallelism_is_refused(spec, name, tp, message):
    with pytest.raises(ValueError, match=message):
        spec(name, tp=tp)


def test_a_shard_is_not_sharded_again(spec):
    with pytest.raises(ValueError, match="already one GPU's of 2"):
        spec("llama-3-8b", tp=2).shard(2)


@pytest.mark.parametrize("arguments", [(-1, 5), (1, -5), (1, 5, 0)])
def test_negative_sizes_are_refused(spec, arguments):
    with pytest.raises(ValueError, match="must be at least"):
        spec("llama-3-8b").bytes(*arguments)


@pytest.mark.parametrize("arguments", [(1.0, 5), (1, "5"), (None, 5), (1, 5, 16.0)])
def test_sizes_that_are_no_whole_numbers_are_refused(spec, arguments):
    with pytest.raises(TypeError, match="must be an integer"):
        spec("llama-3-8b").bytes(*arguments)


@pytest.mark.parametrize("wrong", [
    {"kind": "half"}, {"window": 5}, {"kind": "sliding"}, {"kv_heads": 0}, {"head_dim_k": 0},
    {"kind": "sliding", "window": 0}, {"kind": "linear"}, {"head_dim_v": -64}, {"conv_elements": -1},
    {"kind": "latent", "kv_heads": 2}, {"kind": "latent", "head_dim_v": 64},
])  # fmt: skip
def test_impossible_layers_are_refused(wrong):
    with pytest.raises(ValueError, match="kind 'half'|window|must be at least|latent layer"):
        CacheSpec([Layer(**{"kind": "full", "kv_heads": 1, "head_dim_k": 64} | wrong)])


def test_a_cache_has_layers():
    with pytest.raises(ValueError, match="at least one Layer"):
        CacheSpec([])


def test_repr_says_what_it_is(spec):
    assert repr(spec("gemma-3-27b", tp=4)) == "CacheSpec(gemma3: 52 sliding, 10 full; bf16; 1 GPU of 4)"


@pytest.mark.parametrize("wrong", [{"kv_heads": 8.0}, {"head_dim_k": "64"}, {"kind": "sliding", "window": 2.5}])
def test_layers_of_no_whole_numbers_are_refused(wrong):
    with pytest.raises(TypeError, match="must be an integer"):
        CacheSpec([Layer(**{"kind": "full", "kv_heads": 1, "head_dim_k": 64} | wrong)])


@pytest.mark.parametrize("batch, tokens", [(-1, 5), (1, -5)])
def test_parts_of_negative_sizes_are_refused(spec, batch, tokens):
    for ask in (spec("llama-3-8b").per_layer, spec("llama-3-8b").per_kind):
        with pytest.raises(ValueError, match="must be at least 0"):
            ask(batch, tokens)


class Narrow:
    """A whole number as numpy's int32 is one: not an int, and its own products would overflow."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def test_numbers_of_other_libraries_are_taken_as_pythons(spec):
    llama = spec("llama-3-70b")
    assert llama.bytes(Narrow(64), Narrow(2**20), Narrow(16)) == llama.bytes(64, 2**20, 16)
    assert llama.paged(Narrow(64), Narrow(2**20), Narrow(16)) == llama.paged(64, 2**20, 16)
    assert llama.shard(Narrow(8)).bytes_per_token(Narrow(5)) == llama.shard(8).bytes_per_token(5)
    assert sum(llama.per_layer(Narrow(64), Narrow(2**20))) == llama.bytes(64, 2**20)


def test_each_sort_of_layer_has_a_block_table():
    """A page is freed out of one window and not out of another, so full layers and each window have a table apiece."""
    layers = [Layer("full", 1, 64, 64), Layer("sliding", 1, 64, 64, 20), Layer("sliding", 1, 64, 64, 50)] * 2
    paged = CacheSpec([*layers, Layer("linear", 1, recurrent_elements=4)]).paged(2, 100, 10)
    assert paged.block_table_bytes == 2 * 3 * 10 * 4
    assert paged.pages == 2 * (10 + 3 + 6)
