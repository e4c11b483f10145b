"""flashlab splits, as it is run."""

import json

import pytest

from flashlab.cli import main

A100 = ["splits", "--gpu", "a100", "--batch", "1", "--heads-q", "32", "--heads-kv", "8", "--context", "131072"]


def run(capsys, *arguments) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return stopped.value.code, *capsys.readouterr()


def test_json(capsys):
    code, out, _ = run(capsys, *A100, "--head-dim", "128", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["gpu"], found["sms"], found["rows"], found["key_blocks"]) == ("A100-SXM-80GB", 108, 8, 1024)
    assert (found["num_splits"], found["splits_to_fill"]) == (12, 13)
    assert found["waves"] == pytest.approx(96 / 108)
    assert [round(100 * share, 2) for share in found["underuse"].values()] == [0.93, 29.63, 7.41]
    assert found["time_s"] == found["choices"][1]["time_s"] < found["choices"][0]["time_s"]
    assert found["speedup"] == pytest.approx(found["choices"][0]["time_s"] / found["time_s"])
    assert all(choice["bandwidth_bytes_per_s"] < 2.039e12 for choice in found["choices"])


def test_table(capsys):
    code, out, _ = run(capsys, *A100)
    assert code == 0
    assert "8 rows of 1024 key tiles on 108 SMs" in out
    assert "FlashAttention-3" in out and "fill one wave" in out
    assert "7.41% of the SMs have work" in out


def test_kv_heads_default_to_query_heads_and_more_blocks_fit(capsys):
    plain = ["splits", "--gpu", "h200", "--heads-q", "8", "--context", "131072", "--json"]
    assert json.loads(run(capsys, *plain)[1])["rows"] == 8
    assert json.loads(run(capsys, *plain, "--blocks-per-sm", "2")[1])["splits_to_fill"] == 33


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--gpu", "l40", "--heads-q", "32", "--context", "9"], "'--gpu': gpu 'l40': not in the table"),
        (
            ["--gpu", "h200", "--heads-q", "32", "--heads-kv", "5", "--context", "9"],
            "--heads-kv 5: heads_kv must divide",
        ),
        (["--gpu", "h200", "--heads-q", "32", "--context", "0"], "'--context': 0 is not in the range"),
        (["--gpu", "h200", "--heads-q", "32", "--context", "9", "--element-bytes", "0"], "'--element-bytes': 0.0"),
        (
            ["--gpu", "h200", "--heads-q", "32", "--context", "9", "--element-bytes", "nan"],
            "'--element-bytes': nan is not a finite number",
        ),
        (["--gpu", "h200", "--heads-q", "32", "--context", "9", "--blocks-per-sm", "33"], "'--blocks-per-sm': 33"),
        (["--heads-q", "32", "--context", "9"], "--gpu"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, words):
    code, out, err = run(capsys, "splits", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
