"""PCI Express, NVLink and C2C, and fetching against recomputing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlab.hardware import gpu, link, measured, offload_or_recompute
from flashlab.hardware.links import against_measured, payload_efficiency, wire_rate

gens = st.sampled_from([3, 4, 5, 6])
lanes = st.sampled_from([1, 2, 4, 8, 16])
amounts = st.integers(1, 2**40)


@pytest.mark.parametrize("gen, gb_per_s", [(3, 15.754), (4, 31.508), (5, 63.015), (6, 118)])
def test_wire_rates_of_sixteen_lanes(gen, gb_per_s):
    assert wire_rate(gen, 16) / 1e9 == pytest.approx(gb_per_s, abs=5e-4)


@pytest.mark.parametrize(
    "kind, gen, gb_per_s", [("nvlink", 2, 150), ("nvlink", 3, 300), ("nvlink", 4, 450), ("nvlink", 5, 900)]
)
def test_nvlink_one_way(kind, gen, gb_per_s):
    assert link(kind, gen=gen).wire_bytes_per_s == gb_per_s * 1e9


def test_c2c_one_way():
    assert link("c2c").wire_bytes_per_s == 450e9 == gpu("gh200").c2c_bytes_per_s


def test_links_and_gpus_agree():
    largest = {2: "v100", 3: "a100", 4: "h100", 5: "b200"}
    assert all(
        link("nvlink", gen=gen).rate_bytes_per_s == gpu(name).nvlink_bytes_per_s for gen, name in largest.items()
    )


@pytest.mark.parametrize("payload, percent", [(128, 84), (256, 91), (512, 95.5)])
def test_payload_efficiency(payload, percent):
    assert 100 * payload_efficiency(payload) == pytest.approx(percent, abs=0.5)


def test_flits_leave_a_packet_its_header_alone():
    assert payload_efficiency(256, gen=6) == 256 / 272 > payload_efficiency(256, gen=5) == 256 / 280


@pytest.mark.parametrize("what, predicted, seen", against_measured())
def test_within_1_percent_of_what_was_measured(what, predicted, seen):
    assert predicted == pytest.approx(seen, rel=0.01)


def test_every_measured_transfer_is_held_against_the_curve():
    assert len(against_measured()) == 2 * (len(measured.PCIE_PINNED) + len(measured.PCIE_PAGEABLE))


@given(gens, lanes, amounts, st.integers(0, 1))
def test_a_retimer_costs_at_most_64_ns_and_no_bandwidth(gen, lanes, size, retimers):
    here, more = (link(gen=gen, lanes=lanes, bytes=size, retimers=n) for n in (retimers, retimers + 1))
    assert more.retimer_s - here.retimer_s == pytest.approx(64e-9)
    assert more.time_s >= here.time_s
    assert more.rate_bytes_per_s == here.rate_bytes_per_s


@pytest.mark.parametrize("kind", ["nvlink", "c2c"])
def test_other_links_are_alike_both_ways_and_claim_no_packets(kind):
    out, back = (link(kind, direction=way) for way in ("host_to_device", "device_to_host"))
    assert out == back
    assert out.payload_efficiency is None


def test_two_retimers_do_not_show_in_a_gigabyte_and_hardly_in_a_kilobyte():
    share = {size: link(bytes=size, retimers=2).retimer_s / link(bytes=size).time_s for size in (1024, 2**30)}
    assert share[2**30] < 1e-5
    assert 0.01 < share[1024] < 0.05


def test_a_third_retimer_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="retimers must be 0, 1 or 2, got 3: .*at most two .*section 4.3"):
        link(retimers=3)


@given(gens, lanes, amounts, amounts)
def test_more_bytes_take_longer_and_go_faster(gen, lanes, one, other):
    small, large = (link(gen=gen, lanes=lanes, bytes=size) for size in sorted((one, other)))
    assert small.time_s <= large.time_s
    assert small.bandwidth_bytes_per_s <= large.bandwidth_bytes_per_s * (1 + 1e-12)
    assert large.bandwidth_bytes_per_s <= large.rate_bytes_per_s < large.wire_bytes_per_s


@given(gens, lanes)
def test_half_the_rate_is_where_it_says(gen, lanes):
    found = link(gen=gen, lanes=lanes, retimers=1)
    half = link(gen=gen, lanes=lanes, retimers=1, bytes=round(found.half_rate_bytes))
    assert half.bandwidth_bytes_per_s == pytest.approx(found.rate_bytes_per_s / 2, rel=1e-3)


def test_pageable_memory_is_bound_by_the_host_until_the_link_is_slower():
    assert link(pinned=False).rate_bytes_per_s == 7.3e9
    assert link(pinned=False, direction="device_to_host").rate_bytes_per_s == 14.3e9
    narrow = dict(gen=3, lanes=1)
    assert link(pinned=False, **narrow).rate_bytes_per_s == link(**narrow).rate_bytes_per_s


@pytest.mark.parametrize(
    "bad, error, words",
    [
        (dict(kind="usb"), ValueError, "kind must be pcie, nvlink or c2c, got 'usb'"),
        (dict(gen=2), ValueError, "gen must be one of 3, 4, 5, 6, got 2"),
        (dict(lanes=3), ValueError, "lanes must be one of 1, 2, 4, 8, 16, got 3"),
        (dict(bytes=0), ValueError, "bytes must be at least 1, got 0"),
        (dict(bytes=1.5), TypeError, "bytes must be an integer"),
        (dict(payload=64), ValueError, "payload must be 128 to 4096"),
        (dict(direction="up"), ValueError, "direction must be one of host_to_device, device_to_host, got 'up'"),
        (dict(retimers=-1), ValueError, "retimers must be at least 0"),
        (dict(kind="nvlink", gen=6), ValueError, "gen must be one of 2, 3, 4, 5, got 6"),
        (dict(kind="nvlink", lanes=19), ValueError, "lanes must be at most 18 NVLinks"),
        (dict(kind="nvlink", retimers=1), ValueError, "retimers must be 0 on nvlink, got 1: it is for PCIe only"),
        (dict(kind="c2c", pinned=False), ValueError, "pinned must be True on c2c, got False"),
        (dict(kind="nvlink", payload=128), ValueError, "payload must be 256 on nvlink, got 128"),
        (dict(kind=None), ValueError, "kind must be pcie, nvlink or c2c, got None"),
        (dict(gen=5.0), TypeError, "gen must be an integer, got 5.0"),
        (dict(gen=[5]), TypeError, "gen must be an integer"),
        (dict(lanes=True), TypeError, "lanes must be an integer, got True"),
        (dict(kind="c2c", gen=4), ValueError, "gen does not apply to c2c"),
        (dict(kind="c2c", lanes=4), ValueError, "lanes does not apply to c2c"),
    ],
)
def test_bad_links_are_refused(bad, error, words):
    with pytest.raises(error, match=words):
        link(**bad)


LLAMA_8B = dict(bytes_per_token=131072, parameters=8.03e9)


def test_fetching_a_prefix_beats_recomputing_it_over_any_of_these_links():
    choice = offload_or_recompute("h200", link(gen=5), tokens=8192, **LLAMA_8B)
    assert choice.sooner == "fetch"
    assert choice.recompute_s == pytest.approx(2 * 8.03e9 * 8192 / (989e12 * 0.5))
    assert choice.speedup == pytest.approx(choice.recompute_s / choice.fetch_s)


@given(st.floats(1.01, 100), st.integers(1, 2**20))
def test_the_break_even_bandwidth_separates_the_two(factor, tokens):
    over = link(gen=4)._replace(start_s=0.0)
    even = offload_or_recompute("a100", over, tokens=tokens, **LLAMA_8B).break_even_bytes_per_s
    slow, fast = (over._replace(rate_bytes_per_s=even * by) for by in (1 / factor, factor))
    assert offload_or_recompute("a100", slow, tokens=tokens, **LLAMA_8B).sooner == "recompute"
    assert offload_or_recompute("a100", fast, tokens=tokens, **LLAMA_8B).sooner == "fetch"


@pytest.mark.parametrize("gen, retimers", [(4, 0), (5, 2)])
def test_fetching_takes_as_long_as_the_link_says(gen, retimers):
    choice = offload_or_recompute(
        "h200", link(gen=gen, retimers=retimers), tokens=1, bytes_per_token=4096, parameters=1e9
    )
    assert choice.fetch_s == pytest.approx(link(gen=gen, retimers=retimers, bytes=4096).time_s, rel=1e-9)


def test_attention_makes_long_prefixes_dearer_to_recompute():
    shape = dict(layers=32, heads_q=32, head_dim=128)
    short, long = (
        offload_or_recompute("h200", link(), tokens=n, **LLAMA_8B, **shape).recompute_s / n for n in (1024, 131072)
    )
    assert long > 1.5 * short
    bare = offload_or_recompute("h200", link(), tokens=1, **LLAMA_8B).recompute_s
    one = offload_or_recompute("h200", link(), tokens=1, **LLAMA_8B, **shape).recompute_s
    assert (one - bare) * 989e12 * 0.5 == pytest.approx(4 * 32 * 32 * 128, rel=1e-3)


def test_a_choice_of_no_link_or_no_number_is_refused_by_name():
    with pytest.raises(TypeError, match="over must be a Transfer .*got 'pcie'"):
        offload_or_recompute("h200", "pcie", tokens=1, **LLAMA_8B)
    with pytest.raises(TypeError, match="parameters must be a number, got '8B'"):
        offload_or_recompute("h200", link(), tokens=1, bytes_per_token=131072, parameters="8B")


@pytest.mark.parametrize(
    "bad, words",
    [
        (dict(parameters=float("inf")), "parameters must be above 0 and finite, got inf"),
        (dict(efficiency=float("nan")), "efficiency must be above 0 and at most 1, got nan"),
        (dict(tokens=0), "tokens must be at least 1"),
        (dict(parameters=0), "parameters must be above 0"),
        (dict(bytes_per_token=-1), "bytes_per_token must be above 0"),
        (dict(efficiency=1.1), "efficiency must be above 0 and at most 1"),
        (dict(layers=-1), "layers must be at least 0"),
    ],
)
def test_bad_choices_are_refused(bad, words):
    with pytest.raises(ValueError, match=words):
        offload_or_recompute("h200", link(), **(dict(tokens=1, **LLAMA_8B) | bad))
