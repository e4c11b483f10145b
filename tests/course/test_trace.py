"""Bytes counted from running kernels, against counts made by hand and against flashlab.reference."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import flashlab.kernels  # noqa: F401  before triton: it decides where kernels run
from flashlab import flash_attn_func, flash_attn_with_kvcache
from flashlab.course import trace
from flashlab.kernels import configs
from flashlab.reference import tiled, traffic

import triton  # isort: skip
import triton.language as tl  # isort: skip

tracing = sys.modules["flashlab.course.trace"]
ROOT = Path(__file__).parents[2]
interpreted = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="wraps the interpreter of this process")


@triton.jit
def copy(p_x, p_y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(p_y + offsets, tl.load(p_x + offsets, mask=inside), mask=inside)


@triton.jit
def tile(p_x, stride, rows, cols):
    return tl.load(p_x + rows[:, None] * stride + cols[None, :])


@triton.jit
def sum_of_columns(p_x, p_out, stride, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Through a helper, a reduction with a helper of its own, and a method of a tensor."""
    x = tile(p_x, stride, tl.arange(0, ROWS), tl.arange(0, COLS))
    tl.store(p_out + tl.arange(0, COLS), x.sum(0) + tl.max(x, 0) * 0)


@triton.jit
def count_up(p_total, p_seen):
    tl.atomic_add(p_total, 1)
    tl.atomic_cas(p_seen + tl.program_id(0), 0, 1)


@triton.jit
def through_descriptors(p_x, p_y, rows, cols, stride, ROWS: tl.constexpr, COLS: tl.constexpr):
    x = tl.make_tensor_descriptor(p_x, [rows, cols], [stride, 1], [ROWS, COLS])
    y = tl.make_tensor_descriptor(p_y, [rows, cols], [stride, 1], [ROWS, COLS])
    y.store([tl.program_id(0) * ROWS, 0], x.load([tl.program_id(0) * ROWS, 0]))


@triton.jit
def both_views(p_even, p_odd, p_out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    chosen = tl.where(i < 3, p_even + 2 * i, p_odd + 2 * i)
    tl.store(p_out + i, tl.load(chosen))


@triton.jit
def one_past_the_end(p_x, p_y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_y + offsets, tl.load(p_x + offsets, mask=offsets <= n), mask=offsets < n)


def test_lanes_that_are_masked_off_are_not_counted():
    x, y = torch.randn(10), torch.empty(10)
    t = trace(lambda: copy[(3,)](x, y, 10, BLOCK=4))
    (launch,) = t.launches
    assert (launch.kernel, launch.grid) == ("copy", (3, 1, 1))
    full = {"x": (16, 0), "y": (0, 16)}
    assert launch.programs == {(0, 0, 0): full, (1, 0, 0): full, (2, 0, 0): {"x": (8, 0), "y": (0, 8)}}
    assert (t.loaded, t.stored, t.total, t.outside) == ({"x": 40}, {"y": 40}, 80, ())
    assert torch.equal(x, y)


def test_a_program_that_moves_nothing_is_there():
    t = trace(lambda: copy[(2,)](torch.ones(4), torch.ones(4), 4, BLOCK=4))
    assert t.launches[0].programs[1, 0, 0] == {}


def test_bytes_are_the_elements_own():
    for dtype in (torch.float16, torch.float64, torch.int8):
        x = torch.ones(8, dtype=dtype)
        assert trace(lambda x=x: copy[(1,)](x, x.clone(), 5, BLOCK=8)).loaded == {"x": 5 * dtype.itemsize}


def test_strides_helpers_and_reductions():
    x, out = torch.arange(64.0).view(4, 16), torch.empty(8)
    t = trace(lambda: sum_of_columns[(1,)](x[:, 3:], out, 16, ROWS=4, COLS=8))
    assert (t.loaded, t.stored) == ({"x": 4 * 8 * 4}, {"out": 8 * 4})
    assert torch.equal(out, x[:, 3:11].sum(0)) and not t.outside


def test_atomics_load_and_store():
    total, seen = torch.zeros(1, dtype=torch.int32), torch.zeros(5, dtype=torch.int32)
    t = trace(lambda: count_up[(5,)](total, seen))
    assert t.loaded == t.stored == {"total": 20, "seen": 20}
    assert total.item() == 5 and seen.tolist() == [1] * 5


def test_descriptors_count_what_is_inside_the_tensor():
    x, y = torch.randn(6, 8), torch.zeros(6, 8)
    t = trace(lambda: through_descriptors[(2,)](x, y, 6, 8, 8, ROWS=4, COLS=8))
    assert (t.loaded, t.stored) == ({"x": 6 * 8 * 4}, {"y": 6 * 8 * 4})
    assert t.launches[0].programs[1, 0, 0] == {"x": (64, 0), "y": (0, 64)} and torch.equal(x, y)


def test_two_views_of_one_tensor_are_told_apart():
    x = torch.arange(16.0)
    t = trace(lambda: both_views[(1,)](x[0::2], x[1::2], torch.empty(8), BLOCK=8))
    assert t.loaded == {"even": 12, "odd": 20}


def test_what_lies_outside_a_tensor_is_named():
    held = torch.arange(20.0)
    x, y = held[4:14], torch.empty(10)
    t = trace(lambda: one_past_the_end[(3,)](x, y, 10, BLOCK=4))
    (access,) = t.outside
    assert access == ((2, 0, 0), "x", False, 1, 10, 10)
    assert str(access) == "program (2, 0, 0) loads element 10 of x, which has 10"
    assert not trace(lambda: copy[(1,)](held[4:], held[2:], 4, BLOCK=4)).outside


@triton.jit
def without_masks(p_x, p_y, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) - 1
    tl.store(p_y + offsets, tl.load(p_x + offsets))


def test_a_guarded_kernel_touches_nothing_outside_its_tensors():
    x, held = torch.arange(5.0), torch.zeros(7)
    t = trace(lambda: without_masks[(2,)](x, held[1:6], BLOCK=4), guard=True)
    assert torch.equal(held[1:6], x) and held[0] == held[6] == 0
    assert [(a.program[0], a.argument, a.element, a.elements) for a in t.outside] == [
        (0, "x", -1, 1), (0, "y", -1, 1), (1, "x", 6, 2), (1, "y", 6, 2)
    ]  # fmt: skip
    everything = torch.zeros(8)
    trace(lambda: without_masks[(2,)](x, everything[1:], BLOCK=4), guard=True)
    assert everything[1:6].tolist() == x.tolist() and everything[6:].isnan().all() and everything[0] == 0


@interpreted
@triton.jit
def sums_of_three(p_x, p_y, OTHER: tl.constexpr):
    offsets = tl.arange(0, 4)
    if OTHER:
        b_x = tl.load(p_x + offsets, mask=offsets < 3, other=0.0)
    else:
        b_x = tl.load(p_x + offsets, mask=offsets < 3)
    tl.store(p_y, tl.sum(b_x))


def test_a_guarded_lane_that_is_off_holds_nan_unless_other_says_what():
    x, y = torch.arange(4.0), torch.zeros(1)
    for other, expected in ((True, 3.0), (False, float("nan"))):
        assert not trace(lambda other=other: sums_of_three[(1,)](x, y, OTHER=other), guard=True).outside
        torch.testing.assert_close(y, torch.tensor([expected]), equal_nan=True)


def test_a_call_that_was_already_made_is_refused():
    with pytest.raises(TypeError, match="call is NoneType.*lambda"):
        trace(None)  # what kernel[grid](...) returns


def test_a_guard_around_a_trace_does_not_disturb_it():
    x, y = torch.ones(4), torch.zeros(4)
    with tracing.guarded():
        t = trace(lambda: copy[(2,)](x, y, 8, BLOCK=4))
        without_masks[(1,)](x, torch.empty(4), BLOCK=4)
    assert t.loaded == {"x": 32} and len(t.outside) == 2 and torch.equal(x, y)


def test_several_launches_add_up_and_the_result_is_kept():
    x = torch.ones(4)

    def twice():
        copy[(1,)](x, torch.empty(4), 4, BLOCK=4)
        copy[lambda meta: (triton.cdiv(4, meta["BLOCK"]),)](x, torch.empty(4), 3, BLOCK=2)
        return "done"

    t = trace(twice)
    assert [launch.grid for launch in t.launches] == [(1, 1, 1), (2, 1, 1)]
    assert (t.loaded, t.stored, t.result) == ({"x": 28}, {"y": 28}, "done")


def test_the_table_says_what_was_counted():
    said = repr(trace(lambda: copy[(300,)](torch.ones(300), torch.ones(300), 300, BLOCK=1)))
    assert said.splitlines() == [
        "copy, grid 300 x 1 x 1: 300 programs",
        "  bytes            loaded         stored",
        "  x                 1,200              0",
        "  y                     0          1,200",
        "  together          1,200          1,200",
    ]


def test_a_call_that_launches_nothing_is_refused():
    with pytest.raises(ValueError, match="^nothing was traced: the call launched no Triton kernel$"):
        trace(lambda: torch.ones(3) + 1)


def test_an_error_passes_through_and_leaves_nothing_behind():
    from triton.runtime import interpreter

    held = interpreter.GridExecutor.__call__, dict(vars(interpreter.interpreter_builder))
    with pytest.raises(ZeroDivisionError):
        trace(lambda: 1 / 0)
    trace(lambda: copy[(1,)](torch.ones(4), torch.ones(4), 4, BLOCK=4))
    after = dict(vars(interpreter.interpreter_builder))
    assert interpreter.GridExecutor.__call__ is held[0] and {"create_masked_load"}.isdisjoint(after)
    assert set(after) - set(held[1]) <= {"grid_idx", "grid_dim"}


# The package's kernels against flashlab.reference. Nothing in the reference is padded, and neither is what is counted.


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    "seqlen_q, seqlen_k, causal", [(128, 128, False), (130, 200, False), (128, 128, True), (70, 200, True)]
)
def test_the_forward_kernel_moves_what_the_reference_counts(seqlen_q, seqlen_k, causal, dtype):
    """q, k, v, o and lse, all exactly: q is loaded once, K and V once for every query tile as far as it sees."""
    heads, head_dim = 2, 32
    q, k, v = (torch.randn(1, n, heads, head_dim).to(dtype) for n in (seqlen_q, seqlen_k, seqlen_k))
    t = trace(lambda: flash_attn_func(q, k, v, causal=causal))
    config = configs.choose("forward", dtype, q.device, head_dim, seqlen_q, causal)
    expected = traffic.flash_attention_2(
        seqlen_q, seqlen_k, head_dim, config.BLOCK_M, config.BLOCK_N, causal=causal, element_bytes=dtype.itemsize
    )
    assert t.loaded == {name: heads * size for name, size in expected.reads.items()}
    assert t.stored == {name: heads * size for name, size in expected.writes.items()}


def test_the_forward_kernel_moves_what_the_loops_of_the_reference_move():
    """The reference bills two bytes an element."""
    q, k, v = (torch.randn(n, 16) for n in (100, 150, 150))
    t = trace(lambda: flash_attn_func(*(x.half()[None, :, None] for x in (q, k, v)), causal=True))
    moved = tiled.flash_attention_2(q, k, v, block_m=64, block_n=64, causal=True).hbm.traffic()
    assert (t.loaded, t.stored) == (moved.reads, moved.writes)


def test_grouped_heads_load_k_once_for_every_query_head():
    q, k, v = torch.randn(1, 64, 4, 16), torch.randn(1, 64, 2, 16), torch.randn(1, 64, 2, 16)
    assert trace(lambda: flash_attn_func(q, k, v)).loaded["k"] == 4 * 64 * 16 * 4


@pytest.mark.parametrize("num_splits", [1, 3])
def test_decoding_loads_the_cache_once_however_it_is_split(num_splits):
    """Only real keys, once for all query heads of a group. Each split that has keys writes a partial of every query."""
    q, cache_seqlens = torch.randn(1, 1, 4, 32), torch.tensor([500], dtype=torch.int32)
    k, v = torch.randn(1, 512, 2, 32), torch.randn(1, 512, 2, 32)
    t = trace(lambda: flash_attn_with_kvcache(q, k, v, cache_seqlens=cache_seqlens, num_splits=num_splits))
    reference = traffic.split_kv(1, 500, 32, 1, 64, num_splits, element_bytes=4)
    assert t.loaded["k"] == t.loaded["v"] == 2 * reference.reads["k"]
    assert t.loaded["q"] == 4 * reference.reads["q"] and t.stored["o"] == 4 * reference.writes["o"]
    partial = 4 * num_splits * (32 + 1) * 4  # float32, an o and an lse
    kernels = ["decode_kernel"] if num_splits == 1 else ["decode_kernel", "combine_kernel"]
    assert [launch.kernel for launch in t.launches] == kernels
    if num_splits == 1:
        assert "parts" not in t.stored
    else:
        assert t.launches[0].stored["parts"] == partial
        assert partial == 4 * (reference.writes["o_partial"] + reference.writes["lse_partial"])
        assert t.launches[1].stored == {"o": 4 * 32 * 4}


# Where kernels are compiled, and where Triton has changed.

COMPILED = """
import torch
from test_trace import *
from triton.runtime.jit import JITFunction
import triton.language.semantic
assert isinstance(copy, JITFunction)
def seen():
    places = tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base, JITFunction
    return [{name: value for name, value in vars(place).items() if name != "__annotations__"} for place in places]
before = seen()
test_lanes_that_are_masked_off_are_not_counted()
test_strides_helpers_and_reductions()
test_atomics_load_and_store()
test_descriptors_count_what_is_inside_the_tensor()
test_two_views_of_one_tensor_are_told_apart()
test_several_launches_add_up_and_the_result_is_kept()
test_a_call_that_launches_nothing_is_refused()
test_the_forward_kernel_moves_what_the_loops_of_the_reference_move()
test_decoding_loads_the_cache_once_however_it_is_split(3)
assert seen() == before
assert os.environ["TRITON_INTERPRET"] == "0"
try:
    flash_attn_func(*(torch.ones(1, 4, 1, 16),) * 3)
except ValueError as error:
    assert "kernels run on cuda here" in str(error), error
from triton.backends.compiler import GPUTarget
source = triton.compiler.ASTSource(sum_of_columns, dict(p_x="*fp32", p_out="*fp32", stride="i32"), dict(ROWS=4, COLS=8))
assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
print("counted")
"""


def test_it_counts_where_kernels_are_compiled_and_puts_everything_back():
    env = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"}
    ran = subprocess.run([sys.executable, "-c", COMPILED], env=env, capture_output=True, text=True, timeout=300)
    assert ran.stdout == "counted\n", ran.stdout + ran.stderr


@interpreted
@pytest.mark.parametrize("gone", ["GridExecutor", "TensorHandle"])
def test_a_triton_that_has_changed_is_refused_in_one_sentence(gone, monkeypatch):
    from triton.runtime import interpreter

    monkeypatch.delattr(interpreter, gone)
    tracing._ready.cache_clear()
    with pytest.raises(RuntimeError, match=r"^Triton \S+ runs its interpreter in a way .* not know.*AttributeError"):
        trace(lambda: None)


def test_a_count_that_is_wrong_is_noticed(monkeypatch):
    from flashlab.kernels import canary

    tracing._ready.cache_clear()
    run = canary.largest_error
    monkeypatch.setattr(canary, "largest_error", lambda dtype, n: run(dtype, n=n - 1))
    with pytest.raises(RuntimeError, match="its count of a known kernel is wrong"):
        trace(lambda: None)
    monkeypatch.undo()
    trace(lambda: copy[(1,)](torch.ones(4), torch.ones(4), 4, BLOCK=4))


def test_this_triton_is_known():
    """The canary: one clear sentence where the Triton installed has changed."""
    tracing._ready.cache_clear()
    tracing._ready()


def test_it_is_what_a_lesson_imports():
    assert trace is tracing.trace
