"""Sizes as people write them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab.cli.sizes import parse_size, show_rate, show_time


@pytest.mark.parametrize(
    "text, size",
    [
        ("0", 0),
        ("4096", 4096),
        ("1e9", 10**9),
        ("2.5e3", 2500),
        ("64KB", 64_000),
        ("64kB", 64_000),
        ("64KiB", 65_536),
        ("64kib", 65_536),
        ("1GiB", 2**30),
        ("1 GiB", 2**30),
        (" 1gb ", 10**9),
        ("1.5MiB", 3 * 2**19),
        (".5kB", 500),
        ("1TB", 10**12),
        ("3TiB", 3 * 2**40),
        ("7B", 7),
        ("0.1KiB", 102),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "1.5",
        "1XB",
        "-1",
        "+1",
        "1,000",
        "1G",
        "1 000",
        "nan",
        "inf",
        "1e400",
        "1e30TB",
        "0x10",
        "1.2.3GB",
        "１GB!",
    ],
)
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="must be a number of bytes such as"):
        parse_size(text)


@pytest.mark.parametrize("text", ["1Gb", "64Kb", "2Mib", "1Tb"])
def test_bits_are_never_taken_for_bytes(text):
    with pytest.raises(ValueError, match="means bits"):
        parse_size(text)


@settings(deadline=None)
@given(st.integers(0, 2**53))
def test_whole_bytes_come_back(size):
    assert parse_size(str(size)) == parse_size(f"{size}B") == size


@pytest.mark.parametrize(
    "seconds, text", [(2, "2 s"), (0.0194, "19.4 ms"), (4.3e-6, "4.3 us"), (128e-9, "128 ns"), (0, "0 ns")]
)
def test_times(seconds, text):
    assert show_time(seconds) == text


def test_rates():
    assert show_rate(55.3e9) == "55.3 GB/s"
