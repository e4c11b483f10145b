"""What all widgets are made of: a validated state, a pure picture of it, controls that change one field each.

State is a frozen dataclass of plain Python values that raises ValueError for what it cannot show. A subclass of
Explorable names its picture and its controls, and gets redrawing, ``figure`` and a text summary. One trait, ``state``,
carries everything: observe it to link widgets.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import anywidget
import ipywidgets
import traitlets

from flashlab.widgets import style
from flashlab.widgets.figure import draw


@dataclass(frozen=True)
class Stepped:
    """Base of a state one steps through: a subclass has ``steps``, and ``step`` runs from 0 to it."""

    step: int = 0

    @property
    def steps(self) -> int:
        raise NotImplementedError

    def check_step(self) -> None:
        require(0 <= self.step <= self.steps, "step", self.step, f"from 0 to {self.steps}")


def require(condition: bool, name: str, value, allowed: str) -> None:
    """Raise ValueError naming the field, what it got and what is allowed."""
    if not condition:
        raise ValueError(f"{name} is {value!r}: allowed is {allowed}")


def revise(state, **changes):
    """The state with some fields changed. A step past the new end falls back to the end, unless it was asked for."""
    if "step" in changes or not isinstance(state, Stepped):
        return replace(state, **changes)
    fresh = replace(state, step=0, **changes)
    return replace(fresh, step=min(state.step, fresh.steps))


class Canvas(anywidget.AnyWidget):
    """Shows one Scene, redrawn in place by canvas.js."""

    _esm = Path(__file__).with_name("canvas.js")
    scene = traitlets.Dict().tag(sync=True)


class Explorable(ipywidgets.VBox):
    """Controls above a picture.

    Attributes:
        state: what is shown; assign a new one, or use ``update``. Observe it like any trait.
        controls: field name -> the ipywidget that changes it.
    """

    State = None  # the dataclass
    picture = None  # staticmethod: State -> Scene
    state = traitlets.Any()

    def __init__(self, **state):
        self._canvas = Canvas()
        self._showing = False
        first = self.State(**state)
        self.controls = self.make_controls(first)
        super().__init__(children=[*self.controls.values(), self._canvas])
        for name, control in self.controls.items():
            control.observe(lambda change, name=name: self._moved(name, change.new), "value")
        self.state = first

    def make_controls(self, state) -> dict[str, ipywidgets.Widget]:
        raise NotImplementedError

    def show_controls(self, state) -> None:
        """Bring the controls in line with the state; called inside a redraw."""
        for name, control in self.controls.items():
            if name == "step":
                control.max = state.steps
            control.value = getattr(state, name)

    def update(self, **changes) -> None:
        """Change some fields of the state and redraw. Raises ValueError, and changes nothing, for what cannot be."""
        self.state = revise(self.state, **changes)

    @property
    def summary(self) -> str:
        """What the picture shows, in words and numbers."""
        return type(self).picture(self.state).summary

    def figure(self):
        """The same picture as a matplotlib figure; make it the last line of a cell."""
        return draw(type(self).picture(self.state))

    def __repr__(self):
        return self.summary

    def _repr_mimebundle_(self, **options):
        """ipywidgets cuts the text short; here it is what stands in for the picture, and what tests compare."""
        bundle = super()._repr_mimebundle_(**options)
        return bundle | {"text/plain": repr(self)} if bundle else bundle

    @traitlets.validate("state")
    def _validate(self, proposal):
        if not isinstance(proposal.value, self.State):
            raise TypeError(f"state is {proposal.value!r}: expected {self.State.__qualname__}")
        return proposal.value

    @traitlets.observe("state")
    def _redraw(self, change):
        self._showing = True
        try:
            self.show_controls(self.state)
        finally:
            self._showing = False
        self._canvas.scene = {"panel": style.PANEL, **type(self).picture(self.state).as_dict()}

    def _moved(self, name, value):
        if not self._showing:
            self.update(**{name: value})


def slider(state, name: str, label: str, low: int, high: int, **options) -> ipywidgets.IntSlider:
    """An integer slider for a field; arrow keys and Page Up and Down move it."""
    return ipywidgets.IntSlider(
        value=getattr(state, name), min=low, max=high, description=label,
        style={"description_width": "9em"}, layout={"width": "30em"}, **options,
    )  # fmt: skip
