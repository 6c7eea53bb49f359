"""Where imports are cached, and which file each rank of an import was made of.

The list of files stands beside the run in the cache, which belongs to this machine, and never in the run,
which may be given away: a path tells more of a machine than its owner wants to say.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from zprof.integrations.imports.file_ranks import RankedFile

ORIGIN_NAME = "files.json"
CACHE_ENDING = ".zprof-cache"
_MAX_BYTES = 64 << 20


def cache_root() -> Path | None:
    """The folder of all imports; None where the user has no home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored; without HOME a user may be in no list either.
    base = Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~")) / ".cache"
    return base / "zprof" / "imports" if base.is_absolute() else None


def write_origin(cache: Path, files: Sequence[RankedFile]) -> None:
    """Remember the files in the folder of the cache."""
    by_rank = {str(file.rank): os.fspath(file.path.absolute()) for file in files}
    (cache / ORIGIN_NAME).write_text(json.dumps(by_rank), encoding="ascii")


def read_origin(run: Path) -> Mapping[int, Path] | None:
    """The files by rank; None where ``run`` is in no cache of ours, or that does not say."""
    cache = run.parent
    path = cache / ORIGIN_NAME
    try:
        if not cache.name.endswith(CACHE_ENDING) or cache.stat().st_uid != os.geteuid():
            return None
        if path.is_symlink() or path.stat().st_size > _MAX_BYTES:
            return None
        found = json.loads(path.read_text(encoding="ascii"))
        return {int(rank): Path(name) for rank, name in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
