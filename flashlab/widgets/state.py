"""What a widget shows, as plain data: a frozen dataclass that raises ValueError for what it cannot show.

A state may have ``settle(fields, asked)``: how its other fields fall back when one of them is changed.
"""

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Stepped:
    """Base of a state one steps through: a subclass has ``steps``, and ``step`` runs from 0 to it."""

    step: int = 0

    @property
    def steps(self) -> int:
        raise NotImplementedError

    def check_step(self) -> None:
        require(0 <= self.step <= self.steps, "step", self.step, f"from 0 to {self.steps}")

    @classmethod
    def settle(cls, fields: dict, asked: set) -> dict:
        """A step past the new end falls back to the end, unless it was asked for."""
        if "step" in asked:
            return fields
        return fields | {"step": min(fields["step"], cls(**fields | {"step": 0}).steps)}


def require(condition: bool, name: str, value, allowed: str) -> None:
    """Raise ValueError naming the field, what it got and what is allowed."""
    if not condition:
        raise ValueError(f"{name} is {value!r}: allowed is {allowed}")


def revise(state, **changes):
    """The state with some fields changed. The others fall back to what is still allowed, as the state's ``settle`` says."""
    known = [field.name for field in dataclasses.fields(state)]
    for name in changes:
        require(name in known, "field", name, ", ".join(known))
    values = {name: getattr(state, name) for name in known} | changes
    settle = getattr(state, "settle", lambda fields, asked: fields)
    return type(state)(**settle(values, set(changes)))
