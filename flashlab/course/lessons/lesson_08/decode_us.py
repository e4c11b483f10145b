"""08.decode_us: how long a decode step takes, from its bytes, its FLOP and its blocks."""

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.hardware import gpu

H200 = gpu("h200")
BLOCK, ALL = 35e9, 4480e9  # bytes per second: one block alone, all of the GPU (recorded.py has the exact ones)


def spec(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s):
    each = min(block_bytes_per_s, gpu_bytes_per_s / blocks)  # one block's: its own pace, or its share
    reading = max(kv_bytes / blocks / each for _block in range(blocks))
    computing = flop / blocks * max(1, blocks / sms) / sm_flop_per_s  # an SM does the FLOP of its blocks in turn
    return 1e6 * max(reading, computing)


def stub(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s):
    """Microseconds of one decode step: the longer of reading kv_bytes and computing flop. No loop.

    block_bytes_per_s: what one block reads by itself; gpu_bytes_per_s: the most that all of them read together;
    sm_flop_per_s: of one SM. Blocks beyond the number of SMs share them.
    """
    raise NotImplementedError


def solution(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s):
    """Microseconds of one decode step: the longer of reading kv_bytes and computing flop. No loop.

    block_bytes_per_s: what one block reads by itself; gpu_bytes_per_s: the most that all of them read together;
    sm_flop_per_s: of one SM. Blocks beyond the number of SMs share them.
    """
    reading = kv_bytes / min(blocks * block_bytes_per_s, gpu_bytes_per_s)
    computing = flop / (min(blocks, sms) * sm_flop_per_s)
    return 1e6 * max(reading, computing)


def a_full_gpu(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s):
    return 1e6 * max(kv_bytes / gpu_bytes_per_s, flop / (sms * sm_flop_per_s))


def no_ceiling(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s):
    reading = kv_bytes / (blocks * block_bytes_per_s)
    return 1e6 * max(reading, flop / (min(blocks, sms) * sm_flop_per_s))


def one_after_the_other(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s):
    reading = kv_bytes / min(blocks * block_bytes_per_s, gpu_bytes_per_s)
    return 1e6 * (reading + flop / (min(blocks, sms) * sm_flop_per_s))


def shorter_of_the_two(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s):
    reading = kv_bytes / min(blocks * block_bytes_per_s, gpu_bytes_per_s)
    return 1e6 * min(reading, flop / (min(blocks, sms) * sm_flop_per_s))


def larger_rate(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s):
    reading = kv_bytes / max(blocks * block_bytes_per_s, gpu_bytes_per_s)
    return 1e6 * max(reading, flop / (min(blocks, sms) * sm_flop_per_s))


def share_of_the_sms(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s):
    busy = min(blocks, sms)
    return 1e6 * max(kv_bytes / (gpu_bytes_per_s * busy / sms), flop / (busy * sm_flop_per_s))


def one_block_an_sm(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s):
    busy = min(blocks, sms)
    return 1e6 * max(kv_bytes / min(busy * block_bytes_per_s, gpu_bytes_per_s), flop / (busy * sm_flop_per_s))


def every_block_reads_all(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s):
    reading = kv_bytes / min(block_bytes_per_s, gpu_bytes_per_s / blocks)
    return 1e6 * max(reading, flop / (min(blocks, sms) * sm_flop_per_s))


def all_sms_compute(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s):
    reading = kv_bytes / min(blocks * block_bytes_per_s, gpu_bytes_per_s)
    return 1e6 * max(reading, flop / (sms * sm_flop_per_s))


def one_sm_computes(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s):
    reading = kv_bytes / min(blocks * block_bytes_per_s, gpu_bytes_per_s)
    return 1e6 * max(reading, flop / sm_flop_per_s)


def an_sm_for_every_block(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s):
    reading = kv_bytes / min(blocks * block_bytes_per_s, gpu_bytes_per_s)
    return 1e6 * max(reading, flop / (blocks * sm_flop_per_s))


def in_seconds(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s):
    return solution(kv_bytes, flop, blocks, sms, block_bytes_per_s, gpu_bytes_per_s, sm_flop_per_s) / 1e6


def _case(name, kv_bytes, flop, blocks, block=BLOCK):
    label = (
        f"{name}: {kv_bytes / 1e9:.2f} GB, {flop / 1e9:.1f} GFLOP, {blocks} blocks of {block / 1e9:g} GB/s on "
        f"{H200.sms} SMs"
    )
    return Case(label, (kv_bytes, flop, blocks, H200.sms, block, ALL, H200.dense_16bit_flops / H200.sms))


def _few():
    return [
        _case("batch 1, 131072 keys", 2**29, 2.1e9, 8),
        _case("the same, one kv head", 2**26, 2.1e9, 1),
    ]


def _half():
    return [_case("batch 8, 16384 keys", 2**29, 2.1e9, 64)]


def _full():
    return [_case("batch 64, 4096 keys", 2**30, 4.3e9, 512), _case("batch 128, 1024 keys", 2**29, 2.1e9, 1024)]


def _small_blocks():
    return [_case("lesson 00's kernel", 2**30, 4.3e9, blocks, 10.5e9) for blocks in (264, 512)]


def _arithmetic():
    return [
        _case("a chunk of many queries, 8 blocks", 2**24, 4e12, 8),
        _case("a chunk of many queries, 512 blocks", 2**24, 40e12, 512),
    ]


EXERCISE = Exercise(
    id="08.decode_us",
    title="The time of a decode step",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "The spec looks at one block. Look at all of them: which rate do `blocks` blocks reach together, and where "
        "does it end?",
        "Reading: kv_bytes over the smaller of blocks * block_bytes_per_s and gpu_bytes_per_s. Each block reads its "
        "own part, all at the same time.",
        "Computing: flop over the SMs at work, min(blocks, sms), times sm_flop_per_s. Both go on at once: take the "
        "longer.",
        "1e6 microseconds are a second.",
    ),
    sub_checks=(
        SubCheck("few blocks: each at its own pace", cases=_few),
        SubCheck("half of the GPU", cases=_half),
        SubCheck("many blocks: the memory's pace", cases=_full),
        SubCheck("blocks that read slowly, several on an SM", cases=_small_blocks),
        SubCheck("where arithmetic takes longer", cases=_arithmetic),
    ),
    mistakes=(
        Mistake(
            a_full_gpu,
            "This is the time on a full GPU, whatever the grid. It is what one expects of a datasheet, and 16 times "
            "too short for 8 blocks.",
            "Where does `blocks` appear in your function?",
        ),
        Mistake(
            no_ceiling,
            "The blocks' rates are added without end. A thousand blocks at 35 GB/s would read 36 TB/s.",
            "Which rate can no number of blocks exceed?",
        ),
        Mistake(
            one_after_the_other,
            "Reading and computing are added. They go on at the same time, some warps waiting while others compute, "
            "so the longer one decides.",
            "What did the roofline of lesson 00 do with its two limits?",
        ),
        Mistake(
            shorter_of_the_two,
            "This is the shorter of the two times. Both must be over before the step is.",
            "If the bytes take 1900 us and the FLOP 36, when is the step done?",
        ),
        Mistake(
            larger_rate,
            "The larger of the two rates is taken. Both are limits, so the smaller one is reached.",
            "Can 8 blocks read at the pace of the whole GPU?",
        ),
        Mistake(
            share_of_the_sms,
            "Here 8 of 132 SMs get 8/132 of the bandwidth, and 132 blocks all of it. That is not measured but "
            "assumed: what a block pulls by itself is given, and 128 of them are enough here.",
            "Which of the arguments says what one block reads by itself?",
        ),
        Mistake(
            one_block_an_sm,
            "No more blocks than SMs read here. An SM holds several blocks, and while one waits another reads: "
            "lesson 00's 264 blocks read nearly twice what 132 do.",
            "Which of the two terms has a limit that goes by SMs?",
        ),
        Mistake(
            every_block_reads_all,
            "Every block reads all of K and V here. Each has a kv head and a sequence of its own, and reads only that.",
            "kv_bytes are those of all blocks: how many does one of them read?",
        ),
        Mistake(
            all_sms_compute,
            "All SMs compute, even those without a block.",
            "How many SMs are at work with 8 blocks?",
        ),
        Mistake(
            one_sm_computes,
            "A single SM does all the FLOP here. sm_flop_per_s is the rate of one, and every SM with a block computes.",
            "How many SMs are at work with 8 blocks, and how many with 512?",
        ),
        Mistake(
            an_sm_for_every_block,
            "Each block computes at the pace of a whole SM, even where several share one.",
            "512 blocks on 132 SMs: how many SMs are at work?",
        ),
        Mistake(
            in_seconds,
            "Right, in seconds. Microseconds were asked for.",
            "What is 1e6 for?",
        ),
    ),
    keep="Time = max(bytes / min(blocks x block rate, GPU rate), FLOP / SMs at work): few blocks make it long.",
)
