"""A record as people read it: one table a kind, the ratios beside the figures, and what is absent or wrong spelt out."""

from flashlab.bench import figures

UNIT = {"flop_per_s": (1e12, "TFLOP/s"), "bytes_per_s": (1e9, "GB/s")}
COLUMNS = ("case", "peer", "mode", "median", "p20 to p80", "host", "rate", "of the best rival", "of the ceiling")


def speed(line: figures.Line) -> str:
    """``579 TFLOP/s``; empty for what was not timed."""
    if line.rate is None:
        return ""
    factor, unit = UNIT[line.quantity]
    return f"{line.rate / factor:,.0f} {unit}"


def microseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:,.1f} µs"


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def rows(record: dict) -> list[tuple[str, ...]]:
    """Cells by COLUMNS. Where there is no time, the reason stands in its place."""
    out, last = [], None
    for line in figures.lines(record):
        label = line.case.label
        shown = "" if label == last else label
        last = label
        if line.status != "ok":
            out.append((shown, line.title, line.mode, f"{line.status}: {line.reason}", "", "", "", "", ""))
            continue
        spread = f"{line.p20_s * 1e6:,.1f} to {line.p80_s * 1e6:,.1f}"
        out.append(
            (shown, line.title, line.mode, microseconds(line.median_s), spread, microseconds(line.host_s), speed(line),
             ratio(line.to_best_rival), ratio(line.to_ceiling))
        )  # fmt: skip
    return out


def curve_rows(record: dict) -> list[tuple[str, ...]]:
    """(curve, series, x, median, rate) for every point."""
    out = []
    for curve in record["curves"]:
        for series in curve["series"]:
            for point in series["points"]:
                median_s = point["time"]["median_s"]
                rate = "" if point["bytes"] is None else f"{point['bytes'] / median_s / 1e9:,.1f} GB/s"
                out.append((curve["name"], series["label"], f"{point['x']:,} {curve['x']}", microseconds(median_s), rate))
    return out


def notes(record: dict) -> list[str]:
    """The machine, the ceilings, and who was not there."""
    machine, found = record["machine"], record["ceilings"]
    out = [
        f"{machine['gpu']}, driver {machine['driver']}, torch {machine['torch']}, triton {machine['triton']}, {record['date']}, "
        f"seed {record['seed']}.",
        f"Ceilings in this run: copy {found['copy_bytes_per_s'] / 1e9:,.0f} GB/s read and written, read "
        f"{found['read_bytes_per_s'] / 1e9:,.0f} GB/s, matmul {found['matmul_flop_per_s'] / 1e12:,.0f} TFLOP/s.",
    ]
    out += [f"{peer['title']}: absent, {peer['absent']}." for peer in record["peers"] if peer["absent"]]
    if not record["complete"]:
        out.append("INCOMPLETE: some of it was not run or failed.")
    return out
