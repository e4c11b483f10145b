"""flashlab kv: right numbers, both units, and one line for bad input."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flashlab.cli import flashlab
from flashlab.cli import main as entry
from flashlab.sizing import CacheSpec, plan

CONFIGS = Path(__file__).parents[1] / "sizing" / "configs"


def config(name):
    return str(CONFIGS / f"{name}.json")


def kv(name, *options):
    done = CliRunner().invoke(flashlab, ["kv", config(name), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def kv_json(name, *options):
    return json.loads(kv(name, *options, "--json"))


def test_json():
    data = kv_json("llama-3-8b", "--batch", "4", "--input", "1000", "--output", "24")
    assert data["bytes_per_token"] == data["bytes_per_token_per_gpu"] == 131072
    assert (data["bytes"], data["needed_bytes"]) == (4 * 1024 * 131072, 4 * 1023 * 131072)
    assert (data["model_type"], data["layers"], data["tokens"], data["dtype"]) == ("llama", {"full": 32}, 1024, "bf16")
    assert data["formula"][-1].startswith("total: 536,870,912 bytes")
    assert {wrong["name"] for wrong in data["wrong_formulas"]} >= {"kv heads ignored", "4 n m h"}
    assert "max_batch" not in data


def test_tensor_parallelism():
    data = kv_json("llama-3-70b", "--tp", "16")
    assert (data["bytes_per_token"], data["bytes_per_token_per_gpu"]) == (327680, 40960)
    assert data["bytes_all_gpus"] == 16 * data["bytes_per_gpu"] == 2 * data["bytes"]


def test_pages():
    data = kv_json("llama-3-8b", "--input", "1000", "--output", "1", "--page-size", "16")["paged_per_gpu"]
    assert (data["pages"], data["tail_bytes"], data["block_table_bytes"]) == (63, 7 * 131072, 63 * 4)


@pytest.mark.parametrize("dtype, scales, size", [("fp8", None, 64 * 1024), ("int8", "token_head", 66 * 1024), ("q8_0", None, 68 * 1024)])
def test_formats(dtype, scales, size):
    options = ["--scales", scales] if scales else []
    assert kv_json("llama-3-8b", "--dtype", dtype, *options)["bytes_per_token"] == size


def test_state_dtype():
    sizes = [kv_json("qwen3-next-80b-a3b", "--state-dtype", dtype)["bytes_by_kind"]["linear"] for dtype in ("fp32", "bf16")]
    assert sizes[0] - sizes[1] == 36 * 32 * 128 * 128 * 2


def test_windows():
    data = kv_json("gemma-3-27b", "--input", "131071", "--output", "1")
    assert (data["bytes_per_token"], data["bytes_per_token_past_windows"]) == (507904, 81920)
    assert data["bytes_by_kind"] == {"full": 10 * 2**30, "sliding": 52 * 1024 * 8192}
    assert data["layers"] == {"sliding": 52, "full": 10}


def test_gpu():
    data = kv_json("llama-3-8b", "--gpu", "h200", "--memory-utilization", "0.5", "--workspace", "1GiB")
    fit = plan(CacheSpec.from_config(config("llama-3-8b")), "h200", tokens=2048, utilization=0.5, workspace=2**30)
    assert (data["max_batch"], data["limiter"]) == (fit.max_batch, "cache")
    assert (data["max_context"], data["context_limiter"]) == (8192, "model")
    assert data["cache_budget_bytes_per_gpu"] == fit.budget.cache


def test_the_table_shows_both_units_and_the_formula_with_its_numbers():
    text = " ".join(kv("llama-3-8b", "--page-size", "16", "--tp", "2", "--gpu", "h200").split())
    for part in ("268.435 MB (256.000 MiB)", "131,072 bytes a token", "2048 tokens x 2 (K and V) x 8 kv heads",
                 "on each of 2 GPUs 134.218 MB (128.000 MiB)", "128 pages of 16", "150.755 GB (140.401 GiB)",
                 "wrong (kv heads ignored)", "largest context at batch 1 8,192 (the model's own maximum)"):  # fmt: skip
        assert part in text, part


def test_the_table_tells_kinds_apart():
    text = " ".join(kv("gemma-3-27b", "--input", "131072", "--output", "0").split())
    assert "52 sliding, 10 full" in text and "one more token, windows full 81,920 bytes" in text
    assert "in sliding layers 436.208 MB (416.000 MiB)" in text


@pytest.mark.parametrize("arguments, parts", [
    (["nosuch.json"], ["nosuch.json: No such file"]),
    ([__file__], ["not JSON"]),
    ([config("llama-3-8b"), "--dtype", "int3"], ["--dtype 'int3': must be one of fp32"]),
    ([config("llama-3-8b"), "--scales", "tensor"], ["--scales 'tensor'", "bf16 has none to choose"]),
    ([config("llama-3-8b"), "--dtype", "fp8", "--scales", "row"], ["--scales 'row': must be tensor, head"]),
    ([config("llama-3-8b"), "--state-dtype", "int8"], ["--state-dtype int8"]),
    ([config("llama-3-8b"), "--state-dtype", "foo"], [": --state-dtype 'foo': must be one of"]),
    ([config("llama-3-8b"), "--gpu", "h200", "--weights-dtype", "foo"], [": --weights-dtype 'foo': must be one of"]),
    ([config("llama-3-8b"), "--dtype", ""], ["--dtype '': must be one of"]),
    ([config("llama-3-8b"), "--tp", "3"], ["--tp 3: must divide the 32 query heads"]),
    ([config("llama-3-8b"), "--batch", "0"], ["--batch", "0", "1<=x"]),
    ([config("llama-3-8b"), "--input", "many"], ["--input", "many"]),
    ([config("llama-3-8b"), "--input", "0", "--output", "0"], ["--input and --output must be at least 1"]),
    ([config("llama-3-8b"), "--page-size", "-16"], ["--page-size", "-16"]),
    ([config("llama-3-8b"), "--gpu", "h2000"], ["--gpu", "h2000", "H200"]),
    ([config("llama-3-8b"), "--gpu", "h200", "--memory-utilization", "2"], ["'--memory-utilization': 2.0 is not", "0<x<=1"]),
    ([config("llama-3-8b"), "--memory-utilization", "nan"], ["'--memory-utilization': nan is not a finite number", "0<x<=1"]),
    ([config("llama-3-8b"), "--gpu", "h200", "--weights", "2Gb"], ["--weights", "2Gb"]),
    ([config("llama-3-8b"), "--gpu", "h200", "--weights", "2GB", "--weights-dtype", "fp8"], ["--weights-dtype: goes with"]),
    ([config("gpt-oss-20b"), "--gpu", "h200"], ["--weights: ", "mxfp4"]),
    ([config("gpt-oss-20b"), "--tokens", "5"], ["--tokens"]),
    ([], ["CONFIG.json"]),
])  # fmt: skip
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, parts):
    with pytest.raises(SystemExit) as stop:
        entry(["kv", *arguments])
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and out == "" and len(err.strip().splitlines()) == 1
    assert err.startswith("flashlab kv: ") and all(part in err for part in parts), err


def test_an_unknown_architecture_is_refused_by_name(tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "mamba2", "num_hidden_layers": 64}))
    with pytest.raises(SystemExit) as stop:
        entry(["kv", str(file)])
    assert stop.value.code == 2 and "model_type 'mamba2' is not known; it must be one of llama" in capsys.readouterr().err
