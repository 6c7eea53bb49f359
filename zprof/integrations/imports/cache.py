"""Cache imports of raw files that are passed instead of a run, in the user's cache folder.

``$XDG_CACHE_HOME/zprof/imports/DIGEST.zprof-cache/`` (default ``~/.cache``; DIGEST is a hash of the path)
contains the run and ``key.json``: the files with their sizes and times, and the zprof versions involved. A
cache with a different key is rebuilt in a temporary folder next to it, which replaces it at the end. The next
import removes temporary folders of killed processes. Nothing is written next to the user's files.
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

from zprof.cache.folder import IMPORT_SUFFIX, is_owned_by_user, limit_cache, mark_as_used
from zprof.integrations.imports.import_paths import import_paths
from zprof.integrations.imports.options import ImportOptions, ImportProgress
from zprof.integrations.imports.origin import cache_root, write_origin
from zprof.integrations.imports.sources import Sources, find_sources, has_sources
from zprof.model.cache import CacheKind
from zprof.model.errors import BadInput
from zprof.run.manifest import MANIFEST_NAME, RUN_SCHEMA, read_run_manifest
from zprof.version import __version__

_KEY_FILE = "key.json"
_LOCK = "lock"
_SUFFIXES = (".gz", ".zst", ".json", ".trace", ".pt", ".pickle", ".pkl")
#: Increment this when the conversion of the same file changes.
_CONVERSION_VERSION = 3
_MAX_REPLACE_ATTEMPTS = 8


def needs_import(path: Path) -> bool:
    """Return True if ``path`` must be imported: any file, or a folder of traces or snapshots."""
    if not path.is_dir():
        return path.exists()
    return not (path / MANIFEST_NAME).exists() and has_sources(path)


def import_cached(
    paths: Sequence[Path],
    print_note: Callable[[str], None],
    progress: ImportProgress,
    while_reading: Callable[[], None] | None = None,
) -> Path:
    """Return the run of traces, snapshots or dumps, from the cache or newly imported.

    Args:
        paths: Files, or folders of them, that make one run.
        print_note: Called with messages on the state and location of the import.
        progress: Told how far the import is.
        while_reading: Called while other processes read, if they do.

    Raises:
        BadInput: a path cannot be imported.
    """
    path = paths[0]
    sources = find_sources(paths)
    options = ImportOptions(while_reading=while_reading)
    key = _compute_key(path, sources.files)
    name = f"{_strip_suffixes(path) or sources.kind}.zprof"
    root = cache_root()
    cache = root / f"{_compute_digest(paths)}{IMPORT_SUFFIX}" if root else None
    if cache is not None and is_owned_by_user(cache) and _is_current(cache, name, key):
        print_note(f"{path}: {_count_sources(sources)}, imported before")
        mark_as_used(cache)
        return cache / name
    print_note(f"{path}: {_count_sources(sources)}, importing into the cache (zprof doctor says where)")
    obstacle = _explain_unwritable(cache)
    if cache is None or obstacle:
        print_note(f"{obstacle}: the import is temporary and will be deleted on exit")
        folder = _make_process_folder()
        _import_into(folder, paths, name, key, print_note, progress, options)
        return folder / name
    _remove_leftovers(cache.parent)
    with _temporary_folder(cache) as folder:
        _import_into(folder, paths, name, key, print_note, progress, options)
        _replace_cache(folder, cache)
    limit_cache(CacheKind.IMPORTS)
    return cache / name


def _compute_digest(paths: Sequence[Path]) -> str:
    """Return the name of the cache of these paths."""
    names = b"\0".join(os.fsencode(path.resolve()) for path in paths)
    return hashlib.sha256(names).hexdigest()[:32]


def _strip_suffixes(path: Path) -> str:
    """Return the name without importable suffixes: ``qwen_0.5b.pt.trace.json.gz`` is ``qwen_0.5b``."""
    name = path.resolve().name
    while suffix := next((end for end in _SUFFIXES if name.lower().endswith(end)), ""):
        name = name[: -len(suffix)]
    return name


def _count_sources(sources: Sources) -> str:
    count = len(sources.files)
    return f"a {sources.kind}" if count == 1 else f"{count} {sources.kind}s"


def _explain_unwritable(cache: Path | None) -> str:
    """Explain why a cache cannot be written; empty if it can."""
    if cache is None:
        return "no home folder, so imports cannot be cached"
    if os.path.lexists(cache) and not is_owned_by_user(cache):
        return f"{cache}: is owned by another user"
    try:
        cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _temporary_folder(cache):
            return ""
    except OSError as error:
        return f"{cache.parent}: cannot be written ({error.strerror})"


def _make_process_folder() -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix="zprof-import-", suffix=IMPORT_SUFFIX))
    except OSError as error:
        raise BadInput(
            f"cannot create a temporary folder ({error.strerror})",
            hint="use zprof import PATH -o RUN to choose a location",
        ) from None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def _temporary_folder(cache: Path) -> Iterator[Path]:
    """Yield a locked folder next to ``cache`` and remove it at the end; the lock marks it as in use."""
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
    """Remove temporary folders without a lock, whose processes were killed."""
    with suppress(OSError), _locked(root):
        for folder in root.glob(f"*{IMPORT_SUFFIX}.*"):
            if not is_owned_by_user(folder):
                continue
            with suppress(FileNotFoundError), (folder / _LOCK).open("rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the cache lock, so that no cleanup runs between creating a temporary folder and locking it."""
    with (root / _LOCK).open("wb") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _import_into(
    folder: Path,
    paths: Sequence[Path],
    name: str,
    key: str,
    print_note: Callable[[str], None],
    progress: ImportProgress,
    options: ImportOptions,
) -> None:
    """Import; do not cache a result with transient failures (a killed reader), so the next run retries."""
    imported = import_paths(paths, folder / name, options=options, progress=progress)
    for message in imported.notes:
        print_note(message)
    if imported.is_cacheable:
        write_origin(folder, imported.files)
        (folder / _KEY_FILE).write_text(key, encoding="utf-8")


def _replace_cache(folder: Path, cache: Path) -> None:
    """Replace the old cache with the new one; processes that read the old one keep its files."""
    try:
        with _temporary_folder(cache) as trash:
            for attempt in range(_MAX_REPLACE_ATTEMPTS):
                with suppress(FileNotFoundError):
                    cache.rename(trash / str(attempt))
                if _try_place(folder, cache):
                    return
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    except OSError as error:
        raise BadInput(f"{cache}: cannot be written ({error.strerror})", hint="remove it") from None


def _try_place(folder: Path, cache: Path) -> bool:
    """Rename the folder to ``cache``; return False if another process finished the same import first."""
    try:
        folder.rename(cache)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _is_current(cache: Path, name: str, key: str) -> bool:
    try:
        if (cache / _KEY_FILE).stat().st_size > len(key.encode()) + 1:
            return False
        is_match = (cache / _KEY_FILE).read_text(encoding="utf-8") == key
        read_run_manifest(cache / name)
    except (OSError, UnicodeDecodeError, BadInput):
        return False
    return is_match


def _compute_key(path: Path, files: Sequence[Path]) -> str:
    """Return the cache key, which depends on the files, their sizes and times, and the versions."""
    stats = [
        (f"{file.parent.name}/{file.name}", file.stat().st_size, file.stat().st_mtime_ns) for file in files
    ]
    versions = [__version__, RUN_SCHEMA, _CONVERSION_VERSION]
    return json.dumps({"path": str(path.resolve()), "files": stats, "made_by": versions}) + "\n"
