"""00.attainable: the roofline itself."""

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.hardware import gpu


def spec(intensity, peak, bandwidth):
    flops = 1e12
    seconds = max(flops / peak, flops / intensity / bandwidth)  # both at once: the slower decides
    return flops / seconds


def stub(intensity, peak, bandwidth):
    """intensity in FLOP/byte, peak in FLOP/s, bandwidth in bytes/s. Returns FLOP/s, the upper limit."""
    raise NotImplementedError


def solution(intensity, peak, bandwidth):
    """intensity in FLOP/byte, peak in FLOP/s, bandwidth in bytes/s. Returns FLOP/s, the upper limit."""
    return min(peak, intensity * bandwidth)


def larger_of_the_two(intensity, peak, bandwidth):
    return max(peak, intensity * bandwidth)


def no_ceiling(intensity, peak, bandwidth):
    return intensity * bandwidth


def one_after_the_other(intensity, peak, bandwidth):
    return 1 / (1 / peak + 1 / (intensity * bandwidth))


def divided(intensity, peak, bandwidth):
    return min(peak, bandwidth / intensity)


def always_peak(intensity, peak, bandwidth):
    return peak


def _case(name, intensity):
    part = gpu(name)
    label = f"{intensity:g} FLOP/byte on {part.name}"
    return Case(label, (intensity, part.dense_16bit_flops, part.hbm_bytes_per_s), 1e-12)


def _below():
    return [_case("h200", 1.0), _case("h200", 64.0)]


def _above():
    return [_case("h200", 1365.0), _case("a100", 400.0)]


def _at():
    return [_case("h200", gpu("h200").ridge)]


def _others():
    return [_case("h100", 250.0), _case("h200", 250.0)]


EXERCISE = Exercise(
    id="00.attainable",
    title="The roofline",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Two things limit the rate. One is peak. The other is how fast the bytes come in: what FLOP/s do bandwidth bytes a "
        "second allow, if each byte feeds `intensity` FLOP?",
        "Look at the units: FLOP/byte times bytes/s is FLOP/s. You now have two rates, and both are upper limits.",
    ),
    sub_checks=(
        SubCheck("left of the ridge, bandwidth decides", cases=_below),
        SubCheck("right of the ridge, the peak decides", cases=_above),
        SubCheck("at the ridge, both at once", cases=_at),
        SubCheck("the same work on two GPUs", cases=_others),
    ),
    mistakes=(
        Mistake(
            larger_of_the_two,
            "This is the larger of two limits. Both hold, so the smaller one is what is left.",
            "A GPU with a peak of 989 TFLOP/s: can your function return more than that?",
        ),
        Mistake(
            no_ceiling,
            "This is the slope without the roof: it grows for ever with the intensity.",
            "What does your function say for 10,000 FLOP/byte, and what is the GPU's peak?",
        ),
        Mistake(
            one_after_the_other,
            "This is what comes out when the GPU first reads and then computes, one after the other. It does both at once: "
            "while some warps wait for data, others compute. So times do not add; the longer one decides.",
            "At the ridge reading and computing take the same time. Which fraction of the peak does yours reach there?",
        ),
        Mistake(
            divided,
            "This divides bandwidth by intensity, so more reuse would make the GPU slower.",
            "Write the units out: bytes/s and FLOP/byte. How do you get FLOP/s?",
        ),
        Mistake(
            always_peak,
            "This is the peak, whatever the intensity: a GPU that never waits for memory.",
            "At 1 FLOP/byte, how many bytes a second would the peak need?",
        ),
    ),
    keep="Rate = min(peak, intensity x bandwidth): before asking how fast a kernel is, ask which of the two it can reach.",
)
