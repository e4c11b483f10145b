"""The compile gate: every kernel builds for every architecture without a GPU, on tensor cores and within the GPU's limits."""

import pytest

from flashlab.kernels import inspect
from flashlab.kernels.inspect import Request

SHARED_MEMORY = {"sm_80": 163 * 1024, "sm_86": 99 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024}
TENSOR_CORE = {"sm_80": "mma", "sm_86": "mma", "sm_90": "wgmma", "sm_100": "tcgen05"}
EVERYTHING = dict(window=True, softcap=True, alibi=True, varlen=True, group=3, head_dim=96, dtype="float16")


def variants(arch):
    """Plain and causal at the head_dims the tables have rows for, everything at once, and the widest of each element."""
    yield Request("preprocess", arch)
    for kernel in ("forward", "dkdv", "dq"):
        yield Request(kernel, arch, causal=True)
        yield Request(kernel, arch, head_dim=256)
        yield Request(kernel, arch, **EVERYTHING)
        yield Request(kernel, arch, head_dim=256 if arch == "sm_86" else 128, dtype="float32")
    yield Request("forward", arch, head_dim=64, page_size=16, causal=True)


@pytest.mark.parametrize("arch", SHARED_MEMORY)
def test_every_kernel_builds(arch):
    requests = list(variants(arch))
    for request, report in zip(requests, inspect.inspect_all(requests), strict=True):
        assert report.shared_memory_bytes <= SHARED_MEMORY[arch], request
        assert report.registers <= 255 and report.threads == 32 * report.launch["num_warps"]
        used = {name for name, count in report.tensor_core.items() if count}
        if request.kernel == "preprocess" or request.dtype == "float32":
            assert not used, request
        elif (request.kernel, request.head_dim) == ("dkdv", 256):  # its tiles of 32 are too short for wgmma and tcgen05
            assert used, request
        else:
            assert used == {TENSOR_CORE[arch]}, request
        if request.kernel == "forward" and request.head_dim <= 128 and request.causal:
            assert report.spill_bytes == 0, request


@pytest.mark.parametrize(
    "request_, message",
    [
        (dict(kernel="backward", arch="sm_90"), "kernel 'backward': must be one of forward"),
        (dict(kernel="forward", arch="sm_70"), "arch 'sm_70': must be one of sm_80"),
        (dict(kernel="forward", arch="sm_90", dtype="int8"), "dtype 'int8': must be one of float16"),
        (dict(kernel="forward", arch="sm_90", head_dim=300), "head_dim 300: must be from 1 to 256"),
    ],
)
def test_bad_requests(request_, message):
    with pytest.raises(ValueError, match=message):
        inspect.inspect(**request_)


def test_a_tile_of_ones_own_takes_the_place_of_the_tables():
    report = inspect.inspect("forward", "sm_90", tile=(128, 64, 4, 2))
    assert [report.launch[name] for name in ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")] == [128, 64, 4, 2]
    assert report.threads == 128 and report.spill_bytes > 0
