"""Suggest the file or folder that a path which does not exist may stand for."""

import os
from itertools import islice
from pathlib import Path

from zprof.model.errors import BadInput
from zprof.model.formatting import printable
from zprof.model.suggestions import find_similar

#: Entries of a folder that are compared; folders of traces may have very many.
_MAX_ENTRIES = 4096
_MAX_SHOWN = 2


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
    shown = [printable(missing.parent / name) for name in near[:_MAX_SHOWN]]
    return f"did you mean {' or '.join(shown)}?" if shown else ""
