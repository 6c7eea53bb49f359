"""Runs made of raw files that were given in place of a run, kept beside them.

``.NAME.zprof-cache/`` holds the run and ``key.json``: the files with their sizes and times, and what wrote
it.  A cache of another key is made anew.  Beside the files nothing is trusted that somebody else could have
put there; where nothing can be written there, the user's cache folder is used.
"""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from zprof.integrations.importing import import_paths
from zprof.integrations.imports.origin import write_origin
from zprof.integrations.imports.sources import Sources, holds_sources, sources_at
from zprof.integrations.imports.watch import ImportWatch
from zprof.model.errors import BadInput
from zprof.run.manifest import MANIFEST_NAME, RUN_SCHEMA, read_run_manifest
from zprof.version import __version__

_KEY = "key.json"
_ENDINGS = (".gz", ".zst", ".json", ".trace", ".pt", ".pickle", ".pkl")
#: Counts up when the same file gives other tables.
_CONVERSION = 2
_MOST_SWAPS = 8


def is_raw(path: Path) -> bool:
    """Whether ``path`` is no run but something to import: any file, or a folder of traces or snapshots."""
    if not path.is_dir():
        return path.exists()
    return not (path / MANIFEST_NAME).exists() and holds_sources(path)


def cached_import(path: Path, note: Callable[[str], None], watch: ImportWatch) -> Path:
    """The run of a trace, of a snapshot, or of a folder of them, from the cache or imported into it.

    ``note`` is told where it is.

    Raises:
        BadInput: it cannot be imported.
    """
    sources = sources_at([path])
    key = _key(path, sources.files)
    name = f"{_plain_name(path) or sources.kind}.zprof"
    for cache in _places(path):
        if _is_ours(cache) and _holds(cache, name, key):
            note(f"{path}: {_said(sources)}, imported before into {cache / name}")
            return cache / name
    note(f"{path}: {_said(sources)}, importing")
    for cache in _places(path):
        made = _made(cache)
        if made is not None:
            try:
                _fill(made, path, name, key, note, watch)
                _swap(made, cache)
                note(f"{path}: imported into {cache / name}")
                return cache / name
            finally:
                shutil.rmtree(made, ignore_errors=True)
    raise BadInput(f"{path}: no place to import it to", hint="zprof import PATH -o RUN names one")


def _plain_name(path: Path) -> str:
    """The name without the endings of such files: ``qwen_0.5b.pt.trace.json.gz`` is ``qwen_0.5b``."""
    name = path.resolve().name
    while (ending := next((end for end in _ENDINGS if name.lower().endswith(end)), "")) != "":
        name = name[: -len(ending)]
    return name


def _said(sources: Sources) -> str:
    count = len(sources.files)
    return f"a {sources.kind}" if count == 1 else f"{count} {sources.kind}s"


def _made(cache: Path) -> Path | None:
    """A folder beside ``cache`` to fill; None where nothing of ours can be written there."""
    if os.path.lexists(cache) and not _is_ours(cache):
        return None
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{cache.name}.", dir=cache.parent))
    except OSError:
        return None


def _fill(
    made: Path, path: Path, name: str, key: str, note: Callable[[str], None], watch: ImportWatch
) -> None:
    """Import; what went wrong for now only (a reader that was killed) is tried again the next time."""
    imported = import_paths([path], made / name, watch=watch)
    for said in imported.notes:
        note(said)
    if imported.lasting:
        write_origin(made, imported.files)
        (made / _KEY).write_text(key, encoding="utf-8")


def _swap(made: Path, cache: Path) -> None:
    """Put the new cache where the old one is; who reads the old one meanwhile keeps its files."""
    aside = Path(tempfile.mkdtemp(prefix=f"{cache.name}.", dir=cache.parent))
    try:
        for attempt in range(_MOST_SWAPS):
            with suppress(FileNotFoundError):
                cache.rename(aside / str(attempt))
            if _is_placed(made, cache):
                return
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    except OSError as error:
        raise BadInput(f"{cache}: cannot be written ({error.strerror})", hint="remove it") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _is_placed(made: Path, cache: Path) -> bool:
    """False where another process, importing the same, was faster: its cache is now the old one."""
    try:
        made.rename(cache)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _places(path: Path) -> Iterator[Path]:
    whole = path.resolve()
    yield whole.parent / f".{whole.name}.zprof-cache"
    root = os.environ.get("XDG_CACHE_HOME", "")
    user = Path(root) if root else Path.home() / ".cache"
    digest = hashlib.sha256(os.fsencode(whole)).hexdigest()[:32]
    yield user / "zprof" / "imports" / f"{digest}.zprof-cache"


def _is_ours(cache: Path) -> bool:
    try:
        return not cache.is_symlink() and cache.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _holds(cache: Path, name: str, key: str) -> bool:
    try:
        if (cache / _KEY).stat().st_size > len(key.encode()) + 1:
            return False
        same = (cache / _KEY).read_text(encoding="utf-8") == key
        read_run_manifest(cache / name)
    except (OSError, UnicodeDecodeError, BadInput):
        return False
    return same


def _key(path: Path, files: Sequence[Path]) -> str:
    """What the cache is of; another file, or one that has changed, has another key."""
    seen = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    made_by = [__version__, RUN_SCHEMA, _CONVERSION]
    return json.dumps({"path": str(path.resolve()), "files": seen, "made_by": made_by}) + "\n"
