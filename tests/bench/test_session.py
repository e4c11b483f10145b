"""A run from end to end on a CPU: who is right is timed, who is wrong is marked, and nobody stops the run."""

import json

import pytest
import torch

from flashlab.bench import figures, inputs, records, session
from flashlab.bench.cases import Case
from flashlab.bench.oracle import Oracle


def rows(record):
    return {entry["peer"]: entry for entry in record["results"][0]["entries"]}


def test_right_wrong_broken_and_absent(bench):
    peers = [bench.Torch("flashlab", "ours"), bench.Torch("wrong", off=0.5), bench.Broken("broken"), bench.Absent("gone")]
    record = bench.measured(peers)
    found = rows(record)
    assert {name: row["status"] for name, row in found.items()} == {
        "flashlab": "ok", "wrong": "wrong", "broken": "failed", "gone": "absent",
    }  # fmt: skip
    assert found["wrong"]["error"] > found["wrong"]["allowed"] > found["flashlab"]["error"]
    assert found["broken"]["reason"] == "RuntimeError: no kernel image"
    assert found["gone"]["reason"] == "gone is not installed here"
    assert [peer["absent"] for peer in record["peers"]] == [None, None, None, "gone is not installed here"]
    assert record["complete"]
    records.validate(json.loads(json.dumps(record)))


def test_a_wrong_peer_is_never_timed_and_never_ranked(bench):
    wrong, slow = bench.Torch("wrong", off=0.2), bench.Torch("slow")
    clock = bench.Clock()
    record = bench.measured([bench.Torch("flashlab", "ours"), wrong, slow], clock=clock)
    assert rows(record)["wrong"]["time"] is None
    lines = {line.peer: line for line in figures.lines(record)}
    assert lines["wrong"].rate is lines["wrong"].to_best_rival is lines["wrong"].to_ceiling is None
    assert lines["flashlab"].to_best_rival == pytest.approx(1.0)  # slow's time, not wrong's


def test_not_a_number_is_wrong(bench):
    record = bench.measured([bench.Torch("nan", off=float("nan"))])
    assert rows(record)["nan"]["status"] == "wrong"
    assert rows(record)["nan"]["error"] is None
    records.validate(record)


def test_when_the_time_is_up_the_rest_is_not_run(bench):
    record = bench.measured([bench.Torch("flashlab", "ours")], cases=(bench.TINY, bench.TINY.alike(batch=1)), seconds=-1)
    assert [row["status"] for result in record["results"] for row in result["entries"]] == ["not run"] * 2
    assert not record["complete"]
    records.validate(record)


def test_the_record_is_saved_after_every_case(bench, tmp_path):
    path, seen = tmp_path / "r.json", []

    def save(record):
        session.saver(path)(record)
        seen.append(len(json.loads(path.read_text())["results"]))

    bench.measured([bench.Torch("flashlab", "ours")], cases=(bench.TINY, bench.TINY.alike(causal=True)), save=save)
    assert seen == [1, 2]
    assert records.load(path)["results"][1]["case"]["causal"]


def test_a_peer_that_fails_while_it_is_timed_is_a_row(bench):
    class Late(bench.Torch):
        def prepare(self, case, tensors):
            runner, calls = super().prepare(case, tensors), []

            def call():
                calls.append(1)
                if len(calls) > 2:
                    raise RuntimeError("device lost")
                return runner.call()

            return runner._replace(call=call)

    record = bench.measured([bench.Torch("flashlab", "ours"), Late("late")])
    assert rows(record)["late"]["reason"] == "RuntimeError: device lost"
    assert rows(record)["flashlab"]["status"] == "ok"
    records.validate(record)


KINDS = [
    Case("prefill", 2, 4, 2, 70, 70, 16, causal=True),
    Case("train", 1, 4, 4, 48, 48, 16, causal=True),
    Case("train", 2, 4, 4, 33, 33, 16),
    Case("decode", 2, 6, 2, 1, 65, 16),
]


@pytest.mark.parametrize("case", KINDS, ids=lambda case: f"{case.kind} {case.label}")
def test_the_oracle_passes_torch_in_bfloat16_and_sees_what_is_off(bench, case):
    tensors = inputs.make(case, "cpu", seed=torch.seed() % 2**31)
    oracle = Oracle(case, tensors, seed=1)
    right = bench.Torch("right").prepare(case, tensors).call()
    assert oracle.judge(right).reason is None
    outputs = right if isinstance(right, tuple) else (right,)
    for i in range(len(outputs)):
        spoilt = [x.clone() for x in outputs]
        spoilt[i] *= 1.2
        assert oracle.judge(tuple(spoilt)).reason.startswith(("o", "dq", "dk", "dv")[i])


def test_the_oracle_looks_at_the_last_rows_of_the_last_head(bench):
    case = Case("prefill", 3, 4, 2, 200, 200, 16, causal=True)
    tensors = inputs.make(case, "cpu", 0)
    out = bench.Torch("right").prepare(case, tensors).call().clone()
    out[-1, -1, -1] += 0.5
    assert "batch 2" in Oracle(case, tensors, 5).judge(out).reason


@pytest.mark.parametrize("cache", ["fp8", "int4", "int4 head-major"])
def test_codes_mean_what_dequantise_says_and_spread_like_data(cache):
    case = Case("decode", 2, 4, 2, 1, 64, 32, cache=cache)
    tensors = inputs.make(case, "cpu", 3)
    k = inputs.dequantise(tensors.k, tensors.k_scale, torch.float64)
    assert k.shape == (2, 64, 2, 32)
    assert 0.5 < k.std() < 2
    assert tensors.kv.nbytes + tensors.k_scale.nbytes + tensors.v_scale.nbytes == case.bytes
    if cache != "fp8":
        byte = int(tensors.k[1, 5, 1, 3])
        scale = float(tensors.k_scale[1, 5, 1])
        assert k[1, 5, 1, 6:8].tolist() == pytest.approx([((byte & 15) - 8) * scale, ((byte >> 4) - 8) * scale])
    if "head-major" in cache:
        assert tensors.k.stride()[1:3] == (16, 64 * 16)


def test_the_same_seed_gives_the_same_tensors(bench):
    a, b, c = (inputs.make(bench.TINY, "cpu", seed) for seed in (1, 1, 2))
    assert torch.equal(a.kv, b.kv) and torch.equal(a.q, b.q)
    assert not torch.equal(a.kv, c.kv)
