"""Every kernel under NVIDIA's compute-sanitizer, over a small matrix of calls: memcheck and racecheck. Needs a GPU.

    python scripts/sanitize.py                          all cases with both tools
    python scripts/sanitize.py decode paged --tool racecheck

Each case runs in a process of its own, so a hazard names its case; memory is not pooled, so that a read past the end of a
tensor is one past the end of an allocation. Exit status 1 where a tool complains. Without the tool, on a CPU too,
`--plain` only makes the calls.
"""

import json
import os
import shutil
import subprocess
import sys

import click

TOOLS = ("memcheck", "racecheck")
COMPLAINT = 86  # exit status that compute-sanitizer gives then
SUMMARY = ("ERROR SUMMARY", "RACECHECK SUMMARY")


def _tensors(dtype=None):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = dtype or (torch.bfloat16 if device == "cuda" else torch.float32)
    generator = torch.Generator(device).manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, device=device, dtype=torch.float32, generator=generator).to(dtype)

    def integers(values):
        return torch.tensor(values, device=device, dtype=torch.int32)

    return normal, integers


def _prefill(seqlen_q, seqlen_k, heads_q, heads_kv, head_dim, dtype=None, **options):
    from flashlab import flash_attn_func

    normal, _ = _tensors(dtype)
    q, k, v = normal(2, seqlen_q, heads_q, head_dim), normal(2, seqlen_k, heads_kv, head_dim), normal(2, seqlen_k, heads_kv, head_dim)
    for x in (q, k, v):
        x.requires_grad_()
    out = flash_attn_func(q, k, v, **options)
    out.backward(normal(*out.shape))


def full():
    """An odd head_dim and lengths that no tile divides."""
    _prefill(113, 203, 6, 2, 59)


def causal():
    """GQA of 3, bottom-right."""
    _prefill(113, 203, 9, 3, 64, causal=True)


def window():
    """Both edges, softcap and ALiBi."""
    normal, _ = _tensors()
    _prefill(130, 130, 4, 4, 128, window_size=(40, 10), softcap=15.0, alibi_slopes=normal(4).float().abs())


def wide():
    """head_dim 256, and float32."""
    import torch

    _prefill(70, 70, 2, 1, 256, causal=True)
    _prefill(40, 70, 2, 1, 40, dtype=torch.float32)


def varlen():
    """Packed sequences, some of length 0, with gradients."""
    from flashlab import flash_attn_varlen_func

    normal, integers = _tensors()
    q, k, v = normal(101, 6, 64), normal(211, 2, 64), normal(211, 2, 64)
    for x in (q, k, v):
        x.requires_grad_()
    out = flash_attn_varlen_func(
        q, k, v, integers([0, 0, 60, 60, 101]), integers([0, 5, 70, 90, 211]), 60, 121, causal=True
    )
    out.backward(normal(*out.shape))


def _decode(seqlen_q=1, format="native", lengths=(700, 1, 0, 333), page_size=0, num_splits=0, new=0, **options):
    import torch

    from flashlab import flash_attn_with_kvcache
    from flashlab.kvcache import PagedKVCache, quantize

    normal, integers = _tensors()
    rows, heads_kv, head_dim = len(lengths), 2, 64
    q = normal(rows, seqlen_q, 8, head_dim)
    if page_size:
        pool = PagedKVCache(
            1, heads_kv, head_dim, num_pages=128, page_size=page_size, format=format, dtype=q.dtype, device=q.device
        )
        sequences = [pool.allocate() for _ in lengths]
        for sequence, length in zip(sequences, lengths, strict=True):
            if length:
                kv = normal(1, 1, length, heads_kv, head_dim)
                pool.append([sequence], kv, kv)
        flash_attn_with_kvcache(q, **pool.arguments(0, sequences), num_splits=num_splits, **options)
        return
    k_cache, v_cache = normal(rows, 768, heads_kv, head_dim), normal(rows, 768, heads_kv, head_dim)
    if format != "native":
        (k_cache, k_scale), (v_cache, v_scale) = quantize.quantize(k_cache, format), quantize.quantize(v_cache, format)
        options |= dict(k_scale=k_scale, v_scale=v_scale)
    if new:
        angles = torch.arange(1024, device=q.device)[:, None] * 0.01 * torch.ones(1, 16, device=q.device)
        options |= dict(
            k=normal(rows, new, heads_kv, head_dim), v=normal(rows, new, heads_kv, head_dim),
            rotary_cos=angles.cos().to(q.dtype), rotary_sin=angles.sin().to(q.dtype),
        )  # fmt: skip
    flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=integers(lengths), num_splits=num_splits, **options)


def decode():
    """One launch, five splits, and lengths shared out on the device."""
    _decode(num_splits=1)
    _decode(num_splits=5)
    _decode()


def queries():
    """Several query tokens, causal, windowed, softcapped."""
    _decode(seqlen_q=4, causal=True, num_splits=3)
    _decode(seqlen_q=16, window_size=(100, 0), softcap=20.0)


def paged():
    """Pages of 16 and 64."""
    _decode(page_size=16)
    _decode(page_size=64, num_splits=4)


def quantised():
    """fp8, int8 and int4 caches."""
    for format in ("fp8", "int8", "int4"):
        _decode(format=format, num_splits=3)
        _decode(format=format, page_size=32)


def append():
    """New keys written with rotary, both ways round."""
    _decode(new=3, seqlen_q=3, causal=True)
    _decode(new=1, rotary_interleaved=False, num_splits=2)


def merge():
    """Two partials, and five."""
    from flashlab import merge_attn_states

    normal, _ = _tensors()
    out, lse = normal(5, 2, 3, 4, 64), normal(5, 2, 4, 3).float()
    merge_attn_states(out[0], lse[0], out[1], lse[1])
    merge_attn_states(out, lse)


CASES = {case.__name__: case for case in (full, causal, window, wide, varlen, decode, queries, paged, quantised, append, merge)}


def run(case: str, tool: str | None) -> tuple[int, str]:
    """(exit status, last words) of one case under one tool, None being without."""
    command = [sys.executable, __file__, case, "--here"]
    if tool:
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(COMPLAINT), "--print-limit", "20", *command]
    env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    lines = [line.lstrip("= ") for line in (done.stdout + done.stderr).splitlines()]
    said = [line for line in lines if line.startswith(SUMMARY)] or lines[-1:]
    if done.returncode:
        said += [line for line in lines if "hazard" in line.lower() or "Invalid" in line or "Error" in line][:12]
    return done.returncode, "; ".join(dict.fromkeys(said))


@click.command()
@click.argument("cases", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--tool", "tools", multiple=True, type=click.Choice(TOOLS), default=TOOLS, help="Both where none is named.")
@click.option("--plain", is_flag=True, help="Make the calls without a tool.")
@click.option("--here", is_flag=True, help="In this process, without a tool.")
@click.option("--json", "path", type=click.Path(writable=True), help="Write what was found to this file.")
def main(cases, tools, plain, here, path):
    """Every kernel under compute-sanitizer, over a small matrix of calls; all CASES where none is named."""
    cases = cases or tuple(CASES)
    if here:
        for case in cases:
            CASES[case]()
        return
    tools = (None,) if plain else tools
    if not plain and shutil.which("compute-sanitizer") is None:
        raise click.UsageError("compute-sanitizer is not on the PATH: it comes with the CUDA toolkit (or use --plain)")
    found = []
    for tool in tools:
        for case in cases:
            status, said = run(case, tool)
            found.append(dict(tool=tool, case=case, status=status, said=said))
            click.echo(f"{tool or 'plain':10} {case:10} {f'FAILED ({status})' if status else 'ok'}  {said}")
    if path:
        with open(path, "w") as file:
            json.dump(found, file, indent=1)
    sys.exit(any(row["status"] for row in found))


if __name__ == "__main__":
    main()
