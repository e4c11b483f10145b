"""One look for every widget: colours, sizes and how numbers are written.

The colours are Okabe and Ito's (jfly.uni-koeln.de/color), told apart with any kind of colour vision, on a light panel
of their own, so that a dark page changes nothing. Colour never speaks alone: a number, a label or a dash says the same.
"""

from flashlab.sizing.units import show_bytes

PANEL = "#fcfbf8"
INK = "#1d2733"
MUTED = "#5b6673"  # 5.6 : 1 on PANEL
RULE = "#d8dbd9"
FAINT = "#e3e5e5"
SKIP = "#a4acb2"

NOW = "#e69f00"  # orange: what happens in this step
DONE = "#a9cfe8"  # light blue: what has happened
READ = "#0072b2"  # blue
WRITE = "#d55e00"  # vermillion
ACCENT = "#d55e00"

PREDICTED = READ  # a line or an open circle: a model's word
RECORDED = "#d55e00"  # a diamond: measured once, on a GPU and a day that are named
LIVE = "#009e73"  # a square: measured here, now

HEADLINE, BODY, SMALL = 19, 14, 12


def number(x: float) -> str:
    """Three digits that matter: 0.00123, 1.23, 123; whole above that."""
    if x == 0 or x != x or x in (float("inf"), float("-inf")):
        return {0.0: "0", float("inf"): "∞", float("-inf"): "−∞"}.get(x, "NaN")
    text = f"{x:.0f}" if abs(x) >= 100 else f"{x:.3g}"
    return text.replace("-", "−")


def size(n: int) -> str:
    """Bytes for a label with no room: decimal units alone, four digits: 458.8 kB."""
    value, unit = show_bytes(n).split(" (")[0].split()
    return f"{float(value.replace(',', '')):.4g} {unit}"


def seconds(s: float) -> str:
    """``135 µs``, ``1.63 ms``, ``2.4 s``; ``0`` where there is none."""
    if s == 0:
        return "0"
    for unit, scale in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if s >= scale:
            return f"{number(s / scale)} {unit}"
    return f"{number(s / 1e-9)} ns"


def rate(bytes_per_s: float) -> str:
    """``55.3 GB/s``."""
    return f"{number(bytes_per_s / 1e9)} GB/s"


def count(n: int, noun: str) -> str:
    """``1 block``, ``2 blocks``, ``1,056 blocks``."""
    return f"{n:,} {noun}{'s' * (n != 1)}"
