"""How a wrong number is refused. (flashlab.hardware has the like; importing it would double this package's start.)"""


def whole(name: str, value: int, least: int = 1) -> None:
    """Raise TypeError unless value is an int, ValueError unless it is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
