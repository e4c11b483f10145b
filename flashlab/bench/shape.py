"""The part of JSON Schema that schema.json speaks, so that reading a record needs nothing but Python.

    fault(value, schema)        "$.machine.driver: is missing", or None where the value keeps to the schema

A keyword it does not know is an error rather than a rule that nobody holds.
"""

import math
import re

TYPES = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value),
}
TOLD = {"$schema", "$defs", "title", "description", "then", "else"}  # no rules of their own


def fault(value, schema: dict) -> str | None:
    """The first thing about a value that its schema forbids. Raises NotImplementedError for a keyword it does not know."""
    return next(_faults(value, schema, schema, "$"), None)


def _faults(value, rules: dict, root: dict, where: str):
    for word, rule in rules.items():
        if word in RULES:
            if (reason := RULES[word](value, rule)) is not None:
                yield f"{where}: {reason}"
        elif word in NESTED:
            yield from NESTED[word](value, rules, root, where)
        elif word not in TOLD:
            raise NotImplementedError(f"schema keyword {word!r}")


def _when(kind, broken, reason):
    """A rule for values of one type: ``reason`` where ``broken``."""
    return lambda value, rule: reason(value, rule) if TYPES[kind](value) and broken(value, rule) else None


def _type(value, rule):
    names = [rule] if isinstance(rule, str) else rule
    if not any(TYPES[name](value) for name in names):
        return f"is {_short(value)}, must be of type {' or '.join(names)}"


def _one_of(value, known):
    """A bool is not the number it equals in Python."""
    if not any(type(value) is type(one) and value == one for one in known):
        return f"is {_short(value)}, must be {' or '.join(map(repr, known))}"


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


RULES = {
    "type": _type,
    "const": lambda value, rule: _one_of(value, [rule]),
    "enum": _one_of,
    "required": _when("object", lambda v, names: set(names) - v.keys(), lambda v, names: _missing(v, names)),
    "minimum": _when("number", lambda v, least: v < least, lambda v, least: f"is {v}, must be at least {least:g}"),
    "exclusiveMinimum": _when("number", lambda v, least: v <= least, lambda v, least: f"is {v}, must be above {least:g}"),
    "maximum": _when("number", lambda v, most: v > most, lambda v, most: f"is {v}, must be at most {most:g}"),
    "minItems": _when("array", lambda v, least: len(v) < least, lambda v, least: f"has {len(v)} items, must have {least} or more"),
    "maxItems": _when("array", lambda v, most: len(v) > most, lambda v, most: f"has {len(v)} items, must have at most {most}"),
    "minLength": _when("string", lambda v, least: len(v) < least, lambda v, least: f"is {v!r}, must be longer"),
    "pattern": _when("string", lambda v, form: not re.search(form, v), lambda v, form: f"is {_short(v)}, must match {form}"),
}  # fmt: skip


def _missing(value, names) -> str:
    return f"{', '.join(name for name in names if name not in value)} is missing"


def _properties(value, rules, root, where):
    for name, inner in rules["properties"].items() if isinstance(value, dict) else ():
        if name in value:
            yield from _faults(value[name], inner, root, f"{where}.{name}")


def _additional(value, rules, root, where):
    extra = value.keys() - rules.get("properties", {}).keys() if isinstance(value, dict) else ()
    if rules["additionalProperties"] is False and extra:
        yield f"{where}: {', '.join(sorted(extra))} is unknown"


def _items(value, rules, root, where):
    for number, item in enumerate(value if isinstance(value, list) else ()):
        yield from _faults(item, rules["items"], root, f"{where}[{number}]")


def _reference(value, rules, root, where):
    place = root
    for step in rules["$ref"].removeprefix("#/").split("/"):
        place = place[step]
    yield from _faults(value, place, root, where)


def _all_of(value, rules, root, where):
    for inner in rules["allOf"]:
        yield from _faults(value, inner, root, where)


def _any_of(value, rules, root, where):
    """Of several ways to be wrong the last is told: null comes first in schema.json."""
    told = [next(_faults(value, inner, root, where), None) for inner in rules["anyOf"]]
    if None not in told:
        yield told[-1]


def _if(value, rules, root, where):
    holds = next(_faults(value, rules["if"], root, where), None) is None
    yield from _faults(value, rules.get("then" if holds else "else", {}), root, where)


NESTED = {
    "properties": _properties, "additionalProperties": _additional, "items": _items, "$ref": _reference, "allOf": _all_of,
    "anyOf": _any_of, "if": _if,
}  # fmt: skip
