"""What holds for every widget: one validated state, a deterministic picture, redrawn in place."""

import subprocess
import sys

import pytest
from matplotlib import pyplot

from flashlab import widgets
from flashlab.widgets import explorable
from flashlab.widgets.scene import Scene

ALL = widgets.__all__


@pytest.mark.parametrize("name", ALL)
def test_the_same_state_gives_the_same_picture_and_words(name):
    one, two = getattr(widgets, name)(step=2), getattr(widgets, name)(step=2)
    assert one.state == two.state and repr(one) == repr(two) == one.summary
    assert one._canvas.scene == two._canvas.scene
    assert one.figure()._repr_png_() == two.figure()._repr_png_()
    assert "0x" not in repr(one)


@pytest.mark.parametrize("name", ALL)
def test_stepping_redraws_in_place(name, monkeypatch):
    widget = getattr(widgets, name)()
    canvas, controls = widget._canvas, dict(widget.controls)
    monkeypatch.setattr(explorable, "draw", lambda scene: pytest.fail("a redraw made a figure"))
    seen = set()
    for step in range(widget.state.steps + 1):
        widget.controls["step"].value = step
        assert widget.state.step == step
        seen.add(widget.summary)
    assert len(seen) == widget.state.steps + 1
    assert widget._canvas is canvas and widget.controls == controls and widget.children[-1] is canvas


@pytest.mark.parametrize("name", ALL)
def test_a_figure_draws_and_stays_out_of_pyplot(name):
    widget = getattr(widgets, name)(step=1)
    before = pyplot.get_fignums()
    figure = widget.figure()
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert repr(figure) == widget.summary
    assert pyplot.get_fignums() == before


@pytest.mark.parametrize("name", ALL)
def test_everything_lies_on_the_panel(name):
    widget = getattr(widgets, name)()
    for step in range(widget.state.steps + 1):
        widget.update(step=step)
        figure = widget.figure()
        renderer, box = figure.canvas.get_renderer(), figure.bbox
        for text in figure.axes[0].texts:
            extent = text.get_window_extent(renderer)
            assert box.x0 <= extent.x0 and extent.x1 <= box.x1 and box.y0 <= extent.y0 and extent.y1 <= box.y1, text


@pytest.mark.parametrize("name", ALL)
def test_a_refused_update_changes_nothing(name):
    widget = getattr(widgets, name)(step=1)
    state, scene = widget.state, widget._canvas.scene
    with pytest.raises(ValueError, match=rf"step is 99: allowed is from 0 to {state.steps}"):
        widget.update(step=99)
    with pytest.raises(TypeError, match="state is 3"):
        widget.state = 3
    assert widget.state is state and widget._canvas.scene is scene


@pytest.mark.parametrize("name", ALL)
def test_a_page_without_the_picture_gets_the_words(name):
    widget = getattr(widgets, name)()
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
