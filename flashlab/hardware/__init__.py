"""What a GPU is and what a launch does to it. Standard library only: it starts in milliseconds and runs anywhere.

``occupancy`` and ``roofline`` are functions here although modules have those names too: they are bound below, once,
before anyone can import a module of this package, so they stay functions whatever is imported later.
"""

from flashlab.hardware.gpus import GPU, gpu
from flashlab.hardware.launch import decode_grid, prefill_grid, underuse, waves
from flashlab.hardware.links import link
from flashlab.hardware.occupancy import occupancy
from flashlab.hardware.offload import offload_or_recompute
from flashlab.hardware.roofline import roofline
from flashlab.hardware.splits import num_splits, splits_to_fill
from flashlab.hardware.timing import decode_time, read_rate, staircase_time

__all__ = [
    "GPU",
    "decode_grid",
    "decode_time",
    "gpu",
    "link",
    "num_splits",
    "occupancy",
    "offload_or_recompute",
    "prefill_grid",
    "read_rate",
    "roofline",
    "splits_to_fill",
    "staircase_time",
    "underuse",
    "waves",
]
