"""Parts of the decode kernels by themselves: unpacking, the split rule, launches that are kept."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab.kernels import backend, configs, decode_plan
from flashlab.kernels.decode import _share_out, tl, triton
from flashlab.kernels.decode_plan import Plan, Tile
from flashlab.kernels.dequantise import FORMATS, has_fast_path, unpack
from flashlab.kernels.kept import power_of_two

DEVICE = "cpu" if backend.interpreting() else "cuda"
WORDS = 2**16


@triton.jit
def _unpack_all(p_words, p_out, PLANE: tl.constexpr, FORMAT: tl.constexpr, FAST: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_out + places, unpack(tl.load(p_words + places), PLANE, FORMAT, FAST))


def unpacked(format, plane, fast):
    """Plane ``plane`` of all 65536 words."""
    words = torch.arange(WORDS, dtype=torch.int32).to(torch.int16).to(DEVICE)
    out = torch.empty(WORDS, dtype=torch.float16, device=DEVICE)
    _unpack_all[(WORDS // 2048,)](words, out, plane, format, fast, 2048)
    return out.cpu()


def meant(format, plane):
    """The same from the formats' definitions."""
    words = torch.arange(WORDS)
    if format == "int4":
        return ((words >> (4 * plane)) % 16 - 8).half()
    codes = ((words >> (8 * plane)) % 256).to(torch.uint8)
    return codes.view(torch.int8).half() if format == "int8" else codes.view(torch.float8_e4m3fn).half()


QUANTISED = [(format, plane) for format, planes in FORMATS.items() if planes > 1 for plane in range(planes)]


@pytest.mark.parametrize("format, plane", QUANTISED)
def test_every_word_unpacks_to_what_its_format_means(format, plane):
    torch.testing.assert_close(unpacked(format, plane, False), meant(format, plane), rtol=0, atol=0, equal_nan=True)


@pytest.mark.skipif(DEVICE == "cpu", reason="assembly needs a GPU")
@pytest.mark.parametrize("format, plane", QUANTISED)
def test_the_fast_path_gives_the_same_bits(format, plane):
    assert has_fast_path(format, torch.cuda.get_device_capability())
    torch.testing.assert_close(unpacked(format, plane, True), unpacked(format, plane, False), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("table", ["sm_80", "sm_86", "sm_90", "sm_100", "interpreter"])
def test_every_shape_has_a_tile(table):
    rows = configs.read_table(f"decode_{table}")["rows"]
    used = set()
    for format in FORMATS:
        for itemsize in (2, 4):
            for head_dim in (1, 16, 64, 80, 128, 160, 256):
                for queries in (1, 8, 17, 33, 200):
                    for rows_per_sm in (0.01, 0.5, 0.9, 1.5, 40):
                        for paged in (False, True):
                            tile = decode_plan.choose_tile(table, format, itemsize, head_dim, queries, rows_per_sm, paged)
                            assert tile.BLOCK_N >= 16 and power_of_two(tile.BLOCK_N) == tile.BLOCK_N and tile.AXIS in (0, 1)
                            used.add(tile)
    assert used == {Tile(**row["tile"]) for row in rows}, "a row that nothing reaches"


def plan(batch, heads_q, heads_kv, capacity, *, sms, seqlen_q=1, window=(-1, -1), ragged=True):
    strides = (capacity * heads_kv * 128, heads_kv * 128, 128)
    return Plan(
        decode_plan.Device("sm_90", sms, (9, 0)), (batch, seqlen_q, heads_q, 128), (batch, capacity, heads_kv, 128),
        (heads_q * 128,) * 3, strides, strides, None, torch.bfloat16, "native", None, None, window, 1.0, 0.0, ragged, False,
        False,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 200), heads_kv=st.sampled_from([1, 2, 8, 32]), length=st.integers(1, 40000), sms=st.sampled_from([8, 108, 132])
)
def test_the_rule_fills_one_wave_and_no_more(batch, heads_kv, length, sms):
    p = plan(batch, 4 * heads_kv, heads_kv, 2**20, sms=sms)
    num_splits, balance = p.splits([length], 0)
    tiles = -(-length // p.tile.BLOCK_N)
    assert not balance and 1 <= num_splits <= tiles
    if num_splits > 1:
        assert batch * heads_kv * num_splits <= p.tile.blocks_per_sm * sms
    if num_splits < min(tiles, 256):
        assert batch * heads_kv * (num_splits + 1) > p.tile.blocks_per_sm * sms


def test_splits_follow_real_lengths_not_capacity():
    for capacity in (2**12, 2**20):
        p = plan(1, 32, 8, capacity, sms=132)
        assert p.splits([100], 0) == plan(1, 32, 8, 2**10, sms=132).splits([100], 0)
        assert p.splits([0], 0)[0] == 1
    long = plan(1, 32, 8, 2**20, sms=132)
    assert long.splits([4000], 0)[0] > long.splits([100], 0)[0]
    window = plan(1, 32, 8, 2**20, sms=132, window=(63, -1))
    assert window.splits([2**20], 0)[0] <= 2 + 64 // window.tile.BLOCK_N


def test_a_given_number_is_taken():
    p = plan(2, 8, 2, 4096, sms=132)
    assert [p.splits(lengths, 7) for lengths in (None, [5], [5, 9])] == [(7, False)] * 3


@triton.jit
def _every_share(p_first, p_row, p_splits, p_lengths, batch, slots, programs_each, BLOCK_N: tl.constexpr):
    work = tl.program_id(0)
    row, first, splits = _share_out(
        work, slots, programs_each, batch, p_lengths, None, 1, 0, 0, 2**30, -1, -1, False, False, False, BLOCK_N
    )
    tl.store(p_row + work, row)
    tl.store(p_first + work, first)
    tl.store(p_splits + work, splits)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 3000), min_size=2, max_size=9), many=st.booleans(), sms=st.integers(1, 60),
    heads_kv=st.sampled_from([1, 3, 8]),
)  # fmt: skip
def test_a_balanced_batch_gets_programs_in_proportion(lengths, many, sms, heads_kv):
    """Every row is some run of programs, the runs follow one another, and the grid holds them all."""
    lengths = lengths * 16 if many else lengths  # past one chunk of rows
    p = plan(len(lengths), 4 * heads_kv, heads_kv, 2**12, sms=sms)
    programs, balance = p.splits(lengths, 0)
    if not balance:
        return
    first, row, splits = (torch.full((programs,), -1, dtype=torch.int32, device=DEVICE) for _ in range(3))
    given_lengths = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    _every_share[(programs,)](first, row, splits, given_lengths, len(lengths), p.slots, p.row_programs, p.tile.BLOCK_N)
    tiles = [-(-length // p.tile.BLOCK_N) for length in lengths]
    share = [max(1, min(t, t * p.slots // max(1, sum(tiles) * p.row_programs))) for t in tiles]
    expected = [(b, sum(share[:b]), n) for b, n in enumerate(share) for _ in range(n)]
    got = list(zip(row.tolist(), first.tolist(), splits.tolist(), strict=True))
    assert len(expected) <= programs and got[: len(expected)] == expected
    assert all(splits == 0 for _, _, splits in got[len(expected) :])
    assert p.row_programs * (sum(share) - len(lengths)) <= p.slots
