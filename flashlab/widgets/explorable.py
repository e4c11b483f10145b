"""What all widgets are made of: a validated state, a pure picture of it, controls that change one field each.

State is a frozen dataclass of plain Python values that raises ValueError for what it cannot show. A subclass of
Explorable names its picture and its controls, and gets redrawing, ``figure`` and a text summary. One trait, ``state``,
carries everything; ``link`` lets widgets follow each other through it.
"""

from html import escape
from itertools import pairwise
from pathlib import Path

import anywidget
import ipywidgets
import traitlets

from flashlab.widgets import live, style
from flashlab.widgets.controls import WIDTH, put
from flashlab.widgets.figure import draw
from flashlab.widgets.state import require, revise

BOX = "flashlab-widget"  # the CSS class around controls and picture


class Canvas(anywidget.AnyWidget):
    """Shows one Scene, redrawn in place by canvas.js."""

    _esm = Path(__file__).with_name("canvas.js")
    _css = f""".{BOX} :is(.noUi-handle, select, input, textarea, .widget-readout):focus-visible {{
        outline: 2px solid var(--jp-brand-color1, {style.READ}); outline-offset: 2px; }}"""  # ipywidgets shows none on a slider
    scene = traitlets.Dict().tag(sync=True)


class Explorable(ipywidgets.VBox):
    """Controls above a picture.

    Attributes:
        state: what is shown; assign a new one, or use ``update``. Observe it like any trait.
        controls: field name -> the ipywidget that changes it.
    """

    State = None  # the dataclass
    picture = None  # staticmethod: State -> Scene
    columns = 2  # of controls
    hands = {}  # the name of another widget -> function(State) giving the fields it takes over
    state = traitlets.Any()

    def __init__(self, **state):
        self._canvas = Canvas()
        self._message = ipywidgets.HTML(layout={"display": "none"})
        self._showing, self._hands = False, {}
        first = self.State(**state)
        self.controls = self.make_controls(first)
        columns = f"repeat({self.columns}, minmax(0, 1fr))"  # as wide as the picture, narrower where the page is
        grid = {"grid_template_columns": columns, "width": "100%", "max_width": f"{WIDTH}px"}
        texts = [control for control in self.controls.values() if isinstance(control, ipywidgets.Textarea)]
        panel = ipywidgets.GridBox([c for c in self.controls.values() if c not in texts], layout=grid)
        if hasattr(self, "measure") and live.here():
            texts.append(self._measure_button())
        super().__init__(children=[panel, *texts, self._message, self._canvas])
        self.add_class(BOX)
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
            put(control, getattr(state, name))

    def update(self, **changes) -> None:
        """Change some fields of the state and redraw. Raises ValueError, and changes nothing, for what cannot be."""
        self.state = revise(self.state, **changes)

    def hand_to(self, taker: "Explorable") -> None:
        """From now on the fields that ``taker`` shares with this widget follow it.

        Raises ValueError where the two share nothing. What ``taker`` cannot show, it says below its controls.
        """
        name = type(taker).__name__
        require(name in self.hands, "taker", name, ", ".join(self.hands) or "nothing: this widget hands nothing on")

        def hand(_change=None):
            try:
                fields = self.hands[name](self.state)
            except ValueError as error:
                taker._say(str(error), role="alert")
            else:
                taker._take(fields)

        self.keep_from(taker)
        self._hands[taker] = hand
        self.observe(hand, "state")
        hand()

    def keep_from(self, taker: "Explorable") -> None:
        """Hand nothing on to ``taker`` any more."""
        if taker in self._hands:
            self.unobserve(self._hands.pop(taker), "state")

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

    def _measure_button(self):
        """Only beside a GPU: measure on it, and show that too."""
        button = ipywidgets.Button(description="measure on this GPU", layout={"width": "auto", "align_self": "flex-start"})

        def measure(_button):
            self._say("Measuring; this takes some seconds.")
            try:
                self.measure()
                self._say("")
            except (ValueError, RuntimeError) as error:
                self._say(str(error), role="alert")

        button.on_click(measure)
        return button

    @traitlets.validate("state")
    def _validate(self, proposal):
        if not isinstance(proposal.value, self.State):
            raise TypeError(f"state is {proposal.value!r}: expected {self.State.__qualname__}")
        self._next = type(self).picture(proposal.value)  # what cannot be drawn is refused as well
        return proposal.value

    @traitlets.observe("state")
    def _redraw(self, change):
        self._restore_controls()
        self._say("")
        self._canvas.scene = {"panel": style.PANEL, **self._next.as_dict()}

    def _restore_controls(self):
        self._showing = True
        try:
            self.show_controls(self.state)
        finally:
            self._showing = False

    def _moved(self, name, value):
        if not self._showing:
            self._take({name: value})

    def _take(self, changes):
        """An update from a control or another widget: what cannot be is said, not raised, and the picture stays."""
        try:
            self.update(**changes)
            self._restore_controls()  # what was asked may have come to something else
            self._say("")
        except ValueError as error:
            if not any(isinstance(self.controls.get(name), ipywidgets.Textarea) for name in changes):
                self._restore_controls()
            self._say(str(error), role="alert")

    def _say(self, words, role="status"):
        self._message.value = f'<div role="{role}" style="line-height:1.4">{escape(words)}</div>' if words else ""
        self._message.layout.display = None if words else "none"


def link(*widgets: Explorable) -> None:
    """Each hands on to the next: ``link(planner, grid, occupancy)``. Raises ValueError where two share nothing."""
    for giver, taker in pairwise(widgets):
        giver.hand_to(taker)


def unlink(*widgets: Explorable) -> None:
    """Undo ``link`` of the same widgets: none hands on to the next any more."""
    for giver, taker in pairwise(widgets):
        giver.keep_from(taker)
