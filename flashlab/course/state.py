"""What the reader has done: predictions, quiz answers, hints taken, checks passed.

Kept in ``answers.json`` of the workbook: the folder FLASHLAB_WORKBOOK names, or the working directory where it is called
``workbook``. Anywhere else it lives in memory only, so that a stored notebook never depends on who ran it before.
"""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = ("predictions", "quiz", "hints", "solutions", "checks")

_memory: dict[str, dict] = {kind: {} for kind in KINDS}


def folder() -> Path | None:
    """The workbook's folder, or None where answers stay in memory."""
    named = os.environ.get("FLASHLAB_WORKBOOK")
    if named:
        return Path(named).expanduser()
    here = Path.cwd()
    return here if here.name == "workbook" else None


def get(kind: str, id: str, default: Any = None) -> Any:
    """What is kept about ``id``, for example ``get("hints", "02.merge", 0)``."""
    return read()[kind].get(id, default)


def read() -> dict[str, dict]:
    """Everything that is kept, by kind and then by id."""
    home = folder()
    return _memory if home is None else _load(home / "answers.json")


def update(kind: str, id: str, change: Callable[[Any], Any]) -> Any:
    """Replace what is kept about ``id`` by ``change(what was kept or None)`` and return it.

    The file is read again first: two lessons may be open at the same time.
    """
    home = folder()
    answers = read()
    value = answers[kind][id] = change(answers[kind].get(id))
    if home is not None:
        _save(home / "answers.json", answers)
    return value


def forget() -> None:
    """Forget what is in memory (files are left alone)."""
    for kept in _memory.values():
        kept.clear()


def _load(path: Path) -> dict[str, dict]:
    try:
        answers = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        answers = {}
    except (ValueError, OSError) as error:
        answers = {}
        _put_aside(path, error)
    else:
        if not isinstance(answers, dict) or not all(isinstance(answers.get(kind, {}), dict) for kind in KINDS):
            answers = {}
            _put_aside(path, "not what this course writes")
    return {**answers, **{kind: answers.get(kind, {}) for kind in KINDS}}


def _put_aside(path: Path, why) -> None:
    aside = next(p for i in range(1, 10_000) if not (p := path.with_name(f"answers.broken-{i}.json")).exists())
    try:
        path.rename(aside)
    except OSError:
        print(f"Your answers could not be read ({path.name}: {why}).")
    else:
        print(f"Your answers could not be read ({path.name}: {why}). The file is kept as {aside.name}; a new one begins.")


def _save(path: Path, answers: dict) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, written = tempfile.mkstemp(dir=path.parent, prefix=".answers-", suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(answers, file, indent=1, sort_keys=True)
        os.replace(written, path)
    except OSError as error:
        print(f"Your answer could not be kept: {error}")
