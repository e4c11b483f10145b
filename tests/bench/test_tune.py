"""Tuning's table is one that configs reads, and a trial leaves nothing behind. What is fastest only a GPU knows."""

import copy
import json

import pytest

from flashlab.bench import tune
from flashlab.kernels import configs


@pytest.mark.parametrize("name", ["sm_90", "sm_80", "decode_sm_90"])
def test_a_shipped_table_survives_being_written(name):
    table = configs.read_table(name)
    text = tune.table_text({key: table[key] for key in ("gpu", "provenance", "rows")})
    assert json.loads(text) == {key: table[key] for key in ("gpu", "provenance", "rows")}
    assert len(text.splitlines()) == len(table["rows"]) + 6


def test_a_trial_comes_first_and_goes_again():
    before = copy.deepcopy(configs.read_table("sm_90"))
    asked = ("sm_90", "forward", 2, 128, 4096, True)
    shipped = configs.lookup(*asked)
    row = {"kernel": "forward", "itemsize": 2, "head_dim": 128,
           "launch": {"BLOCK_M": 32, "BLOCK_N": 16, "num_warps": 2, "num_stages": 1}}  # fmt: skip
    with pytest.raises(KeyError), tune.trial("sm_90", row):
        assert (configs.lookup(*asked).BLOCK_M, configs.lookup(*asked).BLOCK_N) == (32, 16)
        raise KeyError
    assert configs.lookup(*asked) == shipped
    assert configs.read_table("sm_90") == before


def test_candidates_are_rows_of_a_table():
    for kernel, tiles in tune.PREFILL_TILES.items():
        assert len(set(tiles)) == len(tiles)
        for m, n, warps, stages in tiles:
            assert configs.Launch(64, m, n, warps, stages).options == {"num_warps": warps, "num_stages": stages}, kernel


def test_steps_are_as_many_as_are_announced():
    assert tune.steps(["forward", "decode"]) == 3 + 4 + 3
