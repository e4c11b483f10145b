"""07.bytes_to_give_up: the next cliff of shared memory, from above."""

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.hardware import occupancy

SHARED = 233472


def spec(threads, registers, shared_memory):
    fit = occupancy(cc="9.0", threads=threads, registers=registers, shared_memory=shared_memory)
    return fit.next_cliff.shared_memory.give_up


def stub(threads, registers, shared_memory):
    """Returns the fewest bytes of shared memory to give up so that one SM (compute capability 9.0) holds more blocks.

    None where giving up shared memory alone does not help. ``occupancy(cc="9.0", threads=, registers=, shared_memory=)``
    is at hand (blocks_per_sm; limits, a dict); a block takes shared_memory + 1024, rounded up to 128, of 233472 bytes.
    """
    raise NotImplementedError


def solution(threads, registers, shared_memory):
    """Returns the fewest bytes of shared memory to give up so that one SM (compute capability 9.0) holds more blocks.

    None where giving up shared memory alone does not help. ``occupancy(cc="9.0", threads=, registers=, shared_memory=)``
    is at hand (blocks_per_sm; limits, a dict); a block takes shared_memory + 1024, rounded up to 128, of 233472 bytes.
    """
    fit = occupancy(cc="9.0", threads=threads, registers=registers, shared_memory=shared_memory)
    wanted = fit.blocks_per_sm + 1
    if min(fit.limits["blocks"], fit.limits["warps"], fit.limits["registers"]) < wanted:
        return None
    most = 233472 // wanted // 128 * 128 - 1024
    return shared_memory - most


def _needed(threads, registers, shared_memory, *, unit=128, reserved=1024, others=True, more=1):
    fit = occupancy(cc="9.0", threads=threads, registers=registers, shared_memory=shared_memory)
    wanted = fit.blocks_per_sm + more
    if others and min(fit.limits["blocks"], fit.limits["warps"], fit.limits["registers"]) < wanted:
        return None
    return shared_memory - (SHARED // wanted // unit * unit - reserved)


def other_limits_ignored(threads, registers, shared_memory):
    return max(0, _needed(threads, registers, shared_memory, others=False))


def reserved_forgotten(threads, registers, shared_memory):
    return _needed(threads, registers, shared_memory, reserved=0)


def not_rounded(threads, registers, shared_memory):
    return _needed(threads, registers, shared_memory, unit=1)


def what_is_left(threads, registers, shared_memory):
    answer = _needed(threads, registers, shared_memory)
    return None if answer is None else shared_memory - answer


def for_the_same_number(threads, registers, shared_memory):
    return _needed(threads, registers, shared_memory, more=0)


def spare(threads, registers, shared_memory):
    fit = occupancy(cc="9.0", threads=threads, registers=registers, shared_memory=shared_memory)
    return fit.next_cliff.shared_memory.spare


def in_steps_of_128(threads, registers, shared_memory):
    answer = _needed(threads, registers, shared_memory)
    return None if answer is None else -(-answer // 128) * 128


def share_rounded_up(threads, registers, shared_memory):
    fit = occupancy(cc="9.0", threads=threads, registers=registers, shared_memory=shared_memory)
    if _needed(threads, registers, shared_memory) is None:
        return None
    return shared_memory - (-(-(SHARED // (fit.blocks_per_sm + 1)) // 128) * 128 - 1024)


def in_steps_of_1024(threads, registers, shared_memory):
    answer = _needed(threads, registers, shared_memory)
    return None if answer is None else -(-answer // 1024) * 1024


def zero_for_none(threads, registers, shared_memory):
    return _needed(threads, registers, shared_memory) or 0


def _case(threads, registers, shared_memory):
    label = f"{threads} threads, {registers} registers, {shared_memory} bytes"
    return Case(label, (threads, registers, shared_memory))


def _one_byte():
    return [_case(128, 128, 115713)]


def _far():
    return [_case(128, 96, 90000), _case(128, 64, 200000)]


def _many():
    return [_case(32, 64, 34816), _case(64, 40, 20001)]


def _others():
    return [_case(128, 128, 70000), _case(128, 255, 115000), _case(1024, 32, 60000)]


EXERCISE = Exercise(
    id="07.bytes_to_give_up",
    title="How far is the cliff",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "wanted = blocks_per_sm + 1. How many bytes may each of `wanted` blocks take, if they share 233472?",
        "What a block takes is a multiple of 128: 233472 // wanted, rounded DOWN to 128. And 1024 of that are CUDA's.",
        "None if any of the other limits (blocks, warps, registers) is below wanted.",
    ),
    sub_checks=(
        SubCheck("one byte too many", cases=_one_byte),
        SubCheck("far from the next step", cases=_far),
        SubCheck("many small blocks", cases=_many),
        SubCheck("another resource would still say no", cases=_others),
    ),
    mistakes=(
        Mistake(
            other_limits_ignored,
            "Shared memory would let one more block in, but the registers or the warps do not.",
            "What does occupancy(...).limits say of the other three?",
        ),
        Mistake(
            reserved_forgotten,
            "The kilobyte that CUDA takes in every block is missing.",
            "What may a block ask for, if it may take 116736 bytes?",
        ),
        Mistake(
            not_rounded,
            "A block's share is not rounded down to a multiple of 128, which is how shared memory is dealt out.",
            "What is 233472 // 3, and what is the largest multiple of 128 below it?",
        ),
        Mistake(
            what_is_left,
            "This is what the block may keep. Asked for is what it must give up.",
            "Subtract it from shared_memory.",
        ),
        Mistake(
            for_the_same_number,
            "This is the edge of the step the block stands on already.",
            "How many blocks do you want: as many as now, or one more?",
        ),
        Mistake(
            spare,
            "This is how much more the block could take without losing a block: the other edge of the step.",
            "In which direction lies the next block?",
        ),
        Mistake(
            in_steps_of_128,
            "The bytes to give up are rounded to 128. What the block takes is rounded, not the difference.",
            "With 115713 bytes, is one byte enough?",
        ),
        Mistake(
            share_rounded_up,
            "A block's share is rounded up to 128: then all of them together take more than the SM has. What a block asks for is "
            "rounded up; what is left for it, down.",
            "Seven blocks of your size: is that at most 233472 bytes?",
        ),
        Mistake(
            in_steps_of_1024,
            "The bytes to give up come in whole kilobytes. The hardware rounds to 128, and only what a block takes.",
            "With 115713 bytes, is one byte enough?",
        ),
        Mistake(
            zero_for_none,
            "0 would say that there is room already. Where nothing helps, the answer is None.",
            "What would a reader do with your 0?",
        ),
    ),
    keep="On a cliff one byte is worth a block: look down before you add a stage, and look up before you give up.",
)
