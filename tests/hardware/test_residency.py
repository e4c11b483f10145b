"""Occupancy: known launches with their traps, and what must hold for any launch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlab.hardware import occupancy
from flashlab.hardware.limits import CUDA, LIMITS

# cc, threads, registers, shared memory -> blocks per SM, percent; the trap. Rows on 9.0 with 115,712 and 115,713 bytes were
# measured on an H200; the others are NVIDIA's rules worked by hand.
LAUNCHES = [
    ("8.0", 256, 33, 0, 6, 75, "registers round up to 40 (256 per warp)"),
    ("8.6", 256, 33, 0, 6, 100, "48 warps are full"),
    ("7.5", 256, 33, 0, 4, 100, "32 warps are full"),
    ("8.0", 128, 41, 0, 10, 62.5, "dividing the register file without rounding says 12"),
    ("8.0", 224, 92, 0, 2, 21.9, "registers are dealt out per sub-partition: naive says 3"),
    ("8.0", 288, 216, 0, 0, 0, "62208 registers would fit; the launch still fails"),
    ("8.0", 1024, 65, 0, 0, 0, "too many registers for one block"),
    ("8.6", 1024, 40, 0, 1, 66.7, "768 threads would give 2 blocks and 100 percent"),
    ("8.0", 32, 16, 0, 32, 50, "the block limit"),
    ("8.9", 32, 16, 0, 24, 50, "the block limit"),
    ("8.0", 65, 32, 0, 21, 98.4, "65 threads are 3 warps"),
    ("8.0", 128, 32, 16384, 9, 56.2, "1 KB is reserved per block on cc >= 8.0"),
    ("8.0", 128, 32, 54912, 3, 18.75, "the last byte before a cliff"),
    ("8.0", 128, 32, 54913, 2, 12.5, "the first byte after it"),
    ("9.0", 128, 32, 115712, 2, 12.5, "the last byte that lets two in"),
    ("9.0", 128, 32, 115713, 1, 6.25, "one byte more"),
    ("9.0", 128, 32, 232448, 1, 6.25, "the most one block may ask for"),
    ("9.0", 128, 32, 232449, 0, 0, "one byte more"),
    ("7.0", 128, 255, 65536, 1, 6.25, "a FlashAttention-2 tile at head_dim 128"),
    ("8.0", 128, 255, 65536, 2, 12.5, "the same on an A100"),
    ("9.0", 384, 168, 232448, 1, 18.75, "a FlashAttention-3 block"),
]

ccs = st.sampled_from(CUDA)
threads = st.integers(1, 1100)
registers = st.integers(0, 260)
shared = st.integers(0, 240_000)


@pytest.mark.parametrize("cc, threads, registers, shared, blocks, percent, trap", LAUNCHES)
def test_known_launches(cc, threads, registers, shared, blocks, percent, trap):
    found = occupancy(cc, threads, registers, shared)
    assert found.blocks_per_sm == blocks, trap
    assert found.percent == pytest.approx(percent, abs=0.051)
    assert found.warps_per_sm == blocks * -(-threads // 32)


@given(ccs, threads, registers, shared)
def test_blocks_are_the_least_limit_and_the_limiter_has_it(cc, threads, registers, shared):
    found = occupancy(cc, threads, registers, shared)
    assert set(found.limits) == {"blocks", "warps", "registers", "shared_memory"}
    assert found.blocks_per_sm == min(found.limits.values())
    assert 0 <= found.percent <= 100
    if found.blocks_per_sm:
        assert found.limits[found.limiter] == found.blocks_per_sm
    else:
        assert found.limiter.split(":")[0] in ("threads", "registers", "shared_memory")


@given(ccs, threads, registers, shared, st.integers(1, 64), st.integers(1, 20_000))
def test_more_registers_or_shared_memory_never_help(cc, threads, registers, shared, extra_registers, extra_bytes):
    here = occupancy(cc, threads, registers, shared).blocks_per_sm
    assert occupancy(cc, threads, registers + extra_registers, shared).blocks_per_sm <= here
    assert occupancy(cc, threads, registers, shared + extra_bytes).blocks_per_sm <= here


@given(ccs, threads, registers, shared)
def test_cliffs_are_exactly_where_the_blocks_change(cc, threads, registers, shared):
    found = occupancy(cc, threads, registers, shared)
    here = found.blocks_per_sm
    for cliff, now, at in (
        (found.next_cliff.registers, registers, lambda r: occupancy(cc, threads, r, shared).blocks_per_sm),
        (found.next_cliff.shared_memory, shared, lambda s: occupancy(cc, threads, registers, s).blocks_per_sm),
    ):
        if cliff.give_up is None:
            assert at(0) == here
        else:
            assert at(now - cliff.give_up) == cliff.blocks_after > here
            assert at(now - cliff.give_up + 1) == here
        if cliff.spare is None:
            assert here == 0
        else:
            assert at(now + cliff.spare) == here > at(now + cliff.spare + 1)


def test_the_cliff_that_was_measured():
    """One byte separates one block per SM from two."""
    cliff = occupancy("9.0", 128, 32, 115713).next_cliff.shared_memory
    assert (cliff.give_up, cliff.blocks_after) == (1, 2)
    assert occupancy("9.0", 128, 32, 115712).next_cliff.shared_memory.spare == 0


@pytest.mark.parametrize(
    "launch, reason",
    [
        (("8.0", 1025, 16, 0), "threads"),
        (("8.0", 32, 257, 0), "registers: a thread has"),
        (("8.0", 288, 216, 0), "registers: the block"),
        (("9.0", 128, 32, 232449), "shared_memory"),
    ],
)
def test_a_launch_that_fails_says_why(launch, reason):
    found = occupancy(*launch)
    assert (found.blocks_per_sm, found.warps_per_sm, found.percent) == (0, 0, 0)
    assert found.limiter.startswith(reason)


@pytest.mark.parametrize("same", [9.0, "9.0", "sm_90", "sm_90a", "SM90", " 9.0 ", "90", 9])
def test_compute_capability_is_written_many_ways(same):
    assert occupancy(same, 128, 32, 115712) == occupancy("9.0", 128, 32, 115712)


@pytest.mark.parametrize("cc", ["10.0", "sm_100a", 10.0, "100"])
def test_two_digit_compute_capabilities(cc):
    assert occupancy(cc, 128, 32, 0) == occupancy("10.0", 128, 32, 0)


@pytest.mark.parametrize("cc", ["6.1", "", "CDNA3", "nine", "1.0", "13.0", None])
def test_unknown_compute_capabilities_are_refused(cc):
    with pytest.raises(ValueError, match="cc must be one of 7.0, 7.5"):
        occupancy(cc, 128, 32, 0)


@pytest.mark.parametrize(
    "launch, error, words",
    [
        (("8.0", 0, 32, 0), ValueError, "threads must be at least 1, got 0"),
        (("8.0", 32, -1, 0), ValueError, "registers must be at least 0, got -1"),
        (("8.0", 32, 32, -1), ValueError, "shared_memory must be at least 0, got -1"),
        (("8.0", 32.0, 32, 0), TypeError, "threads must be an integer, got 32.0"),
        (("8.0", 32, "32", 0), TypeError, "registers must be an integer"),
    ],
)
def test_bad_numbers_are_named(launch, error, words):
    with pytest.raises(error, match=words):
        occupancy(*launch)


def test_the_limits_that_programmers_know_by_heart():
    """Blocks, warps and KiB of shared memory per SM. NVIDIA's header takes the last two from the device, so from us."""
    known = {
        "7.0": (32, 64, 96),
        "7.5": (16, 32, 64),
        "8.0": (32, 64, 164),
        "8.6": (16, 48, 100),
        "8.7": (16, 48, 164),
        "8.9": (24, 48, 100),
        "9.0": (32, 64, 228),
        "10.0": (32, 64, 228),
        "10.3": (32, 64, 228),
        "12.0": (24, 48, 100),
        "12.1": (24, 48, 100),
    }
    ours = {cc: (LIMITS[cc].blocks, LIMITS[cc].threads // 32, LIMITS[cc].shared_memory // 1024) for cc in CUDA}
    assert ours == known
    assert all(LIMITS[cc].registers == 65536 for cc in CUDA)
