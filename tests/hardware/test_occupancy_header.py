"""Our occupancy against NVIDIA's own: its cuda_occupancy.h, compiled for the CPU, over thousands of random launches."""

import importlib.util
import os
import random
import shutil
import subprocess
from operator import eq, lt
from pathlib import Path

import pytest

from flashlab.hardware import occupancy
from flashlab.hardware.limits import CUDA, LIMITS

CASES_PER_CC = 1000
ORACLE = r"""
#include <climits>
#include <cstdio>
#include "cuda_occupancy.h"

int main() {
    int major, minor, threads_per_sm, threads, registers;
    size_t per_sm, per_block, reserved, shared;
    while (scanf("%d %d %d %zu %zu %zu %d %d %zu", &major, &minor, &threads_per_sm, &per_sm, &per_block, &reserved,
                 &threads, &registers, &shared) == 9) {
        cudaOccDeviceProp device;
        device.computeMajor = major;
        device.computeMinor = minor;
        device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = threads_per_sm;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536;
        device.warpSize = 32;
        device.sharedMemPerBlock = 49152;
        device.sharedMemPerMultiprocessor = per_sm;
        device.sharedMemPerBlockOptin = per_block;
        device.reservedSharedMemPerBlock = reserved;
        device.numSms = 1;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = INT_MAX;
        kernel.numRegs = registers;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = per_block;
        kernel.numBlockBarriers = 1;
        cudaOccDeviceState state;
        cudaOccResult result;
        int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared);
        printf("%d\n", error ? -error : result.activeBlocksPerMultiprocessor);
    }
}
"""


def header_folder() -> Path | None:
    """Triton and the nvidia-cuda-runtime packages carry the header, and so does an installed CUDA."""
    folders = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")]
    for package, inside in (("triton", "backends/nvidia/include"), ("nvidia", "*/include")):
        spec = importlib.util.find_spec(package)
        for root in spec.submodule_search_locations if spec else ():
            folders += Path(root).glob(inside)
    return next((f for f in folders if (f / "cuda_occupancy.h").exists()), None)


@pytest.fixture(scope="module")
def header(tmp_path_factory):
    """A function from launches (cc, threads, registers, shared_memory) to the header's blocks per SM."""
    folder = header_folder()
    if folder is None:
        pytest.skip("cuda_occupancy.h is not installed: the triton and nvidia-cuda-runtime packages carry it")
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed, so NVIDIA's header cannot be compiled")
    where = tmp_path_factory.mktemp("occupancy")
    (where / "oracle.cpp").write_text(ORACLE)
    subprocess.run(["g++", "-I", folder, "oracle.cpp", "-o", "oracle"], cwd=where, check=True)

    def blocks(launches: list[tuple]) -> list[int]:
        lines = []
        for cc, *launch in launches:
            sm = LIMITS[cc]
            device = (sm.threads, sm.shared_memory, sm.shared_memory_per_block, sm.reserved_per_block)
            lines.append(" ".join(map(str, (*cc.split("."), *device, *launch))))
        done = subprocess.run([where / "oracle"], input="\n".join(lines), capture_output=True, text=True, check=True)
        return [int(line) for line in done.stdout.split()]

    return blocks


def random_launches(seed: int) -> list[tuple]:
    """Uniform launches, and as many that stand on the edge of a warp, of a register step or of a number of blocks."""
    draw = random.Random(seed)
    launches = []
    for cc in CUDA:
        sm = LIMITS[cc]
        for i in range(CASES_PER_CC):
            threads, registers = draw.randint(1, 1056), draw.randint(0, 260)
            shared = draw.choice((0, draw.randint(0, 8192), draw.randint(0, sm.shared_memory_per_block + 2048)))
            if i % 2:
                threads = max(1, 32 * draw.randint(1, 32) + draw.randint(-1, 1))
                registers = max(0, 8 * draw.randint(0, 32) + draw.randint(-1, 1))
                step = sm.shared_memory // draw.randint(1, sm.blocks) - sm.reserved_per_block
                shared = max(0, step + draw.choice((-256, -128, -1, 0, 1, 128, 256)))
            launches.append((cc, threads, registers, shared))
    return launches


def test_occupancy_is_nvidias_for_thousands_of_launches(header):
    launches = random_launches(seed=random.randrange(2**32))
    assert len(launches) >= 5000
    theirs = header(launches)
    assert len(theirs) == len(launches)
    wrong = [
        (launch, ours, expected)
        for launch, expected in zip(launches, theirs, strict=True)
        if (ours := occupancy(*launch).blocks_per_sm) != expected
    ]
    assert not wrong, f"{len(wrong)} of {len(launches)} differ, first (launch, ours, NVIDIA's): {wrong[:3]}"
    assert len(set(theirs)) > 10 and theirs.count(0) > 100  # the launches reach many answers, failures included


def test_the_next_cliff_is_where_nvidias_blocks_change(header):
    """The header itself steps at each cliff and nowhere before it."""
    probes, expected = [], []
    for cc, threads, registers, shared in random_launches(seed=1)[::25]:
        seen = occupancy(cc, threads, registers, shared)
        here = seen.blocks_per_sm
        for name, cliff in (("registers", seen.next_cliff.registers), ("shared", seen.next_cliff.shared_memory)):
            steps = []
            if cliff.give_up is not None:
                steps += [(-cliff.give_up, eq, cliff.blocks_after), (1 - cliff.give_up, eq, here)]
            if cliff.spare is not None:
                steps += [(cliff.spare, eq, here), (cliff.spare + 1, lt, here)]
            for by, relation, blocks in steps:
                moved = {"registers": registers, "shared": shared}
                moved[name] += by
                probes.append((cc, threads, *moved.values()))
                expected.append((relation, blocks))
    assert len(probes) > 1000
    for launch, (relation, blocks), theirs in zip(probes, expected, header(probes), strict=True):
        assert relation(theirs, blocks), (launch, theirs, relation, blocks)
