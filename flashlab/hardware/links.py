"""How long bytes take from one place to another: PCI Express, NVLink, and NVLink-C2C to a Grace CPU.

    time = start + retimers * 64 ns + bytes / rate            (start + rate fitted to measured points for PCI Express)
    PCIe rate = GT/s * lanes / 8 * encoding * payload / (payload + overhead) * share reached

Encoding is 128b/130b up to generation 5 and 236 bytes of each 256-byte FLIT in generation 6. A packet spends about 24 bytes
on framing, sequence number, header and CRC; in FLIT mode framing and CRC are the FLIT's, which leaves a 16-byte header.
Sources: PCI Express Base Specification 6.0, sections 2.2 and 4.2; NVIDIA's architecture whitepapers for NVLink, its Grace
Hopper datasheet for C2C.

A retimer repeats the signal of a long trace. It costs latency once a transfer, not bandwidth: invisible in a gigabyte, and
small even in a kilobyte. A link has at most two (Base Specification, section 4.3: each one shortens SKP ordered sets and
spends equalization time; Link Capabilities 2 knows "Retimer" and "Two Retimers" presence, nothing more).
"""

from typing import NamedTuple

from flashlab.hardware import measured
from flashlab.hardware.checks import whole

KINDS = ("pcie", "nvlink", "c2c")
PCIE_GIGATRANSFERS = {3: 8, 4: 16, 5: 32, 6: 64}
PCIE_LANES = (1, 2, 4, 8, 16)
PACKET_BYTES, FLIT_HEADER_BYTES = 24, 16
PAYLOAD_BYTES = 256  # what GPUs and hosts usually agree on
MAX_RETIMERS = 2
RETIMER_S = 64e-9

# Generation: (links of the largest part, bytes per second of a link, one direction).
NVLINK = {2: (6, 25e9), 3: (12, 25e9), 4: (18, 25e9), 5: (18, 50e9)}
C2C_BYTES_PER_S = 450e9

HOST_TO_DEVICE, DEVICE_TO_HOST = "host_to_device", "device_to_host"
DIRECTIONS = (HOST_TO_DEVICE, DEVICE_TO_HOST)
# Fitted to measured.PCIE_PINNED (against_measured): seconds before the first byte, and the share of the rate above reached.
START_S = {HOST_TO_DEVICE: 4.3e-6, DEVICE_TO_HOST: 3.1e-6}
PINNED_SHARE = {HOST_TO_DEVICE: 0.96, DEVICE_TO_HOST: 0.962}
# Pageable memory goes through a pinned buffer, at the pace of the host's own copy: measured at 1 GiB, on one host.
PAGEABLE_BYTES_PER_S = dict(zip(DIRECTIONS, measured.PCIE_PAGEABLE[0][1:], strict=True))

MEASURED = f"start and share of the rate as measured on an {measured.GPU}, PCIe 5.0 x16, {measured.DATE}"
HOST_BOUND = f"the host's own copy sets the pace, as measured once on an {measured.GPU}'s host, {measured.DATE}"
WIRE = "the wire's rate, not measured here; a start as on PCIe"


class Transfer(NamedTuple):
    """A transfer in one direction.

    Attributes:
        link: what it goes over.
        bytes: how many.
        time_s: start_s + retimer_s + bytes / rate_bytes_per_s.
        bandwidth_bytes_per_s: bytes / time_s.
        rate_bytes_per_s: what an endless transfer would reach.
        wire_bytes_per_s: after encoding, before packets.
        payload_efficiency: payload bytes over packet bytes, 0 to 1; None on other links than PCIe.
        start_s: before the first byte.
        retimer_s: latency of the retimers.
        half_rate_bytes: the size that reaches half of the rate.
        basis: what the figures rest on.
    """

    link: str
    bytes: int
    time_s: float
    bandwidth_bytes_per_s: float
    rate_bytes_per_s: float
    wire_bytes_per_s: float
    payload_efficiency: float | None
    start_s: float
    retimer_s: float
    half_rate_bytes: float
    basis: str


def link(
    kind: str = "pcie",
    *,
    gen: int | None = None,
    lanes: int | None = None,
    bytes: int = 2**30,
    direction: str = HOST_TO_DEVICE,
    pinned: bool = True,
    retimers: int = 0,
    payload: int = PAYLOAD_BYTES,
) -> Transfer:
    """The time of one transfer.

    Args:
        kind: "pcie", "nvlink" or "c2c".
        gen: generation: PCIe 3 to 6 (5 if not given), NVLink 2 to 5 (4 if not given); C2C has none.
        lanes: PCIe lanes (16 if not given), or NVLinks used (if not given, all of the largest part's).
        bytes: how many.
        direction: "host_to_device" or "device_to_host"; for NVLink and C2C both are alike.
        pinned: on a PCIe link, whether the host's memory is page-locked.
        retimers: on a PCIe link, 0 to 2.
        payload: on a PCIe link, bytes of data in a packet, 128 to 4096.

    Raises:
        TypeError, ValueError: an argument is out of range, or does not go with this kind of link.
    """
    size = whole("bytes", bytes)
    if kind not in KINDS:
        raise ValueError(f"kind must be pcie, nvlink or c2c, got {kind!r}")
    if direction not in DIRECTIONS:
        raise ValueError(f"direction must be one of {', '.join(DIRECTIONS)}, got {direction!r}")
    if kind == "pcie":
        return _pcie(
            5 if gen is None else gen, 16 if lanes is None else lanes, size, direction, pinned, retimers, payload
        )
    pcie_only = (("retimers", retimers, 0), ("pinned", pinned, True), ("payload", payload, PAYLOAD_BYTES))
    for name, value, plain in pcie_only:
        if value != plain:
            raise ValueError(f"{name} must be {plain} on {kind}, got {value}: it is for PCIe only")
    if kind == "nvlink":
        gen = _one_of("gen", 4 if gen is None else gen, NVLINK)
        most, each = NVLINK[gen]
        links = most if lanes is None else whole("lanes", lanes)
        if links > most:
            raise ValueError(f"lanes must be at most {most} NVLinks in generation {gen}, got {links}")
        return _transfer(f"NVLink {gen} x{links}", size, links * each, START_S[HOST_TO_DEVICE])
    for name, value in (("gen", gen), ("lanes", lanes)):
        if value is not None:
            raise ValueError(f"{name} does not apply to c2c, of which there is one kind, got {value}")
    return _transfer("NVLink-C2C", size, C2C_BYTES_PER_S, START_S[HOST_TO_DEVICE])


def wire_rate(gen: int, lanes: int) -> float:
    """Bytes per second of a PCIe link in one direction, encoding paid, packets not."""
    _one_of("gen", gen, PCIE_GIGATRANSFERS)
    _one_of("lanes", lanes, PCIE_LANES)
    encoding = 236 / 256 if gen == 6 else 128 / 130
    return PCIE_GIGATRANSFERS[gen] * 1e9 * lanes / 8 * encoding


def payload_efficiency(payload: int, gen: int = 5) -> float:
    """Share of a PCIe link that carries data, in packets of `payload` bytes."""
    whole("payload", payload)
    return payload / (payload + (FLIT_HEADER_BYTES if gen == 6 else PACKET_BYTES))


def against_measured() -> list[tuple[str, float, float]]:
    """Every measured transfer: (what, predicted, measured), in bytes per second."""
    rows = []
    for pinned, points in ((True, measured.PCIE_PINNED), (False, measured.PCIE_PAGEABLE)):
        for size, *rates in points:
            for direction, rate in zip(DIRECTIONS, rates, strict=True):
                predicted = link(gen=5, lanes=16, bytes=size, direction=direction, pinned=pinned)
                what = f"{size} bytes {direction}, {'pinned' if pinned else 'pageable'}"
                rows.append((what, predicted.bandwidth_bytes_per_s, rate))
    return rows


def _pcie(gen: int, lanes: int, size: int, direction: str, pinned: bool, retimers: int, payload: int) -> Transfer:
    wire = wire_rate(gen, lanes)
    if not 128 <= whole("payload", payload) <= 4096:
        raise ValueError(f"payload must be 128 to 4096 bytes, got {payload}")
    if whole("retimers", retimers, 0) > MAX_RETIMERS:
        raise ValueError(
            f"retimers must be 0, 1 or 2, got {retimers}: PCI Express permits at most two between two ports, each of them "
            "shortening SKP ordered sets and taking equalization time (Base Specification, section 4.3)"
        )
    name = f"PCIe {gen}.0 x{lanes}, {'pinned' if pinned else 'pageable'}"
    efficiency = payload_efficiency(payload, gen)
    rate = wire * efficiency * PINNED_SHARE[direction]
    basis = MEASURED
    if not pinned and PAGEABLE_BYTES_PER_S[direction] < rate:
        rate, basis = PAGEABLE_BYTES_PER_S[direction], HOST_BOUND
    return _transfer(name, size, rate, START_S[direction], retimers * RETIMER_S, basis, wire, efficiency)


def _transfer(
    name: str,
    size: int,
    rate: float,
    start_s: float,
    retimer_s: float = 0.0,
    basis: str = WIRE,
    wire: float | None = None,
    efficiency: float | None = None,
) -> Transfer:
    time_s = start_s + retimer_s + size / rate
    return Transfer(
        link=name,
        bytes=size,
        time_s=time_s,
        bandwidth_bytes_per_s=size / time_s,
        rate_bytes_per_s=rate,
        wire_bytes_per_s=wire or rate,
        payload_efficiency=efficiency,
        start_s=start_s,
        retimer_s=retimer_s,
        half_rate_bytes=(start_s + retimer_s) * rate,
        basis=basis,
    )


def _one_of(name: str, value: int, allowed) -> int:
    if whole(name, value) not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, got {value!r}")
    return value
