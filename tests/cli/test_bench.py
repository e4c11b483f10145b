"""flashlab bench, as it is run on a machine without a GPU."""

import copy
import json
import re

import pytest
import torch

from flashlab.bench import counting, records
from flashlab.bench.cases import SETS
from flashlab.cli import main

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="what the commands say without a GPU")


def run(capsys, *arguments) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *map(str, arguments)])
    return stopped.value.code, *capsys.readouterr()


@no_gpu
@pytest.mark.parametrize("kind", ["prefill", "train", "decode"])
def test_counts_and_says_that_it_measured_nothing(capsys, kind):
    code, out, _ = run(capsys, kind, "--json")
    found = json.loads(out)
    assert (code, found["measured"], found["note"]) == (0, False, counting.NO_SPEED)
    assert [row["label"] for row in found["counts"]] == [case.label for case in SETS[kind]["quick"]]
    first = found["counts"][0]["launches"][0]
    assert first["programs"] == counting.count(SETS[kind]["quick"][0])[0].programs
    code, out, _ = run(capsys, kind)
    assert code == 0 and "Counted, not measured" in out


@no_gpu
@pytest.mark.parametrize("kind", ["launch", "link"])
def test_curves_without_a_gpu_are_points_without_times(capsys, kind):
    code, out, _ = run(capsys, kind, "--json")
    found = json.loads(out)
    assert (code, found["measured"]) == (0, False)
    assert all("time" not in key and not key.endswith("_s") for point in found["points"] for key in point)


@no_gpu
@pytest.mark.parametrize(
    "arguments, said",
    [
        (["prefill", "--set", "huge"], "--set huge: must be quick or full"),
        (["prefill", "--peers", "cudnn"], "--peers cudnn: peer 'cudnn': must be one of flashlab"),
        (["prefill", "--set", " "], "--set ' ': must be quick or full"),
        (["prefill", "--peers", ""], "--peers '': peer '': must be one of flashlab"),
        (["prefill", "--seconds", "nan"], "nan is not a finite number in the range x>=1"),
        (["prefill", "--seconds", "inf"], "inf is not a finite number"),
        (["link", "--peers", "flashlab"], "--peers flashlab: is of prefill, train, decode only"),
        (["launch", "--graph"], "is of prefill, train, decode only"),
        (["link", "--seconds", "5"], "is of prefill, train, decode only"),
        (["prefill", "--record", "x.json"], "--record x.json: there is no GPU here"),
        (["prefill", "--plot", "x.png"], "--plot x.png: there is no GPU here"),
        (["prefill", "--record", "/no such place/x.json"], "x.json: must lie in a directory that can be written"),
        (["prefill", "--plot", ""], "--plot '': must name a file"),
        (["decode", "--gpu", "mi300x"], "--gpu MI300X: gpu 'MI300X': the kernels are for NVIDIA GPUs"),
        (["launch", "--gpu", "mi300x"], "--gpu MI300X: gpu 'MI300X': the kernels are for NVIDIA GPUs"),
        (["tune"], "no GPU here"),
        (["tune", "--kernels", "all"], "--kernels all: must be one of forward"),
        (["ahead"], "no GPU here"),
        (["compare", "nothing", "prefill"], "no such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, said):
    code, out, error = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in error and len(error.splitlines()) == 1


def test_compare_says_what_got_slower_and_exits_1(capsys, tmp_path):
    before = records.load("train")
    after = copy.deepcopy(before)
    entry = after["results"][0]["entries"][0]
    entry["time"]["samples_s"] = [s * 1.25 for s in entry["time"]["samples_s"]]
    for name in ("median_s", "p20_s", "p80_s"):
        entry["time"][name] *= 1.25
    records.write(after, tmp_path / "after.json")
    code, out, _ = run(capsys, "compare", "train", tmp_path / "after.json", "--json")
    found = json.loads(out)
    assert (code, found["slower"], found["cautions"]) == (1, True, [])
    assert [change["ratio"] for change in found["changes"] if change["verdict"] == "slower"] == [pytest.approx(1.25)]
    assert run(capsys, "compare", "train", "train")[0] == 0
    code, out, _ = run(capsys, "compare", "train", tmp_path / "after.json")
    assert code == 1 and "+25.0%" in out
    code, _, error = run(capsys, "compare", "train", "decode")
    assert code == 2 and "nothing to compare" in error


@pytest.mark.parametrize("number", ["NaN", "null", '"fast"'])
@pytest.mark.parametrize("key", ["read_bytes_per_s", "driver"])
def test_compare_of_a_broken_record_is_one_line(capsys, tmp_path, key, number):
    """Neither a missing key nor one that is no number gets as far as the arithmetic."""
    text = (records.HOME / "records" / "h200_train.json").read_text()
    for what, broken in (
        ("must be|is no number", text.replace(json.dumps(records.load("train")["ceilings"]["read_bytes_per_s"]), number)),
        ("is missing", text.replace(f'"{key}"', f'"un{key}"')),
    ):
        (tmp_path / "r.json").write_text(broken)
        code, out, error = run(capsys, "compare", "train", tmp_path / "r.json")
        assert (code, out, len(error.splitlines())) == (2, "", 1)
        assert "r.json: " in error and re.search(what, error)


def test_compare_of_records_without_a_shape_in_common_is_refused(capsys, tmp_path):
    other = records.load("train")
    for result in other["results"]:
        result["case"]["batch"] += 1
    records.write(other, tmp_path / "other.json")
    code, out, error = run(capsys, "compare", "train", tmp_path / "other.json")
    assert (code, out) == (2, "") and "nothing was timed in both" in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_compare_exits_1_where_a_kernel_is_wrong_now(capsys, tmp_path, arguments):
    after = records.load("decode")
    entries = after["results"][0]["entries"]
    assert [(e["peer"], e["mode"]) for e in entries[:2]] == [("flashlab", "eager"), ("flashlab", "graph")]
    entries[0].update(status="wrong", reason="far off", time=None)
    del entries[1]
    records.write(after, tmp_path / "after.json")
    code, out, _ = run(capsys, "compare", "decode", tmp_path / "after.json", *arguments)
    assert code == 1 and "broken" in out
    if arguments:
        found = json.loads(out)
        assert (found["slower"], found["broken"]) == (False, True)
        assert [c["mode"] for c in found["changes"] if c["verdict"] == "broken"] == ["eager", "graph"]


def test_compare_says_that_the_gpu_was_another(capsys, tmp_path):
    other = records.load("train")
    other["machine"]["gpu"] = "NVIDIA Unheard-of"
    records.write(other, tmp_path / "other.json")
    code, out, _ = run(capsys, "compare", "train", tmp_path / "other.json")
    assert code == 0 and "gpu was NVIDIA H200 and is NVIDIA Unheard-of" in out


def test_a_record_can_be_printed(record_of, capsys):
    from flashlab.cli.bench import _show

    _show(record_of, True)
    found = json.loads(capsys.readouterr().out)
    assert found["measured"] and found["record"]["kind"] == record_of["kind"]
    _show(record_of, False)
    assert "Ceilings in this run" in capsys.readouterr().out


@pytest.fixture(params=["prefill", "train", "decode", "launch", "link"])
def record_of(request):
    return records.load(request.param)
