"""Suggest the file or folder that a path which does not exist may stand for."""

import os
from itertools import islice
from pathlib import Path

from zprof.model.suggestions import ask_for_name, find_similar

#: Entries of a folder that are compared; folders of traces may have very many.
_MAX_ENTRIES = 4096


def suggest_path(path: Path) -> str:
    """Return the question ``did you mean runs/zero3.zprof?`` about entries spelled like a missing path.

    The first part of the path that does not exist is the one that is compared.  A name without its suffix
    counts as similar.  Empty if nothing is similar, or the folder cannot be read.
    """
    missing = path
    try:
        while missing.parent != missing and not missing.parent.exists():
            missing = missing.parent
        with os.scandir(missing.parent) as entries:
            names = [entry.name for entry in islice(entries, _MAX_ENTRIES)]
    except (OSError, ValueError):
        return ""
    names_by_stem = {name.partition(".")[0] or name: name for name in sorted(names)}
    near = find_similar(missing.name, names)
    near += [names_by_stem[stem] for stem in find_similar(missing.name, names_by_stem)]
    shown = [str(missing.parent / name) for name in dict.fromkeys(near)]
    return ask_for_name(shown[0], shown[:1]) if shown else ""
