"""flashlab show, as it is run: it compiles for a GPU that is not here."""

import json

import pytest

from flashlab.cli import main


def run(capsys, *arguments) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return stopped.value.code, *capsys.readouterr()


def test_json(capsys):
    code, out, _ = run(capsys, "show", "preprocess", "--arch", "sm_90", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["kernel"] == "preprocess" and found["arch"] == "sm_90"
    assert 0 < found["registers"] <= 255 and found["spill_bytes"] == 0
    assert found["threads"] == 32 * found["launch"]["num_warps"]
    assert all(key == key.lower() for key in found["launch"]) and found["launch"]["block_m"]
    assert found["occupancy"]["blocks_per_sm"] >= 1


def test_table(capsys):
    code, out, _ = run(capsys, "show", "forward", "--arch", "sm_80", "--head-dim", "64", "--causal")
    assert code == 0
    for words in ("forward for sm_80, bfloat16, head_dim 64, causal", "registers", "shared memory", " mma", "occupancy"):
        assert words in out


def test_decode_table(capsys):
    code, out, _ = run(capsys, "show", "decode", "--arch", "sm_90", "--group", "4", "--cache", "int4")
    assert code == 0
    for words in ("decode for sm_90, bfloat16, head_dim 128, int4 cache", "queries x", "keys", "registers", " mma"):
        assert words in out


def test_combine_table(capsys):
    code, out, _ = run(capsys, "show", "combine", "--arch", "sm_80")
    assert code == 0 and "partials x" in out and "none" in out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["backward"], "KERNEL backward: must be one of forward"),
        (["forward", "--arch", "sm_70"], "--arch sm_70: must be one of sm_80"),
        (["forward", "--dtype", "int8"], "--dtype int8: must be one of float16"),
        (["forward", "--head-dim", "257"], "--head-dim 257: must be from 1 to 256"),
        (["forward", "--group", "0"], "--group 0: must be 1 or more"),
        (["decode", "--page-size", "24"], "--page-size 24: must be 0 or a multiple of 16"),
        (["decode", "--cache", "fp4"], "--cache fp4: must be one of native, fp8, int8, int4"),
        (["forward", "--cache", "fp8"], "--cache fp8: is of decode only"),
        (["dq", "--unsplit"], "--unsplit dq: is of decode only"),
        (["combine", "--causal"], "--causal combine: is of forward, dkdv, dq, decode, append only"),
        (["append", "--alibi"], "--alibi append: is of forward, dkdv, dq, decode only"),
        (["preprocess", "--window"], "--window preprocess: is of forward, dkdv, dq, decode only"),
        (["combine", "--softcap"], "--softcap combine: is of forward, dkdv, dq, decode only"),
        (["dq", "--page-size", "16"], "--page-size dq: is of forward, decode, append only"),
        (["decode", "--varlen"], "--varlen decode: is of prefill and training only"),
    ],
)
def test_bad_input(capsys, arguments, message):
    code, out, err = run(capsys, "show", *arguments)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1
