"""What every command does with numbers that are none and with an output that cannot be written."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click
import pytest

from flashlab.cli.output import bad, emit_json, emit_table
from flashlab.cli.sizes import Real

FULL = Path("/dev/full")
OCCUPANCY = ["occupancy", "--cc", "9.0", "--threads", "128", "--registers", "168"]
COMMANDS = [OCCUPANCY, [*OCCUPANCY, "--json"], ["link"], ["link", "--json"], ["--help"], ["link", "--help"], ["bench"], []]


def flashlab(arguments, stdout):
    program = [sys.executable, "-c", "from flashlab.cli import main; main()", *arguments]
    return subprocess.run(program, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_full_disk_is_one_line(arguments):
    with FULL.open("w") as full:
        done = flashlab(arguments, full)
    assert done.returncode == 1
    assert done.stderr == f"flashlab: writing failed: {os.strerror(28)}\n"


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_left_is_told_nothing(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = flashlab(arguments, writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_json_holds_no_number_that_json_does_not_know(capsys):
    emit_json({"a": float("nan"), "b": [float("inf"), -float("inf")], "c": 1.5})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, None], "c": 1.5}


@pytest.mark.parametrize("width", ["0", "1", "40", "200", "abc"])
def test_a_narrow_terminal_loses_no_letter(capsys, monkeypatch, width):
    columns = ("case", "launch", "tile", "splits", "programs", "waves", "pairs", "memory")
    row = ("B4H16S1024D128causal", "forward", "64x128", "1", "1,024", "7.76", "16,384", "570.687MB(544.250MiB)")
    monkeypatch.setenv("COLUMNS", width)
    emit_table("A title", [row], columns=columns, notes=["A note."])
    said = "".join((*columns, *row, "A title", "A note."))
    assert Counter("".join(capsys.readouterr().out.split())) == Counter("".join(said.split()))


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "-1", "2", "x"])
def test_a_real_number_lies_in_its_range(text):
    with pytest.raises(click.BadParameter):
        Real(0, 1)(text)


def test_an_open_range_excludes_nan():
    with pytest.raises(click.BadParameter, match="not a finite number in the range x>=1"):
        Real(1)("nan")
    assert Real(1)("1.5") == 1.5


def test_a_blank_value_can_be_seen():
    assert bad("--set", "", "must be quick or full").message == "--set '': must be quick or full"
    assert bad("--tp", 3, "must divide 32").message == "--tp 3: must divide 32"
