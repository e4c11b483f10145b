"""GB is never GiB: both are always written, each with its own number."""

import pytest

from flashlab.sizing import GB, GiB, show_bytes


def test_a_gib_is_seven_percent_more():
    assert GiB / GB == 1.073741824


@pytest.mark.parametrize("size, text", [
    (0, "0 bytes"),
    (999, "999 bytes"),
    (1000, "1.000 kB (0.977 KiB)"),
    (5 * 10**6, "5.000 MB (4.768 MiB)"),
    (2**30, "1.074 GB (1.000 GiB)"),
    (1314259992576, "1.314 TB (1.195 TiB)"),  # FlexGen's 1.2 "TB" are TiB
    (-(2**30), "-1.074 GB (-1.000 GiB)"),
])  # fmt: skip
def test_both_units(size, text):
    assert show_bytes(size) == text
