"""exp and exp2 as a GPU computes them: two kernels of one line, compiled for a GPU this machine need not have.

Triton decides once a process whether it interprets or compiles, so ``counts`` compiles in a process of its own, which
runs this module as a program.
"""

import json
import os
import re
import subprocess
import sys

PATTERNS = {"multiply-add": r"\bfma\.\S*f32", "multiply": r"\bmul\.\S*f32", "ex2": r"\bex2\.approx\.\S*f32"}


def counts() -> dict[str, dict[str, int]]:
    """Instructions of a thread in each kernel's PTX for sm_90; a thread computes one number. Needs no GPU.

    Raises RuntimeError with the compiler's last words where it refuses.
    """
    run = subprocess.run(
        [sys.executable, "-m", __name__],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(f"compiling failed: {' '.join(run.stderr.strip().splitlines()[-3:])}")
    return json.loads(run.stdout.splitlines()[-1])


def _compiled() -> dict[str, dict[str, int]]:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    @triton.jit
    def exp(p_s, p_m, scale):
        lanes = tl.arange(0, 32)
        tl.store(p_s + lanes, tl.exp(tl.load(p_s + lanes) * scale - tl.load(p_m + lanes)))

    @triton.jit
    def exp2(p_s, p_m, scale):
        lanes = tl.arange(0, 32)
        tl.store(p_s + lanes, tl.exp2(tl.load(p_s + lanes) * scale - tl.load(p_m + lanes)))

    found = {}
    for kernel in (exp, exp2):
        source = ASTSource(kernel, {"p_s": "*fp32", "p_m": "*fp32", "scale": "fp32"}, {}, {})
        ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1}).asm["ptx"]
        found[kernel.__name__] = {name: len(re.findall(pattern, ptx)) for name, pattern in PATTERNS.items()}
    return found


if __name__ == "__main__":
    print(json.dumps(_compiled()))
