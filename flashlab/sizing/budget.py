"""The bytes that one GPU has left for a KV cache: memory * utilization - weights - workspace."""

from typing import NamedTuple

from flashlab.hardware.checks import positive, whole
from flashlab.sizing.cache import CacheSpec
from flashlab.sizing.formats import Format, kv_format
from flashlab.sizing.parameters import count_parameters

UTILIZATION = 0.9  # vLLM's gpu_memory_utilization for most of its life


class Budget(NamedTuple):
    """Bytes of one GPU. weights_source says whether the weights were counted or given; cache may be negative."""

    memory: int
    utilization: float
    weights: int
    weights_source: str
    workspace: int
    cache: int


def memory_budget(
    spec: CacheSpec,
    gpu,
    *,
    utilization: float = UTILIZATION,
    weights: int | None = None,
    weights_dtype=None,
    workspace: int = 0,
) -> Budget:
    """What one GPU has left for the cache of spec.

    gpu: a name of flashlab.hardware's table, a GPU object, or its memory in bytes.
    utilization: the share of the memory that may be used, above 0 and at most 1.
    weights: bytes of the whole model's weights; None counts its parameters, times the bytes of weights_dtype (None: the
        config's own 16-bit dtype). Either way each of the spec's tp GPUs is taken to hold an equal share.
    workspace: bytes for activations, CUDA graphs and whatever else runs beside; they depend on the engine, so the
        default of 0 leaves them to 1 - utilization.

    Raises ValueError where weights cannot be counted (no config, a quantised checkpoint, a missing field).
    """
    memory = _memory(gpu)
    positive("utilization", utilization, most=1)
    workspace = whole("workspace", workspace, 0)
    if weights is None:
        weights, source = _counted(spec, weights_dtype)
    elif weights_dtype is not None:
        raise ValueError("weights_dtype: goes with counted weights; weights were given in bytes")
    else:
        weights, source = whole("weights", weights, 0), "given"
    share = -(-weights // spec.tp)
    return Budget(memory, utilization, share, source, workspace, int(memory * utilization) - share - workspace)


def _memory(gpu) -> int:
    if isinstance(gpu, int):
        return whole("gpu", gpu)
    from flashlab.hardware.gpus import gpu as find

    return find(gpu).memory_bytes


def _counted(spec: CacheSpec, dtype) -> tuple[int, str]:
    if spec.model is None:
        raise ValueError("weights: must be given in bytes for a spec that was made without a config")
    quantized = spec.model.outer.get("quantization_config")
    if dtype is None and quantized:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        raise ValueError(f"weights: the config is of a quantised checkpoint ({method}); give their bytes or a dtype")
    form = kv_format(spec.model.half_dtype() if dtype is None else dtype, argument="weights_dtype")
    count = count_parameters(spec.model)
    each = _bytes_each(form)
    return round(count * each), f"counted: {count:,} parameters of {each:g} bytes ({form.name})"


def _bytes_each(form: Format) -> float:
    """Bytes of a weight, with the scales of its block where the format has blocks."""
    return form.element_bytes + (form.scale_bytes / form.block if form.scales == "block" else 0)
