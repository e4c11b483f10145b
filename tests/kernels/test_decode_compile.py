"""The compile gate: every decode kernel builds for GPUs this machine need not have, with tensor cores and room to run."""

import pytest

from flashlab.kernels import inspect
from flashlab.kernels.inspect import Request

SHARED_MEMORY = {"sm_80": 163 * 1024, "sm_86": 99 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024}  # of a block
CASES = {
    "bf16": dict(group=4),
    "bf16 paged, window, softcap, many queries": dict(
        head_dim=64, group=7, page_size=64, softcap=True, window=True, alibi=True, seqlen_q=4
    ),
    "fp32": dict(dtype="float32", head_dim=80),
    "fp8": dict(cache="fp8", group=4, page_size=64),
    "int8": dict(cache="int8", group=4),
    "int4": dict(cache="int4", group=4),
}
KINDS = {
    "decode unsplit": dict(kernel="decode", split=False),
    "decode split": dict(kernel="decode"),
    "decode balanced": dict(kernel="decode", balance=True),
    "combine split": dict(kernel="combine"),
    "combine balanced": dict(kernel="combine", balance=True),
    "append": dict(kernel="append"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "arch, cases",
    [("sm_80", ["bf16", "fp8"]), ("sm_86", ["bf16"]), ("sm_90", list(CASES)), ("sm_100", ["bf16", "int4"])],
)
def test_kernels_build_and_fit(arch, cases):
    names = [(case, kind) for case in cases for kind in KINDS if kind != "append" or CASES[case].get("cache") is None]
    reports = inspect.inspect_all([Request(arch=arch, batch=2, **CASES[case], **KINDS[kind]) for case, kind in names])
    for (case, kind), report in zip(names, reports, strict=True):
        assert report.shared_memory_bytes <= SHARED_MEMORY[arch], (case, kind)
        assert report.registers <= 255 and report.threads == 32 * report.launch["num_warps"], (case, kind)
        if kind.startswith("decode") and case != "fp32":
            assert sum(report.tensor_core.values()) > 0, f"{case}, {kind}: no tensor-core instruction"
            if case == "bf16" and kind != "decode balanced":
                assert report.spill_bytes == 0, (case, kind)


def test_what_is_compiled_is_what_is_asked_for():
    """Splitting stores partials, pages load their numbers, a narrower cache loads narrower words: other code each time."""
    plain = dict(kernel="decode", arch="sm_90", group=4)
    variants = [plain, plain | dict(split=False), plain | dict(page_size=64), plain | dict(cache="fp8"), plain | dict(head_dim=64)]
    reports = inspect.inspect_all([Request(**variant) for variant in variants])
    resources = [(r.registers, r.shared_memory_bytes, tuple(r.tensor_core.items())) for r in reports]
    assert len(set(resources)) == len(resources), resources
