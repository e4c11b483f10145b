"""The text of a check: one line a sub-check, and under a failing one what it looks like."""

import textwrap
from dataclasses import dataclass

WIDTH = 100  # what JupyterLab shows of a line in a window of 1280 pixels, its file browser open
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True)
class Line:
    """One sub-check's outcome."""

    name: str
    ok: bool
    detail: str = ""  # the first difference
    notes: tuple[str, ...] = ()  # the diagnosis and where to look
    same_cause: bool = False  # explained by a line above


@dataclass(frozen=True)
class Report:
    """What check() prints. ``ended`` says in one line why nothing was graded."""

    id: str
    name: str  # of the graded function
    place: str
    lines: tuple[Line, ...] = ()
    ended: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def passed(self) -> int:
        return sum(line.ok for line in self.lines)

    @property
    def done(self) -> bool:
        return bool(self.lines) and self.passed == len(self.lines)


def text(report: Report, keep: str, hints_left: int) -> str:
    """The report as it is printed."""
    place = f" ({report.place})" if report.place else ""
    out = [f"{report.id}   your {report.name}{place}"]
    if report.ended:
        out += wrapped(report.ended, 2)
    for line in report.lines:
        out += _line(line)
    for remark in report.remarks:
        out += wrapped(remark, 2)
    if report.done:
        out += wrapped(f"{report.passed} of {report.passed}. {keep}", 2)
    elif report.lines:
        out += wrapped(f"{report.passed} of {len(report.lines)}. {more_help(report.id, hints_left)}", 2)
    return "\n".join(out)


def more_help(id: str, hints_left: int) -> str:
    """What the reader can still ask for."""
    if hints_left == 0:
        return f'solution("{id}") shows the tested answer.'
    return f'hint("{id}") has {count(hints_left, "more step")}.'


def count(number: int, noun: str) -> str:
    """``three more steps``: a small number in words with its noun."""
    word = WORDS[number] if number < len(WORDS) else str(number)
    return f"{word} {noun}{'' if number == 1 else 's'}"


def _line(line: Line) -> list[str]:
    if line.ok:
        return [f"  ok    {line.name}"]
    if line.same_cause:
        return [f"  FAIL  {line.name} (same cause)"]
    out = wrapped(f"FAIL  {line.name}: {line.detail}", 2, 8)
    for note in line.notes:
        out += wrapped(note, 8)
    return out


def say(line: str, indent: int = 0, later: int | None = None) -> None:
    """Print a line, broken between words where it is wider than a notebook's cell."""
    print("\n".join(wrapped(line, indent, later)))


def wrapped(line: str, indent: int, later: int | None = None) -> list[str]:
    return textwrap.wrap(
        line,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent if later is None else later),
        break_long_words=False,
        break_on_hyphens=False,
    )
