"""How every subcommand speaks: a table for people, JSON for machines, one line for bad input."""

import dataclasses
import json as jsonlib
import math
from collections.abc import Iterable

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")


LEAST_WIDTH, WIDTH = 40, 80  # columns below which a table would lose letters; what COLUMNS=0 is taken for


def emit_json(data) -> None:
    """Print data as one JSON object; dataclasses and named tuples become objects and what is not finite null."""
    print(jsonlib.dumps(_plain(data), indent=2, allow_nan=False))


def emit_table(title: str, rows: Iterable[tuple], columns: Iterable[str] = (), notes: Iterable[str] = ()) -> None:
    """Print rows under an optional header. Text is never cut: a narrow terminal wraps it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = list(columns)
    table = Table(show_header=bool(columns), box=None, pad_edge=False)
    rows = [tuple(str(cell) for cell in row) for row in rows]
    for i in range(len(columns) or max((len(row) for row in rows), default=0)):
        table.add_column(columns[i] if columns else "", overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    console = Console(highlight=False)
    console.width = max(LEAST_WIDTH, console.width or WIDTH)
    console.print(Text(title, style="bold"))
    console.print(table)
    for note in notes:
        console.print(Text(note))


def bad(option: str, value, allowed: str) -> click.UsageError:
    """The error for a wrong option: ``--tp 3: must divide heads_q 32``; a blank value stands in quotes."""
    return click.UsageError(f"{option} {value if str(value).strip() else repr(value)}: {allowed}")


def _plain(value):
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {k: _plain(v) for k, v in dataclasses.asdict(value).items()}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
