"""flashlab bench: speeds beside the peers', as records; counts where there is no GPU."""

import contextlib
import importlib.util
import os
from pathlib import Path

import click

from flashlab.bench.cases import KINDS, SETS
from flashlab.cli.output import bad, emit_json, emit_table, json_option
from flashlab.cli.sizes import GpuName, Real, show_time


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command():
    """Measure attention kernels on the GPU present, beside what one would use instead. Without a GPU: counts, no speed."""


def _measured(kind: str, help: str) -> None:
    """Add the subcommand of a kind of run."""

    @command.command(kind, help=f"{help[0].upper()}{help[1:]}.")
    @click.option("--set", "which", default="quick", show_default=True, help="quick or full.")
    @click.option("--peers", help="Compare with these alone, separated by commas.")
    @click.option("--record", type=click.Path(dir_okay=False, writable=True), help="Write the record here.")
    @click.option("--plot", type=click.Path(dir_okay=False, writable=True), help="Draw it: FILE.png.")
    @click.option("--seconds", type=Real(1), help="Leave out the cases that do not fit in this time.")
    @click.option("--seed", type=click.IntRange(0), help="Of the inputs; a fresh one by default.")
    @click.option("--graph/--no-graph", default=None, help="Also time CUDA graphs. Default: for decode.")
    @click.option("--gpu", "part", type=GpuName(), default="h200", help="Whose launch tables to count with, without a GPU.")
    @json_option
    def run(which, peers, record, plot, seconds, seed, graph, part, as_json):
        if which not in ("quick", "full"):
            raise bad("--set", which, "must be quick or full")
        if kind not in SETS:
            given = {"--peers": peers, "--graph": graph, "--seconds": seconds}
            for option, value in given.items():
                if value is not None:
                    raise bad(option, value, f"is of {', '.join(SETS)} only: a curve has no peers, graphs or cases to leave out")
        names = None if peers is None else [name.strip() for name in peers.split(",")]
        paths = {"--record": record, "--plot": plot}
        for option, path in paths.items():
            _check_writable(option, path)
        if not _gpu_present():
            for option, path in paths.items():
                if path is not None:
                    raise bad(option, path, "there is no GPU here, so nothing is measured")
            if kind in SETS:
                _check_names(kind, names)
            return _show_counts(kind, which, part, as_json)
        found = _measure(kind, which, names, seconds, seed, graph, record, as_json)
        _show(found, as_json)
        if plot:
            _draw(found, plot)


def _check_writable(option: str, path: str | None) -> None:
    """A run takes minutes, so what cannot be written is said before it."""
    if path is None:
        return
    folder = Path(path).parent
    if not Path(path).name:
        raise bad(option, path, "must name a file")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise bad(option, path, f"must lie in a directory that can be written, and {folder} is none")
    if option == "--plot" and importlib.util.find_spec("matplotlib") is None:
        raise bad(option, path, "matplotlib is not installed, it comes with pip install 'flashlab[bench]'")


def _draw(record: dict, path: str) -> None:
    from flashlab.bench.plots import draw

    try:
        draw(record, path)
    except ValueError as error:
        raise bad("--plot", path, str(error)) from error


def _gpu_present() -> bool:
    import torch

    return torch.cuda.is_available()


def _check_names(kind, names) -> None:
    from flashlab.bench.peers import choose

    try:
        choose(kind, names)
    except ValueError as error:
        raise bad("--peers", ",".join(names), str(error)) from error


def _measure(kind, which, names, seconds, seed, graph, path, as_json) -> dict:
    from flashlab.bench import run

    if kind in SETS:
        _check_names(kind, names)
    total = len(SETS[kind][which]) + 1 if kind in SETS else 4
    with _progress(kind, total, quiet=as_json) as progress:
        try:
            return run.run(kind, which, names=names, seconds=seconds or float("inf"), seed=seed, graph=graph, path=path,
                           progress=progress)  # fmt: skip
        except RuntimeError as error:
            raise click.UsageError(str(error)) from error


@contextlib.contextmanager
def _progress(kind: str, total: int, quiet: bool):
    """A function that says what comes next, drawn as a bar on stderr."""
    if quiet:
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn(kind), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        started = False

        def progress(text: str) -> None:
            nonlocal started
            bar.update(task, description=text, advance=int(started))
            started = True

        yield progress


def _show(record: dict, as_json: bool) -> None:
    from flashlab.bench import figures, report

    if as_json:
        lines = [{"label": line.case.label, **line._asdict(), "case": vars(line.case)} for line in figures.lines(record)]
        return emit_json({"measured": True, "record": record, "figures": lines})
    title = f"flashlab bench {record['kind']}, {record['set']}"
    if record["curves"]:
        columns = ("curve", "series", "at", "median", "rate")
        return emit_table(title, report.curve_rows(record), columns=columns, notes=report.notes(record))
    emit_table(title, report.rows(record), columns=report.COLUMNS, notes=report.notes(record))


def _show_counts(kind: str, which: str, part, as_json: bool) -> None:
    from flashlab.bench import counting
    from flashlab.sizing.units import show_bytes

    if kind not in SETS:
        return _show_points(kind, part, as_json)
    try:
        counted = [(case, counting.count(case, part)) for case in SETS[kind][which]]
    except ValueError as error:
        raise bad("--gpu", part.name, str(error)) from error
    if as_json:
        counts = [{"label": case.label, "case": vars(case), "launches": launches} for case, launches in counted]
        return emit_json({"measured": False, "note": counting.NO_SPEED, "gpu": part.name, "counts": counts})
    rows = [
        (case.label if first else "", c.launch, f"{c.block_m} x {c.block_n}" if c.block_n else "", c.num_splits,
         f"{c.programs:,}", f"{c.waves:.2f}", f"{c.tiles:,}" if c.tiles else "", show_bytes(c.bytes) if c.bytes else "")
        for case, launches in counted
        for first, c in zip([True] + [False] * len(launches), launches, strict=False)
    ]  # fmt: skip
    columns = ("case", "launch", "tile", "splits", "programs", "waves", "pairs of tiles", "asked of memory")
    emit_table(f"flashlab bench {kind}, {which}, as on {part.name}", rows, columns=columns, notes=[counting.NO_SPEED])


def _show_points(kind: str, part, as_json: bool) -> None:
    from flashlab.bench import counting
    from flashlab.sizing.units import show_bytes

    try:
        points = counting.points(kind, part)
    except ValueError as error:
        raise bad("--gpu", part.name, str(error)) from error
    if as_json:
        return emit_json({"measured": False, "note": counting.NO_SPEED, "gpu": part.name, "points": points})
    rows = [
        (p.curve, p.at, f"{p.programs:,}" if p.programs else "", f"{p.waves:.2f}" if p.waves else "",
         show_bytes(p.bytes) if p.bytes else "")
        for p in points
    ]  # fmt: skip
    columns = ("curve", "at", "programs", "waves", "moved")
    emit_table(f"flashlab bench {kind}, as on {part.name}", rows, columns=columns, notes=[counting.NO_SPEED])


for _kind, _help in KINDS.items():
    _measured(_kind, _help)


@command.command()
@click.argument("before")
@click.argument("after")
@json_option
def compare(before, after, as_json):
    """What got slower from one record to another, beyond noise. Exit code 1 if anything did, or is wrong or fails now."""
    from flashlab.bench import compare, records

    loaded = []
    for name in (before, after):
        try:
            loaded.append(records.load(name))
        except (FileNotFoundError, records.RecordError) as error:
            raise click.UsageError(str(error)) from error
    try:
        changes = compare.compare(*loaded)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if all(change.verdict in ("gone", "new") for change in changes):
        raise click.UsageError(f"{before} and {after}: nothing was timed in both, so there is nothing to compare")
    cautions = compare.cautions(*loaded)
    slower, broken = (any(change.verdict == verdict for change in changes) for verdict in ("slower", "broken"))
    if as_json:
        emit_json({"slower": slower, "broken": broken, "cautions": cautions, "changes": changes})
        return int(slower or broken)
    rows = [
        (c.verdict, c.what, c.peer, c.mode, show_time(c.before_s), show_time(c.after_s), f"{c.ratio - 1:+.1%}")
        for c in changes
        if c.verdict in ("slower", "faster")
    ]
    rows += [(c.verdict, c.what, c.peer, c.mode, "", "", "") for c in changes if c.verdict in ("broken", "gone", "new")]
    same = sum(change.verdict == "same" for change in changes)
    notes = [f"{same} unchanged: within {compare.NOISE:.0%}, or samples that overlap.", *cautions]
    emit_table(f"{before} to {after}", rows, columns=("", "case", "peer", "mode", "before", "after", "time"), notes=notes)
    return int(slower or broken)


@command.command("ahead")
@click.option("--kinds", default="prefill,train,decode", show_default=True, help="Separated by commas.")
@click.option("--set", "which", default="full", show_default=True, help="quick or full.")
@click.option("--processes", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--seconds", type=Real(1), default=120, show_default=True, help="Stop after this.")
@json_option
def ahead(kinds, which, processes, seconds, as_json):
    """Compile what a run will need, in several processes, so that the run itself does not wait for compilers."""
    from flashlab.bench.ahead import compile_ahead

    if not _gpu_present():
        raise click.UsageError("there is no GPU here, so there is nothing to compile for")
    try:
        done = compile_ahead([kind.strip() for kind in kinds.split(",")], which, None, processes, seconds)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        return emit_json({"calls_compiled": done})
    print(f"{done} calls compiled")


@command.command()
@click.option("--kernels", default="forward,dkdv,dq,decode", show_default=True, help="Separated by commas.")
@click.option("--directory", type=click.Path(file_okay=False, exists=True), default=".", help="Where the tables go.")
@click.option("--install", is_flag=True, help="Write them over the package's own.")
@json_option
def tune(kernels, directory, install, as_json):
    """Measure launch configurations on the GPU present and write its launch tables."""
    from flashlab.bench import tune

    names = [name.strip() for name in kernels.split(",")]
    for name in names:
        if name not in tune.KERNELS:
            raise bad("--kernels", name, f"must be one of {', '.join(tune.KERNELS)}")
    if not _gpu_present():
        raise click.UsageError("there is no GPU here, so there is nothing to tune for")
    with _progress("tune", tune.steps(names), quiet=as_json) as progress:
        written = tune.tune(names, tune.SHIPPED if install else directory, progress)
    if as_json:
        return emit_json({"tables": [str(path) for path in written]})
    emit_table("tuned", [(str(path),) for path in written])
