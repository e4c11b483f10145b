"""The pictures of docs/widgets.md: ``python -m flashlab.widgets.gallery docs`` writes them anew."""

import sys
from pathlib import Path

from flashlab import widgets

STATES = {
    "SoftmaxScrubber": {"step": 2},
    "TileWalk": {"causal": True, "step": 3},
    "SMGrid": {"num_splits": 16},
    "OccupancyScope": {"shared_memory": 115713},
    "KVPlanner": {"model": "gemma-3-27b", "tokens": 65536},
    "OffloadRace": {"retimers": 2},
}


def name(widget: str) -> str:
    """The file of a widget's picture."""
    return f"widget_{widget}.png"


def write(folder: Path) -> None:
    """A PNG of each widget in the state above."""
    for widget, state in STATES.items():
        (folder / name(widget)).write_bytes(getattr(widgets, widget)(**state).figure()._repr_png_())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
