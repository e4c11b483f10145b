"""What holds for every widget: one validated state, a deterministic picture, redrawn in place."""

import itertools
import subprocess
import sys
from types import SimpleNamespace

import ipywidgets
import pytest
from matplotlib import pyplot

from flashlab import widgets
from flashlab.widgets import explorable, occupancy
from flashlab.widgets.controls import Ladder
from flashlab.widgets.scene import Scene

SHOWN = {
    "SoftmaxScrubber": [
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
        {"num_splits": 8, "live": ((1, 2e-3), (8, 3e-4), (128, 1.3e-4))},
    ],
    "OccupancyScope": [
        {},
        {"shared_memory": 0, "registers": 0, "threads": 32},
        {"cc": "7.5", "threads": 1024, "registers": 80, "shared_memory": 0},
        {"cc": "10.0", "shared_memory": 233472},
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
    assert sorted(ALL) == sorted(set(widgets.__all__) - {"link"})


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
