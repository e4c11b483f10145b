"""flashlab occupancy, as it is run."""

import json

import pytest

from flashlab.cli import main

LAUNCH = ["occupancy", "--cc", "9.0", "--threads", "128", "--registers", "168", "--shared-memory", "115713"]


def run(capsys, *arguments) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return stopped.value.code, *capsys.readouterr()


def test_json(capsys):
    code, out, _ = run(capsys, *LAUNCH, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["blocks_per_sm"], found["warps_per_sm"], found["percent"]) == (1, 4, 6.25)
    assert found["limiter"] == "shared_memory"
    assert found["limits"] == {"blocks": 32, "warps": 16, "registers": 3, "shared_memory": 1}
    assert found["next_cliff"]["shared_memory"] == {"give_up": 1, "blocks_after": 2, "spare": 116735}
    assert (found["cc"], found["threads"], found["registers"], found["shared_memory_bytes"]) == ("9.0", 128, 168, 115713)


def test_table(capsys):
    code, out, _ = run(capsys, *LAUNCH)
    assert code == 0
    assert "occupancy 6.25%; shared_memory decides." in out
    assert "Shared memory a block: 1 B fewer make room for 2 blocks per SM." in out
    assert "Registers a thread: 88 more cost no block." in out


def test_sizes_and_gpu_names(capsys):
    named = [
        "occupancy",
        "--gpu",
        "h200",
        "--threads",
        "128",
        "--registers",
        "32",
        "--shared-memory",
        "113KiB",
        "--json",
    ]
    assert json.loads(run(capsys, *named)[1])["blocks_per_sm"] == 2


def test_a_launch_that_fails_is_an_answer(capsys):
    failing = ["occupancy", "--cc", "8.0", "--threads", "288", "--registers", "216"]
    code, out, _ = run(capsys, *failing)
    assert code == 0
    assert "The launch fails. registers: the block needs more" in out
    assert json.loads(run(capsys, *failing, "--json")[1])["blocks_per_sm"] == 0


def test_no_limit_is_null(capsys):
    found = json.loads(run(capsys, "occupancy", "--cc", "7.5", "--threads", "32", "--registers", "0", "--json")[1])
    assert found["limits"]["registers"] is None
    assert "no limit" in run(capsys, "occupancy", "--cc", "7.5", "--threads", "32", "--registers", "0")[1]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--cc", "6.1", "--threads", "32", "--registers", "9"], "--cc 6.1: cc must be one of 7.0"),
        (["--gpu", "mi300x", "--threads", "32", "--registers", "9"], "--gpu MI300X: cc must be one of 7.0"),
        (["--gpu", "l40", "--threads", "32", "--registers", "9"], "'--gpu': gpu 'l40': not in the table; did you mean"),
        (["--cc", "", "--threads", "32", "--registers", "9"], "cc must be one of 7.0"),
        (["--cc", "9.0", "--threads", "0", "--registers", "9"], "'--threads': 0 is not in the range 1<=x"),
        (["--cc", "9.0", "--threads", "32", "--registers", "-1"], "'--registers': -1 is not in the range 0<=x"),
        (["--cc", "9.0", "--threads", "32", "--registers", "9", "--shared-memory", "1Kb"], "'1Kb': Kb means bits"),
        (["--threads", "32", "--registers", "9"], "give --cc or --gpu"),
        (["--cc", "9.0", "--gpu", "h200", "--threads", "32", "--registers", "9"], "give --cc or --gpu"),
        (["--cc", "9.0", "--registers", "9"], "--threads"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, words):
    code, out, err = run(capsys, "occupancy", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
