"""Peers that are absent say so, and FlexAttention that fell back to its slow path is refused."""

import warnings

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from flashlab.bench import inputs, peers
from flashlab.bench.cases import SETS, Case
from flashlab.bench.peers import installed, torch_flex, torch_sdpa


@pytest.mark.parametrize("peer", [peer for peer in installed.PEERS if peer.absent()], ids=lambda peer: peer.name)
def test_an_absent_peer_is_a_row_that_says_so(bench, peer):
    case = Case(peer.kinds[0], 1, 2, 2, 16, 16, 16)
    record = bench.measured([peer], cases=(case,))
    (row,) = record["results"][0]["entries"]
    assert (row["status"], row["time"]) == ("absent", None)
    assert row["reason"] == f"{peer.distribution} is not installed here"


def test_names_are_unique_and_chosen_by_kind():
    names = [peer.name for peer in peers.all_peers()]
    assert len(set(names)) == len(names)
    assert names[0] == "flashlab"
    assert {peer.name for peer in peers.choose("train", ["torch-cudnn"])} == {"flashlab", "torch-cudnn"}
    with pytest.raises(ValueError, match="peer 'cudnn': must be one of flashlab, .*torch-cudnn"):
        peers.choose("train", ["cudnn"])


@pytest.mark.parametrize("kind", SETS)
def test_each_case_has_someone_to_beat(kind):
    for case in SETS[kind]["full"]:
        able = [peer for peer in peers.choose(kind) if peer.refuses(case) is None and peer.role != "floor"]
        assert len(able) > 1, case.label


compile_really = torch.compile


def gives_up(function, **options):
    """torch.compile as it is past its limits: the function itself, where it is FlexAttention."""
    return function if function is flex.flex_attention else compile_really(function, **options)


def gives_up_in_silence(function, **options):
    def call(*arguments, **named):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*arguments, **named)

    return call if function is flex.flex_attention else compile_really(function, **options)


@pytest.mark.parametrize("gave_up", [gives_up, gives_up_in_silence])
@pytest.mark.parametrize("causal", [False, True])
def test_flex_that_fell_back_is_refused(bench, monkeypatch, gave_up, causal):
    monkeypatch.setattr(torch, "compile", gave_up)
    record = bench.measured([torch_flex.Flex()], cases=(bench.TINY.alike(causal=causal),))
    (row,) = record["results"][0]["entries"]
    assert (row["status"], row["time"]) == ("refused", None), row
    assert "would mean nothing" in row["reason"]


def test_flex_that_compiled_is_accepted():
    compiled = torch.compile(lambda x: x * 2 + 1, dynamic=False, fullgraph=True, backend="aot_eager")
    torch_flex.compiled_only(lambda: compiled(torch.ones(3)))
    with pytest.raises(peers.Refused, match="not compiled"):
        torch_flex.compiled_only(lambda: compiled(torch.ones(3)))


def test_math_refuses_to_store_scores_that_do_not_fit():
    math = next(peer for peer in torch_sdpa.PEERS if peer.name == "torch-math")
    assert "16 GiB" in math.refuses(Case("prefill", 1, 16, 16, 16384, 16384, 128))
    assert math.refuses(Case("prefill", 1, 16, 16, 1024, 1024, 128)) is None


@pytest.mark.parametrize("case", [Case("prefill", 2, 4, 2, 40, 40, 16, causal=True), Case("train", 1, 2, 2, 24, 24, 16)],
                         ids=lambda case: case.kind)  # fmt: skip
def test_torch_and_ours_answer_what_the_oracle_says(bench, case):
    math = next(peer for peer in torch_sdpa.PEERS if peer.name == "torch-math")
    record = bench.measured([peers.all_peers()[0], math], cases=(case,))
    assert [row["status"] for row in record["results"][0]["entries"]] == ["ok", "ok"], record["results"][0]["entries"]


@pytest.mark.parametrize("cache", ["bf16", "fp8", "int4", "int4 head-major"])
def test_our_decode_of_every_cache_is_right(bench, cache):
    case = Case("decode", 1, 2, 1, 1, 40, 16, cache=cache)
    ours = [peer for peer in peers.all_peers() if peer.name in ("flashlab", "flashlab-bf16", "flashlab-unsplit")]
    record = bench.measured(ours, cases=(case,))
    status = {row["peer"]: row["status"] for row in record["results"][0]["entries"]}
    assert status["flashlab"] == "ok", record["results"][0]["entries"]
    assert status["flashlab-bf16"] == ("refused" if cache == "bf16" else "ok")
    assert status["flashlab-unsplit"] == ("ok" if cache == "bf16" else "refused")


def test_leaves_share_memory():
    tensors = inputs.make(Case("train", 1, 2, 2, 8, 8, 16), "cpu", 0)
    (q,) = peers.leaves(tensors.q)
    assert q.requires_grad and q.data_ptr() == tensors.q.data_ptr()
