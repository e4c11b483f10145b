import random
from types import SimpleNamespace

import pytest

from flashlab.hardware import occupancy
from flashlab.hardware.limits import CUDA, LIMITS
from flashlab.widgets import OccupancyScope, SMGrid, link, style
from flashlab.widgets import occupancy as scope
from flashlab.widgets.occupancy import Residents, edges, picture, steps


@pytest.mark.parametrize("seed", range(30))
def test_the_picture_is_the_calculators(seed):
    draw = random.Random(seed)
    cc = draw.choice(CUDA)
    block = dict(threads=draw.randint(1, 1024), registers=draw.randint(0, 255),
                 shared_memory=draw.randint(0, LIMITS[cc].shared_memory))  # fmt: skip
    state, found = Residents(cc, **block), occupancy(cc, **block)
    scene = picture(state)
    rows = [shape["codes"] for shape in scene.shapes if shape["kind"] == "cells"]
    rooms = [room for room in found.limits.values() if 0 < room < float("inf")]
    assert [len(row) for row in rows] == rooms
    assert {row.count("1") for row in rows} <= {found.blocks_per_sm}
    if found.blocks_per_sm:
        assert f"An SM holds {style.count(found.blocks_per_sm, 'block')}" in scene.summary
        assert f"occupancy {style.number(found.percent)}%" in scene.summary
    else:
        assert "This launch fails" in scene.summary and found.limiter[1:] in scene.summary
    for name, unit, cliff in zip(("Registers", "Shared memory"), ("", " B"), found.next_cliff, strict=True):
        if cliff.give_up:
            assert f"{name}: {cliff.give_up:,}{unit} fewer" in scene.summary
        if cliff.spare:
            assert f"{cliff.spare:,}{unit} more cost{'s' * (cliff.spare == 1)} none" in scene.summary


@pytest.mark.parametrize("along", ["registers", "shared_memory"])
def test_the_stairs_are_the_calculators(along):
    block = dict(threads=96, registers=40, shared_memory=3000)
    stairs = steps("8.6", **block, along=along)
    assert stairs[0][0] == 0 and stairs[-1][1] == (255 if along == "registers" else LIMITS["8.6"].shared_memory)
    for (_, last, n), (first, _, m) in zip(stairs, stairs[1:], strict=False):
        assert first == last + 1 and m < n
    for first, last, n in stairs:
        for at in {first, (first + last) // 2, last}:
            assert occupancy("8.6", **block | {along: at}).blocks_per_sm == n


def test_one_byte_decides():
    widget = OccupancyScope(shared_memory=115712)
    assert "An SM holds 2 blocks: shared memory decides." in widget.summary
    rungs = [value for _, value in widget.controls["shared_memory"].options]
    assert rungs[rungs.index(115712) + 1] == 115713 and {115712, 115713} <= set(edges("9.0"))
    widget.controls["shared_memory"].value = 115713
    assert "An SM holds 1 block: shared memory decides." in widget.summary
    assert "Shared memory: 1 B fewer a block makes room for 2 blocks" in widget.summary


def test_another_capability_brings_shared_memory_back_into_range():
    widget = OccupancyScope(shared_memory=233472)
    widget.controls["cc"].value = "7.5"
    assert widget.state.shared_memory == LIMITS["7.5"].shared_memory
    assert [value for _, value in widget.controls["shared_memory"].options] == edges("7.5")


def report(kernel, arch, head_dim, group, cache):
    return SimpleNamespace(threads=256, registers=head_dim, shared_memory_bytes=1000 * len(arch), spill_bytes=12,
                           launch={"BLOCK_M": 64, "BLOCK_N": 32})  # fmt: skip


def test_a_kernel_brings_its_numbers_until_one_is_set_by_hand(monkeypatch):
    monkeypatch.setattr("flashlab.kernels.inspect.inspect", report)
    scope.compiled.cache_clear()
    try:
        widget = OccupancyScope()
        widget.controls["kernel"].value = "dq"
        assert widget.state.block == dict(threads=256, registers=128, shared_memory=5000)
        assert "dq: head_dim 128, tile 64 × 32, compiled here; 12 B a thread spilled." in widget.summary
        widget.controls["head_dim"].value = 64
        assert widget.state.registers == widget.controls["registers"].value == 64
        widget.controls["cc"].value = "7.5"
        assert widget.state.cc == widget.controls["cc"].value == "9.0"
        assert "allowed is 8.0, 8.6, 9.0, 10.0 for a compiled kernel" in widget._message.value
        widget.controls["registers"].value = 99
        assert (widget.state.kernel, widget.state.threads, widget.controls["kernel"].value) == ("by hand", 256, "by hand")
        assert widget.controls["head_dim"].disabled
    finally:
        scope.compiled.cache_clear()


@pytest.mark.slow
def test_a_real_kernel_on_a_gpu_that_is_not_here():
    from flashlab.kernels.inspect import inspect

    compiled = inspect("decode", "sm_90", head_dim=64, group=4, cache="int4")
    state = OccupancyScope(kernel="decode", head_dim=64, group=4, cache="int4").state
    numbers = (compiled.threads, compiled.registers, compiled.shared_memory_bytes)
    assert tuple(state.block.values()) == numbers
    assert state.found == occupancy("9.0", *numbers)


def test_a_compiler_that_refuses_is_heard(monkeypatch):
    def fails(*args, **variant):
        raise RuntimeError("compiling failed: ptxas")

    monkeypatch.setattr("flashlab.kernels.inspect.inspect", fails)
    scope.compiled.cache_clear()
    widget = OccupancyScope()
    widget.controls["kernel"].value = "dkdv"
    assert widget.state.kernel == widget.controls["kernel"].value == "by hand"
    assert "compiling failed: ptxas" in widget._message.value


def test_the_grid_hands_its_gpu_on_and_gets_the_blocks_per_sm_back():
    grid, holds = SMGrid(gpu="a100"), OccupancyScope()
    link(grid, holds, grid)
    assert holds.state.cc == "8.0"
    assert grid.state.blocks_per_sm == holds.state.found.blocks_per_sm == 1
    holds.controls["shared_memory"].value = 0
    assert grid.state.blocks_per_sm == holds.state.found.blocks_per_sm == 3
    grid.controls["gpu"].value = "T4"
    assert (holds.state.cc, grid.state.blocks_per_sm) == ("7.5", holds.state.found.blocks_per_sm)
    grid.update(gpu="H200", heads_q=64, dtype="int4", head_dim=64)
    assert (holds.state.group, holds.state.cache, holds.state.head_dim) == (8, "int4", 64)
    holds.update(threads=1024, registers=80)
    assert holds.state.found.blocks_per_sm == 0 and "blocks_per_sm is 0" in grid._message.value
    with pytest.raises(ValueError, match="taker is 'SoftmaxScrubber': allowed is OccupancyScope"):
        from flashlab.widgets import SoftmaxScrubber

        link(grid, SoftmaxScrubber())


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"cc": "6.1"}, "cc is '6.1': allowed is 7.0, 7.5"),
        ({"threads": 0}, "threads is 0: allowed is a whole number from 1 to 1024"),
        ({"registers": 256}, "registers is 256: allowed is a whole number from 0 to 255"),
        ({"shared_memory": 233473}, "shared_memory is 233473: allowed is a whole number from 0 to 233472"),
        ({"kernel": "backward"}, "kernel is 'backward': allowed is by hand, forward"),
        ({"head_dim": 512}, "head_dim is 512"),
        ({"cache": "bf16"}, "cache is 'bf16': allowed is native, fp8, int8, int4"),
    ],
)
def test_what_cannot_be_shown_is_named(bad, message):
    with pytest.raises(ValueError, match=message):
        OccupancyScope(**bad)
