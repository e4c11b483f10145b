"""Occupancy: how many blocks of a kernel one SM holds, which resource says so, and how far the next cliff is.

All numbers are flashlab.hardware.occupancy's. A kernel of flashlab is compiled for the compute capability that is shown,
here, without such a GPU (flashlab.kernels.inspect), and its registers and shared memory are the compiler's.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import inf

from flashlab.hardware import gpu, occupancy
from flashlab.hardware.gpus import names
from flashlab.hardware.limits import CUDA
from flashlab.hardware.residency import MAX_THREADS_PER_BLOCK, PARTS_PER_SM, REGISTERS_ROUND_TO, limits_of
from flashlab.widgets import plot, style
from flashlab.widgets.controls import ladder, menu, slider
from flashlab.widgets.explorable import Explorable
from flashlab.widgets.scene import Scene
from flashlab.widgets.state import Fields, require
from flashlab.widgets.style import count, number

BY_HAND = "by hand"
MOST_REGISTERS = 255  # that ptxas hands a thread
LIMITS = {"threads": (1, MAX_THREADS_PER_BLOCK), "registers": (0, MOST_REGISTERS), "head_dim": (16, 256), "group": (1, 512)}
DECODES = ("decode", "combine", "append")
CACHES = ("native", "fp8", "int8", "int4")


def kernels() -> tuple[str, ...]:
    """flashlab's kernels that can be compiled here; none without Triton."""
    try:
        from flashlab.kernels.inspect import KERNELS
    except ImportError:
        return ()
    return tuple(KERNELS)


@lru_cache(maxsize=64)
def compiled(kernel: str, cc: str, head_dim: int, group: int = 1, cache: str = "native"):
    """flashlab.kernels.inspect's Report of a kernel. Takes seconds the first time. Raises ValueError where it cannot be."""
    from flashlab.kernels.inspect import ARCHES, inspect

    capabilities = {f"{major}.{minor}": arch for arch, (major, minor) in ARCHES.items()}
    require(cc in capabilities, "cc", cc, f"{', '.join(capabilities)} for a compiled kernel, any by hand")
    try:
        return inspect(kernel, capabilities[cc], head_dim=head_dim, group=group, cache=cache)
    except RuntimeError as error:
        raise ValueError(str(error)) from error


@dataclass(frozen=True)
class Residents(Fields):
    """State: a block of threads, and the compute capability of the SM that holds it.

    registers to a thread, shared_memory in bytes a block. A kernel other than "by hand" brings its own three numbers, at
    this head_dim and in bfloat16; group, the query heads to a kv head, and cache, its format, are the decode kernel's.
    """

    cc: str = "9.0"
    threads: int = 128
    registers: int = 168
    shared_memory: int = 115713
    kernel: str = BY_HAND
    head_dim: int = 128
    group: int = 4
    cache: str = "native"

    def __post_init__(self):
        super().__post_init__()
        require(self.cc in CUDA, "cc", self.cc, ", ".join(CUDA))
        choices = (BY_HAND, *kernels())
        require(self.cache in CACHES, "cache", self.cache, ", ".join(CACHES))
        require(self.kernel in choices, "kernel", self.kernel, ", ".join(choices))
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            require(least <= value <= most, name, value, f"a whole number from {least} to {most}")
        if self.kernel != BY_HAND:
            report = self.report
            numbers = dict(threads=report.threads, registers=report.registers, shared_memory=report.shared_memory_bytes)
            for name, value in numbers.items():
                object.__setattr__(self, name, value)
        most = limits_of(self.cc).shared_memory
        shared = self.shared_memory
        require(0 <= shared <= most, "shared_memory", shared, f"a whole number from 0 to {most}")

    @property
    def block(self) -> dict:
        return {name: getattr(self, name) for name in ("threads", "registers", "shared_memory")}

    @property
    def report(self):
        """The compiler's, of this kernel."""
        decode = dict(group=self.group, cache=self.cache) if self.kernel in DECODES else {}
        return compiled(self.kernel, self.cc, self.head_dim, **decode)

    @property
    def found(self):
        return occupancy(self.cc, **self.block)

    @classmethod
    def settle(cls, fields, asked):
        """A number set by hand is no longer the kernel's; shared memory falls back to what an SM has."""
        fields = dict(fields)
        if asked & {"threads", "registers", "shared_memory"} and "kernel" not in asked:
            fields["kernel"] = BY_HAND
        if "shared_memory" not in asked and fields["cc"] in CUDA:
            fields["shared_memory"] = min(fields["shared_memory"], limits_of(fields["cc"]).shared_memory)
        return fields


@lru_cache(maxsize=128)
def steps(cc: str, threads: int, registers: int, shared_memory: int, along: str) -> tuple[tuple[int, int, int], ...]:
    """(first, last, blocks per SM) for each step of the stairs along "registers" or "shared_memory"."""
    most = MOST_REGISTERS if along == "registers" else limits_of(cc).shared_memory
    block = dict(threads=threads, registers=registers, shared_memory=shared_memory)
    found, first = [], 0
    while first <= most:
        here = occupancy(cc, **block | {along: first})
        spare = getattr(here.next_cliff, along).spare
        last = most if spare is None else min(first + spare, most)
        found.append((first, last, here.blocks_per_sm))
        first = last + 1
    return tuple(found)


def edges(cc: str) -> list[int]:
    """Bytes of shared memory on either side of each step, whatever else a block takes."""
    stairs = steps(cc, limits_of(cc).warp_size, 0, 0, "shared_memory")
    return sorted({0, *(byte for first, last, _ in stairs for byte in (first, last))})


NAMES = {"blocks": "block slots", "warps": "warps", "registers": "registers", "shared_memory": "shared memory"}


def picture(state: Residents) -> Scene:
    """Left what each resource has room for, with the blocks that are there; right the two stairs; below the cliffs."""
    found = state.found
    headline, under = _words(state, found)
    scene = Scene(960, 560, " ".join(("Occupancy.", headline, under, _block(state), _room(state, found), *_cliffs(state, found))))
    scene.headline(headline, under)
    block = _block(state)
    scene.text(28, 88, block, size=min(style.BODY, 904 / (0.53 * len(block))), fill=style.MUTED)
    _places(scene, state, found)
    for top, along, label, words in (
        (150, "registers", "registers a thread", str),
        (326, "shared_memory", "shared memory, bytes a block", lambda n: f"{n:,}"),
    ):
        _stairs(scene, state, found, top, along, label, words)
    scene.line(28, 496, 932, 496)
    for k, words in enumerate(_cliffs(state, found)):
        scene.text(28, 522 + 22 * k, words)
    return scene


def _words(state, found):
    sm = limits_of(state.cc)
    if not found.blocks_per_sm:
        name, _, why = found.limiter.partition(": ")
        return "This launch fails: an SM cannot hold one block.", f"{NAMES.get(name, name).capitalize()}: {why}."
    who = NAMES[found.limiter]
    headline = f"An SM holds {count(found.blocks_per_sm, 'block')}: {who} {'decides' if who == 'shared memory' else 'decide'}."
    most = sm.threads // sm.warp_size
    rooms = ", ".join(f"{NAMES[name]} {_places_words(n)}" for name, n in found.limits.items())
    under = f"min({rooms}) = {found.blocks_per_sm};  {found.warps_per_sm} of {most} warps: occupancy {number(found.percent)}%."
    return headline, under


def _places_words(n):
    return "∞" if n == inf else f"{n:,}"


def _block(state):
    """The block, and where its numbers come from."""
    same = [name for name in names() if gpu(name).cc == state.cc]
    shown = ", ".join(same[:4]) + (", ..." if len(same) > 4 else "")
    where = f"Compute capability {state.cc}" + (f" ({shown})." if same else ".")
    if state.kernel == BY_HAND:
        return f"{where} Numbers set by hand."
    report, variant = state.report, f"head_dim {state.head_dim}"
    if state.kernel in DECODES:
        variant += f", GQA {state.group}, {'bf16' if state.cache == 'native' else state.cache} cache"
    tile = " × ".join(str(report.launch[name]) for name in ("BLOCK_M", "BLOCK_N") if name in report.launch)
    variant += f", tile {tile}" if tile else ""
    spilled = f"{report.spill_bytes} B a thread spilled" if report.spill_bytes else "nothing spilled"
    return f"{where} {state.kernel}: {variant}, compiled here; {spilled}."


def _formulas(state):
    """For each resource what the room is made of, with the values in it; the room itself is occupancy's."""
    sm = limits_of(state.cc)
    warps = f"{-(-state.threads // sm.warp_size)}"
    part = f"{sm.registers // PARTS_PER_SM:,}"
    per_warp = f"{state.registers} × {sm.warp_size} ↑{REGISTERS_ROUND_TO}"
    reserved = f" + {sm.reserved_per_block:,}" if sm.reserved_per_block else ""
    return {
        "blocks": f"{sm.blocks} on an SM",
        "warps": f"{sm.threads // sm.warp_size} / ({state.threads} / {sm.warp_size} ↑1)",
        "registers": f"{PARTS_PER_SM} × ⌊{part} / ({per_warp})⌋ / {warps}",
        "shared_memory": f"{sm.shared_memory:,} B / ({state.shared_memory:,}{reserved} B ↑{sm.shared_granularity})",
    }


def _room(state, found):
    return "Room for: " + "; ".join(
        f"{NAMES[name]} {text} = {_places_words(found.limits[name])}" for name, text in _formulas(state).items()
    ) + "; ↑ is rounded up to."  # fmt: skip


LEFT, RIGHT, SPLIT = 28, 932, 470


def _places(scene, state, found):
    """A row for each resource: as many places as it has room for, those of the resident blocks filled."""
    scene.text(LEFT, 128, f"room for blocks; {found.blocks_per_sm} there", bold=True)
    y = 150
    for name, text in _formulas(state).items():
        room, decides = found.limits[name], name == found.limiter
        scene.text(LEFT, y + 4, NAMES[name], bold=decides, fill=style.INK)
        scene.text(SPLIT - 40, y + 4, _places_words(room), bold=decides, anchor="end")
        _row(scene, y + 14, room, found.blocks_per_sm, style.NOW if decides else style.DONE)
        scene.text(LEFT, y + 52, text, size=style.SMALL, fill=style.MUTED)
        if decides:
            scene.text(SPLIT - 40, y + 52, "the scarcest", size=style.SMALL, fill=style.INK, anchor="end", bold=True)
        y += 82
    scene.text(LEFT, y + 4, "↑ is rounded up to; filled: a block that is there", size=style.SMALL, fill=style.MUTED)


def _row(scene, y, room, there, colour):
    wide = SPLIT - 40 - LEFT
    if room == inf:
        scene.rect(LEFT, y, wide, 18, stroke=style.RULE, radius=2)
        return
    if room == 0:
        scene.rect(LEFT, y, wide, 18, stroke=style.ACCENT, radius=2)
        scene.line(LEFT, y + 18, LEFT + wide, y, stroke=style.ACCENT)
        return
    step = wide / room
    codes = "1" * there + "0" * (room - there)
    scene.cells(LEFT, y, room, step, step - min(2, step / 4), 18, codes, [style.FAINT, colour])


def _stairs(scene, state, found, top, along, label, words):
    """Blocks per SM along one resource, and the place we stand on."""
    floor, stairs = top + 108, steps(state.cc, *state.block.values(), along)
    here = getattr(state, along)
    most = max(n for _, _, n in stairs)
    x = plot.Axis(0, stairs[-1][1], SPLIT + 56, RIGHT)
    y = plot.Axis(0, max(most * 1.15, 1), floor, top)
    scene.text(SPLIT + 20, top - 22, f"blocks per SM, by {label}", bold=True)
    there = found.blocks_per_sm
    ticks = {0, there, most}
    ticks -= {end for end in (0, most) if 0 < abs(end - there) < most / 6}
    ends = [(v, words(round(v))) for v in (0, x.high / 2, x.high)]
    plot.frame(scene, x, y, ends, [(n, str(n)) for n in sorted(ticks)])
    scene.path([(x(at), y(n)) for first, last, n in stairs for at in (first, min(last + 1, x.high))], stroke=style.PREDICTED)
    scene.line(x(here), y.end - 4, x(here), floor, stroke=style.INK, dashed=True)
    plot.mark(scene, x(here), y(found.blocks_per_sm), "predicted", 6)
    near_end = x(here) > (x.start + x.end) / 2
    shift, anchor = (-10, "end") if near_end else (10, "start")
    scene.text(x(here) + shift, y.end + 2, words(here), size=style.SMALL, anchor=anchor, bold=True)


def _cliffs(state, found):
    """How far it is to the next step of each stair, up and down."""
    for name, cliff, unit, where in (
        ("Registers", found.next_cliff.registers, "", "a thread"),
        ("Shared memory", found.next_cliff.shared_memory, " B", "a block"),
    ):
        said = []
        if cliff.give_up is not None:
            what = count(cliff.blocks_after, "block")
            said.append(f"{cliff.give_up:,}{unit} fewer {where} {'makes' if cliff.give_up == 1 else 'make'} room for {what}")
        if cliff.spare is not None:
            said.append(f"{cliff.spare:,}{unit} more cost{'s' * (cliff.spare == 1)} none" if cliff.spare else "one more costs a block")
        yield f"{name}: {'; '.join(said) if said else 'no saving here helps'}."


def _to_grid(state: Residents) -> dict:
    return {"blocks_per_sm": state.found.blocks_per_sm}


class OccupancyScope(Explorable):
    """What one SM holds: ``OccupancyScope(cc="9.0", threads=128, registers=168, shared_memory=115713)``, or
    ``OccupancyScope(kernel="forward")`` with the compiler's numbers.

    The fields are Residents'; ValueError says what is wrong with one. Hands the blocks per SM to an SMGrid.
    ``figure()`` draws it for a page without a kernel.
    """

    State = Residents
    picture = staticmethod(picture)
    columns = 3
    hands = {"SMGrid": _to_grid}

    def make_controls(self, state):
        return {
            "registers": slider(state, "registers", "registers", *LIMITS["registers"]),
            "shared_memory": ladder(state, "shared_memory", "shared", edges(state.cc), lambda n: f"{n:,} B"),
            "threads": ladder(state, "threads", "threads", [2**n for n in range(5, 11)]),
            "cc": menu(state, "cc", "capability", CUDA),
            "kernel": menu(state, "kernel", "kernel", (BY_HAND, *kernels())),
            "head_dim": ladder(state, "head_dim", "head_dim", [64, 128, 256]),
        }

    def show_controls(self, state):
        self.controls["head_dim"].disabled = state.kernel == BY_HAND
        self.controls["shared_memory"].offer(edges(state.cc), state.shared_memory)
        super().show_controls(state)

    def _take(self, changes):
        if changes.get("kernel", self.state.kernel) != BY_HAND and changes.keys() & {"kernel", "cc", "head_dim", "group", "cache"}:
            self._say("Compiling; the first time takes some seconds.")
        super()._take(changes)
