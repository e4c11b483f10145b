"""flashlab doctor: can kernels be trusted on this machine?"""

import click

from flashlab.cli.output import emit_json, emit_table, json_option


@click.command()
@json_option
def command(as_json: bool) -> int:
    """Show versions and the device, and run a small Triton kernel against float64. Exit 1 if it is unusable."""
    from flashlab.doctor import TOLERANCE, examine

    health = examine()
    if as_json:
        emit_json({"usable": health.usable, **vars(health)})
        return 0 if health.usable else 1
    rows = [*health.versions.items(), ("kernels run on", health.device)]
    rows += [(f"canary {name}", f"error {error:.1e}, allowed {TOLERANCE[name]:g}") for name, error in health.canary.items()]
    verdict = ["usable"] if health.usable else [f"UNUSABLE: {problem}" for problem in health.problems]
    emit_table("flashlab doctor", rows, notes=[*health.notes, *verdict])
    return 0 if health.usable else 1
