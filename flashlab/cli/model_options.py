"""What `kv` and `plan` share: the model, its cache's format, the GPU, and errors in the words of the options."""

from contextlib import contextmanager

import click

from flashlab.cli.sizes import COUNT, Real, Size

TOKENS = click.IntRange(0, 10**12)

_OPTION_OF = {
    "dtype": "--dtype",
    "scales": "--scales",
    "state_dtype": "--state-dtype",
    "tp": "--tp",
    "page_size": "--page-size",
    "tokens": "--input and --output",
    "input + output": "--input and --output",
    "utilization": "--memory-utilization",
    "weights": "--weights",
    "weights_dtype": "--weights-dtype",
    "workspace": "--workspace",
}

_MODEL = (
    click.argument("config", metavar="CONFIG.json"),
    click.option("--dtype", help="Format of K and V: fp32, fp16, bf16, fp8, int8, int4, q8_0, q4_0 or nvfp4."),
    click.option("--scales", help="Scales of fp8, int8 or int4: tensor, head, token_head or block:N."),
    click.option("--state-dtype", default="fp32", show_default=True, help="Recurrent state of linear layers."),
    click.option("--page-size", type=COUNT, help="Tokens a page, for a paged cache."),
    click.option("--tp", type=COUNT, default=1, show_default=True, help="GPUs that share the heads."),
)

_MEMORY = (
    click.option("--memory-utilization", type=Real(0, 1, min_open=True), default=0.9, show_default=True, help="Share of the GPU's memory."),
    click.option("--weights", type=Size(), metavar="SIZE", help="Bytes of all weights, as in 15GiB; counted if left out."),
    click.option("--weights-dtype", help="Format of counted weights; the config's own 16 bits if left out."),
    click.option("--workspace", type=Size(0), metavar="SIZE", default=0, show_default=True, help="Activations, graphs."),
)


def model_options(command):
    """CONFIG.json, --dtype, --scales, --state-dtype, --page-size and --tp."""
    return _apply(command, _MODEL)


def memory_options(command):
    """--memory-utilization, --weights, --weights-dtype and --workspace."""
    return _apply(command, _MEMORY)


def _apply(command, options):
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def options_named():
    """Turn the library's errors into one line that names the option rather than the argument."""
    try:
        yield
    except (ValueError, TypeError) as error:
        text = str(error)
        for argument in sorted(_OPTION_OF, key=len, reverse=True):
            if text.startswith(argument) and not text[len(argument)].isalnum():
                text = _OPTION_OF[argument] + text[len(argument) :]
                break
        raise click.UsageError(text) from None


def read_spec(config: str, dtype, scales, state_dtype):
    """The whole model's CacheSpec."""
    from flashlab.sizing import CacheSpec

    return CacheSpec.from_config(config, dtype=dtype, scales=scales, state_dtype=state_dtype)


def memory_arguments(memory_utilization, weights, weights_dtype, workspace) -> dict:
    """The values of memory_options as the keywords of flashlab.sizing.plan."""
    return {
        "utilization": memory_utilization,
        "weights": weights,
        "weights_dtype": weights_dtype,
        "workspace": workspace,
    }


def plan_json(fit) -> dict:
    """A Plan under the keys that both commands print."""
    return {
        "memory_bytes": fit.budget.memory,
        "weights_bytes_per_gpu": fit.budget.weights,
        "weights_source": fit.budget.weights_source,
        "workspace_bytes_per_gpu": fit.budget.workspace,
        "cache_budget_bytes_per_gpu": fit.budget.cache,
        "tokens": fit.tokens,
        "max_batch": fit.max_batch,
        "limiter": fit.limiter,
        "largest_kind": fit.largest_kind,
        "batch": fit.batch,
        "max_context": fit.max_context,
        "context_limiter": fit.context_limiter,
    }


_LIMITS = {
    "weights": "the weights leave no room",
    "workspace": "the workspace leaves no room",
    "cache": "the cache fills the memory",
    "model": "the model's own maximum",
    "nothing": "nothing: every window is full",
}


def plan_rows(fit) -> list[tuple]:
    """A Plan as rows of a table for people."""
    from flashlab.sizing import show_bytes

    budget = fit.budget
    context = "any" if fit.max_context is None else f"{fit.max_context:,}"
    return [
        ("memory of a GPU", show_bytes(budget.memory)),
        ("weights on a GPU", f"{show_bytes(budget.weights)}, {budget.weights_source}"),
        ("left for the cache", f"{show_bytes(budget.cache)} at {budget.utilization:g} of the memory"),
        (f"largest batch at {fit.tokens} tokens", f"{fit.max_batch:,} ({_LIMITS[fit.limiter]})"),
        (f"largest context at batch {fit.batch}", f"{context} ({_LIMITS[fit.context_limiter]})"),
        ("most of a sequence is in", f"{fit.largest_kind} layers"),
    ]
