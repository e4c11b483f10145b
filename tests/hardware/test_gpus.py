"""The table of GPUs: its numbers, its citations, and how names find a row."""

import sys
from types import SimpleNamespace

import pytest

from flashlab.hardware import gpu
from flashlab.hardware.gpus import known, names
from flashlab.hardware.limits import LIMITS

# name: cc, SMs, shared KiB per SM, threads per SM, HBM GB/s, dense 16-bit TFLOP/s, L2 MiB, PCIe, GB. Written down apart from
# the package's table, so that a slip in either shows.
FACTS = {
    "T4": ("7.5", 40, 64, 1024, 320, 65, 4, 3, 16),
    "V100-SXM2": ("7.0", 80, 96, 2048, 900, 125, 6, 3, 32),
    "A100-SXM-40GB": ("8.0", 108, 164, 2048, 1555, 312, 40, 4, 40),
    "A100-SXM-80GB": ("8.0", 108, 164, 2048, 2039, 312, 40, 4, 80),
    "A10": ("8.6", 72, 100, 1536, 600, 125, 6, 4, 24),
    "RTX 3090": ("8.6", 82, 100, 1536, 936, 71, 6, 4, 24),
    "L4": ("8.9", 58, 100, 1536, 300, 121, 48, 4, 24),
    "L40S": ("8.9", 142, 100, 1536, 864, 362, 96, 4, 48),
    "RTX 4090": ("8.9", 128, 100, 1536, 1008, 165, 72, 4, 24),
    "H100-SXM": ("9.0", 132, 228, 2048, 3350, 989, 50, 5, 80),
    "H100-PCIe": ("9.0", 114, 228, 2048, 2000, 756, 50, 5, 80),
    "H200": ("9.0", 132, 228, 2048, 4800, 989, 60, 5, 141),
    "GH200": ("9.0", 132, 228, 2048, 4000, 989, 50, 5, 96),
    "GH200-144GB": ("9.0", 132, 228, 2048, 4900, 989, 50, 5, 144),
    "B200": ("10.0", 148, 228, 2048, 8000, 2250, 126, 5, 180),
    "RTX 5090": ("12.0", 170, 100, 1536, 1792, 209.5, 96, 5, 32),
    "MI300X": ("CDNA3", 304, 64, 2048, 5300, 1307, 32, 5, 192),
}
REPORTED_MIB = {
    "H100": 81559,
    "A100-80GB": 81920,
    "A100-40GB": 40960,
    "A10": 23028,
    "L40S": 46068,
    "L4": 23034,
    "T4": 15360,
    "H200": 143771,
}


@pytest.mark.parametrize("name", FACTS)
def test_facts(name):
    part = gpu(name)
    assert (
        part.cc,
        part.sms,
        part.shared_memory_per_sm / 1024,
        part.threads_per_sm,
        part.hbm_bytes_per_s / 1e9,
        part.dense_16bit_flops / 1e12,
        part.l2_bytes / 2**20,
        part.pcie_gen,
        part.memory_gb,
    ) == FACTS[name]


@pytest.mark.parametrize("name", REPORTED_MIB)
def test_memory_is_what_the_driver_reports(name):
    assert gpu(name).memory_mib == REPORTED_MIB[name]
    assert gpu(name).memory_bytes == REPORTED_MIB[name] * 2**20


def test_memory_falls_back_on_what_is_sold():
    assert gpu("V100-32GB").memory_mib is None
    assert gpu("V100-32GB").memory_bytes == 32 * 10**9


def test_every_row_cites_a_document_and_is_of_a_known_kind():
    assert len(names()) == len(set(names())) >= 17
    for name in names():
        part = gpu(name)
        assert any(word in part.source for word in ("datasheet", "data sheet", "whitepaper", "product brief")), name
        assert part.cc in LIMITS
        assert part.bf16 == (part.cc not in ("7.0", "7.5"))
        assert 30 < part.ridge < 1000


def test_links_between_gpus():
    one_way = {
        "V100": 150,
        "A100": 300,
        "RTX 3090": 56.25,
        "H100": 450,
        "H200": 450,
        "B200": 900,
        "L4": 0,
        "RTX 4090": 0,
    }
    assert {name: gpu(name).nvlink_bytes_per_s / 1e9 for name in one_way} == one_way
    assert gpu("GH200").c2c_bytes_per_s == 450e9
    assert gpu("H200").c2c_bytes_per_s == 0


@pytest.mark.parametrize(
    "asked, found",
    [
        ("h100", "H100-SXM"),
        ("a100", "A100-SXM-80GB"),
        ("A100-80GB", "A100-SXM-80GB"),
        ("a100-80", "A100-SXM-80GB"),
        ("A100 40", "A100-SXM-40GB"),
        ("a100 40gb", "A100-SXM-40GB"),
        ("v100", "V100-SXM2-32GB"),
        ("gh200", "GH200-96GB"),
        ("4090", "RTX 4090"),
        ("rtx_5090", "RTX 5090"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200-144GB"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_loose_names(asked, found):
    assert gpu(asked).name == found


def test_every_name_of_the_table_finds_its_own_row():
    assert [gpu(name).name for name in names()] == names()


@pytest.mark.parametrize(
    "neighbour, close",
    [
        ("l40", "L40S"),
        ("rtx", "RTX 3090, RTX 4090, RTX 5090"),
        ("a10g", "A10"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 D", "RTX 4090"),
        ("NVIDIA H100 NVL", "H100-SXM"),
        ("NVIDIA H200 NVL", "H200"),
        ("h300", "H100-SXM"),
        ("a100 96gb", "A100"),
        ("Tesla V100-PCIE-16GB", "V100-SXM2-16GB"),
    ],
)
def test_a_neighbour_is_refused_and_close_names_told(neighbour, close):
    with pytest.raises(ValueError, match=f"not in the table; did you mean .*{close}"):
        gpu(neighbour)


@pytest.mark.parametrize("name", ["", "   ", "nvidia", "quantum"])
def test_a_name_like_nothing_lists_the_table(name):
    with pytest.raises(ValueError, match="it has T4, .*MI300X"):
        gpu(name)


def test_a_gpu_is_its_own_name_and_other_types_are_refused():
    assert gpu(gpu("h200")) is gpu("h200")
    with pytest.raises(TypeError, match="expected a name"):
        gpu(9.0)


def fake_torch(monkeypatch, device=None):
    cuda = SimpleNamespace(
        is_available=lambda: device is not None, current_device=lambda: 0, get_device_properties=lambda _: device
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def device(name, major, minor, sms):
    return SimpleNamespace(
        name=name, major=major, minor=minor, multi_processor_count=sms, L2_cache_size=60 << 20, total_memory=100 << 30
    )


def test_live_takes_the_device_at_its_word(monkeypatch):
    """What the device says of itself wins; the table adds the bandwidth, which no driver tells."""
    fake_torch(monkeypatch, device("NVIDIA H200", 9, 0, 60))
    part = gpu("live")
    assert (part.name, part.sms, part.memory_bytes) == ("H200", 60, 100 << 30)
    assert part.hbm_bytes_per_s == gpu("h200").hbm_bytes_per_s
    assert "driver" in part.source


def test_live_slice_of_a_gpu_has_not_the_whole_ones_rates(monkeypatch):
    fake_torch(monkeypatch, device("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9, 0, 16))
    part = gpu("live")
    assert (part.sms, part.hbm_bytes_per_s, part.dense_16bit_flops) == (16, None, None)


def test_live_outside_the_table_knows_no_rates(monkeypatch):
    fake_torch(monkeypatch, device("NVIDIA GeForce RTX 4070", 8, 9, 46))
    part = gpu("live")
    assert (part.cc, part.sms, part.shared_memory_per_sm) == ("8.9", 46, 100 * 1024)
    assert part.bf16
    with pytest.raises(ValueError, match="RTX 4070.*hbm_bytes_per_s is not in the table"):
        known(part, "hbm_bytes_per_s")


def test_live_before_ampere_has_no_bf16(monkeypatch):
    fake_torch(monkeypatch, device("NVIDIA TITAN RTX", 7, 5, 72))
    assert not gpu("live").bf16


def test_live_without_a_gpu_or_torch_says_so(monkeypatch):
    fake_torch(monkeypatch)
    with pytest.raises(RuntimeError, match="torch sees no GPU"):
        gpu("live")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RuntimeError, match="needs torch"):
        gpu("LIVE")


def test_live_of_an_unknown_kind_is_refused(monkeypatch):
    fake_torch(monkeypatch, device("NVIDIA Tesla P100", 6, 0, 56))
    with pytest.raises(RuntimeError, match="compute capability 6.0"):
        gpu("live")


@pytest.mark.gpu
def test_live_is_the_gpu_present():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    part = gpu("live")
    device = torch.cuda.get_device_properties(0)
    assert part.sms == device.multi_processor_count
    assert part.cc == f"{device.major}.{device.minor}"
    assert part.shared_memory_per_sm == device.shared_memory_per_multiprocessor
    assert part.threads_per_sm == device.max_threads_per_multi_processor
