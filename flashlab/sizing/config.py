"""Reading a model's config.json: every field is checked by name and none is guessed.

A field whose value is null counts as absent, as Hugging Face treats it. A default is passed in only where the
architecture's own configuration class documents it; otherwise an absent field is refused.
"""

import os

REQUIRED = object()

# Nothing published comes near these; a value above them is a slip of the keyboard or of a unit.
_MOST = {
    "layers": 10_000,
    "heads": 100_000,
    "dim": 10_000_000,
    "tokens": 10**12,
    "entries": 10**9,
}

_LAYER_TYPES = ("full_attention", "sliding_attention", "linear_attention")


class Config:
    """One (possibly nested) JSON object and the name of the model type it belongs to."""

    def __init__(self, data: dict, model_type: str):
        self.data = data
        self.model_type = model_type

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def count(self, name: str, most: str, default=REQUIRED):
        """A whole number from 1 to the sane maximum of its sort, or default when absent."""
        value = self.data.get(name)
        if value is None:
            if default is REQUIRED:
                raise self.refused(name, "is missing", "a whole number")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refused(name, f"is {value!r}", "a whole number")
        if not 1 <= value <= _MOST[most]:
            raise self.refused(name, f"is {value}", f"a whole number from 1 to {_MOST[most]:,}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refused(name, f"is {value!r}", "true or false")
        return value

    def index(self, name: str, default: int) -> int:
        """A whole number that may be 0, such as the first layer of a sort."""
        if self.data.get(name) == 0 and not isinstance(self.data[name], bool):
            return 0
        return self.count(name, "layers", default)

    def indices(self, name: str) -> list[int]:
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in value):
            raise self.refused(name, f"is {value!r}", "a list of layer numbers")
        return value

    def heads(self, query: str, kv: str, query_default=REQUIRED, kv_default=REQUIRED) -> tuple[int, int]:
        """Query and kv heads; each kv head must serve the same number of query heads. A kv_default of None: as many."""
        heads_q = self.count(query, "heads", query_default)
        heads_kv = self.count(kv, "heads", heads_q if kv_default is None else kv_default)
        if heads_q % heads_kv:
            raise self.refused(kv, f"is {heads_kv}", f"a divisor of {query} {heads_q}")
        return heads_q, heads_kv

    def head_dim(self, hidden: str, heads_q: int) -> int:
        """The explicit head_dim; where it is absent, hidden / heads, which must then be whole."""
        if self.has("head_dim"):
            return self.count("head_dim", "dim")
        width = self.count(hidden, "dim")
        if width % heads_q:
            raise self.refused(hidden, f"is {width}", f"a multiple of the {heads_q} heads, as head_dim is not given")
        return width // heads_q

    def layer_types(self, layers: int, default: list[str]) -> list[str]:
        """The explicit layer_types, or default; one known name a layer."""
        value = self.data.get("layer_types")
        if value is None:
            return default
        if not isinstance(value, list) or len(value) != layers:
            raise self.refused("layer_types", f"is {value!r}", f"a list with one name for each of the {layers} layers")
        for name in value:
            if name not in _LAYER_TYPES:
                raise self.refused("layer_types", f"holds {name!r}", f"made of {', '.join(_LAYER_TYPES)}")
        return value

    def refuse_fields(self, *names: str) -> None:
        """Refuse fields that this architecture does not have: what they would do is not known."""
        for name in names:
            if self.has(name):
                raise self.refused(name, f"is {self.data[name]!r}", "absent: this architecture has no such field")

    def refused(self, name: str, found: str, right: str) -> ValueError:
        return ValueError(f"config of {self.model_type}: {name} {found}; it must be {right}")


def load_config(source) -> dict:
    """The JSON object behind a path (a config.json or its folder), a dict, or an object with to_dict().

    Raises ValueError where a file is missing, is not JSON or holds no object, TypeError for any other source.
    """
    if isinstance(source, dict):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _read(os.fspath(source))
    if callable(getattr(source, "to_dict", None)):
        return load_config(dict(source.to_dict()))
    raise TypeError(f"config is a {type(source).__name__}; it must be a path, a dict or a transformers config")


def _read(path: str) -> dict:
    import json

    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    try:
        with open(path, encoding="utf-8-sig") as file:
            data = json.load(file)
    except OSError as error:
        raise ValueError(f"config {path}: {error.strerror or error}; it must be a readable config.json") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"config {path}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"config {path}: holds a {type(data).__name__}; it must hold one JSON object")
    return data
