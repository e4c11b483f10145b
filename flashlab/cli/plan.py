"""flashlab plan: the largest batch and context that fit a GPU, and what limits them."""

import click

from flashlab.cli.model_options import (
    TOKENS,
    memory_arguments,
    memory_options,
    model_options,
    options_named,
    plan_json,
    plan_rows,
    read_spec,
)
from flashlab.cli.output import emit_json, emit_table, json_option
from flashlab.cli.sizes import COUNT, GpuName


@click.command(short_help="the largest batch and context that fit a GPU, and what limits them")
@model_options
@click.option("--gpu", type=GpuName(), required=True, help="A GPU of the table, such as h200, or live.")
@click.option("--input", "input_", type=TOKENS, help="Prompt tokens of a request; with --output, also concurrency.")
@click.option("--output", type=TOKENS, help="Generated tokens of a request.")
@click.option("--batch", type=COUNT, default=1, show_default=True, help="Sequences, for the largest context.")
@memory_options
@json_option
def command(config, dtype, scales, state_dtype, page_size, tp, gpu, input_, output, batch, as_json, **memory):
    """What fits on each GPU for the model that CONFIG.json (Hugging Face) describes.

    The largest batch is for --input + --output tokens a sequence; without them, for the model's longest context.
    """
    from flashlab.sizing import concurrency, plan

    with options_named():
        spec = read_spec(config, dtype, scales, state_dtype)
        shard = spec if tp == 1 else spec.shard(tp)
        asked = None if input_ is None and output is None else (input_ or 0) + (output or 0)
        fit = plan(shard, gpu, tokens=asked, batch=batch, page_size=page_size, **memory_arguments(**memory))
        mix = [(input_ or 0, output)] if output else None
        runs = concurrency(shard, fit.budget.cache, mix, page_size) if mix else None
    per_sequence = fit.sequence_bytes
    if as_json:
        data = {
            "model_type": spec.model.model_type,
            "dtype": spec.format.name,
            "tp": shard.tp,
            "bytes_per_token": spec.bytes_per_token(),
            "bytes_per_token_per_gpu": shard.bytes_per_token(),
            "bytes_per_sequence_per_gpu": per_sequence,
            **plan_json(fit),
        }
        emit_json(data | ({"concurrent_requests": runs} if runs else {}))
        return
    from flashlab.sizing import show_bytes

    where = f"on each of {shard.tp} GPUs" if shard.tp > 1 else "on the GPU"
    rows = [(f"a sequence of {fit.tokens} tokens {where}", show_bytes(per_sequence)), *plan_rows(fit)]
    if runs:
        rows.append(("requests at once, each reserving its end", f"{runs.own:.2f}"))
        rows.append(("requests at once, each as long as it is", f"{runs.growing:.2f}"))
    emit_table(f"What fits: {spec.model.model_type} in {spec.format.name} on {gpu.name}", rows)
