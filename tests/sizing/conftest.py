"""The public configs that the tests read: configs/NAME.json, each with the model's name under "_source"."""

import json
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

CONFIGS = Path(__file__).parent / "configs"


@pytest.fixture
def config():
    """config("qwen3-4b", head_dim=None) -> that model's config as a dict, with fields changed; ... drops a field."""

    def load(name: str, **changes) -> dict:
        data = json.loads((CONFIGS / f"{name}.json").read_text()) | changes
        return {key: value for key, value in data.items() if value is not ...}

    return load


@pytest.fixture
def spec(config):
    """spec("qwen3-4b", dtype="fp8") -> that model's CacheSpec."""
    from flashlab.sizing import CacheSpec

    return lambda name, **options: CacheSpec.from_config(config(name), **options)
