"""07.place: where a measured kernel stands under the roof."""

from flashlab.course.lessons.lesson_07 import recorded
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.hardware import gpu


def spec(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    flop = 4 * batch * heads_q * seqlen_q * seqlen_k * head_dim  # two products, two FLOP for a multiply-add
    elements = 2 * batch * seqlen_q * heads_q * head_dim + 2 * batch * seqlen_k * heads_kv * head_dim  # q, o; k, v
    shortest = max(flop / peak, 2 * elements / bandwidth)
    return flop / (2 * elements), flop / us / 1e6, shortest / (us * 1e-6)


def stub(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    """A bf16 attention step took ``us`` microseconds. peak in FLOP/s, bandwidth in bytes/s.

    Returns (FLOP per byte, TFLOP/s reached, share of what the roofline allows from 0 to 1). q, k, v and o count once.
    """
    raise NotImplementedError


def solution(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    """A bf16 attention step took ``us`` microseconds. peak in FLOP/s, bandwidth in bytes/s.

    Returns (FLOP per byte, TFLOP/s reached, share of what the roofline allows from 0 to 1). q, k, v and o count once.
    """
    flop = 4 * batch * heads_q * seqlen_q * seqlen_k * head_dim
    moved = 2 * (2 * batch * seqlen_q * heads_q * head_dim + 2 * batch * seqlen_k * heads_kv * head_dim)
    intensity = flop / moved
    reached = flop / (us * 1e-6)
    return intensity, reached / 1e12, reached / min(peak, intensity * bandwidth)


def _place(
    batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth, *, factor=4, size=2, kv_per_q=False, o=2, kv=2
):  # fmt: skip
    flop = factor * batch * heads_q * seqlen_q * seqlen_k * head_dim
    moved = size * batch * head_dim * (o * seqlen_q * heads_q + kv * seqlen_k * (heads_q if kv_per_q else heads_kv))
    reached = flop / (us * 1e-6)
    return flop / moved, reached / 1e12, reached / min(peak, flop / moved * bandwidth)


def two_flop_only(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    return _place(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth, factor=2)


def multiply_adds(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    return _place(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth, factor=1)


def elements_for_bytes(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    return _place(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth, size=1)


def kv_for_every_query_head(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    return _place(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth, kv_per_q=True)


def k_without_v(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    return _place(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth, kv=1)


def o_forgotten(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    return _place(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth, o=1)


def always_of_the_peak(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    intensity, reached, _ = solution(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth)
    return intensity, reached, reached * 1e12 / peak


def always_of_the_bandwidth(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    intensity, reached, _ = solution(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth)
    return intensity, reached, reached * 1e12 / (intensity * bandwidth)


def in_percent(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    intensity, reached, share = solution(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth)
    return intensity, reached, 100 * share


def flop_not_tera(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    intensity, reached, share = solution(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth)
    return intensity, reached * 1e12, share


def share_of_tera(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    intensity, reached, share = solution(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth)
    return intensity, reached, share / 1e12


def tebi(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    intensity, reached, share = solution(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth)
    return intensity, reached * 1e12 / 2**40, share


def scores_moved(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    flop = 4 * batch * heads_q * seqlen_q * seqlen_k * head_dim
    moved = 2 * (2 * batch * seqlen_q * heads_q * head_dim + 2 * batch * seqlen_k * heads_kv * head_dim)
    moved += 4 * 2 * batch * heads_q * seqlen_q * seqlen_k
    return flop / moved, flop / us / 1e6, flop / us * 1e6 / min(peak, flop / moved * bandwidth)


def bytes_per_flop(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth):
    intensity, reached, share = solution(batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, us, peak, bandwidth)
    return 1 / intensity, reached, share


H200 = gpu("h200")


def _case(point, label=""):
    c, us = point.case, point.seconds[recorded.OURS] * 1e6
    sizes = (c.batch, c.heads_q, c.heads_kv, c.seqlen_q, c.seqlen_k, c.head_dim)
    return Case(f"{c.label}{label}, {us:.1f} us on an H200", (*sizes, us, H200.dense_16bit_flops, H200.hbm_bytes_per_s))


def _prefill():
    return [_case(p) for p in recorded.points("prefill") if not p.case.causal][:3]


def _decode():
    return [_case(p) for p in recorded.points("decode") if p.case.heads_q == p.case.heads_kv]


def _gqa():
    return [_case(p) for p in recorded.points("decode") if p.case.heads_q != p.case.heads_kv][:3]


def _other_gpu():
    a100 = gpu("a100")
    sizes = (1, 16, 4, 64, 512, 64, 20.0)
    return [Case("B1 H16/4, 64 queries, 512 keys, D64, 20 us on an A100", (*sizes, a100.dense_16bit_flops, a100.hbm_bytes_per_s))]


EXERCISE = Exercise(
    id="07.place",
    title="A place under the roof",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "FLOP: S = QK^T and O = PV are seqlen_q * seqlen_k * head_dim multiply-adds each, for every batch row and query head.",
        "Bytes: 2 for each element of q and o (heads_q heads) and of k and v (heads_kv heads).",
        "The roof at this intensity is min(peak, intensity * bandwidth), as in lesson 00. The share is reached / roof.",
    ),
    sub_checks=(
        SubCheck("prefill, under the flat roof", cases=_prefill),
        SubCheck("decode, under the slope", cases=_decode),
        SubCheck("query heads that share K and V", cases=_gqa),
        SubCheck("another GPU", cases=_other_gpu),
    ),
    mistakes=(
        Mistake(
            two_flop_only,
            "Half of the FLOP are missing: there are two products, and a multiply-add is two FLOP.",
            "How many multiply-adds are in QK^T, how many in PV?",
        ),
        Mistake(
            multiply_adds,
            "A quarter of the FLOP: one product, and a multiply-add counted once. A datasheet counts it twice.",
            "How many multiply-adds are in QK^T, how many in PV?",
        ),
        Mistake(
            elements_for_bytes, "Elements are taken for bytes. bf16 has two bytes.", "How many bytes has a K of 100 elements?"
        ),
        Mistake(
            kv_for_every_query_head,
            "K and V are counted for every query head. They are stored, and read, once for each kv head.",
            "How many heads does k have?",
        ),
        Mistake(k_without_v, "K is counted and V is not, or the other way round.", "What does the second product read?"),
        Mistake(o_forgotten, "q and o have the same size, and one of them is missing.", "What is written at the end?"),
        Mistake(
            always_of_the_peak,
            "The share is taken of the peak everywhere. A step under the slope could never reach it.",
            "What is the roof at 4 FLOP per byte?",
        ),
        Mistake(
            always_of_the_bandwidth,
            "The share is taken of the slope everywhere. Past the ridge the peak is lower.",
            "What is the roof at 1000 FLOP per byte?",
        ),
        Mistake(in_percent, "The share is in percent; from 0 to 1 was asked for.", "What is the share of a perfect kernel?"),
        Mistake(flop_not_tera, "This is FLOP/s; TFLOP/s were asked for.", "How many FLOP/s are one TFLOP/s?"),
        Mistake(
            share_of_tera,
            "TFLOP/s are divided by a roof in FLOP/s. peak and bandwidth count single FLOP and bytes.",
            "Which unit has min(peak, intensity * bandwidth)?",
        ),
        Mistake(
            tebi,
            "The rate is divided by 2^40. A TFLOP/s is 10^12 FLOP/s; powers of two are for memory sizes.",
            "How many FLOP/s does a datasheet mean by 989 TFLOP/s?",
        ),
        Mistake(
            scores_moved,
            "S and P are written and read in this, as naive attention does it. A fused kernel keeps them on the chip.",
            "Which four tensors does the docstring name?",
        ),
        Mistake(bytes_per_flop, "This is bytes per FLOP, the inverse.", "Which is divided by which in FLOP per byte?"),
    ),
    keep="A kernel is good by the roof over its own head: 460 TFLOP/s may be poor, and 17 TFLOP/s perfect.",
)
