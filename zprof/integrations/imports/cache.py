"""Cache imports of raw files that are given in place of a run, in the user's cache folder.

``$XDG_CACHE_HOME/zprof/imports/DIGEST.zprof-cache/`` (``~/.cache`` if that is not set; the digest is of the
path) holds the run and ``key.json``: the files with their sizes and times, and the versions that wrote it. A
cache with another key is rebuilt in a work folder beside it, which replaces it at the end. The next import
removes work folders of killed processes. Nothing is written beside the user's files.
"""

import atexit
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from zprof.integrations.imports.import_paths import import_paths
from zprof.integrations.imports.options import ImportWatch
from zprof.integrations.imports.origin import CACHE_ENDING, cache_root, write_origin
from zprof.integrations.imports.sources import Sources, find_sources, has_sources
from zprof.model.errors import BadInput
from zprof.run.manifest import MANIFEST_NAME, RUN_SCHEMA, read_run_manifest
from zprof.version import __version__

_KEY = "key.json"
_LOCK = "lock"
_ENDINGS = (".gz", ".zst", ".json", ".trace", ".pt", ".pickle", ".pkl")
#: Increment this when the same file gives different tables.
_CONVERSION = 2
_MAX_SWAPS = 8


def needs_import(path: Path) -> bool:
    """Return whether ``path`` must be imported: any file, or a folder of traces or snapshots."""
    if not path.is_dir():
        return path.exists()
    return not (path / MANIFEST_NAME).exists() and has_sources(path)


def import_cached(path: Path, note: Callable[[str], None], watch: ImportWatch) -> Path:
    """Return the run of a trace, of a snapshot, or of a folder of them, from the cache or newly imported.

    ``note`` is called with the state and the place of the import.

    Raises:
        BadInput: it cannot be imported.
    """
    sources = find_sources([path])
    key = _key(path, sources.files)
    name = f"{_name_without_endings(path) or sources.kind}.zprof"
    root = cache_root()
    cache = (
        root / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]}{CACHE_ENDING}"
        if root
        else None
    )
    if cache is not None and _is_own(cache) and _is_current(cache, name, key):
        note(f"{path}: {_count_sources(sources)}, imported before into {cache / name}")
        return cache / name
    note(f"{path}: {_count_sources(sources)}, importing")
    why_not = _why_not_writable(cache)
    if cache is None or why_not:
        note(f"{why_not}: the import is kept only while this command runs")
        folder = _folder_of_this_process()
        _import_into(folder, path, name, key, note, watch)
        return folder / name
    _remove_leftovers(cache.parent)
    with _work_folder(cache) as made:
        _import_into(made, path, name, key, note, watch)
        _replace_cache(made, cache)
    note(f"{path}: imported into {cache / name}")
    return cache / name


def _name_without_endings(path: Path) -> str:
    """Return the name without importable endings: ``qwen_0.5b.pt.trace.json.gz`` is ``qwen_0.5b``."""
    name = path.resolve().name
    while (ending := next((end for end in _ENDINGS if name.lower().endswith(end)), "")) != "":
        name = name[: -len(ending)]
    return name


def _count_sources(sources: Sources) -> str:
    count = len(sources.files)
    return f"a {sources.kind}" if count == 1 else f"{count} {sources.kind}s"


def _why_not_writable(cache: Path | None) -> str:
    """Return why a cache cannot be written; empty if it can."""
    if cache is None:
        return "there is no home folder for a cache"
    if os.path.lexists(cache) and not _is_own(cache):
        return f"{cache}: is not this user's own"
    try:
        cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _work_folder(cache):
            return ""
    except OSError as error:
        return f"{cache.parent}: cannot be written ({error.strerror})"


def _folder_of_this_process() -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix="zprof-import-", suffix=CACHE_ENDING))
    except OSError as error:
        raise BadInput(
            f"no folder for temporary files ({error.strerror})", hint="zprof import PATH -o RUN names a place"
        ) from None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def _work_folder(cache: Path) -> Iterator[Path]:
    """Yield a locked folder beside ``cache`` and remove it at the end; the lock marks it as in use."""
    with _locked(cache.parent):
        folder = Path(tempfile.mkdtemp(prefix=f"{cache.name}.", dir=cache.parent))
        lock = (folder / _LOCK).open("wb")
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        with lock:
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(root: Path) -> None:
    """Remove work folders without a lock: their processes were killed."""
    with suppress(OSError), _locked(root):
        for folder in root.glob(f"*{CACHE_ENDING}.*"):
            if not _is_own(folder):
                continue
            with suppress(FileNotFoundError), (folder / _LOCK).open("rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Lock out the search for leftovers between the creation of a work folder and its lock."""
    with (root / _LOCK).open("wb") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _import_into(
    made: Path, path: Path, name: str, key: str, note: Callable[[str], None], watch: ImportWatch
) -> None:
    """Import; do not cache a result with temporary failures (a killed reader), so the next run retries."""
    imported = import_paths([path], made / name, watch=watch)
    for said in imported.notes:
        note(said)
    if imported.lasting:
        write_origin(made, imported.files)
        (made / _KEY).write_text(key, encoding="utf-8")


def _replace_cache(made: Path, cache: Path) -> None:
    """Replace the old cache with the new one; processes that read the old one keep its files."""
    try:
        with _work_folder(cache) as aside:
            for attempt in range(_MAX_SWAPS):
                with suppress(FileNotFoundError):
                    cache.rename(aside / str(attempt))
                if _is_placed(made, cache):
                    return
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    except OSError as error:
        raise BadInput(f"{cache}: cannot be written ({error.strerror})", hint="remove it") from None


def _is_placed(made: Path, cache: Path) -> bool:
    """Return False if another process with the same import was faster: its cache is now the old one."""
    try:
        made.rename(cache)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _is_own(cache: Path) -> bool:
    try:
        return not cache.is_symlink() and cache.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _is_current(cache: Path, name: str, key: str) -> bool:
    try:
        if (cache / _KEY).stat().st_size > len(key.encode()) + 1:
            return False
        same = (cache / _KEY).read_text(encoding="utf-8") == key
        read_run_manifest(cache / name)
    except (OSError, UnicodeDecodeError, BadInput):
        return False
    return same


def _key(path: Path, files: Sequence[Path]) -> str:
    """Return the cache key: it changes with the files, their sizes and times, and the versions."""
    seen = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    made_by = [__version__, RUN_SCHEMA, _CONVERSION]
    return json.dumps({"path": str(path.resolve()), "files": seen, "made_by": made_by}) + "\n"
