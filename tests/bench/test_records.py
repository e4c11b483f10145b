"""Every shipped record keeps to the schema, and one that lies is refused."""

import copy
import json
import subprocess
import sys

import jsonschema
import pytest

from flashlab.bench import records, shape


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
    "a format that only equals one": (("schema",), True),
    "no ceilings": (("ceilings",), ...),
    "a machine that is a word": (("machine",), "H200"),
    "a batch in words": (("results", 0, "case", "batch"), "many"),
    "no batch": (("results", 0, "case", "batch"), 0),
    "an unknown cache": (("results", 0, "case", "cache"), "fp5"),
    "an unknown mode": ((*ENTRY, "mode"), []),
    "ok, with an excuse": ((*ENTRY, "reason"), "it was late"),
    "a reason that is empty": (("results", 0, "entries", 2, "reason"), ""),
    "an absent peer with a time": (("peers", 0, "absent"), "not installed here"),
    "samples of words": ((*ENTRY, "time", "samples_s"), ["fast"]),
    "no samples at all": ((*ENTRY, "time", "samples_s"), None),
    "a host slower than no time": ((*ENTRY, "time", "host_s"), -1.0),
}
POINT = ("curves", 0, "series", 0, "points", 0)
CURVE_LIES = {
    "a transfer of nothing": (("link",), (*POINT, "bytes"), 0),
    "a rate without bytes": (("link", "launch"), ("curves", -1, "series", 0, "points", 0, "bytes"), ...),
    "a transfer faster than the link": (("link",), (*POINT, "bytes"), 10**12),
    "a transfer above the wire by half": (("link",), ("curves", 0, "series", 0, "points", 9, "bytes"), 2**30 * 3 // 2),
    "a read faster than memory": (("launch",), ("curves", 1, "series", 0, "points", 0, "bytes"), 10**12),
    "a read of unknown size": (("launch",), ("curves", 1, "series", 0, "points", 0, "bytes"), None),
    "a curve nobody draws": (("link", "launch"), ("curves", 0, "name"), "bandwidth"),
    "a median not the samples'": (("link", "launch"), (*POINT, "time", "median_s"), 1.0),
}


def test_the_honest_record_passes(record):
    records.validate(record)


@pytest.mark.parametrize("lie", LIES)
def test_a_record_that_lies_is_refused(record, lie):
    with pytest.raises(records.RecordError):
        records.validate(edit(record, *LIES[lie]))


@pytest.mark.parametrize("lie", CURVE_LIES)
def test_a_curve_that_lies_is_refused(lie):
    kinds, path, value = CURVE_LIES[lie]
    for kind in kinds:
        with pytest.raises(records.RecordError):
            records.validate(edit(records.load(kind), path, value))


@pytest.mark.parametrize("lie", LIES)
def test_the_shape_is_what_json_schema_says_it_is(record, lie):
    lying = edit(record, *LIES[lie])
    known = list(jsonschema.Draft202012Validator(records.schema()).iter_errors(lying))
    assert (shape.fault(lying, records.schema()) is None) == (known == [])


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(records.schema())
    with pytest.raises(NotImplementedError, match="multipleOf"):
        shape.fault(3, {"multipleOf": 2})


@pytest.mark.parametrize("path", [("seed",), ("machine", "driver"), ("ceilings", "read_bytes_per_s"), (*ENTRY, "time", "host_s")])
def test_loading_names_the_file_and_what_is_missing(record, tmp_path, path):
    file = tmp_path / "r.json"
    records.write(edit(record, path, ...), file)
    with pytest.raises(records.RecordError, match=f"r.json: .*{path[-1]} is missing"):
        records.load(file)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
@pytest.mark.parametrize("path", [(*ENTRY, "error"), (*ENTRY, "time", "host_s"), ("ceilings", "copy_bytes_per_s")])
def test_what_is_no_number_is_refused(record, tmp_path, number, path):
    file = tmp_path / "r.json"
    file.write_text(json.dumps(edit(record, path, "HERE")).replace('"HERE"', number))
    with pytest.raises(records.RecordError, match="r.json: "):
        records.load(file)


def test_one_peer_twice_is_refused(record):
    entries = record["results"][0]["entries"]
    entries.append(copy.deepcopy(entries[0]))
    with pytest.raises(records.RecordError, match="twice"):
        records.validate(record)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[" * 200_000])
def test_what_is_not_json_is_refused(tmp_path, content):
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(records.RecordError, match="not JSON"):
        records.load(tmp_path / "r.json")


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
