"""08.sms_at_work: what share of the SMs has a block, counted three ways."""

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.hardware import gpu


def spec(batch, heads_q, heads_kv, sms):
    alone = len({block % sms for block in range(batch)}) / sms  # blocks are dealt to the SMs in turn
    unpacked = len({block % sms for block in range(batch * heads_q)}) / sms
    packed = len({block % sms for block in range(batch * heads_kv)}) / sms
    return alone, unpacked, packed


def stub(batch, heads_q, heads_kv, sms):
    """Returns (alone, unpacked, packed): the share of the SMs, 0 to 1, that one decode step gives a block.

    alone: one block for a sequence. unpacked: one for each query head. packed: one for each kv head. No loop.
    """
    raise NotImplementedError


def solution(batch, heads_q, heads_kv, sms):
    """Returns (alone, unpacked, packed): the share of the SMs, 0 to 1, that one decode step gives a block.

    alone: one block for a sequence. unpacked: one for each query head. packed: one for each kv head. No loop.
    """
    alone = min(1.0, batch / sms)
    unpacked = min(1.0, batch * heads_q / sms)
    packed = min(1.0, batch * heads_kv / sms)
    return alone, unpacked, packed


def more_than_all(batch, heads_q, heads_kv, sms):
    return batch / sms, batch * heads_q / sms, batch * heads_kv / sms


def in_percent(batch, heads_q, heads_kv, sms):
    return tuple(100 * share for share in solution(batch, heads_q, heads_kv, sms))


def batch_forgotten(batch, heads_q, heads_kv, sms):
    return 1 / sms, min(1.0, heads_q / sms), min(1.0, heads_kv / sms)


def batch_forgotten_for_heads(batch, heads_q, heads_kv, sms):
    return min(1.0, batch / sms), min(1.0, heads_q / sms), min(1.0, heads_kv / sms)


def alone_is_one(batch, heads_q, heads_kv, sms):
    return 1 / sms, *solution(batch, heads_q, heads_kv, sms)[1:]


def sms_counted(batch, heads_q, heads_kv, sms):
    return min(sms, batch), min(sms, batch * heads_q), min(sms, batch * heads_kv)


def packed_by_group(batch, heads_q, heads_kv, sms):
    return min(1.0, batch / sms), min(1.0, batch * heads_q / sms), min(1.0, batch * (heads_q // heads_kv) / sms)


def the_wrong_way_round(batch, heads_q, heads_kv, sms):
    alone, unpacked, packed = solution(batch, heads_q, heads_kv, sms)
    return alone, packed, unpacked


def by_waves(batch, heads_q, heads_kv, sms):
    efficiency = lambda blocks: blocks / sms / -(-blocks // sms)
    return efficiency(batch), efficiency(batch * heads_q), efficiency(batch * heads_kv)


def remainder(batch, heads_q, heads_kv, sms):
    return batch % sms / sms, batch * heads_q % sms / sms, batch * heads_kv % sms / sms


def whole_numbers(batch, heads_q, heads_kv, sms):
    return float(min(1, batch // sms)), float(min(1, batch * heads_q // sms)), float(min(1, batch * heads_kv // sms))


def _case(batch, heads_q, heads_kv, name):
    sms = gpu(name).sms
    label = f"batch {batch}, {heads_q} query and {heads_kv} kv heads, {sms} SMs ({gpu(name).name})"
    return Case(label, (batch, heads_q, heads_kv, sms))


def _one():
    return [_case(1, 32, 8, "a100"), _case(1, 64, 8, "h200")]


def _some():
    return [_case(3, 32, 8, "a100"), _case(2, 40, 8, "b200")]


def _full():
    return [_case(17, 32, 8, "h200"), _case(64, 32, 8, "a100")]


def _multi():
    return [_case(2, 32, 1, "h200"), _case(1, 32, 32, "a100")]


EXERCISE = Exercise(
    id="08.sms_at_work",
    title="Three readings of one share",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "All three are blocks / sms. They differ in what counts as a block.",
        "With more blocks than SMs the rest waits or shares an SM. What is the largest share there can be?",
        "min(1.0, blocks / sms), three times, with blocks = batch, batch * heads_q and batch * heads_kv.",
    ),
    sub_checks=(
        SubCheck("batch 1", cases=_one),
        SubCheck("a few sequences", cases=_some),
        SubCheck("more blocks than SMs", cases=_full),
        SubCheck("one kv head, and as many kv heads as query heads", cases=_multi),
    ),
    mistakes=(
        Mistake(
            more_than_all,
            "A share above 1: blocks beyond the number of SMs are counted as if there were more SMs. They wait, or "
            "share one.",
            "How many SMs can be at work at most, whatever the grid?",
        ),
        Mistake(
            in_percent,
            "These are percents; a share from 0 to 1 was asked for.",
            "What does the spec return when every SM has a block?",
        ),
        Mistake(
            batch_forgotten,
            "The batch is forgotten: every sequence has heads of its own.",
            "What happens to your result when batch doubles?",
        ),
        Mistake(
            batch_forgotten_for_heads,
            "The batch is forgotten in the last two: every sequence has heads of its own.",
            "What happens to your result when batch doubles?",
        ),
        Mistake(
            alone_is_one,
            "The first reading is one block for a *sequence*, and a batch has several.",
            "What happens to your first number when batch doubles?",
        ),
        Mistake(
            sms_counted,
            "These are SMs; a share of them, from 0 to 1, was asked for.",
            "What is 8 of 108?",
        ),
        Mistake(
            packed_by_group,
            "The packed launch is counted with heads_q / heads_kv, the rows in a tile. Blocks are what is left "
            "outside: the kv heads.",
            "32 query heads on 8 kv heads: how many tiles are there, and how many rows has each?",
        ),
        Mistake(
            the_wrong_way_round,
            "The last two are swapped: the unpacked launch has a block for each query head, the packed one for each "
            "kv head.",
            "Which of the two launches has more blocks?",
        ),
        Mistake(
            by_waves,
            "This is how full the waves are on average. A last wave that is not full does count there; here the "
            "question is which SMs get any block at all.",
            "With 136 blocks on 132 SMs, which SM has nothing to do from the start?",
        ),
        Mistake(
            remainder,
            "This is the last wave alone, blocks modulo SMs.",
            "What does your function say when blocks = sms?",
        ),
        Mistake(
            whole_numbers,
            "The division drops its fraction: // gives 0 for every grid smaller than the GPU.",
            "What is 8 // 108?",
        ),
    ),
    keep="1 block of 108 is 0.93%, 32 are 29.6%, 8 are 7.4%: ask which blocks a kernel launches first.",
)
