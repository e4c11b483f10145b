"""flashlab kv: what a model's KV cache takes."""

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


@click.command(short_help="what a model's KV cache takes")
@model_options
@click.option("--batch", type=COUNT, default=1, show_default=True, help="Sequences.")
@click.option("--input", "input_", type=TOKENS, default=1024, show_default=True, help="Prompt tokens of each.")
@click.option("--output", type=TOKENS, default=1024, show_default=True, help="Generated tokens of each.")
@click.option("--gpu", type=GpuName(), help="Also say what fits on this GPU, such as h200.")
@memory_options
@json_option
def command(config, dtype, scales, state_dtype, page_size, tp, batch, input_, output, gpu, as_json, **memory):
    """Bytes of the KV cache of the model that CONFIG.json (Hugging Face) describes, and how they come about."""
    from flashlab.sizing import explain, plan

    with options_named():
        spec = read_spec(config, dtype, scales, state_dtype)
        shard = spec if tp == 1 else spec.shard(tp)
        told = explain(spec, batch, input_, output)
        tokens = input_ + output
        paged = shard.paged(batch, tokens, page_size) if page_size else None
        fits = {"tokens": tokens, "batch": batch, "page_size": page_size, **memory_arguments(**memory)}
        fit = plan(shard, gpu, **fits) if gpu else None
    emit = _json if as_json else _table
    emit(spec, shard, told, batch, tokens, paged, fit)


def _json(spec, shard, told, batch, tokens, paged, fit):
    per_gpu = shard.bytes(batch, tokens)
    data = {
        "model_type": spec.model.model_type,
        "layers": spec.kinds(),
        "dtype": spec.format.name,
        "batch": batch,
        "tokens": tokens,
        "tp": shard.tp,
        "bytes_per_token": spec.bytes_per_token(),
        "bytes_per_token_per_gpu": shard.bytes_per_token(),
        "bytes_per_token_past_windows": spec.bytes_per_token(after=_past_windows(spec)),
        "bytes": told.bytes,
        "bytes_per_gpu": per_gpu,
        "bytes_all_gpus": per_gpu * shard.tp,
        "needed_bytes": told.needed_bytes,
        "bytes_by_kind": spec.per_kind(batch, tokens),
        "formula": told.formula,
        "wrong_formulas": told.wrong,
    }
    if paged:
        data["paged_per_gpu"] = paged
    emit_json(data | (plan_json(fit) if fit else {}))


def _table(spec, shard, told, batch, tokens, paged, fit):
    from flashlab.sizing import show_bytes

    after = _past_windows(spec)
    rows = [
        ("layers", ", ".join(f"{n} {kind}" for kind, n in spec.kinds().items())),
        ("stored as", spec.format.name),
        ("one more token", _per_token(spec.bytes_per_token())),
    ]
    if spec.bytes_per_token(after) != spec.bytes_per_token():
        rows.append(("one more token, windows full", _per_token(spec.bytes_per_token(after))))
    rows.append((f"batch {batch} x {tokens} tokens", show_bytes(told.bytes)))
    if len(spec.kinds()) > 1:
        rows += [(f"  in {kind} layers", show_bytes(n)) for kind, n in spec.per_kind(batch, tokens).items()]
    if shard.tp > 1:
        per_gpu = shard.bytes(batch, tokens)
        rows.append((f"on each of {shard.tp} GPUs", f"{show_bytes(per_gpu)}, {_per_token(shard.bytes_per_token())}"))
        rows.append((f"on {shard.tp} GPUs together", show_bytes(per_gpu * shard.tp)))
    if paged:
        pages = f"{show_bytes(paged.bytes)}, {paged.waste:.2%} of it without tokens"
        rows.append((f"on a GPU, {paged.pages} pages of {paged.page_size}", pages))
        rows.append(("  of it block tables", show_bytes(paged.block_table_bytes)))
    emit_table("KV cache", rows + (plan_rows(fit) if fit else []), notes=["", *str(told).splitlines()])


def _per_token(size: int) -> str:
    return f"{size:,} bytes a token"


def _past_windows(spec) -> int:
    return max((layer.window for layer in spec.layers if layer.window), default=0)
