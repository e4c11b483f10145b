"""flashlab splits: how many ways to cut the keys of a decode step, and what each choice would take."""

import click

from flashlab.cli.output import bad, emit_json, emit_table, json_option
from flashlab.cli.sizes import COUNT, GpuName, Real, show_rate, show_time

MOST_BLOCKS_PER_SM = 32  # of any compute capability


@click.command()
@click.option("--gpu", "part", type=GpuName(), required=True, help="A GPU's name, or live.")
@click.option("--batch", type=COUNT, default=1, show_default=True, help="Sequences that decode together.")
@click.option("--heads-q", type=COUNT, required=True, help="Query heads.")
@click.option("--heads-kv", type=COUNT, help="KV heads; as many as query heads if not given.")
@click.option("--context", type=COUNT, required=True, help="Keys in the cache of each sequence.")
@click.option("--head-dim", type=COUNT, default=128, show_default=True, help="Elements of a head.")
@click.option("--element-bytes", type=Real(0, 8, min_open=True), default=2, show_default=True)
@click.option("--block-n", type=COUNT, default=128, show_default=True, help="Keys in a tile.")
@click.option(
    "--blocks-per-sm",
    type=click.IntRange(1, MOST_BLOCKS_PER_SM),
    default=1,
    show_default=True,
    help="Blocks that one SM holds.",
)
@json_option
def command(part, batch, heads_q, heads_kv, context, head_dim, element_bytes, block_n, blocks_per_sm, as_json):
    """Splits by FlashAttention-3's rule and by filling one wave, with waves and predicted times."""
    from flashlab.hardware import decode_grid, decode_time, num_splits, splits_to_fill, underuse, waves

    heads_kv = heads_kv or heads_q
    shape = dict(batch=batch, heads_q=heads_q, heads_kv=heads_kv, seqlen_k=context, block_n=block_n)
    try:
        grid = decode_grid(**shape)
    except ValueError as error:
        raise bad("--heads-kv", heads_kv, str(error)) from error
    rules = {
        "one split": 1,
        "FlashAttention-3": num_splits(blocks=grid.rows, sms=part.sms, key_blocks=grid.key_blocks),
        "fill one wave": splits_to_fill(grid.rows, part.sms, blocks_per_sm, grid.key_blocks),
    }
    choices = []
    for rule, splits in rules.items():
        filled = waves(blocks=grid.rows * splits, sms=part.sms, blocks_per_sm=blocks_per_sm)
        try:
            time = decode_time(
                part,
                **shape,
                head_dim=head_dim,
                element_bytes=element_bytes,
                num_splits=splits,
                blocks_per_sm=blocks_per_sm,
            )
        except ValueError as error:
            option = "--element-bytes" if "element_bytes" in str(error) else "--gpu"
            raise click.UsageError(f"{option}: {error}") from error
        choices.append(
            dict(
                rule=rule,
                num_splits=splits,
                blocks=filled.blocks,
                waves=filled.waves,
                efficiency=filled.efficiency,
                time_s=time.time_s,
                bandwidth_bytes_per_s=time.bandwidth_bytes_per_s,
            )
        )
    one, chosen, fill = choices
    used = underuse(batch=batch, heads_q=heads_q, heads_kv=heads_kv, sms=part.sms)
    if as_json:
        summary = dict(gpu=part.name, sms=part.sms, rows=grid.rows, key_blocks=grid.key_blocks)
        summary |= {key: value for key, value in chosen.items() if key != "rule"}
        summary |= dict(splits_to_fill=fill["num_splits"], speedup=one["time_s"] / chosen["time_s"])
        return emit_json(summary | dict(underuse=used, choices=choices))
    emit_table(
        f"{part.name}: {grid.rows} rows of {grid.key_blocks} key tiles on {part.sms} SMs",
        [
            (
                c["rule"],
                c["num_splits"],
                c["blocks"],
                f"{c['waves']:.2f}",
                f"{c['efficiency']:.1%}",
                show_time(c["time_s"]),
                show_rate(c["bandwidth_bytes_per_s"]),
            )
            for c in choices
        ],
        columns=("rule", "splits", "blocks", "waves", "efficiency", "time, predicted", "reading"),
        notes=[
            f"Without splits {used.gqa_packed:.2%} of the SMs have work ({used.per_query_head:.2%} with a block per query "
            f"head, {used.batch_alone:.2%} counting the batch alone).",
            "Times come from a model fitted to one H200. Elsewhere the datasheet's bandwidth bounds them, and one block is taken "
            "to read as fast as there.",
        ],
    )
