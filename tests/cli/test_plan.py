"""flashlab plan: what fits and what limits it, and one line for bad input."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flashlab.cli import flashlab
from flashlab.cli import main as entry
from flashlab.sizing import CacheSpec, concurrency, plan

CONFIGS = Path(__file__).parents[1] / "sizing" / "configs"


def config(name):
    return str(CONFIGS / f"{name}.json")


def run(name, *options):
    done = CliRunner().invoke(flashlab, ["plan", config(name), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_json_is_the_librarys_plan():
    options = ["--gpu", "h200", "--tp", "4", "--page-size", "16", "--batch", "8", "--input", "3000", "--output", "1000"]
    data = json.loads(run("llama-3-70b", *options, "--dtype", "fp8", "--json"))
    shard = CacheSpec.from_config(config("llama-3-70b"), dtype="fp8", tp=4)
    fit = plan(shard, "h200", tokens=4000, batch=8, page_size=16)
    assert data["bytes_per_sequence_per_gpu"] == fit.sequence_bytes == shard.sequence_bytes(4000, 16)
    assert (data["bytes_per_token"], data["bytes_per_token_per_gpu"]) == (163840, 40960)
    for name in ("max_batch", "limiter", "max_context", "context_limiter", "largest_kind", "tokens", "batch"):
        assert data[name] == getattr(fit, name)
    runs = concurrency(shard, fit.budget.cache, [(3000, 1000)], 16)
    assert data["concurrent_requests"] == {"longest": runs.longest, "own": runs.own, "growing": runs.growing}
    assert int(runs.own) == fit.max_batch


def test_without_lengths_it_plans_for_the_models_longest_context():
    data = json.loads(run("llama-3-8b", "--gpu", "h100", "--json"))
    assert data["tokens"] == 8192 and "concurrent_requests" not in data
    assert data["weights_source"].startswith("counted: 8,030,261,248")


def test_weights_that_do_not_fit():
    data = json.loads(run("llama-3-70b", "--gpu", "h100", "--json"))
    assert (data["max_batch"], data["limiter"]) == (0, "weights")
    assert "the weights leave no room" in run("llama-3-70b", "--gpu", "h100")
    assert json.loads(run("llama-3-70b", "--gpu", "h100", "--weights-dtype", "int4", "--json"))["limiter"] == "cache"


def test_the_table_shows_both_units():
    text = " ".join(run("gpt-oss-20b", "--gpu", "h200", "--weights", "13.8GB", "--input", "1000", "--output", "1000").split())
    for part in ("gpt_oss in bf16 on H200", "13.800 GB (12.852 GiB), given", "150.755 GB (140.401 GiB)",
                 "largest batch at 2000 tokens", "(the cache fills the memory)", "each as long as it is"):  # fmt: skip
        assert part in text, part


def test_a_workspace_that_does_not_fit():
    assert "the workspace leaves no room" in run("llama-3-8b", "--gpu", "h200", "--workspace", "200GiB")


@pytest.mark.parametrize("arguments, parts", [
    ([config("llama-3-8b")], ["--gpu"]),
    (["nosuch.json", "--gpu", "h200"], ["nosuch.json: No such file"]),
    ([config("llama-3-8b"), "--gpu", "h2000"], ["--gpu", "h2000"]),
    ([config("llama-3-8b"), "--gpu", "h200", "--input", "9000"], ["--input and --output 9000", "max_position_embeddings is 8192"]),
    ([config("llama-3-8b"), "--gpu", "h200", "--workspace", "-1"], ["--workspace"]),
    ([config("deepseek-v3"), "--gpu", "h200"], ["--weights", "fp8"]),
])  # fmt: skip
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, parts):
    with pytest.raises(SystemExit) as stop:
        entry(["plan", *arguments])
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and out == "" and len(err.strip().splitlines()) == 1
    assert err.startswith("flashlab plan: ") and all(part in err for part in parts), err
