"""The compile gate: every decode kernel builds for GPUs this machine need not have, with tensor cores and room to run.

Triton decides once a process whether it interprets, so the kernels are compiled in a process of their own.
"""

import json
import os
import subprocess
import sys

import pytest

SHARED_MEMORY = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # of a block
PROGRAM = r"""
import json, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from flashlab.kernels import append, combine, configs, decode, decode_plan

def build(function, pointees, numbers, arch, options):
    "Compile as a launch with aligned pointers and strides would."
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(function.params):
        name, value = parameter.name, pointees.get(parameter.name, numbers.get(parameter.name, 16))
        if parameter.is_constexpr or value is None:
            signature[name], constants[(i,)] = "constexpr", value
        elif name in pointees:
            signature[name], attributes[(i,)] = "*" + value, [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
            if not parameter.do_not_specialize:
                attributes[(i,)] = [["tt.divisibility", 16]]
    options = {name: value for name, value in options.items() if arch >= 90 or name != "launch_pdl"}
    compiled = triton.compile(ASTSource(function, signature, constants, attributes), target=GPUTarget("cuda", arch, 32),
                              options=options)
    return dict(shared=compiled.metadata.shared, mma=compiled.asm["ptx"].count("mma."))

def plan(arch, format, dtype, head_dim, heads_q, table, softcap, window, seqlen_q):
    where = decode_plan.Device(configs.table_of(arch // 10, arch % 10), 132, (arch // 10, arch % 10))
    decode_plan.device = lambda index: where
    strides = (1 << 20, 1 << 10, 1 << 7)
    return decode_plan.Plan(
        0, (2, seqlen_q, heads_q, head_dim), (8, 64, 2, head_dim), strides, strides, strides,
        None if format == "native" else strides * 2, dtype, format, table, None, window, 0.1, softcap, True, False, False)

def kernels(arch, case):
    format, dtype, head_dim, heads_q, paged, softcap, window, seqlen_q = case
    element = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    p = plan(arch, format, element, head_dim, heads_q, (4, 16) if paged else None, softcap, window, seqlen_q)
    names = decode.decode_kernel.arg_names
    first = names.index("num_splits") + 1
    for kind in ((False, False), (True, False), (True, True)):
        split, balance = kind
        pointees = dict.fromkeys((n for n in names if n.startswith("p_")))
        cache = dtype if format == "native" else "i16"
        pointees |= dict(p_q=dtype, p_k=cache, p_v=cache, p_o=dtype, p_lse="fp32", p_cache_seqlens="i32")
        if format != "native":
            pointees |= dict(p_k_scale="fp32", p_v_scale="fp32")
        if paged:
            pointees["p_block_table"] = "i32"
        if split:
            pointees["p_parts"] = "fp32"
        numbers = dict(zip(names[first:], p.numbers[kind], strict=True))
        yield f"decode {kind}", build(decode.decode_kernel, pointees, numbers, arch, p.options)
        if split:
            c = p.combine[balance]
            numbers = dict(zip(combine.combine_kernel.arg_names[5:], c.numbers[64], strict=True))
            pointees = dict(p_o_parts="fp32", p_lse_parts=None, p_o=dtype, p_lse=None)
            yield f"combine {kind}", build(combine.combine_kernel, pointees, numbers, arch, dict(num_warps=4) | c.options)
    names = append.append_kernel.arg_names
    pointees = {n: dtype for n in names if n.startswith("p_")}
    pointees |= dict(p_cache_seqlens="i32", p_cache_batch_idx=None, p_block_table="i32" if paged else None)
    numbers = dict(BATCH_IDX=False, PAGE_SIZE=64 if paged else 0, ROTARY_DIM=16, INTERLEAVED=paged, QUERIES_MOVE=not paged,
                   HEAD_DIM=head_dim, BLOCK_H=16, BLOCK_D=triton.next_power_of_2(head_dim))
    yield "append", build(append.append_kernel, pointees, numbers, arch, dict(num_warps=4))

print(json.dumps([{name: report for name, report in kernels(*job)} for job in json.load(sys.stdin)]))
"""
CASES = {
    "bf16": ["native", "bf16", 128, 8, False, 0.0, [-1, -1], 1],
    "bf16 paged, window, softcap, many queries": ["native", "bf16", 64, 14, True, 30.0, [100, 0], 4],
    "fp32": ["native", "fp32", 80, 2, False, 0.0, [-1, -1], 1],
    "fp8": ["fp8", "bf16", 128, 8, True, 0.0, [-1, -1], 1],
    "int4": ["int4", "bf16", 128, 8, False, 0.0, [-1, -1], 1],
}


@pytest.mark.slow
@pytest.mark.parametrize("arch, cases", [(80, ["bf16", "fp8"]), (86, ["bf16"]), (90, list(CASES)), (100, ["bf16", "int4"])])
def test_kernels_build_and_fit(arch, cases):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps([(arch, CASES[case]) for case in cases]), text=True,
        capture_output=True, check=False, env=os.environ | {"TRITON_INTERPRET": "0"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    for case, kernels in zip(cases, json.loads(run.stdout.splitlines()[-1]), strict=True):
        assert len(kernels) == 6
        for name, report in kernels.items():
            assert report["shared"] <= SHARED_MEMORY[arch], (case, name, report)
            if name.startswith("decode") and case != "fp32":
                assert report["mma"] > 0, f"{case}, {name}: no tensor-core instruction"
