"""Write docs/performance.md, its plots and the README's block from the shipped records. A test holds them in step.

    python scripts/performance.py
"""

import re
import sys
from pathlib import Path

from flashlab.bench import cases, figures, records, report
from flashlab.bench.figures import Line

ROOT = Path(__file__).parents[1]
PAGE, README = ROOT / "docs" / "performance.md", ROOT / "README.md"
BEGIN = "<!-- Written by scripts/performance.py from the records; do not edit. -->"
END = "<!-- End of what scripts/performance.py writes. -->"
RIVALS = ("torch-cudnn", "torch-flash", "torch-flex", "torch-efficient", "torch-math", "flash-attn", "flash-attn-4", "flashinfer",
          "xformers")  # fmt: skip
INTRO = """# Performance

Everything here is measured, by `flashlab bench`, and written from the records in `flashlab/bench/records/` by
`scripts/performance.py`. Repeat it on your GPU with

    flashlab bench prefill --set full --record mine.json --plot mine.png
    flashlab bench compare prefill mine.json

Each shape's contenders are timed in turns in one run: first every result is held against a float64 oracle, and one that is
wrong is not timed; then the GPU is heated, the L2 read empty before each call, the host kept ahead of the device, and the
median taken over five rounds. A figure is the device's time for one call. Ratios are within a run: above 1.00 is faster.

Between calls the GPU pauses and reads its L2 empty, so these are speeds near its boost clock. Under products of matrices
without a pause it falls to the clock given below each table, and everything that multiplies gets slower. A record tells of the
commit it names: kernels and launch tables that came later are not in it.
"""


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def about(record: dict) -> str:
    machine, load, found = record["machine"], record["machine"]["under_load"], record["ceilings"]
    commit = f"commit {record['package']['commit']}" + (", changed" if record["package"]["changed"] else "")
    text = (
        f"{machine['gpu']}, driver {machine['driver']}, torch {machine['torch']}, triton {machine['triton']}, cuDNN "
        f"{machine['cudnn']}, {record['date'][:10]}, {commit}."
    )
    if load["sm_mhz"]:
        text += f" Under matmuls without a pause {load['sm_mhz']:,.0f} MHz, {load['power_w']:,.0f} W."
    return text + (
        f" In the same run: copy {found['copy_bytes_per_s'] / 1e9:,.0f} GB/s (read and written), read "
        f"{found['read_bytes_per_s'] / 1e9:,.0f} GB/s, 8192³ matmul {found['matmul_flop_per_s'] / 1e12:,.0f} TFLOP/s."
    )


def by_case(record: dict, mode: str = "eager") -> dict[str, dict[str, Line]]:
    found: dict[str, dict[str, Line]] = {}
    for line in figures.lines(record):
        if line.mode == mode:
            found.setdefault(line.case.label, {})[line.peer] = line
    return found


def cell(line: Line | None, show) -> str:
    if line is None:
        return ""
    return show(line) if line.status == "ok" else {"wrong": "wrong", "failed": "failed", "not run": "not run"}.get(line.status, "–")


def rivals_of(record: dict, mode: str) -> list[str]:
    timed = {line.peer for line in figures.lines(record) if line.status == "ok" and line.mode == mode}
    return [name for name in RIVALS if name in timed]


def speeds(record: dict, show, mode: str = "eager", plain: bool = True) -> str:
    """Ours, each rival that was timed at all, and our ratios."""
    names = rivals_of(record, mode)
    titles = {peer["name"]: peer["title"] for peer in record["peers"]}
    rows = []
    for label, lines in by_case(record, mode).items():
        mine = lines.get("flashlab")
        if mine is None or (mine.case.cache == "bf16") != plain:
            continue
        cells = [label, cell(mine, show), *(cell(lines.get(name), show) for name in names)]
        rows.append([*cells, report.ratio(mine.to_best_rival), report.ratio(mine.to_ceiling)])
    return table(["case", "flashlab", *(titles[name] for name in names), "of the best rival", "of the ceiling"], rows)


def tflops(line: Line) -> str:
    return f"{line.rate / 1e12:,.0f}"


def decoded(line: Line) -> str:
    return f"{line.median_s * 1e6:,.1f} ({line.rate / 1e9:,.0f})"


def micros(line: Line) -> str:
    return f"{line.median_s * 1e6:,.1f}"


def beaten(record: dict) -> str:
    """Every shape and mode in which a rival is faster."""
    found = figures.beaten(record)
    if not found:
        return "No rival that ran here is faster in any of these shapes."
    rows = [
        [mine.case.label, mine.mode, theirs.title, f"{theirs.median_s / mine.median_s:.3f}"] for mine, theirs in found
    ]
    return "A rival is faster here:\n\n" + table(["case", "called", "by", "flashlab's share of its speed"], rows)


def absent(record: dict) -> str:
    gone = [f"{peer['title']} ({peer['absent']})" for peer in record["peers"] if peer["absent"]]
    bad = [
        f"{line.title}, {line.case.label}, {line.mode}: {line.status}, {line.reason}"
        for line in figures.lines(record)
        if line.status in ("wrong", "failed", "not run") or (line.status == "refused" and "mean nothing" in (line.reason or ""))
    ]
    text = f"Not there: {', '.join(gone)}." if gone else ""
    return text + ("\n\n" + "\n".join(f"- {row}" for row in bad) if bad else "")


def prefill(record: dict) -> str:
    return (
        "## Prefill, forward\n\nTFLOP/s; a causal mask halves the work counted.\n\n"
        f"{speeds(record, tflops)}\n\n![Prefill](performance_prefill.png)\n\n{beaten(record)}\n\n{absent(record)}\n\n{about(record)}\n"
    )


def train(record: dict) -> str:
    return (
        "## Forward and backward\n\nTFLOP/s, 3.5 times the forward's work.\n\n"
        f"{speeds(record, tflops)}\n\n![Forward and backward](performance_train.png)\n\n{beaten(record)}\n\n{absent(record)}\n\n"
        f"{about(record)}\n"
    )


def decode(record: dict) -> str:
    quantised = [
        [g.case.label, f"{g.median_s * 1e6:,.1f}", f"{g.other_s * 1e6:,.1f}", f"{g.times:.2f}"] for g in figures.quantised(record)
    ]
    unsplit = [
        [g.case.label, f"{g.median_s * 1e6:,.1f}", f"{g.other_s * 1e6:,.1f}", f"{g.times:.1f}"] for g in figures.unsplit(record)
    ]
    floor = [
        [label, f"{line.to_floor:.2f}"]
        for label, lines in by_case(record).items()
        if (line := lines.get("flashlab")) and line.to_floor
    ]
    host = sorted(line.host_s * 1e6 for line in figures.ours(record) if line.case.cache == "bf16")
    parts = [
        "## Decode\n\nOne query token a sequence; microseconds, and GB/s of K and V in brackets.",
        speeds(record, decoded),
        "![Decode](performance_decode.png)",
        beaten(record),
        f"Issuing a call costs the host {host[0]:.0f} to {host[-1]:.0f} µs here, the longer ones where a second kernel combines "
        "splits." if host else "",
        "As CUDA graphs, microseconds:\n\n" + speeds(record, micros, "graph") if rivals_of(record, "graph") else "",
        "Against a kernel that loads K and V and computes nothing, in turns with it:\n\n"
        + table(["case", "share of its speed"], floor) if floor else "",
        "What splitting the keys is worth, microseconds:\n\n"
        + table(["case", "split", "one split", "times as fast"], unsplit) if unsplit else "",
        "What a quantised cache is worth, microseconds:\n\n"
        + table(["case", "quantised", "bf16", "times as fast"], quantised) if quantised else "",
        absent(record),
        about(record),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def launch(record: dict) -> str:
    curves = {curve["name"]: curve for curve in record["curves"]}
    parts = ["## What a launch does\n\n![Staircase, underfill and splits](performance_launch.png)"]
    if "staircase" in curves:
        rows = [
            [series["label"], f"{point['x']:,}", f"{point['time']['median_s'] * 1e3:.3f}"]
            for series in curves["staircase"]["series"]
            for point in series["points"]
        ]
        parts.append("The same work in every block, milliseconds:\n\n" + table(["", "blocks", "ms"], rows))
    if "underfill" in curves:
        rows = [
            [f"{p['x']:,}", f"{p['bytes'] / p['time']['median_s'] / 1e9:,.1f}"] for p in curves["underfill"]["series"][0]["points"]
        ]
        parts.append("Reading by few blocks of 256 threads:\n\n" + table(["blocks", "GB/s"], rows))
    if "splits" in curves:
        (series,) = curves["splits"]["series"]
        rows = [[str(p["x"]), f"{p['time']['median_s'] * 1e6:,.1f}"] for p in series["points"]]
        parts.append(f"One decode step, {series['label']}, by `num_splits`:\n\n" + table(["splits", "µs"], rows))
    return "\n\n".join([*parts, about(record)]) + "\n"


def link(record: dict) -> str:
    (curve,) = record["curves"]
    sizes = [point["x"] for point in curve["series"][0]["points"]]
    rows = [
        [f"{size:,}", *(f"{s['points'][i]['bytes'] / s['points'][i]['time']['median_s'] / 1e9:,.1f}" for s in curve["series"])]
        for i, size in enumerate(sizes)
    ]
    text = "## Between host and GPU\n\nGB/s by bytes of a transfer.\n\n"
    text += table(["bytes", *(series["label"] for series in curve["series"])], rows)
    return f"{text}\n\n![Transfers](performance_link.png)\n\n{about(record)}\n"


NOT_SUMMED = ("torch-efficient", "torch-math")
SUMMED = {"prefill": "prefill", "train": "forward and backward", "decode": "decode"}
SECTIONS = {"prefill": prefill, "train": train, "decode": decode, "launch": launch, "link": link}


def loaded() -> dict[str, dict]:
    """The shipped records by kind."""
    return {kind: records.load(kind) for kind in cases.KINDS if f"{records.SHIPPED_GPU}_{kind}" in records.shipped()}


def page(found: dict[str, dict]) -> str:
    return "\n".join([INTRO, *(SECTIONS[kind](record) for kind, record in found.items())])


def between(values: list[float]) -> str:
    low, high = (f"{value:.2f}" if value < 10 else f"{value:.0f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def block(found: dict[str, dict]) -> str:
    """The README's summary: our speed over each rival's, lowest to highest over the shapes."""
    rows, ran = [], [name for name in RIVALS if name not in NOT_SUMMED and any(name in rivals_of(record, "eager") for record in found.values())]
    titles = {}
    for kind in SUMMED:
        if kind not in found:
            continue
        record = found[kind]
        titles |= {peer["name"]: peer["title"] for peer in record["peers"]}
        cells = []
        for name in ran:
            ratios = [
                lines[name].median_s / lines["flashlab"].median_s
                for lines in by_case(record).values()
                if all(p in lines and lines[p].status == "ok" for p in ("flashlab", name))
            ]
            cells.append(between(ratios) if ratios else "–")
        shapes = len([line for line in figures.ours(record) if line.case.cache == "bf16"])
        ceiling = between([line.to_ceiling for line in figures.ours(record) if line.case.cache == "bf16"])
        rows.append([f"{SUMMED[kind]}, {shapes} shapes", *cells, ceiling])
    text = "How many times as fast as each rival in the same run, from the worst shape to the best, on one NVIDIA H200:\n\n"
    text += table(["", *(titles[name] for name in ran), "of the ceiling"], rows)
    text += "\n\nThe ceiling is a large matrix product, or reading alone."
    if "decode" in found:
        split = [gain.times for gain in figures.unsplit(found["decode"])]
        text += f" Splitting the keys makes decoding at batch 1 {min(split):.1f} to {max(split):.1f} times as fast." if split else ""
        gains: dict[str, list[float]] = {}
        for gain in figures.quantised(found["decode"]):
            gains.setdefault(gain.case.cache, []).append(gain.times)
        if gains:
            told = ", ".join(f"{cache} {between(times)}" for cache, times in gains.items())
            text += f"\nTimes as fast as a bf16 cache of the same context: {told}."
    return text + "\n\n[Everything measured](docs/performance.md), and each shape where a rival is faster."


def readme(text: str, found: dict[str, dict]) -> str:
    """The README with its block renewed. Raises ValueError where it has none."""
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.S)
    if not pattern.search(text):
        raise ValueError(f"README.md has no block between {BEGIN!r} and {END!r}")
    return pattern.sub(lambda _: f"{BEGIN}\n\n{block(found)}\n\n{END}", text)


def picture(kind: str) -> Path:
    return PAGE.parent / f"performance_{kind}.png"


def main() -> None:
    from flashlab.bench.plots import draw

    found = loaded()
    if not found:
        sys.exit("no records in flashlab/bench/records: run flashlab bench on a GPU first")
    PAGE.write_text(page(found))
    README.write_text(readme(README.read_text(), found))
    for kind, record in found.items():
        draw(record, picture(kind))
    print(f"wrote {PAGE.name}, README.md and {len(found)} plots")


if __name__ == "__main__":
    main()
