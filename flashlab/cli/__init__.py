"""The ``flashlab`` command: one file a subcommand, each imported only when it is the one asked for."""

import importlib
import sys

import click

COMMANDS = {
    "doctor": "versions, GPU or interpreter, and a canary kernel that really runs",
    "kv": "what a model's KV cache takes",
    "plan": "the largest batch and context that fit a GPU, and what limits them",
    "occupancy": "blocks and warps per SM, what limits them, and the next cliff",
    "splits": "how many ways to split the keys of a decode step",
    "link": "how long a transfer over PCIe or NVLink takes",
    "bench": "kernels beside their peers on the GPU present, recorded; counts without a GPU",
    "show": "what the compiler makes of a kernel, for any GPU",
}


class LazyGroup(click.Group):
    def list_commands(self, ctx):
        return list(COMMANDS)

    def get_command(self, ctx, name):
        if name not in COMMANDS:
            return None
        return importlib.import_module(f"flashlab.cli.{name}").command

    def format_commands(self, ctx, formatter):
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="flashlab")
def flashlab():
    """Calculators, checks and measurements for attention on GPUs. Every command takes --json."""


def main(arguments=None) -> None:
    """Run the command line; bad input is one line on stderr and exit code 2."""
    try:
        code = flashlab.main(args=arguments, prog_name="flashlab", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        where = error.ctx.command_path if getattr(error, "ctx", None) else "flashlab"
        print(f"{where}: {' '.join(error.format_message().split())}", file=sys.stderr)
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)
