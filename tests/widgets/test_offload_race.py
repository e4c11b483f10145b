import itertools
import random

import pytest

from flashlab.bench import records
from flashlab.hardware import gpu, link, offload_or_recompute
from flashlab.sizing import CacheSpec
from flashlab.sizing.parameters import count_parameters
from flashlab.widgets import OffloadRace, style
from flashlab.widgets.kv_planner import CONFIGS
from flashlab.widgets.offload_race import DENSE, LINKS, RACERS, Race, picture, turning_point


def expected(state, tokens=None, name=None):
    """The calculators' answer, asked for on its own."""
    tokens, (kind, gen) = tokens or state.tokens, LINKS[name or state.link]
    pcie = dict(lanes=state.lanes, retimers=state.retimers, pinned=state.pinned) if kind == "pcie" else {}
    over = link(kind, gen=gen, **pcie)
    spec = CacheSpec.from_config(CONFIGS / f"{state.model}.json", dtype=state.dtype)
    return offload_or_recompute(
        state.gpu, over, tokens=tokens, bytes_per_token=spec.bytes(1, tokens) / tokens,
        parameters=count_parameters(spec.model), layers=len(spec.layers), heads_q=spec.model.heads_q,
        head_dim=spec.layers[0].head_dim_k, efficiency=state.efficiency_percent / 100,
    )  # fmt: skip


def a_race(seed):
    draw = random.Random(seed)
    return Race(
        tokens=draw.randint(1, 4096), model=draw.choice(DENSE), link=draw.choice(list(LINKS)), retimers=draw.randint(0, 2),
        gpu=draw.choice(["H200", "A100", "T4"]), dtype=draw.choice(["bf16", "int8"]), lanes=draw.choice([1, 4, 16]),
        pinned=draw.random() < 0.7, efficiency_percent=draw.randint(1, 100),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_the_race_is_the_calculators(seed):
    state = a_race(seed)
    want = expected(state)
    assert state.choice() == want
    said = picture(state).summary
    assert f"fetch {style.seconds(want.fetch_s)} = start" in said
    assert f"recompute {style.seconds(want.recompute_s)} = (2 ×" in said
    assert f"Both take as long at {style.rate(want.break_even_bytes_per_s)}" in said
    assert said.startswith("Offload race. Fetch it" if want.sooner == "fetch" else "Offload race. Recompute it")
    assert ("64 ns of retimers" in said) == (state.link.startswith("PCIe") and state.retimers > 0)
    marks = [s for s in picture(state).shapes if s["kind"] == "mark" and s["size"] == 7]
    assert len(marks) == 1 + len(RACERS)
    racers = RACERS if state.link in RACERS else (*RACERS[:-1], state.link)
    times = [want.recompute_s, *(expected(state, name=name).fetch_s for name in racers)]
    for (one, a), (two, b) in itertools.combinations(zip(times, marks, strict=True), 2):
        assert one < 0.99 * two and a["x"] < b["x"] or two < 0.99 * one and b["x"] < a["x"] or 0.99 < one / two < 1.02


@pytest.mark.parametrize(
    "state",
    [
        Race(link="PCIe 3.0", lanes=1, efficiency_percent=100, dtype="fp32", model="llama-2-7b", tokens=100),
        Race(link="PCIe 3.0", lanes=2, tokens=100),
        Race(),
    ],
)
def test_from_the_turning_point_on_fetching_is_sooner(state):
    turn = turning_point(state)
    if turn is None:
        assert expected(state, state.spec.max_context).sooner == "recompute"
        assert "recomputing is sooner at any length" in picture(state).summary
    else:
        assert expected(state, turn).sooner == "fetch"
        assert turn == 1 or expected(state, turn - 1).sooner == "recompute"
        assert f"fetching is sooner from {style.count(turn, 'token')} on" in picture(state).summary


def test_recorded_rates_are_the_shipped_records():
    record = records.load("link")
    series = next(s for s in record["curves"][0]["series"] if s["label"] == "pinned, host to device")
    state = Race()
    diamonds = [s for s in picture(state).shapes if s["kind"] == "mark" and s["shape"] == "diamond" and s["y"] < 400]
    assert len(diamonds) == len(series["points"])
    rates = [point["x"] / point["time"]["median_s"] for point in series["points"]]
    assert [point.y for point in state.recorded()] == rates
    last = series["points"][-1]
    nearest = f"Recorded nearest to it: {style.size(last['x'])} at {style.rate(rates[-1])}"
    assert nearest in picture(state).summary and record["date"][:10] in picture(state).summary
    assert gpu(record["machine"]["gpu"]).name in picture(state).summary
    for other in ({"link": "PCIe 4.0"}, {"lanes": 8}, {"link": "NVLink 4"}):
        assert "No transfer over such a link is on record." in OffloadRace(**other).summary
    pageable = OffloadRace(pinned=False).state.recorded()
    assert len(pageable) and pageable[-1].y < rates[-1]


def test_retimers_show_in_small_transfers_only():
    small, large = ((Race(tokens=n, retimers=2).over().retimer_s / Race(tokens=n).over().time_s) for n in (1, 100_000))
    assert small > 0.01 and large < 1e-5


def test_controls_follow_the_state():
    race = OffloadRace()
    race.controls["link"].value = "NVLink 4"
    assert all(race.controls[name].disabled for name in ("retimers", "lanes", "pinned"))
    race.controls["model"].value = "llama-2-7b"
    assert race.state.tokens == race.controls["tokens"].value == 4096
    race.controls["link"].value = "PCIe 5.0"
    race.controls["retimers"].value = 2
    assert not race.controls["lanes"].disabled and "2 × 64 ns of retimers" in race.summary


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"tokens": 0}, "tokens is 0: allowed is from 1 to 131072"),
        ({"model": "deepseek-v3"}, "model is 'deepseek-v3': allowed is llama-2-7b"),
        ({"link": "PCIe 7.0"}, "link is 'PCIe 7.0': allowed is PCIe 3.0"),
        ({"lanes": 3}, "lanes is 3: allowed is 1, 2, 4, 8, 16"),
        ({"retimers": 3}, "retimers is 3: allowed is 0, 1, 2"),
        ({"efficiency_percent": 0}, "efficiency_percent is 0: allowed is from 1 to 100"),
    ],
)
def test_what_cannot_be_shown_is_named(bad, message):
    with pytest.raises(ValueError, match=message):
        OffloadRace(**bad)
