"""flash_attn_with_kvcache as a citizen of torch: errors before any launch, operators, torch.compile, CUDA graphs."""

import inspect

import pytest
import torch

import flashlab
from flashlab import flash_attn_with_kvcache
from flashlab.reference.naive import attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GPU = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")


def arguments(batch=2, seqlen_q=1, heads_q=4, heads_kv=2, dim=16, capacity=32, dtype=torch.float32):
    rand = lambda *shape: torch.randn(*shape, device=DEVICE).to(dtype)
    return dict(
        q=rand(batch, seqlen_q, heads_q, dim), k_cache=rand(batch, capacity, heads_kv, dim),
        v_cache=rand(batch, capacity, heads_kv, dim), cache_seqlens=index([capacity // 2] * batch),
    )  # fmt: skip


def index(values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def paged(columns=2, page=16, table=((0, 1), (2, 3)), **options):
    given = arguments(**options)
    for name in ("k_cache", "v_cache"):
        given[name] = torch.randn(4, page, *given[name].shape[2:], device=DEVICE)
    return given | dict(block_table=index([row[:columns] for row in table]))


zeros = lambda *shape, dtype=torch.float32: torch.zeros(*shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    "change, error, message",
    [
        (dict(q=zeros(2, 4, 16)), ValueError, "q has shape"),
        (dict(q=zeros(2, 1, 4, 16, dtype=torch.float64)), TypeError, "q has dtype"),
        (dict(q=zeros(2, 1, 4, 16, dtype=torch.float16)), TypeError, "k_cache has dtype torch.float32"),
        (dict(q=zeros(2, 1, 4, 8)), ValueError, "k_cache has shape"),
        (dict(q=zeros(2, 1, 5, 16)), ValueError, "q has 5 heads and k_cache 2"),
        (dict(q=zeros(3, 1, 4, 16)), ValueError, "k_cache has 2 rows"),
        (dict(v_cache=zeros(2, 31, 2, 16)), ValueError, "v_cache has shape"),
        (dict(v_cache=zeros(2, 32, 2, 16, dtype=torch.float16)), TypeError, "v_cache has dtype"),
        (dict(k_cache=zeros(2, 32, 2, 32)[..., ::2]), ValueError, "k_cache has strides"),
        (dict(cache_seqlens=index([1])), ValueError, "cache_seqlens has shape"),
        (dict(cache_seqlens=index([1, 2]).long()), TypeError, "cache_seqlens has dtype"),
        (dict(cache_seqlens=33), ValueError, "the cache holds 32"),
        (dict(cache_seqlens=-1), ValueError, "cache_seqlens -1"),
        (dict(cache_batch_idx=index([0])), ValueError, "cache_batch_idx has shape"),
        (dict(num_splits=129), ValueError, "num_splits 129"),
        (dict(num_splits=-1), ValueError, "num_splits -1"),
        (dict(softmax_scale=-1.0), ValueError, "softmax_scale -1"),
        (dict(softcap=-1.0), ValueError, "softcap -1"),
        (dict(alibi_slopes=zeros(3)), ValueError, "alibi_slopes has shape"),
        (dict(alibi_slopes=zeros(4, dtype=torch.float16)), TypeError, "alibi_slopes is torch.float16"),
        (dict(k=zeros(2, 1, 2, 16)), ValueError, "v is None"),
        (dict(k=zeros(2, 1, 3, 16), v=zeros(2, 1, 2, 16)), ValueError, "k has shape"),
        (dict(k=zeros(2, 1, 2, 16), v=zeros(2, 1, 2, 16), cache_seqlens=None), ValueError, "cache_seqlens is None"),
        (dict(k=zeros(2, 1, 2, 16), v=zeros(2, 1, 2, 16), cache_seqlens=32), ValueError, "1 new: the cache holds 32"),
        (dict(rotary_cos=zeros(32, 4), rotary_sin=zeros(32, 4)), ValueError, "k is None"),
        (dict(q=zeros(2, 1, 4, 32)[..., ::2]), ValueError, "q has strides"),
        (dict(k_scale=zeros(2), v_scale=zeros(2)), ValueError, "k_scale: a torch.float32 cache"),
        (dict(block_table=index([[0], [1]]), k_cache=zeros(2, 24, 2, 16), v_cache=zeros(2, 24, 2, 16)), ValueError, "24 tokens"),
        (dict(block_table=index([[0], [1]]), cache_batch_idx=index([0, 1])), ValueError, "cache_batch_idx: block_table"),
        (dict(q=[1.0]), TypeError, "q is a list"),
        (dict(v_cache=None), TypeError, "v_cache is a NoneType"),
        (dict(cache_seqlens=[1, 2]), TypeError, "cache_seqlens is a list: must be a tensor or an int"),
        (dict(cache_seqlens=1.0), TypeError, "cache_seqlens is a float"),
        (dict(cache_leftpad=0), TypeError, "cache_leftpad is a int"),
        (dict(alibi_slopes=[0.1]), TypeError, "alibi_slopes is a list"),
        (dict(window_size=4), ValueError, "window_size 4"),
        (dict(window_size=None), ValueError, "window_size None"),
        (dict(window_size=(1.5, 0)), TypeError, r"window_size \(1.5, 0\)"),
        (dict(causal="no"), TypeError, "causal is a str"),
        (dict(softcap=None), TypeError, "softcap is a NoneType"),
        (dict(softmax_scale=zeros(1)), TypeError, "softmax_scale is a Tensor"),
        (dict(num_splits=2.5), TypeError, "num_splits is a float"),
        (dict(k=zeros(2, 2, 16), v=zeros(2, 2, 16)), ValueError, "k has shape"),
        (dict(k=[0], v=[0]), TypeError, "k is a list"),
    ],
)
def test_bad_arguments_are_named_before_any_launch(change, error, message):
    with pytest.raises(error, match=message):
        flash_attn_with_kvcache(**arguments() | change)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(k_cache=zeros(2, 32, 2, 16, dtype=torch.int8)), "v_cache has dtype"),
        (dict(k_scale=zeros(2)), "v_scale is None"),
        (dict(k_scale=zeros(3), v_scale=zeros(3)), "k_scale has shape"),
        (dict(k=zeros(2, 1, 2, 16), v=zeros(2, 1, 2, 16)), "flashlab.kvcache.quantize"),
    ],
)
def test_bad_quantised_arguments_are_named(change, message):
    given = arguments() | dict.fromkeys(["k_cache", "v_cache"], zeros(2, 32, 2, 16, dtype=torch.int8)) | change
    if "k_cache" in change:
        given["v_cache"] = zeros(2, 32, 2, 16)
    with pytest.raises((TypeError, ValueError), match=message):
        flash_attn_with_kvcache(**given)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(columns=1, lengths=[17, 3]), "block_table has 1 columns of 16 tokens"),
        (dict(table=((0, 4), (1, 2)), lengths=[20, 3]), r"block_table\[0, 1\] is 4"),
        (dict(table=((0, -1), (1, 2)), lengths=[20, 3]), r"block_table\[0, 1\] is -1"),
        (dict(lengths=[-1, 3]), "cache_seqlens"),
    ],
)
def test_values_outside_the_cache_are_named(change, message):
    lengths = change.pop("lengths")
    before = flashlab.set_checks(True)
    try:
        with pytest.raises(ValueError, match=message):
            flash_attn_with_kvcache(**paged(**change) | dict(cache_seqlens=index(lengths)))
        with pytest.raises(ValueError, match="cache_batch_idx"):
            flash_attn_with_kvcache(**arguments() | dict(cache_batch_idx=index([0, 2])))
    finally:
        flashlab.set_checks(before)


def test_a_page_table_may_hold_anything_where_it_is_not_read():
    given = paged(table=((0, 99), (2, -7))) | dict(cache_seqlens=index([16, 3]))
    assert torch.isfinite(flash_attn_with_kvcache(**given)).all()


@pytest.mark.parametrize("operator", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        dict(num_splits=500), dict(alibi_slopes=zeros(3)), dict(cache_leftpad=index([0])), dict(cache_leftpad=index([33, 0])),
        dict(softcap=-1.0), dict(v=zeros(2, 3, 2, 16)), dict(cache_seqlens=index([-1, -1])), dict(cache_seqlens=index([-1, 5])),
        dict(cache_seqlens=index([31, 5])), dict(cache_seqlens=index([2**31 - 1, 5])), dict(cache_batch_idx=index([-1, 0])),
        dict(rotary_cos=zeros(17, 4), rotary_sin=zeros(17, 4)),
    ],
)  # fmt: skip
def test_a_refused_call_appends_nothing(change, operator):
    given = arguments() | dict(k=zeros(2, 2, 2, 16), v=zeros(2, 2, 2, 16))
    if operator:  # a parameter goes through the dispatcher
        given["q"] = torch.nn.Parameter(given["q"])
    before = [given[name].clone() for name in ("k_cache", "v_cache")]
    checking = flashlab.set_checks(True)
    try:
        with pytest.raises(ValueError):
            flash_attn_with_kvcache(**given | change)
    finally:
        flashlab.set_checks(checking)
    assert torch.equal(given["k_cache"], before[0]) and torch.equal(given["v_cache"], before[1])


def test_rows_that_share_memory_are_not_appended_to():
    given = arguments() | dict(k=zeros(2, 1, 2, 16), v=zeros(2, 1, 2, 16))
    given["v_cache"] = given["v_cache"][:1].expand(2, -1, -1, -1)
    with pytest.raises(ValueError, match="v_cache has strides"):
        flash_attn_with_kvcache(**given)


def test_rotary_tables_need_only_the_positions_that_turn():
    given = arguments(seqlen_q=3) | dict(k=zeros(2, 1, 2, 16), v=zeros(2, 1, 2, 16))
    flash_attn_with_kvcache(**given, rotary_cos=zeros(17, 4), rotary_sin=zeros(17, 4))
    checking = flashlab.set_checks(True)
    try:
        with pytest.raises(ValueError, match="rotary_cos has 18 positions: this call needs 19"):
            flash_attn_with_kvcache(**given, rotary_cos=zeros(18, 4), rotary_sin=zeros(18, 4), causal=True)
    finally:
        flashlab.set_checks(checking)


def test_a_quantised_cache_at_an_odd_byte_is_named():
    codes = torch.zeros(2 * 32 * 2 * 16 + 1, dtype=torch.int8, device=DEVICE)[1:].view(2, 32, 2, 16)
    with pytest.raises(ValueError, match="k_cache begins at byte 1"):
        flash_attn_with_kvcache(**arguments() | dict(k_cache=codes, v_cache=codes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_that_require_grad_and_inference_mode_change_nothing(dtype):
    given = arguments(dtype=dtype)
    given |= dict(k=given["q"][:, :, :2].clone(), v=given["q"][:, :, 2:].clone())
    caches = lambda: dict(k_cache=given["k_cache"].clone(), v_cache=given["v_cache"].clone())
    first = caches()
    expected = flash_attn_with_kvcache(**given | first)
    for mode in ("grad", "inference"):
        with torch.inference_mode(mode == "inference"):
            again = caches()
            if mode == "grad":
                again = {name: cache.requires_grad_() for name, cache in again.items()}
            out = flash_attn_with_kvcache(**given | again)
            assert torch.equal(out, expected) and torch.equal(again["v_cache"].detach(), first["v_cache"])


@pytest.mark.parametrize("quantised", [False, True])
def test_opcheck_decode(quantised):
    given = arguments(dtype=torch.float16)
    scales = (None, None)
    if quantised:
        given |= dict.fromkeys(["k_cache", "v_cache"], torch.ones(2, 32, 2, 16, dtype=torch.int8, device=DEVICE))
        scales = (torch.ones(2, 32, 2, device=DEVICE),) * 2
    q = given["q"].transpose(1, 2).contiguous().transpose(1, 2)
    torch.library.opcheck(
        torch.ops.flashlab.decode.default,
        (q, given["k_cache"], given["v_cache"], *scales, given["cache_seqlens"], None, None, None, None, -1, 0, 0.25, True, -1, -1,
         0.0, 2),
    )  # fmt: skip


def test_opcheck_append():
    given = paged()
    cos = torch.randn(64, 4, device=DEVICE)
    new = torch.randn(2, 1, 2, 16, device=DEVICE)
    for rotary in (None, cos):
        torch.library.opcheck(
            torch.ops.flashlab.append_kv.default,
            (given["q"], new, new, given["k_cache"], given["v_cache"], rotary, rotary, None, None, given["cache_seqlens"], None,
             None, given["block_table"], None, -1, True, None, True, -1, -1, 0.0, 0),
        )  # fmt: skip


def step(q, k, v, k_cache, v_cache, cos, sin, lengths, table):
    out, lse = flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cos, sin, lengths, block_table=table, causal=True, return_softmax_lse=True
    )
    return out * 2, lse, lengths + 1


def test_compiled_is_eager_and_the_cache_changes_in_place():
    given = paged(seqlen_q=1)
    k, v = torch.randn(2, 2, 1, 2, 16, device=DEVICE)
    cos, sin = torch.randn(2, 64, 4, device=DEVICE)
    results = []
    for run in (step, torch.compile(step, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")):
        caches = [given["k_cache"].clone(), given["v_cache"].clone()]
        lengths = index([5, 20])
        for _ in range(2):
            out, lse, lengths = run(given["q"], k, v, *caches, cos, sin, lengths, given["block_table"])
        results.append((out, lse, *caches))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(eager, compiled)
    assert not torch.equal(results[0][2], given["k_cache"])


def test_signature_is_flash_attns_with_two_more():
    names = list(inspect.signature(flash_attn_with_kvcache).parameters)
    assert names == [
        "q", "k_cache", "v_cache", "k", "v", "rotary_cos", "rotary_sin", "cache_seqlens", "cache_batch_idx", "cache_leftpad",
        "block_table", "softmax_scale", "causal", "window_size", "softcap", "rotary_interleaved", "alibi_slopes", "num_splits",
        "return_softmax_lse", "k_scale", "v_scale",
    ]  # fmt: skip


@GPU
@pytest.mark.parametrize("num_splits", [0, 1, 8])
def test_a_graph_follows_lengths_that_change_between_replays(num_splits):
    given = arguments(batch=3, heads_q=8, capacity=4096, dim=64, dtype=torch.float16)
    k, v = torch.randn(2, 3, 1, 2, 64, device=DEVICE, dtype=torch.float16)
    before = flashlab.set_checks(False)
    run = lambda: flash_attn_with_kvcache(**given, k=k, v=v, causal=True, num_splits=num_splits)
    try:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = run()
        for lengths in ([1, 0, 4000], [4095, 17, 64], [0, 0, 0]):
            given["cache_seqlens"].copy_(index(lengths))
            graph.replay()
            total = torch.tensor(lengths) + 1
            ref, _ = attention(*(given[n].cpu().float() for n in ("q", "k_cache", "v_cache")), seqlens_k=total)
            torch.testing.assert_close(out.cpu().double(), ref, rtol=2e-3, atol=2e-3)
            for b in range(3):
                assert torch.equal(given["k_cache"][b, lengths[b]], k[b, 0])
    finally:
        flashlab.set_checks(before)


@GPU
def test_lengths_on_the_device_are_not_copied_back():
    given = arguments(batch=3, capacity=512) | dict(cache_seqlens=index([5, 512, 0]))
    before = flashlab.set_checks(False)
    flash_attn_with_kvcache(**given)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        flash_attn_with_kvcache(**given)
        flash_attn_with_kvcache(**given, num_splits=4)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        flashlab.set_checks(before)


@GPU
def test_streams_do_not_share_workspaces():
    """Calls in flight on several streams at once: each answer is its own."""
    given = [arguments(batch=1, heads_q=8, capacity=8192, dim=64, dtype=torch.float16) for _ in range(4)]
    expected = [flash_attn_with_kvcache(**g, num_splits=16) for g in given]
    streams = [torch.cuda.Stream() for _ in given]
    torch.cuda.synchronize()
    outs = [[] for _ in given]
    for _ in range(50):
        for g, stream, out in zip(given, streams, outs, strict=True):
            with torch.cuda.stream(stream):
                out.append(flash_attn_with_kvcache(**g, num_splits=16))
    torch.cuda.synchronize()
    for want, got in zip(expected, outs, strict=True):
        assert all(torch.equal(want, out) for out in got)


@GPU
def test_repeats_are_bitwise_equal():
    given = arguments(batch=2, heads_q=8, capacity=8192, dim=128, dtype=torch.bfloat16) | dict(cache_seqlens=index([8192, 1000]))
    first = flash_attn_with_kvcache(**given)
    assert all(torch.equal(first, flash_attn_with_kvcache(**given)) for _ in range(100))
