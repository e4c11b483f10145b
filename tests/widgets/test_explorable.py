"""What holds for every widget: one validated state, a deterministic picture, redrawn in place."""

import dataclasses
import itertools
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import ipywidgets
import numpy as np
import pytest
import torch
from matplotlib import pyplot

from flashlab import widgets
from flashlab.widgets import explorable, occupancy
from flashlab.widgets import state as stateful
from flashlab.widgets.controls import Ladder
from flashlab.widgets.scene import Scene

SHOWN = {
    "SoftmaxScrubber": [
        {"scores": (1.0,) * 16, "values": (0.782, 1e-9, -231125.0, -0.32) * 4, "block_n": 16, "step": 1},
        {"scores": (1.0, 2.0), "values": (-915783.0, -999999.0), "block_n": 2, "step": 1},
        {"scores": (-50.0, -42.8) * 8, "block_n": 8, "step": 2},
        *({"step": n} for n in range(6)),
        {"block_n": 1, "step": 17},
        {"scores": (1.0, -2.0) * 16, "block_n": 1},
        {"row": "rising", "step": 1},
    ],
    "TileWalk": [{"step": n} for n in range(10)] + [{"order": "split_kv", "causal": True, "step": 3}],
    "SMGrid": [
        {},
        {"num_splits": 16},
        {"batch": 16, "num_splits": 5, "wave": 3, "gpu": "a100"},
        {"batch": 4096, "heads_kv": 32, "num_splits": 128, "pack_gqa": False, "gpu": "T4"},
        {"heads_q": 128, "heads_kv": 1, "seqlen_k": 2**24, "dtype": "int4", "blocks_per_sm": 32, "gpu": "b200"},
        {"seqlen_k": 1, "batch": 64, "heads_kv": 1},
        *({"gpu": gpu, "blocks_per_sm": 3} for gpu in ("L40S", "L4", "H100-PCIe", "V100-SXM2-32GB", "RTX 5090")),
        {"num_splits": 8, "live": ((1, 2e-3), (8, 3e-4), (128, 1.3e-4))},
    ],
    "OccupancyScope": [
        {},
        {"shared_memory": 0, "registers": 0, "threads": 32},
        {"cc": "7.5", "threads": 1024, "registers": 80, "shared_memory": 0},
        {"cc": "10.0", "shared_memory": 233472},
        {"cc": "9.0", "threads": 32, "registers": 0, "shared_memory": 220000},
        {"cc": "8.6", "threads": 96, "registers": 33, "shared_memory": 5000},
    ],
    "KVPlanner": [
        {},
        {"model": "gemma-3-27b", "dtype": "int4", "batch": 64, "tokens": 131072},
        {"model": "deepseek-v3", "tp": 8, "weights": "fp8", "tokens": 163840, "batch": 1},
        {"model": "qwen3-next-80b-a3b", "dtype": "q8_0"},
        {"model": "llama-2-7b", "gpu": "T4", "weights": "int4", "tokens": 1, "batch": 2**16},
        {"model": "gpt-oss-20b", "gpu": "mi300x", "batch": 2**16, "tokens": 131072},
    ],
    "OffloadRace": [
        {},
        {"retimers": 2, "tokens": 1, "lanes": 4, "link": "PCIe 3.0", "model": "qwen2.5-7b", "gpu": "L4"},
        {"link": "NVLink 5", "gpu": "b200", "dtype": "int4", "pinned": False},
        {"link": "PCIe 3.0", "lanes": 1, "gpu": "mi300x", "efficiency_percent": 100, "tokens": 1024, "retimers": 1},
        {"link": "NVLink-C2C", "gpu": "GH200", "model": "llama-2-7b", "tokens": 4096},
        {"live": ((4096, 1e9), (2**30, 5e10)), "retimers": 1},
    ],
}
ALL = [name for name in widgets.__all__ if name in SHOWN]
BAD = {"SoftmaxScrubber": {"step": 99}, "TileWalk": {"step": 99}, "SMGrid": {"batch": 0}, "OccupancyScope": {"registers": 256}, "KVPlanner": {"batch": 0},
       "OffloadRace": {"retimers": 3}}  # fmt: skip
EACH = [pytest.param(name, state, id=f"{name}{i}") for name in ALL for i, state in enumerate(SHOWN[name])]


def make(name, **state):
    return getattr(widgets, name)(**state)


def moved(control):
    """The value one key press away."""
    if isinstance(control, ipywidgets.Checkbox):
        return not control.value
    if isinstance(control, Ladder | ipywidgets.Dropdown):
        values = [value for _, value in control._options_full]
        at = values.index(control.value)
        return values[at + 1 if at + 1 < len(values) else at - 1]
    return control.value + 1 if control.value < control.max else control.value - 1


def test_every_widget_is_held_to_this():
    assert sorted(ALL) == sorted(set(widgets.__all__) - {"link", "unlink"})


@pytest.mark.parametrize("name, state", EACH)
def test_the_same_state_gives_the_same_picture_and_words(name, state):
    one, two = make(name, **state), make(name, **state)
    assert one.state == two.state and repr(one) == repr(two) == one.summary
    assert one._canvas.scene == two._canvas.scene
    assert "0x" not in repr(one) and one.summary.endswith(".")


@pytest.mark.parametrize("name", ALL)
def test_every_control_redraws_in_place(name, monkeypatch):
    report = SimpleNamespace(threads=256, registers=99, shared_memory_bytes=5000, spill_bytes=0, launch={})
    monkeypatch.setattr(occupancy, "compiled", lambda *variant: report)  # takes seconds; has a test of its own
    widget = make(name)
    canvas, controls = widget._canvas, dict(widget.controls)
    monkeypatch.setattr(explorable, "draw", lambda scene: pytest.fail("a redraw made a figure"))
    for field, control in controls.items():
        stuck = control.disabled or getattr(control, "max", 1) == getattr(control, "min", 0)
        if stuck or isinstance(control, ipywidgets.Textarea):
            continue
        before, value = canvas.scene, moved(control)
        control.value = value
        assert getattr(widget.state, field) == control.value == value, widget._message.value
        assert canvas.scene != before, field
        assert canvas.scene["summary"] == widget.summary
    assert widget._canvas is canvas and widget.controls == controls and widget.children[-1] is canvas


@pytest.mark.parametrize("name", ["SoftmaxScrubber", "TileWalk"])
def test_each_step_says_something_else(name):
    widget = make(name)
    seen = set()
    for step in range(widget.state.steps + 1):
        widget.controls["step"].value = step
        seen.add(widget.summary)
    assert len(seen) == widget.state.steps + 1


@pytest.mark.parametrize("name", ALL)
def test_a_figure_draws_and_stays_out_of_pyplot(name):
    widget = make(name)
    before = pyplot.get_fignums()
    figure = widget.figure()
    png = figure._repr_png_()
    assert png.startswith(b"\x89PNG") and png == make(name).figure()._repr_png_()
    assert repr(figure) == widget.summary
    assert pyplot.get_fignums() == before


@pytest.mark.parametrize("name, state", EACH)
def test_words_lie_on_the_panel_and_not_on_each_other(name, state):
    figure = make(name, **state).figure()
    renderer, panel = figure.canvas.get_renderer(), figure.bbox
    texts = [text for text in figure.axes[0].texts if text.get_text()]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts]
    for words, box in boxes:
        assert panel.x0 <= box.x0 and box.x1 <= panel.x1 and panel.y0 <= box.y0 and box.y1 <= panel.y1, words
    for (one, a), (two, b) in itertools.combinations(boxes, 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        down = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across <= 1 or down <= 4, f"{one!r} runs into {two!r}"


@pytest.mark.parametrize("name", ALL)
def test_a_refused_update_changes_nothing(name):
    widget = make(name)
    state, scene = widget.state, widget._canvas.scene
    (field, value), = BAD[name].items()
    with pytest.raises(ValueError, match=rf"{field} is {value!r}: allowed is "):
        widget.update(**BAD[name])
    with pytest.raises(ValueError, match="field is 'nonsense': allowed is"):
        widget.update(nonsense=1)
    with pytest.raises(TypeError, match="state is 3"):
        widget.state = 3
    assert widget.state is state and widget._canvas.scene is scene


@pytest.mark.parametrize("name", ALL)
def test_what_a_control_may_not_is_said_below_it_and_taken_back(name):
    widget = make(name)
    state = widget.state
    widget._take(BAD[name])
    assert 'role="alert"' in widget._message.value and "allowed is" in widget._message.value
    assert widget.state is state and all(getattr(state, field) == c.value for field, c in widget.controls.items())
    field, control = next((f, c) for f, c in widget.controls.items() if not isinstance(c, ipywidgets.Textarea))
    control.value = moved(control)
    assert widget._message.value == "" and widget._message.layout.display == "none"


@pytest.mark.parametrize("name", ALL)
def test_a_page_without_the_picture_gets_the_words(name):
    widget = make(name)
    assert widget._repr_mimebundle_()["text/plain"] == widget.summary
    assert widget._canvas.scene["summary"] == widget.summary


ODD = [None, True, 0.5, float("nan"), -1, 10**30, 10**5000, "", "x", b"x", [], [1], {}, {"a": 1}, {1, 2}, ((1, "a"),), ((1, 2, 3),),
       object(), 1j, ("a", "b"), np.array([1, 2]), np.array([[1.0, 2.0]]), torch.ones(3)]  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_a_value_of_the_wrong_sort_is_refused_by_name(name, monkeypatch):
    """None, text for a number, arrays, a bool for a count: ValueError naming the field, and the picture stands."""
    widget, refused = make(name), 0
    start = widget.state
    for field, odd in itertools.product([field.name for field in dataclasses.fields(start)], ODD):
        widget.state = start
        before = widget._canvas.scene
        try:
            widget.update(**{field: odd})
        except ValueError as error:
            assert re.match(rf"(?s){field} (is |'|must|\d).*(allowed|must|not in the table)", str(error)) or field in (
                "scores", "block_m", "block_n", "config"), error  # fmt: skip
            assert len(str(error)) < 700 and widget.state is start and widget._canvas.scene is before
            assert all(getattr(start, f) == control.value for f, control in widget.controls.items())
            refused += 1
        else:  # then it is plain Python of the field's own sort
            assert type(getattr(widget.state, field)) is type(getattr(start, field)), (field, odd)
            assert widget.summary == widget._canvas.scene["summary"]
    assert refused > 10 * len(dataclasses.fields(start))


def test_numbers_of_other_libraries_become_pythons_own():
    state = make("SMGrid", batch=np.int64(4), num_splits=torch.tensor(8)).state
    assert (type(state.batch), type(state.num_splits)) == (int, int)
    scrub = make("SoftmaxScrubber", scores=torch.tensor([1.0, 2.0, 3.0]), values=np.ones(3), block_n=2).state
    assert scrub.scores == (1.0, 2.0, 3.0) and {type(x) for x in scrub.scores + scrub.values} == {float}


@pytest.mark.parametrize("name", ALL)
def test_what_cannot_be_drawn_changes_nothing(name, monkeypatch):
    widget = make(name)
    state, scene, other = widget.state, widget._canvas.scene, make(name, **SHOWN[name][1]).state

    def fails(_state):
        raise ValueError("drawn is 'nothing': allowed is something")

    monkeypatch.setattr(type(widget), "picture", staticmethod(fails))
    with pytest.raises(ValueError, match="drawn is 'nothing'"):
        widget.state = other
    assert widget.state is state and widget._canvas.scene is scene
    assert all(getattr(state, field) == control.value for field, control in widget.controls.items())


@pytest.mark.parametrize("name", ["SMGrid", "KVPlanner", "OffloadRace"])
def test_the_gpu_that_is_here_is_refused_where_there_is_none(name, monkeypatch):
    def none(_name):
        raise RuntimeError("no GPU here")

    monkeypatch.setattr(stateful, "gpu", none)
    with pytest.raises(ValueError, match="gpu is 'live': no GPU here; allowed is T4"):
        make(name, gpu="live")


def test_a_link_is_made_once_and_can_be_undone():
    planner, grid, other, holds = make("KVPlanner"), make("SMGrid"), make("SMGrid"), make("OccupancyScope")
    for _ in range(3):
        widgets.link(planner, grid, holds, grid)
    widgets.link(planner, other)
    drawn = []
    grid.observe(drawn.append, "state")
    planner.update(batch=3)
    assert (grid.state.batch, other.state.batch, len(drawn)) == (3, 3, 1)
    planner.update(batch=2**16)
    assert grid.state.batch == 3 and "batch is 65536: allowed is a whole number from 1 to 4096" in grid._message.value
    widgets.unlink(planner, grid)
    planner.update(batch=5)
    assert (grid.state.batch, other.state.batch) == (3, 5)
    widgets.unlink(planner, grid)  # not linked: nothing to undo


def test_fresh_processes_say_and_draw_the_same():
    code = (
        "import hashlib, json; from flashlab import widgets as w; "
        "made = [getattr(w, n)() for n in w.__all__ if 'link' not in n]; "
        "[print(repr(m), hashlib.sha256(json.dumps(m._canvas.scene).encode()).hexdigest()) for m in made]"
    )
    said = {
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1 and said.pop().count(b"\n") == len(ALL)


def test_scenes_are_plain_data():
    scene = Scene(100, 50, "a line and a word")
    scene.line(0, 0, 1 / 3, 1)
    scene.text(1, 2, "word")
    assert [s["kind"] for s in scene.as_dict()["shapes"]] == ["line", "text"]
    assert scene.shapes[0]["x2"] == 0.33


def test_the_package_imports_nothing_heavy_until_asked():
    code = (
        "import sys, flashlab.widgets as w; assert 'SoftmaxScrubber' in dir(w); "
        "assert not {'torch', 'ipywidgets', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = widgets.Nothing
