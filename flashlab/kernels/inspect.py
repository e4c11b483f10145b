"""What the compiler makes of a kernel, for any GPU and without one: registers, spills, shared memory, tensor-core code.

Triton decides once a process whether it interprets or compiles, so ``inspect`` compiles in a process of its own, which
runs this module as a program. The kernel's signature follows from the names of its parameters: ``p_`` is a pointer, to
the dtype asked for unless POINTEES says otherwise, softmax_scale and softcap are floats, and the rest are integers.
"""

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
import tempfile

from flashlab.kernels.variants import KERNELS, Request, variant

ARCHES = {"sm_80": (8, 0), "sm_86": (8, 6), "sm_90": (9, 0), "sm_100": (10, 0)}
DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
CACHES = ("native", "fp8", "int8", "int4")
POINTEES = dict.fromkeys(
    ("p_lse", "p_dlse", "p_lse_log2", "p_delta", "p_alibi_slopes", "p_k_scale", "p_v_scale", "p_parts", "p_o_parts"), "fp32"
) | dict.fromkeys(
    ("p_cu_seqlens_q", "p_cu_seqlens_k", "p_block_table", "p_cache_seqlens", "p_cache_batch_idx", "p_cache_leftpad"), "i32"
)  # fmt: skip
FLOATS = {"softmax_scale", "softcap"}
TENSOR_CORE = {"mma": r"\bmma\.sync", "wgmma": r"\bwgmma\.mma_async", "tcgen05": r"\btcgen05\.mma"}

__all__ = ["ARCHES", "CACHES", "DTYPES", "KERNELS", "Report", "Request", "inspect", "inspect_all"]


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
        for name, known in (("kernel", KERNELS), ("arch", ARCHES), ("dtype", DTYPES), ("cache", CACHES)):
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

    major, minor = ARCHES[request.arch]
    built = variant(request, (major, minor))
    signature = _signature(built.function, built.values, DTYPES[request.dtype], POINTEES | built.pointees)
    compiled = triton.compile(
        ASTSource(built.function, *signature), target=GPUTarget("cuda", major * 10 + minor, 32), options=built.options
    )
    registers, stack = _resources(compiled.asm["cubin"])
    return Report(
        kernel=request.kernel,
        arch=request.arch,
        launch=built.launch,
        threads=32 * compiled.metadata.num_warps,
        registers=registers,
        spill_bytes=stack,
        shared_memory_bytes=compiled.metadata.shared,
        tensor_core={key: len(re.findall(pattern, compiled.asm["ptx"])) for key, pattern in TENSOR_CORE.items()},
    )


def _signature(function, values: dict, element: str, pointees: dict) -> tuple[dict, dict, dict]:
    """Triton's (signature, constexprs, attributes) with everything aligned to 16 that a launch would specialise on."""
    signature, constexprs, attributes = {}, {}, {}
    for i, parameter in enumerate(function.params):
        name = parameter.name
        if parameter.is_constexpr or (name in values and values[name] is None):
            signature[name] = "constexpr"
            constexprs[(i,)] = values[name]
            continue
        if name.startswith("p_"):
            signature[name] = "*" + pointees.get(name, element)
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
