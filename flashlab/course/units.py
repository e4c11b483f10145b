"""Units of the same kind, so that an answer in MB is understood where GB was asked for."""

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def _family(*units: str, binary: bool = False) -> dict[str, float]:
    prefixes = {**_DECIMAL, "K": 10**3, **(_BINARY if binary else {})}
    return {prefix + unit: factor for unit in units for prefix, factor in prefixes.items()}


FAMILIES: tuple[dict[str, float], ...] = (
    {**_family("B", binary=True), "bytes": 1, "byte": 1},
    {f"{unit}_per_s": factor for unit, factor in _family("B", binary=True).items()} | {"bytes_per_s": 1},
    {"s": 1, "seconds": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "minutes": 60, "min": 60, "hours": 3600, "h": 3600},
    {**_family("FLOP", "FLOPs", "flop", "flops")},
    {**_family("FLOPS", "FLOP_per_s", "flop_per_s", "flops_per_s")},
    {"percent": 0.01, "fraction": 1},
    {**_family("bits", "bit")},
)


def factor(given: str, asked: str) -> float | None:
    """What turns a number of ``given`` into one of ``asked``; None where they are not of one kind."""
    if given == asked or _plain(given) == _plain(asked):
        return 1.0
    for family in FAMILIES:
        if given in family and asked in family:
            return family[given] / family[asked]
    return None


def relatives(asked: str) -> list[str]:
    """A few other units in which the answer may be given."""
    family = next((family for family in FAMILIES if asked in family), {})
    near = [unit for unit in family if unit != asked and 1e-4 < family[unit] / family[asked] < 1e4]
    return near[:4]


def _plain(unit: str) -> str:
    """``block`` and ``blocks`` are one unit; so are ``key_tile`` and ``key_tiles``."""
    return unit.removesuffix("s") if len(unit) > 3 and unit.islower() else unit
