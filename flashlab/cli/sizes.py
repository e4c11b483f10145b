"""Sizes, times and GPUs as people write and read them on a command line."""

import math
import re

import click

UNITS = {"": 1, "b": 1} | {
    prefix + unit: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for unit, base in (("b", 1000), ("ib", 1024))
}
ALLOWED = "a number of bytes such as 4096, 1e9, 64KB, 1.5MiB or 2GB (KB is 1000, KiB is 1024)"


def parse_size(text: str) -> int:
    """``1GiB`` -> 1073741824, ``64KB`` -> 64000, ``1e9`` -> 1000000000; fractions of a unit round to whole bytes.

    Raises:
        ValueError: not a size; a bare fraction of a byte; or bits (``1Gb``), which are never taken for bytes.
    """
    match = re.fullmatch(r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([a-zA-Z]*)\s*", text)
    if not match or match[2].lower() not in UNITS:
        raise ValueError(f"must be {ALLOWED}")
    number, unit = match.groups()
    if re.fullmatch("[KMGT]i?b", unit):
        raise ValueError(f"{unit} means bits: write {unit[:-1]}B for bytes")
    size = float(number) * UNITS[unit.lower()]
    if size > 2**63 or (UNITS[unit.lower()] == 1 and size % 1):
        raise ValueError(f"must be {ALLOWED}")
    return round(size)


COUNT = click.IntRange(1, 2**31 - 1)


class Real(click.FloatRange):
    """An option that takes a finite number in a range; click's own lets ``nan`` through every bound."""

    def convert(self, value, param, ctx) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number in the range {self._describe_range()}.", param, ctx)
        return number


class Size(click.ParamType):
    """An option that takes a size in bytes, at least `least`."""

    name = "size"

    def __init__(self, least: int = 1):
        self.least = least

    def convert(self, value, param, ctx) -> int:
        try:
            size = value if isinstance(value, int) else parse_size(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        if size < self.least:
            self.fail(f"{value!r}: must be at least {self.least} bytes", param, ctx)
        return size


class GpuName(click.ParamType):
    """An option that takes a GPU's name, or ``live`` for the one present."""

    name = "gpu"

    def convert(self, value, param, ctx):
        from flashlab.hardware import gpu

        try:
            return gpu(value)
        except (ValueError, RuntimeError) as error:
            self.fail(str(error), param, ctx)


def show_time(seconds: float) -> str:
    """``0.0194`` -> ``19.4 ms``; from nanoseconds to seconds."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:,.4g} {unit}"
    return f"{seconds * 1e9:,.4g} ns"


def show_rate(bytes_per_s: float) -> str:
    """``55.3e9`` -> ``55.3 GB/s``."""
    return f"{bytes_per_s / 1e9:,.4g} GB/s"
