"""flashlab occupancy: how many blocks of a kernel one SM holds, and what it would take to hold one more."""

import click

from flashlab.cli.output import bad, emit_json, emit_table, json_option
from flashlab.cli.sizes import COUNT, GpuName, Size


@click.command()
@click.option("--cc", help="Compute capability, such as 9.0 or sm_90.")
@click.option("--gpu", "part", type=GpuName(), help="A GPU's name instead of --cc.")
@click.option("--threads", type=COUNT, required=True, help="Threads per block.")
@click.option("--registers", type=click.IntRange(0, 2**31 - 1), required=True, help="Registers per thread.")
@click.option("--shared-memory", type=Size(least=0), default=0, show_default=True, help="Bytes per block.")
@json_option
def command(cc, part, threads, registers, shared_memory, as_json):
    """Blocks and warps that one SM holds, what limits them, and the next cliff."""
    from flashlab.hardware import occupancy

    if (cc is None) == (part is None):
        raise click.UsageError("give --cc or --gpu: one of them, such as --cc 9.0")
    option, asked = ("--cc", cc) if part is None else ("--gpu", part.name)
    cc = cc if part is None else part.cc
    try:
        found = occupancy(cc, threads, registers, shared_memory)
    except ValueError as error:
        raise bad(option, asked, str(error)) from error
    if as_json:
        given = dict(cc=cc, threads=threads, registers=registers, shared_memory_bytes=shared_memory)
        return emit_json(given | found._asdict())
    title = f"{threads} threads, {registers} registers, {shared_memory:,} bytes of shared memory on {asked}"
    emit_table(title, _rows(found), columns=("limit", "blocks per SM"), notes=_notes(found))


def _rows(found):
    names = {"blocks": "block slots", "warps": "warps", "registers": "registers", "shared_memory": "shared memory"}
    for key, blocks in found.limits.items():
        yield names[key], "no limit" if blocks == float("inf") else blocks
    yield "all together", found.blocks_per_sm


def _notes(found):
    if found.blocks_per_sm:
        yield f"{found.warps_per_sm} warps per SM, occupancy {found.percent:.4g}%; {found.limiter} decides."
    else:
        yield f"The launch fails. {found.limiter}."
    for name, cliff, unit in (
        ("Registers a thread", found.next_cliff.registers, ""),
        ("Shared memory a block", found.next_cliff.shared_memory, " B"),
    ):
        if cliff.give_up is not None:
            yield f"{name}: {cliff.give_up:,}{unit} fewer make room for {cliff.blocks_after} blocks per SM."
        if cliff.spare is not None:
            yield f"{name}: {cliff.spare:,}{unit} more cost no block."
