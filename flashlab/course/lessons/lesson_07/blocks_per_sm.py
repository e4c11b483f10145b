"""07.blocks_per_sm: occupancy by hand, for an SM of compute capability 9.0."""

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.hardware import occupancy

WARPS, SLOTS, REGISTERS, SHARED = 64, 32, 65536, 233472  # of an SM, compute capability 9.0


def spec(threads, registers, shared_memory):
    return occupancy(cc="9.0", threads=threads, registers=registers, shared_memory=shared_memory).blocks_per_sm


def stub(threads, registers, shared_memory):
    """threads per block, registers per thread, shared_memory in bytes per block. Returns blocks that one SM holds.

    An SM of compute capability 9.0 has 64 warps, 32 block slots, 4 x 16384 registers and 233472 bytes of shared memory.
    A warp is 32 threads (a part of one counts whole), lives in one of the 4 parts, and its registers are rounded up to
    256. A block takes 1024 bytes of shared memory more than it asks for, rounded up to 128. 0 where not one block fits.
    """
    raise NotImplementedError


def solution(threads, registers, shared_memory):
    """threads per block, registers per thread, shared_memory in bytes per block. Returns blocks that one SM holds.

    An SM of compute capability 9.0 has 64 warps, 32 block slots, 4 x 16384 registers and 233472 bytes of shared memory.
    A warp is 32 threads (a part of one counts whole), lives in one of the 4 parts, and its registers are rounded up to
    256. A block takes 1024 bytes of shared memory more than it asks for, rounded up to 128. 0 where not one block fits.
    """
    warps = -(-threads // 32)
    by_warps = 64 // warps
    warp_registers = -(-registers * 32 // 256) * 256
    by_registers = 16384 // warp_registers * 4 // warps
    by_shared = 233472 // (-(-(shared_memory + 1024) // 128) * 128)
    return min(32, by_warps, by_registers, by_shared)


def _count(
    threads, registers, shared_memory, *, slots=SLOTS, reserved=1024, shared_unit=128, register_unit=256, parts=4,
    whole_warps=True,
):  # fmt: skip
    warps = -(-threads // 32) if whole_warps else threads / 32
    warp_registers = -(-registers * 32 // register_unit) * register_unit
    by_registers = REGISTERS // parts // warp_registers * parts // warps
    taken = -(-(shared_memory + reserved) // shared_unit) * shared_unit
    return int(min(slots, WARPS // warps, by_registers, SHARED // taken if taken else SLOTS))


def reserved_forgotten(threads, registers, shared_memory):
    return _count(threads, registers, shared_memory, reserved=0)


def shared_not_rounded(threads, registers, shared_memory):
    return _count(threads, registers, shared_memory, shared_unit=1)


def registers_not_rounded(threads, registers, shared_memory):
    return _count(threads, registers, shared_memory, register_unit=1)


def one_register_file(threads, registers, shared_memory):
    return _count(threads, registers, shared_memory, parts=1)


def by_threads(threads, registers, shared_memory):
    return _count(threads, registers, shared_memory, whole_warps=False)


def warps_rounded_down(threads, registers, shared_memory):
    return _count(max(32, threads // 32 * 32), registers, shared_memory)


def registers_rounded_per_block(threads, registers, shared_memory):
    by_registers = REGISTERS // (-(-registers * threads // 256) * 256)
    return min(_count(threads, 1, shared_memory), by_registers)


def whole_blocks_in_a_part(threads, registers, shared_memory):
    block = -(-registers * 32 // 256) * 256 * -(-threads // 32)
    return min(_count(threads, 1, shared_memory), 4 * (REGISTERS // 4 // block))


def registers_rounded_per_thread(threads, registers, shared_memory):
    return _count(threads, -(-registers // 256) * 256, shared_memory)


def fractions_of_blocks(threads, registers, shared_memory):
    warps, taken = -(-threads // 32), -(-(shared_memory + 1024) // 128) * 128
    return min(SLOTS, WARPS / warps, 16384 // (-(-registers * 32 // 256) * 256) * 4 / warps, SHARED / taken)


def slots_forgotten(threads, registers, shared_memory):
    return _count(threads, registers, shared_memory, slots=WARPS)


def registers_forgotten(threads, registers, shared_memory):
    return _count(threads, 1, shared_memory)


def shared_forgotten(threads, registers, shared_memory):
    return _count(threads, registers, 0)


def always_one(threads, registers, shared_memory):
    return max(1, solution(threads, registers, shared_memory))


def warps_in_place_of_blocks(threads, registers, shared_memory):
    return solution(threads, registers, shared_memory) * -(-threads // 32)


def _case(threads, registers, shared_memory):
    label = f"{threads} threads, {registers} registers, {shared_memory} bytes"
    return Case(label, (threads, registers, shared_memory))


def _warps():
    return [_case(256, 32, 0), _case(1024, 32, 1000)]


def _registers():
    return [_case(128, 168, 0), _case(256, 128, 40000), _case(128, 247, 34816)]


def _uneven():
    return [_case(128, 100, 0), _case(160, 96, 0), _case(96, 41, 16000)]


def _shared():
    return [_case(128, 128, 115712), _case(128, 128, 115713), _case(128, 64, 57216), _case(32, 64, 14465)]


def _slots():
    return [_case(32, 24, 0), _case(16, 16, 512)]


def _odd_threads():
    return [_case(100, 80, 0), _case(65, 60, 2048), _case(33, 40, 0)]


def _refused():
    return [_case(128, 64, 232448), _case(128, 64, 232449)]


EXERCISE = Exercise(
    id="07.blocks_per_sm",
    title="Occupancy by hand",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Four limits: slots, warps, registers, shared memory. Work out each alone, in blocks; the smallest decides.",
        "Registers: a warp takes 32 * registers, rounded up to 256. How many such warps go into 16384? Times 4 parts, over "
        "the warps of a block.",
        "Shared memory: 233472 // (shared_memory + 1024 rounded up to 128). Rounding x up to n is -(-x // n) * n.",
    ),
    sub_checks=(
        SubCheck("warps decide", cases=_warps),
        SubCheck("registers decide", cases=_registers),
        SubCheck("registers and warps that do not come out even", cases=_uneven),
        SubCheck("shared memory decides, to the byte", cases=_shared),
        SubCheck("block slots decide", cases=_slots),
        SubCheck("threads that are no whole warps", cases=_odd_threads),
        SubCheck("a block that does not fit", cases=_refused),
    ),
    mistakes=(
        Mistake(
            reserved_forgotten,
            "The kilobyte that CUDA takes for itself in every block is missing.",
            "How many blocks of 115713 bytes do you get? One byte less gives exactly two.",
        ),
        Mistake(
            shared_not_rounded,
            "Shared memory is not rounded up to 128 bytes.",
            "What does a block of 14465 + 1024 bytes really take?",
        ),
        Mistake(
            registers_not_rounded,
            "A warp's registers are not rounded up to 256.",
            "100 registers a thread are 3200 a warp. What is the next multiple of 256?",
        ),
        Mistake(
            one_register_file,
            "The registers are taken as one file of 65536. They are four of 16384, and a warp lives in one of them.",
            "How many warps of 1280 registers go into 16384? Four times that: is it as many as go into 65536?",
        ),
        Mistake(
            by_threads,
            "Threads are counted, and part of a warp as part of a warp. It takes a whole warp's place and registers.",
            "How many warps are 100 threads?",
        ),
        Mistake(
            warps_rounded_down,
            "The threads past the last whole warp are not counted. They need a warp of their own, with all its registers.",
            "How many warps are 100 threads: 3, or 4?",
        ),
        Mistake(
            registers_rounded_per_block,
            "The registers are added up over the whole block and rounded once. They are dealt out warp by warp: each warp's are "
            "rounded up to 256, and each must fit into one of the 4 parts.",
            "What does one warp of 100 registers a thread take? How many of those go into 16384?",
        ),
        Mistake(
            whole_blocks_in_a_part,
            "A whole block is put into one of the 4 parts. It is a *warp* that lives in one; the warps of a block are spread over "
            "all four.",
            "128 threads are four warps: in how many of the parts do they live?",
        ),
        Mistake(
            registers_rounded_per_thread,
            "The registers of a thread are rounded up to 256. Those of a warp are: 32 times as many, and then rounded.",
            "A thread with 32 registers: how many does its warp take?",
        ),
        Mistake(
            fractions_of_blocks,
            "Fractions of blocks are counted: / where // is wanted. An SM holds whole blocks only.",
            "If shared memory is enough for 1.998 blocks, how many run?",
        ),
        Mistake(
            slots_forgotten,
            "Small blocks are counted past 32: there are no more slots.",
            "How many blocks of one warp can an SM hold, whatever they take?",
        ),
        Mistake(
            registers_forgotten,
            "The registers do not count in this.",
            "Four warps of 168 registers a thread: how many registers is that?",
        ),
        Mistake(
            shared_forgotten, "The shared memory does not count in this.", "How often do 115712 bytes go into 233472?"
        ),
        Mistake(
            always_one,
            "A block that does not fit is counted as one. Such a launch fails: 0 blocks.",
            "What does the last line of the docstring say?",
        ),
        Mistake(
            warps_in_place_of_blocks,
            "These are the resident warps. Blocks were asked for.",
            "How many warps does one block have?",
        ),
    ),
    keep="Blocks per SM: the smallest of four limits, each rounded the way the hardware deals it out.",
)
