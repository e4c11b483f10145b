"""flashlab link: how long a transfer takes, and what of it is start, retimers and bytes."""

import click

from flashlab.cli.output import emit_json, emit_table, json_option
from flashlab.cli.sizes import Size, show_rate, show_time


@click.command()
@click.option("--kind", type=click.Choice(["pcie", "nvlink", "c2c"]), default="pcie", show_default=True)
@click.option("--gen", type=int, help="Generation: PCIe 3 to 6 (5 if not given), NVLink 2 to 5 (4 if not given).")
@click.option("--lanes", type=int, help="PCIe lanes (16 if not given), or NVLinks used (all if not given).")
@click.option("--bytes", "size", type=Size(), default="1GiB", show_default=True, help="Such as 4096, 64KB or 1GiB.")
@click.option("--retimers", type=int, default=0, show_default=True, help="On the PCIe link: 0, 1 or 2.")
@click.option("--direction", type=click.Choice(["host_to_device", "device_to_host"]), default="host_to_device")
@click.option("--pageable", is_flag=True, help="Host memory that is not pinned.")
@click.option("--payload", type=int, default=256, show_default=True, help="Bytes of data in a PCIe packet.")
@json_option
def command(kind, gen, lanes, size, retimers, direction, pageable, payload, as_json):
    """The time and bandwidth of one transfer over PCI Express, NVLink or NVLink-C2C."""
    from flashlab.hardware import link

    given = dict(gen=gen, lanes=lanes, retimers=retimers, payload=payload)
    try:
        found = link(kind, bytes=size, direction=direction, pinned=not pageable, **given)
    except ValueError as error:
        name = str(error).split()[0]
        option = "--pageable" if name == "pinned" else f"--{name} {given[name]}"
        raise click.UsageError(f"{option}: {error}") from error
    if as_json:
        return emit_json(dict(kind=kind, direction=direction, retimers=retimers, **found._asdict()))
    from flashlab.sizing.units import show_bytes

    added = f"{retimers}: at most {show_time(found.retimer_s)}, {found.retimer_s / found.time_s:.2g} of it"
    on_pcie = kind == "pcie"
    emit_table(
        f"{show_bytes(size)} over {found.link}",
        [
            ("time", show_time(found.time_s)),
            ("bandwidth", show_rate(found.bandwidth_bytes_per_s)),
            ("  before the first byte", show_time(found.start_s)),
            *([("  retimers", added)] if on_pcie else []),
            ("  the bytes", show_time(size / found.rate_bytes_per_s)),
            ("the wire", show_rate(found.wire_bytes_per_s)),
            *([("packets carry", f"{found.payload_efficiency:.1%} payload")] if on_pcie else []),
            ("an endless transfer", show_rate(found.rate_bytes_per_s)),
            ("half of that from", show_bytes(found.half_rate_bytes)),
        ],
        notes=[f"One direction. {found.basis[0].upper()}{found.basis[1:]}."],
    )
