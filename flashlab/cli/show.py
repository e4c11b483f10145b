"""flashlab show KERNEL: what the compiler makes of a kernel for a GPU this machine need not have."""

import dataclasses

import click

from flashlab.cli.output import bad, emit_json, emit_table, json_option

SCORES = ("forward", "dkdv", "dq", "decode")  # the kernels that compute scores
KNOWN_BY = {
    "causal": (*SCORES, "append"),
    "window": SCORES,
    "softcap": SCORES,
    "alibi": SCORES,
    "page_size": ("forward", "decode", "append"),
}


@click.command()
@click.argument("kernel")
@click.option("--arch", default="sm_90", show_default=True, help="The GPU's architecture: sm_80, sm_86, sm_90 or sm_100.")
@click.option("--dtype", default="bfloat16", show_default=True, help="Of q, k and v: bfloat16, float16 or float32.")
@click.option("--head-dim", default=128, show_default=True, help="From 1 to 256.")
@click.option("--group", default=1, show_default=True, help="Query heads to a kv head.")
@click.option("--causal", is_flag=True, help="With a causal mask.")
@click.option("--window", is_flag=True, help="With a window, both sides closed.")
@click.option("--softcap", is_flag=True, help="With softcapped scores.")
@click.option("--alibi", is_flag=True, help="With ALiBi slopes.")
@click.option("--varlen", is_flag=True, help="Over packed sequences (not decode).")
@click.option("--page-size", default=0, show_default=True, help="Of a paged cache: a multiple of 16. 0 is contiguous.")
@click.option("--cache", default="native", show_default=True, help="Decode's cache: native, fp8, int8 or int4.")
@click.option("--unsplit", is_flag=True, help="Decode without splitting the keys.")
@json_option
def command(kernel, arch, dtype, head_dim, group, page_size, cache, unsplit, as_json, **features):
    """Compile KERNEL; print its registers, spills, shared memory, tensor-core code and occupancy.

    \b
    forward, preprocess, dkdv, dq    prefill and training
    decode, combine, append          decoding
    """
    try:
        from flashlab.kernels import inspect
    except ImportError as error:
        raise click.ClickException(str(error)) from error
    from flashlab.hardware import occupancy

    for option, value, known in (
        ("KERNEL", kernel, inspect.KERNELS), ("--arch", arch, inspect.ARCHES), ("--dtype", dtype, inspect.DTYPES),
        ("--cache", cache, inspect.CACHES),
    ):  # fmt: skip
        if value not in known:
            raise bad(option, value, f"must be one of {', '.join(known)}")
    if not 1 <= head_dim <= 256:
        raise bad("--head-dim", head_dim, "must be from 1 to 256")
    if group < 1:
        raise bad("--group", group, "must be 1 or more")
    if page_size < 0 or page_size % 16:
        raise bad("--page-size", page_size, "must be 0 or a multiple of 16")
    for option, given in (("--cache", cache != "native"), ("--unsplit", unsplit)):
        if given and kernel != "decode":
            raise bad(option, cache if option == "--cache" else kernel, "is of decode only")
    if features["varlen"] and kernel in ("decode", "combine", "append"):
        raise bad("--varlen", kernel, "is of prefill and training only; a decode launch has its lengths on the device")
    for feature, kernels in KNOWN_BY.items():
        if (features | {"page_size": page_size})[feature] and kernel not in kernels:
            raise bad(f"--{feature.replace('_', '-')}", kernel, f"is of {', '.join(kernels)} only")

    try:
        report = inspect.inspect(
            kernel, arch, dtype=dtype, head_dim=head_dim, group=group, page_size=page_size, cache=cache,
            split=not unsplit, **features,
        )  # fmt: skip
    except RuntimeError as error:
        raise click.UsageError(f"KERNEL {kernel}: {error}") from error
    fit = occupancy(cc=arch, threads=report.threads, registers=report.registers, shared_memory=report.shared_memory_bytes)
    if as_json:
        launch = {name.lower(): value for name, value in report.launch.items()}
        return emit_json(dataclasses.asdict(report) | {"launch": launch, "occupancy": fit._asdict()})
    features |= {f"pages of {page_size}": page_size, f"{cache} cache": cache != "native", "unsplit": unsplit}
    given = ", ".join([f"head_dim {head_dim}", *(name for name, on in features.items() if on)])
    emit_table(f"{kernel} for {arch}, {dtype}, {given}", _rows(report, fit))


def _rows(report, fit):
    launch = report.launch
    sides = {"BLOCK_M": "queries", "BLOCK_N": "partials" if report.kernel == "combine" else "keys", "BLOCK_D": "columns"}
    stages = f", {launch['num_stages']} pipeline stages" if "num_stages" in launch else ""
    yield "tile", " x ".join(f"{launch[side]} {name}" for side, name in sides.items() if side in launch)
    yield "launch", f"{report.threads} threads{stages}"
    yield "registers", f"{report.registers} a thread"
    yield "spills", f"{report.spill_bytes} bytes a thread"
    yield "shared memory", f"{report.shared_memory_bytes:,} bytes a block"
    yield "tensor-core code", ", ".join(f"{count} {name}" for name, count in report.tensor_core.items() if count) or "none"
    yield "occupancy", f"{fit.blocks_per_sm} blocks and {fit.warps_per_sm} warps an SM, {fit.percent:.4g}%"
    yield "limited by", fit.limiter
