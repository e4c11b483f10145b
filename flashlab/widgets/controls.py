"""The controls of all widgets: one look, one width, every one worked by keyboard."""

import ipywidgets

WIDTH = 960
LABEL = {"description_width": "7.5em"}
WIDE = {"width": "98%"}


def slider(state, name: str, label: str, low: int, high: int, **options) -> ipywidgets.IntSlider:
    """An integer slider for a field; arrow keys and Page Up and Down move it."""
    value = getattr(state, name)
    return ipywidgets.IntSlider(value, low, high, description=label, style=LABEL, layout=WIDE, **options)


def check(state, name: str, label: str) -> ipywidgets.Checkbox:
    """A box to tick; the space bar does."""
    return ipywidgets.Checkbox(getattr(state, name), description=label, style=LABEL, layout=WIDE)


def menu(state, name: str, label: str, options) -> ipywidgets.Dropdown:
    """A list to choose from; ``options`` are values, or (words, value)."""
    return ipywidgets.Dropdown(options=options, value=getattr(state, name), description=label, style=LABEL, layout=WIDE)


class Ladder(ipywidgets.SelectionSlider):
    """A slider over chosen values, such as powers of two; a value between them, from elsewhere, gets its own place."""

    def __init__(self, value, label, values, words=str):
        self._rungs, self._words = tuple(values), words
        super().__init__(options=self._with(value), value=value, description=label, style=LABEL, layout=WIDE)

    def offer(self, values, value) -> None:
        """Other values to choose from, of which one is chosen."""
        self._rungs = tuple(values)
        self.put(value)

    def put(self, value) -> None:
        options = self._with(value)
        if tuple(self.options) != options:
            self.options = options
        self.value = value

    def _with(self, value):
        return tuple((self._words(v), v) for v in sorted({*self._rungs, value}))


def ladder(state, name: str, label: str, values, words=str) -> Ladder:
    """A slider over chosen values for a field; the same keys move it."""
    return Ladder(getattr(state, name), label, values, words)


def put(control, value) -> None:
    """Show a value."""
    if isinstance(control, Ladder):
        control.put(value)
    else:
        control.value = value
