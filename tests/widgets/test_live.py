"""Measuring beside a GPU, without one: the GPU, its clock and the kernel are stood in for; what is asked of them is not."""

import ipywidgets
import pytest

from flashlab.bench import inputs, timing
from flashlab.widgets import OffloadRace, SMGrid, live, style


class Clock:
    """A timer that runs the call and says how long: 1 ms over the splits it was called with."""

    def heat(self):
        pass

    def samples(self, runner, count):
        return timing.Samples([1e-3 / runner.call()] * count, 0.0)


@pytest.fixture
def an_h200(monkeypatch):
    """As if this machine had one; the kernel answers with its number of splits."""
    made = []
    real = inputs.make
    monkeypatch.setattr(live, "here", lambda: "H200")
    monkeypatch.setattr(inputs, "make", lambda case, device, seed: made.append((case, device)) or real(case, "cpu", seed))
    monkeypatch.setattr(timing, "EventTimer", Clock)
    monkeypatch.setattr("flashlab.attention.flash_attn_with_kvcache", lambda q, k, v, num_splits: num_splits)
    return made


def button(widget):
    return next(child for child in widget.children if isinstance(child, ipywidgets.Button))


def test_the_grid_measures_its_own_step(an_h200):
    grid = SMGrid(seqlen_k=1024, heads_q=8, heads_kv=2, head_dim=64, num_splits=3)
    button(grid).click()
    (case, device), = an_h200
    assert (case.kind, case.batch, case.heads_q, case.heads_kv, case.seqlen_k, case.head_dim, device) == (
        "decode", 1, 8, 2, 1024, 64, "cuda",
    )  # fmt: skip
    assert grid.state.live == tuple((n, 1e-3 / n) for n in (1, 2, 3, 4, 8, 16))
    assert "Live 333 µs; measured on this machine's H200: best 62.5 µs at 16 splits." in grid.summary
    squares = [s for s in grid._canvas.scene["shapes"] if s["kind"] == "mark" and s.get("fill") == style.LIVE]
    assert len(squares) == 6 + 1  # and the key's
    grid.controls["num_splits"].value = 2
    assert len(grid.state.live) == 6
    grid.controls["batch"].value = 2
    assert grid.state.live == () and "Live" not in grid.summary


@pytest.mark.parametrize(
    "state, why",
    [
        ({"gpu": "A100"}, "gpu is 'A100-SXM-80GB': allowed is the one in this machine, H200"),
        ({"dtype": "int4"}, "allowed is bf16, with GQA packed, to be measured"),
        ({"pack_gqa": False}, "with GQA packed, to be measured"),
    ],
)
def test_what_is_not_this_machines_is_not_measured(an_h200, state, why):
    grid = SMGrid(**state)
    button(grid).click()
    assert why in grid._message.value.replace("&#x27;", "'") and grid.state.live == ()


def test_the_race_measures_its_own_port(an_h200, monkeypatch):
    series = [
        dict(label=f"{pinned}, {way}", points=[dict(x=2**20, bytes=2**20, time=dict(median_s=2**20 / 1e9 / k))])
        for k, (pinned, way) in enumerate(
            [(p, w) for p in ("pinned", "pageable") for w in ("host to device", "device to host")], start=1
        )
    ]
    monkeypatch.setattr("flashlab.bench.link.transfers", lambda: dict(series=series))
    race = OffloadRace(pinned=False)
    button(race).click()
    (size, rate), = race.state.live
    assert size == 2**20 and rate == pytest.approx(3e9)
    assert "Live: up to 3 GB/s, at 1.049 MB, on this machine's H200." in race.summary
    race.controls["tokens"].value = 1024
    assert race.state.live
    race.controls["link"].value = "PCIe 4.0"
    button(race).click()
    assert race.state.live == () and "the H200's own port" in race._message.value.replace("&#x27;", "'")


def test_no_button_without_a_gpu(monkeypatch):
    monkeypatch.setattr(live.shutil, "which", lambda name: None)
    assert live.here() is None
    assert not any(isinstance(child, ipywidgets.Button) for child in SMGrid().children)
    with pytest.raises(ValueError, match="allowed is none: this machine has no GPU"):
        SMGrid().measure()
