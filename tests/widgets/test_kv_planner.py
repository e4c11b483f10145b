import json
import random
from pathlib import Path

import pytest

from flashlab.sizing import CacheSpec, explain, max_batch, plan, show_bytes
from flashlab.widgets import KVPlanner, OccupancyScope, SMGrid, TileWalk, link, style
from flashlab.widgets.kv_planner import COLOURS, CONFIGS, MODELS, PASTED, Need, frontier, picture

PUBLISHED = Path(__file__).parents[1] / "sizing" / "configs"
SHAPE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")


@pytest.mark.parametrize("model", MODELS)
def test_every_shipped_config_is_a_published_one(model):
    ours = json.loads((CONFIGS / f"{model}.json").read_text())
    assert "/" in ours["_source"] and CacheSpec.from_config(ours).max_context
    if model == "llama-3.1-8b":  # the shape of Llama 3, a longer context
        theirs = json.loads((PUBLISHED / "llama-3-8b.json").read_text())
        assert {name: ours[name] for name in SHAPE} == {name: theirs[name] for name in SHAPE}
    else:
        assert ours == json.loads((PUBLISHED / f"{model}.json").read_text())


@pytest.mark.parametrize("seed", range(12))
def test_the_picture_is_the_calculators(seed):
    draw = random.Random(seed)
    model, dtype = draw.choice(MODELS), draw.choice(["bf16", "fp8", "int4"])
    state = Need(model=model, dtype=dtype, gpu=draw.choice(["H200", "A100", "L4"]), tp=draw.choice([1, 2]),
                 tokens=draw.randint(1, 4096), batch=draw.randint(1, 500), weights=draw.choice(["fp8", "int4"]))  # fmt: skip
    spec = CacheSpec.from_config(CONFIGS / f"{model}.json", dtype=dtype, tp=state.tp)
    fit = plan(spec, state.gpu, tokens=state.tokens, batch=state.batch, weights_dtype=state.weights)
    assert state.plan == fit and state.uncounted == ""
    scene = picture(state)
    need = spec.bytes(state.batch, state.tokens)
    assert f"Largest batch at this context: {fit.max_batch:,} (" in scene.summary
    assert all(f"{line}." in scene.summary for line in explain(spec, state.batch, state.tokens, 0).formula)
    assert f"Weights: {show_bytes(fit.budget.weights)}" in scene.summary
    fits = [s for s in scene.shapes if s["kind"] == "text" and s["text"] in ("fits", "too much")]
    assert [s["text"] for s in fits] == ["fits" if need <= fit.budget.cache else "too much"]
    kinds = spec.per_kind(state.batch, state.tokens)
    bars = {s["fill"]: s["width"] for s in scene.shapes if s["kind"] == "rect" and s["y"] == 118 and s["fill"] in COLOURS.values()}
    scale = (932 - 28) / max(fit.budget.memory, fit.budget.weights + need)
    assert bars == {COLOURS[kind]: pytest.approx(taken * scale, abs=0.01) for kind, taken in kinds.items()}


def test_the_line_is_what_fits():
    state = Need(model="gemma-3-27b")
    room = state.plan.budget.cache
    line = frontier(state.spec, room, 1024, 131072)
    assert len(line) > 20 and line[-1][0] == 131072
    for tokens, batch in line:
        assert batch == max_batch(state.spec, room, tokens)
        assert state.spec.bytes(batch, tokens) <= room < state.spec.bytes(batch + 1, tokens)


def test_a_pasted_config_is_the_model():
    text = (PUBLISHED / "mistral-small-24b.json").read_text()
    widget = KVPlanner()
    widget.controls["config"].value = text
    assert (widget.state.model, widget.controls["model"].value) == (PASTED, PASTED)
    assert widget.state.spec.layers == CacheSpec.from_config(json.loads(text)).layers
    before = widget.state
    for wrong, why in (("{", "config is not JSON"), ("[]", "config is 'list'"), ('{"model_type": "mamba"}', "'mamba' is not known")):
        widget.controls["config"].value = wrong
        assert why in widget._message.value.replace("&#x27;", "'")
        assert widget.state == before and widget.controls["config"].value == wrong
    widget.controls["config"].value = text
    widget.controls["model"].value = "llama-2-7b"
    assert widget.state.tokens == 4096 and widget.state.config == text
    widget.controls["model"].value = PASTED
    assert widget.state.spec.layers == before.spec.layers
    widget.controls["config"].value = ""
    assert widget.state.model == Need.model
    widget.update(config=text)
    widget.update(model="llama-2-7b")
    widget.update(config="")  # another model is shown: clearing the text leaves it alone
    assert widget.state.model == "llama-2-7b"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' + "9" * 6000 + "}", "\x00", "'llama'", "/etc/hostname", '{"a": 1,}'])
def test_what_is_no_json_is_said(text):
    widget = KVPlanner()
    before = widget.state
    widget.controls["config"].value = text
    assert "config is not JSON" in widget._message.value and widget.state is before


def test_a_byte_order_mark_does_no_harm():
    text = (PUBLISHED / "phi-4.json").read_text()
    assert Need(model=PASTED, config="\ufeff" + text, tokens=100).spec.layers == Need(model=PASTED, config=text, tokens=100).spec.layers


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.json")), ids=lambda path: path.stem)
def test_every_published_config_can_be_pasted(path):
    widget = KVPlanner(tokens=1024)
    widget.controls["config"].value = path.read_text()
    spec = CacheSpec.from_config(path, dtype="bf16")
    assert widget.state.model == PASTED and widget.state.uncounted == "" and widget._message.value == ""
    assert show_bytes(spec.bytes(8, 1024)) in widget.summary
    for layer, _ in spec.groups():  # where a window ends, one more token is one that it no longer keeps
        if layer.window:
            widget.update(tokens=layer.window)
            assert f"One more token takes {show_bytes(spec.bytes_per_token(layer.window))} of cache" in widget.summary


def test_pasted_is_refused_without_a_config():
    widget = KVPlanner()
    widget.controls["model"].value = PASTED
    assert "paste it below" in widget._message.value and widget.controls["model"].value == "llama-3.1-8b"


def test_weights_that_cannot_be_counted_are_left_out_aloud():
    config = json.loads((CONFIGS / "llama-3.1-8b.json").read_text())
    del config["intermediate_size"]
    widget = KVPlanner(model=PASTED, config=json.dumps(config))
    assert "Weights left out!" in widget.summary and "intermediate_size" in widget.summary
    assert widget.state.plan.budget.weights == 0


def test_from_memory_to_launch_to_occupancy():
    planner, grid, holds = KVPlanner(model="gemma-3-27b", tokens=65536), SMGrid(), OccupancyScope()
    link(planner, grid, holds, grid)
    want = dict(gpu="H200", batch=8, heads_q=32, heads_kv=16, head_dim=128, seqlen_k=65536, dtype="bf16")
    assert {name: getattr(grid.state, name) for name in want} == want
    planner.controls["batch"].value = 12
    planner.controls["dtype"].value = "int4"
    planner.controls["gpu"].value = "L4"
    planner.controls["tp"].value = 4
    shared = (grid.state.batch, grid.state.dtype, grid.state.gpu, grid.state.heads_kv, grid.state.heads_q)
    assert shared == (12, "int4", "L4", 4, 8)
    assert holds.state.cc == "8.9" and grid.state.blocks_per_sm == holds.state.found.blocks_per_sm or 1
    assert style.count(grid.state.grid.blocks, "block") in grid.summary
    planner.controls["tp"].value = 1
    planner.controls["model"].value = "deepseek-v3"
    assert "the grid reads no latent" in grid._message.value and grid.state.heads_kv == 16
    with pytest.raises(ValueError, match="taker is 'TileWalk': allowed is SMGrid"):
        link(planner, TileWalk())


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"model": "gpt-5"}, "model is 'gpt-5': allowed is deepseek-v3"),
        ({"model": PASTED}, "config is '': allowed is the text of a config.json"),
        ({"tokens": 131073}, "tokens is 131073: allowed is from 1 to the model's 131072"),
        ({"batch": 0}, "batch is 0"),
        ({"tp": 3}, "tp 3"),
        ({"dtype": "int3"}, "dtype is 'int3'"),
        ({"dtype": "q8_0", "model": PASTED, "config": '{"model_type": "llama"}'}, "num_hidden_layers is missing"),
        ({"weights": "fp4"}, "weights is 'fp4': allowed is 16 bits, fp8"),
        ({"gpu": "abacus"}, "gpu 'abacus'"),
        ({"utilization": 1.1}, "utilization is 1.1: allowed is above 0 and at most 1"),
    ],
)
def test_what_cannot_be_shown_is_named(bad, message):
    with pytest.raises(ValueError, match=message):
        KVPlanner(**bad)
