"""flashlab link, as it is run."""

import json

import pytest

from flashlab.cli import main


def run(capsys, *arguments) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return stopped.value.code, *capsys.readouterr()


def test_json(capsys):
    code, out, _ = run(capsys, "link", "--gen", "5", "--lanes", "16", "--bytes", "1GiB", "--retimers", "2", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["bytes"] == 2**30
    assert found["time_s"] == pytest.approx(2**30 / 55.3e9, rel=0.01)
    assert found["bandwidth_bytes_per_s"] == pytest.approx(found["bytes"] / found["time_s"])
    assert found["retimer_s"] == pytest.approx(128e-9)
    assert (found["kind"], found["direction"], found["retimers"]) == ("pcie", "host_to_device", 2)


def test_table(capsys):
    code, out, _ = run(capsys, "link", "--gen", "4", "--bytes", "64KiB", "--retimers", "1")
    assert code == 0
    assert "65.536 kB (64.000 KiB) over PCIe 4.0 x16, pinned" in out
    assert "1: at most 64 ns" in out
    assert "31.51 GB/s" in out


def test_other_links(capsys):
    for arguments, rate in (
        (["--kind", "nvlink", "--gen", "5"], 900e9),
        (["--kind", "c2c"], 450e9),
        (["--pageable"], 7.3e9),
    ):
        assert json.loads(run(capsys, "link", *arguments, "--json")[1])["rate_bytes_per_s"] == pytest.approx(rate)


def test_nvlink_claims_nothing_about_packets(capsys):
    assert "packets carry" in run(capsys, "link")[1]
    out = run(capsys, "link", "--kind", "nvlink")[1]
    assert "packets carry" not in out and "retimers" not in out
    assert json.loads(run(capsys, "link", "--kind", "nvlink", "--json")[1])["payload_efficiency"] is None


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--retimers", "3"], "--retimers 3: retimers must be 0, 1 or 2, got 3: PCI Express permits at most two"),
        (["--gen", "2"], "--gen 2: gen must be one of 3, 4, 5, 6"),
        (["--lanes", "3"], "--lanes 3: lanes must be one of 1, 2, 4, 8, 16"),
        (["--bytes", "12XB"], "'--bytes': '12XB': must be a number of bytes such as"),
        (["--bytes", "1Gb"], "'--bytes': '1Gb': Gb means bits"),
        (["--bytes", "0"], "'--bytes': '0': must be at least 1 bytes"),
        (["--payload", "1"], "--payload 1: payload must be 128 to 4096"),
        (["--kind", "nvlink", "--pageable"], "--pageable: pinned must be True on nvlink"),
        (["--kind", "nvlink", "--retimers", "1"], "--retimers 1: retimers must be 0 on nvlink"),
        (["--kind", "c2c", "--lanes", "2"], "--lanes 2: lanes does not apply to c2c"),
        (["--kind", "usb"], "'--kind': 'usb' is not one of 'pcie', 'nvlink', 'c2c'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, words):
    code, out, err = run(capsys, "link", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
