"""The launch tables: each serves every shape, from rows that say where they come from; lengths enter no compiled key."""

import itertools

import pytest
import torch

from flashlab.kernels import configs
from flashlab.kernels.backward import dkdv_kernel, dq_kernel, preprocess_kernel
from flashlab.kernels.forward import forward_kernel

TABLES = ("sm_80", "sm_86", "sm_90", "sm_100", "interpreter")
KERNELS = ("forward", "preprocess", "dkdv", "dq")


@pytest.mark.parametrize("table", TABLES)
def test_every_shape_has_a_row(table):
    for kernel, itemsize, head_dim, seqlen, banded in itertools.product(
        KERNELS, (2, 4), (1, 16, 17, 64, 65, 128, 129, 256), (1, 64, 65, 1 << 20), (False, True)
    ):
        launch = configs.lookup(table, kernel, itemsize, head_dim, seqlen, banded)
        assert launch.BLOCK_D >= max(16, head_dim) and launch.BLOCK_D < max(17, 2 * head_dim)
        assert min(launch.BLOCK_M, launch.BLOCK_N) >= 16
        assert all(size & (size - 1) == 0 for size in (launch.BLOCK_M, launch.BLOCK_N, launch.num_warps))


@pytest.mark.parametrize("table", TABLES)
def test_a_table_says_where_it_comes_from(table):
    content = configs.read_table(table)
    assert content["gpu"] and content["provenance"]
    assert ("measured" in content["provenance"]) or table == "interpreter"


def test_an_unknown_shape_raises():
    with pytest.raises(LookupError, match="sm_90 has no row for forward, 1 bytes"):
        configs.lookup("sm_90", "forward", 1, 64, 100, False)


@pytest.mark.parametrize(
    "capability, table",
    [((8, 0), "sm_80"), ((8, 6), "sm_86"), ((8, 7), "sm_80"), ((8, 9), "sm_86"), ((9, 0), "sm_90"), ((10, 0), "sm_100"),
     ((10, 3), "sm_100"), ((12, 0), "sm_86")],
)  # fmt: skip
def test_the_table_of_a_capability(capability, table):
    assert configs.table_of(*capability) == table


@pytest.mark.parametrize("heads, together, group", [(6, 4, 2), (16, 4, 4), (7, 4, 1), (1, 4, 1)])
def test_heads_that_run_together_divide_heads(heads, together, group):
    assert configs.Launch(64, 64, 64, 4, 2, together).blocks(heads) == (64, 64, 64, group)


def test_forget_reads_the_rows_again():
    rows = configs.read_table("sm_90")["rows"]
    before = configs.lookup("sm_90", "dq", 2, 64, 4096, True)
    rows.insert(0, {"kernel": "dq", "launch": {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 1, "num_stages": 1}})
    try:
        assert configs.lookup("sm_90", "dq", 2, 64, 4096, True) == before
        configs.forget()
        assert configs.lookup("sm_90", "dq", 2, 64, 4096, True).BLOCK_M == 16
    finally:
        rows.pop(0)
        configs.forget()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's functions keep their parameters elsewhere")
def test_no_length_is_compiled_in():
    """A length must be no constexpr and no value that Triton specialises on, or each new one compiles anew."""
    import inspect as python

    for kernel in (forward_kernel, preprocess_kernel, dkdv_kernel, dq_kernel):
        names = list(python.signature(kernel.fn).parameters)
        lengths = [name for name in names if name.startswith("seqlen") or name in ("num_tiles", "stride_lse")]
        assert {"num_tiles", "stride_lse"} <= set(lengths)
        annotations = python.signature(kernel.fn).parameters
        assert all(annotations[name].annotation is python.Parameter.empty for name in lengths)
