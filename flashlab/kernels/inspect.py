"""What the compiler makes of a kernel, for any GPU and without one: registers, spills, shared memory, tensor-core code.

Triton decides once a process whether it interprets or compiles, so ``inspect`` compiles in a process of its own, which
runs this module as a program. The kernel's signature follows from the names of its parameters: ``p_`` is a pointer, to
the dtype asked for unless POINTEES says otherwise, softmax_scale and softcap are floats, and the rest are integers.
"""

import dataclasses
import functools
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile

ARCHES = {"sm_80": (8, 0), "sm_86": (8, 6), "sm_90": (9, 0), "sm_100": (10, 0)}
DTYPES = {"float16": ("fp16", 2), "bfloat16": ("bf16", 2), "float32": ("fp32", 4)}
KERNELS = {
    "forward": ("flashlab.kernels.forward", "forward_kernel"),
    "preprocess": ("flashlab.kernels.backward", "preprocess_kernel"),
    "dkdv": ("flashlab.kernels.backward", "dkdv_kernel"),
    "dq": ("flashlab.kernels.backward", "dq_kernel"),
}
POINTEES = {
    "p_lse": "fp32", "p_dlse": "fp32", "p_lse_log2": "fp32", "p_delta": "fp32", "p_alibi_slopes": "fp32",
    "p_cu_seqlens_q": "i32", "p_cu_seqlens_k": "i32", "p_block_table": "i32",
}  # fmt: skip
FLOATS = {"softmax_scale", "softcap"}
TENSOR_CORE = {"mma": r"\bmma\.sync", "wgmma": r"\bwgmma\.mma_async", "tcgen05": r"\btcgen05\.mma"}
LONG = 4096  # the sequence length whose row of the launch table is compiled


@dataclasses.dataclass(frozen=True)
class Request:
    """Which variant of which kernel, for which GPU. A window is (left, right) as in flash_attn_func."""

    kernel: str
    arch: str
    dtype: str = "bfloat16"
    head_dim: int = 128
    causal: bool = False
    window: bool = False
    softcap: bool = False
    alibi: bool = False
    varlen: bool = False
    page_size: int = 0
    group: int = 1
    seqlen: int = LONG


@dataclasses.dataclass(frozen=True)
class Report:
    """What the compiler made of it. Counts are instructions in the PTX; spills are bytes of local memory a thread."""

    kernel: str
    arch: str
    launch: dict
    threads: int
    registers: int
    spill_bytes: int
    shared_memory_bytes: int
    tensor_core: dict


def inspect(kernel: str, arch: str, **variant) -> Report:
    """Compile a kernel for a GPU this machine need not have.

    Args:
        kernel: one of KERNELS.
        arch: one of ARCHES.
        variant: the other fields of Request.

    Raises:
        ValueError: an unknown kernel, arch or dtype.
        RuntimeError: the compiler refused; its last words are in the message.
    """
    return inspect_all([Request(kernel, arch, **variant)])[0]


def inspect_all(requests: list[Request]) -> list[Report]:
    """``inspect`` for many variants in one process, which saves its start."""
    for request in requests:
        for name, known in (("kernel", KERNELS), ("arch", ARCHES), ("dtype", DTYPES)):
            if getattr(request, name) not in known:
                raise ValueError(f"{name} {getattr(request, name)!r}: must be one of {', '.join(known)}")
        if not 1 <= request.head_dim <= 256:
            raise ValueError(f"head_dim {request.head_dim}: must be from 1 to 256")
    run = subprocess.run(
        [sys.executable, "-m", "flashlab.kernels.inspect"],
        input=json.dumps([dataclasses.asdict(request) for request in requests]),
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(f"compiling {requests} failed: {' '.join(run.stderr.strip().splitlines()[-3:])}")
    return [Report(**report) for report in json.loads(run.stdout.splitlines()[-1])]


def _compile(request: Request) -> Report:
    """In the compiling process: build one variant and read what came out."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from flashlab.kernels import configs

    major, minor = ARCHES[request.arch]
    element, itemsize = DTYPES[request.dtype]
    banded = request.causal or request.window
    launch = configs.lookup(
        configs.table_of(major, minor), request.kernel, itemsize, request.head_dim, request.seqlen, banded
    )
    module, name = KERNELS[request.kernel]
    function = getattr(importlib.import_module(module), name)
    values = dict(
        GROUP=request.group, VARLEN=request.varlen, PAGE_SIZE=request.page_size, SOFTCAP=request.softcap,
        ALIBI=request.alibi, HAS_LEFT=request.window, HAS_RIGHT=banded, WIDE=False, HEAD_DIM=request.head_dim,
        **dict(zip(("BLOCK_D", "BLOCK_M", "BLOCK_N", "HEAD_GROUP"), launch.blocks(heads=16), strict=True)),
        DLSE=False, p_dlse=None,
    )  # fmt: skip
    absent = dict(p_cu_seqlens_q=request.varlen, p_cu_seqlens_k=request.varlen, p_alibi_slopes=request.alibi,
                  p_block_table=request.page_size)  # fmt: skip
    values |= {pointer: None for pointer, given in absent.items() if not given}
    source = ASTSource(function, *_signature(function, values, element))
    compiled = triton.compile(source, target=GPUTarget("cuda", major * 10 + minor, 32), options=launch.options)
    registers, stack = _resources(compiled.asm["cubin"])
    return Report(
        kernel=request.kernel,
        arch=request.arch,
        launch=dataclasses.asdict(launch),
        threads=32 * compiled.metadata.num_warps,
        registers=registers,
        spill_bytes=stack,
        shared_memory_bytes=compiled.metadata.shared,
        tensor_core={key: len(re.findall(pattern, compiled.asm["ptx"])) for key, pattern in TENSOR_CORE.items()},
    )


def _signature(function, values: dict, element: str) -> tuple[dict, dict, dict]:
    """Triton's (signature, constexprs, attributes) with everything aligned to 16 that a launch would specialise on."""
    signature, constexprs, attributes = {}, {}, {}
    for i, parameter in enumerate(function.params):
        name = parameter.name
        if parameter.is_constexpr or (name in values and values[name] is None):
            signature[name] = "constexpr"
            constexprs[(i,)] = values[name]
            continue
        if name.startswith("p_"):
            signature[name] = "*" + POINTEES.get(name, element)
        else:
            signature[name] = "fp32" if name in FLOATS else "i32"
        if name not in FLOATS and not parameter.do_not_specialize:
            attributes[(i,)] = [["tt.divisibility", 16]]
    return signature, constexprs, attributes


def _resources(cubin: bytes) -> tuple[int, int]:
    """(registers, stack bytes) a thread, as cuobjdump reads them from a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        dump = subprocess.run(
            [_cuobjdump(), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return int(re.search(r"REG:(\d+)", dump)[1]), int(re.search(r"STACK:(\d+)", dump)[1])


@functools.cache
def _cuobjdump() -> str:
    """The cuobjdump inside the triton package."""
    from triton import knobs

    return knobs.nvidia.cuobjdump.path


if __name__ == "__main__":
    print(json.dumps([dataclasses.asdict(_compile(Request(**request))) for request in json.load(sys.stdin)]))
