"""The look of the lessons' plots: the widgets' palette, quiet axes, and nothing drawn that says nothing."""

from contextlib import contextmanager

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from flashlab.widgets.style import FAINT, INK, MUTED, PANEL, RULE

LOOK = {
    "figure.dpi": 100,
    "figure.facecolor": PANEL,
    "savefig.facecolor": PANEL,
    "axes.facecolor": PANEL,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titlepad": 10,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 1.0,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "font.size": 10,
    "lines.linewidth": 2.2,
    "legend.frameon": False,
}


@contextmanager
def plot(width: float = 9.0, height: float = 4.0, columns: int = 1, **subplots):
    """``with plot(9, 4) as ax:`` draws one plot (or a tuple of ``columns`` of them), in inches, and shows it at the end."""
    with plt.rc_context(LOOK):
        figure, axes = plt.subplots(1, columns, figsize=(width, height), layout="constrained", **subplots)
        yield axes if columns == 1 else tuple(axes)
        plt.show()
        plt.close(figure)


def drawing(axes: Axes, width: float, height: float) -> Axes:
    """Turn the axes into a sheet of ``width`` x ``height`` units for boxes and arrows, the origin at the bottom left."""
    axes.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    axes.set_axis_off()
    return axes
