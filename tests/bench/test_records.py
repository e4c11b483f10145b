"""Every shipped record keeps to the schema, and one that lies is refused."""

import copy
import json
import subprocess
import sys

import pytest

from flashlab.bench import records


@pytest.mark.parametrize("name", records.shipped())
def test_shipped_records_are_valid(name):
    record = records.load(name)
    records.validate(record)
    assert name == f"h200_{record['kind']}"
    assert record["set"] == "full"
    assert record["machine"]["gpu"] == "NVIDIA H200"
    assert record["package"]["commit"]


def edit(record, path, value):
    """Set a field by its path; ``...`` deletes it."""
    lying = copy.deepcopy(record)
    *way, last = path
    place = lying
    for step in way:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return lying


ENTRY = ("results", 0, "entries", 0)
LIES = {
    "a field is missing": (("seed",), ...),
    "a peer's version is missing": (("peers", 0, "version"), ...),
    "no driver field": (("machine", "driver"), ...),
    "a field too many": (("machine", "hostname"), "x"),
    "another unit": ((*ENTRY, "time", "median_us"), 1000.0),
    "a time without samples": ((*ENTRY, "time", "samples_s"), []),
    "milliseconds for seconds, against the samples": ((*ENTRY, "time", "median_s"), 1.0),
    "a percentile not the samples'": ((*ENTRY, "time", "p80_s"), 2e-3),
    "gigabytes for bytes": (("ceilings", "read_bytes_per_s"), 4400.0),
    "wrong and timed": ((*ENTRY, "status"), "wrong"),
    "ok and not timed": ((*ENTRY, "time"), None),
    "ok although too far off": ((*ENTRY, "error"), 5.0),
    "an error that is none": ((*ENTRY, "error"), None),
    "a peer nobody introduced": ((*ENTRY, "peer"), "somebody"),
    "a case of another kind": (("results", 0, "case", "kind"), "decode"),
    "a kind that does not exist": (("kind",), "fast"),
    "no date": (("date",), "yesterday"),
    "curves in a record of cases": (("curves",), [{"name": "link", "x": "bytes", "quantity": "", "series": []}]),
    "no results": (("results",), []),
    "another format": (("schema",), 2),
}


def test_the_honest_record_passes(record):
    records.validate(record)


@pytest.mark.parametrize("lie", LIES)
def test_a_record_that_lies_is_refused(record, lie):
    with pytest.raises(records.RecordError):
        records.validate(edit(record, *LIES[lie]))


def test_faster_than_the_machine_is_refused(record):
    time = record["results"][0]["entries"][0]["time"]
    time.update(median_s=1e-12, p20_s=1e-12, p80_s=1e-12, samples_s=[1e-12])
    with pytest.raises(records.RecordError, match="more than NVIDIA H200 can"):
        records.validate(record)
    record["machine"]["gpu"] = "NVIDIA Unheard-of"
    records.validate(record)


def test_load_says_what_there_is(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        records.load("nothing")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(records.RecordError, match="not JSON"):
        records.load(tmp_path / "a.json")
    (tmp_path / "b.json").write_text(json.dumps([1]))
    with pytest.raises(records.RecordError, match="not a record"):
        records.load(tmp_path / "b.json")


def test_loading_refuses_a_record_that_contradicts_itself(record, tmp_path):
    path = tmp_path / "r.json"
    records.write(edit(record, *LIES["milliseconds for seconds, against the samples"]), path)
    with pytest.raises(records.RecordError, match="median_s"):
        records.load(path)


def test_records_figures_and_compare_need_no_torch():
    program = """
import sys
from flashlab.bench import cases, compare, curves, figures, records, report
for name in records.shipped():
    record = records.load(name)
    figures.lines(record), report.rows(record), compare.compare(record, record)
print([m for m in ('torch', 'triton', 'numpy', 'jsonschema') if m in sys.modules])
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
