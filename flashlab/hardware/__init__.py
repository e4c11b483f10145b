"""What a GPU is and what a launch does to it. Standard library only: it starts in milliseconds and runs anywhere.

``occupancy`` and ``roofline`` are functions here although modules have those names too: they are bound below, once,
before anyone can import a module of this package, so they stay functions whatever is imported later.
"""

from flashlab.hardware.gpus import GPU, gpu
from flashlab.hardware.occupancy import Occupancy, occupancy

__all__ = ["GPU", "Occupancy", "gpu", "occupancy"]
