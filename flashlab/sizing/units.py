"""GB is 10**9 bytes, GiB is 2**30 bytes; the difference is 7.4%, so both are always shown."""

GB = 10**9
GiB = 2**30


def show_bytes(n: float) -> str:
    """``1073741824`` -> ``1.074 GB (1.000 GiB)``; smaller amounts in MB (MiB), kB (KiB) or bytes."""
    for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "k")):
        if abs(n) >= 1000**power:
            binary = letter.upper() + "iB"
            return f"{n / 1000**power:,.3f} {letter}B ({n / 1024**power:,.3f} {binary})"
    return f"{n:,.0f} bytes"
