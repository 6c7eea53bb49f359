"""Suggest what a mistyped name may stand for: a command, an option, a choice, a gate, a file."""

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from zprof.base.errors import BadInput
from zprof.base.formatting import printable, shorten

_MAX_SUGGESTIONS = 3
_CUTOFF = 0.6
#: Comparing is quadratic in the length of a name, and a hint is one line.
_MAX_COMPARED, _MAX_SHOWN = 64, 80
#: Entries of a folder that are compared; folders of traces may have very many.
_MAX_ENTRIES, _MAX_PATHS = 4096, 2


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Return a hint with similar names (``did you mean peak_memory?``), or with all names."""
    names = list(known)
    return ask_for_name(name, names) or f"known: {', '.join(names)}"


def ask_for_name(name: str, known: Iterable[str]) -> str:
    """Return the question ``did you mean A or B?``; empty if no name is similar."""
    near = find_similar(name, known)
    shown = [shorten(printable(entry), _MAX_SHOWN) for entry in near]
    return f"did you mean {' or '.join(shown)}?" if shown else ""


def find_similar(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three names of similar spelling, best first; case and leading dashes are ignored."""
    from difflib import get_close_matches  # only errors need it

    by_key: dict[str, str] = {}
    for entry in known:
        by_key.setdefault(_make_key(entry), entry)
    keys = get_close_matches(_make_key(name), by_key, n=_MAX_SUGGESTIONS, cutoff=_CUTOFF)
    return [by_key[key] for key in keys]


def _make_key(name: str) -> str:
    return name.lstrip("-")[:_MAX_COMPARED].lower()


def make_missing_error(path: Path) -> BadInput:
    """Return the error of a path where no run is, with what may have been meant."""
    return BadInput(f"{path}: no such run", hint=suggest_path(path) or "give the folder of a recording")


def suggest_path(path: Path) -> str:
    """Return the question ``did you mean runs/zero3.zprof?`` about entries spelled like a missing path.

    The first part of the path that does not exist is the one that is compared.  A name with
    another suffix is the nearest.  Empty if nothing is similar, or the folder cannot be read.
    """
    missing = path
    try:
        while missing.parent != missing and not missing.parent.exists():
            missing = missing.parent
        with os.scandir(missing.parent) as entries:
            names = [entry.name for entry in islice(entries, _MAX_ENTRIES)]
        if not missing.name.startswith("."):
            names = [name for name in names if not name.startswith(".")]
    except (OSError, ValueError):
        return ""
    # The names that differ in what follows the first dot only; runs (folders named so) first.
    stem = missing.name.partition(".")[0]
    same = [entry for entry in names if stem and entry.partition(".")[0] == stem]
    near = sorted(same, key=lambda entry: (not entry.endswith(".zprof"), entry)) or find_similar(
        missing.name, names
    )
    shown = [printable(missing.parent / name) for name in near[:_MAX_PATHS]]
    return f"did you mean {' or '.join(shown)}?" if shown else ""
