"""Locate cached imports, and record the file from which each rank was imported.

The list of files is stored next to the run in the cache, which stays on this machine. It is never part of the
run, which may be shared, because paths disclose details of the machine.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from zprof.cache.folder import IMPORT_SUFFIX, find_cache_folder
from zprof.collectors.read.imports.file_ranks import RankedFile
from zprof.model.cache import CacheKind

ORIGIN_NAME = "files.json"
_MAX_BYTES = 64 << 20


def cache_root() -> Path | None:
    """Return the folder of all imports; None if the user has no home folder."""
    folder = find_cache_folder()
    return folder / CacheKind.IMPORTS if folder else None


def write_origin(cache: Path, files: Sequence[RankedFile]) -> None:
    """Write the list of files to the folder of the cache."""
    by_rank = {str(file.rank): os.fspath(file.path.absolute()) for file in files}
    (cache / ORIGIN_NAME).write_text(json.dumps(by_rank), encoding="ascii")


def read_origin(run: Path) -> Mapping[int, Path] | None:
    """Return the files by rank; None if ``run`` is not in this user's cache, or has no valid list."""
    cache = run.parent
    path = cache / ORIGIN_NAME
    try:
        if not cache.name.endswith(IMPORT_SUFFIX) or cache.stat().st_uid != os.geteuid():
            return None
        if path.is_symlink() or path.stat().st_size > _MAX_BYTES:
            return None
        by_rank = json.loads(path.read_text(encoding="ascii"))
        return {int(rank): Path(name) for rank, name in by_rank.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
