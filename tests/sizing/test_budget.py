"""Memory * utilization - weights - workspace, and where the weights' number came from."""

import pytest

from flashlab.hardware import gpu
from flashlab.sizing import CacheSpec, GiB, Layer, memory_budget


def test_the_budget_adds_up(spec):
    budget = memory_budget(spec("llama-3-8b"), "h100", utilization=0.8, workspace=GiB)
    assert budget.memory == gpu("h100").memory_bytes
    assert budget.weights == 8_030_261_248 * 2 and budget.weights_source.startswith("counted: 8,030,261,248 parameters")
    assert budget.cache == int(budget.memory * 0.8) - budget.weights - GiB


def test_a_gpu_may_be_a_name_a_gpu_or_bytes(spec):
    llama = spec("llama-3-8b")
    sizes = [memory_budget(llama, one).memory for one in ("h200", gpu("h200"), gpu("h200").memory_bytes)]
    assert len(set(sizes)) == 1


def test_given_weights(spec):
    budget = memory_budget(spec("llama-3-8b"), 40 * GiB, utilization=1, weights=16 * GiB)
    assert (budget.weights_source, budget.cache) == ("given", 24 * GiB)


@pytest.mark.parametrize("dtype, each", [("fp32", 4), ("fp8", 1), ("int4", 0.5), ("q8_0", 34 / 32), ("nvfp4", 9 / 16)])
def test_weights_in_another_format(spec, dtype, each):
    assert memory_budget(spec("llama-3-8b"), "h200", weights_dtype=dtype).weights == 8_030_261_248 * each


def test_gpus_share_the_weights(spec):
    assert memory_budget(spec("llama-3-70b", tp=8), "h100").weights == -(-70_553_706_496 * 2 // 8)


def test_weights_that_cannot_be_counted_are_asked_for(spec):
    with pytest.raises(ValueError, match=r"quantised checkpoint \(mxfp4\); give their bytes or a dtype"):
        memory_budget(spec("gpt-oss-20b"), "h200")
    with pytest.raises(ValueError, match="made without a config"):
        memory_budget(CacheSpec([Layer("full", 8, 128, 128)]), "h200")


@pytest.mark.parametrize("wrong, message", [
    ({"utilization": 0}, "utilization must be above 0 and at most 1, got 0"),
    ({"utilization": 1.01}, "utilization must be .*, got 1.01"),
    ({"utilization": float("nan")}, "utilization must be .*, got nan"),
    ({"workspace": -1}, "workspace must be at least 0"),
    ({"weights": -1}, "weights must be at least 0"),
    ({"weights": 1, "weights_dtype": "fp8"}, "weights_dtype: goes with counted weights"),
    ({"weights_dtype": "fp7"}, "weights_dtype 'fp7': must be one of"),
    ({"weights_dtype": ""}, "weights_dtype '': must be one of"),
    ({"gpu": "h2000"}, "h2000"),
    ({"gpu": 0}, "gpu must be at least 1"),
])  # fmt: skip
def test_impossible_budgets_are_refused(spec, wrong, message):
    with pytest.raises(ValueError, match=message):
        memory_budget(spec("llama-3-8b"), **{"gpu": "h200"} | wrong)


@pytest.mark.parametrize("wrong", [{"gpu": 80e9}, {"gpu": True}, {"weights": 16e9}, {"workspace": 1e9}, {"utilization": "0.9"}])
def test_budgets_of_no_number_are_refused(spec, wrong):
    with pytest.raises(TypeError, match=next(iter(wrong))):
        memory_budget(spec("llama-3-8b"), **{"gpu": "h200"} | wrong)


@pytest.mark.parametrize("vision", [[1], "siglip"])
def test_a_vision_tower_that_is_no_object_is_refused(config, vision):
    spec = CacheSpec.from_config(config("gemma-3-27b", vision_config=vision))
    with pytest.raises(ValueError, match="config of gemma3: vision_config is .*must be an object"):
        memory_budget(spec, "h200")
