"""The ``flashlab`` command: one file a subcommand, each imported only when it is the one asked for."""

import contextlib
import errno
import importlib
import os
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
    """Run the command line; bad input is one line on stderr and exit code 2, output that cannot be written exit code 1."""
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        _forget_output()
        if error.errno != errno.EPIPE:  # a reader who has seen enough is told nothing
            print(f"flashlab: writing failed: {error.strerror}", file=sys.stderr)
        code = 1
    sys.exit(code)


def _run(arguments) -> int:
    try:
        code = flashlab.main(args=arguments, prog_name="flashlab", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 2
    except click.ClickException as error:
        where = error.ctx.command_path if getattr(error, "ctx", None) else "flashlab"
        print(f"{where}: {' '.join(error.format_message().split())}", file=sys.stderr)
        return 2
    except click.Abort:
        return 130
    return code if isinstance(code, int) else 0


def _forget_output() -> None:
    """What is still buffered goes nowhere: at exit Python would try again and complain."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
