"""Find, list, limit and clear the user's cache folder.

``$XDG_CACHE_HOME/zprof`` (default ``~/.cache/zprof``) has ``imports``, one folder per raw file or folder that
was passed instead of a run, and ``reports``, one file per finished report. Everything in it can be made
again. Links and files of other users are neither read nor removed.

Imports are locked: a reader holds an import until its process ends, and held entries are never removed.

No function waits for a lock: a suspended process, or a process on another machine, may hold it forever.
"""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from io import BufferedReader
from pathlib import Path

from zprof.model.cache import CacheEntry, CacheKind, CacheSummary, CacheUse
from zprof.run.files import open_plain

#: Maximum bytes of each kind; above it the least recently used entries are removed.
MAX_BYTES = {CacheKind.IMPORTS: 20 << 30, CacheKind.REPORTS: 256 << 20}
#: An entry used more recently than this may still be in use.
_MIN_AGE_S = 3600.0
#: Maximum seconds that a command spends on removing unused entries; the next command continues.
MAX_CLEANUP_S = 2.0
IMPORT_SUFFIX = ".zprof-cache"
REPORT_SUFFIX = ".report"
#: File that lists the sources of an import; an import without it is not used.
KEY_NAME = "key.json"
LOCK_NAME = "lock"
#: From this age, an entry without a working lock counts as unused.
_STALE_S = 3600.0


def find_cache_folder() -> Path | None:
    """Return the cache folder, which may not exist yet, or None if the user has no home folder."""
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification ignores relative paths; without HOME and a passwd entry, "~" is not expanded.
    base = Path(cache_home) if os.path.isabs(cache_home) else Path(os.path.expanduser("~")) / ".cache"
    return base / "zprof" if base.is_absolute() else None


def list_entries(kind: CacheKind) -> list[CacheEntry]:
    """Return the entries of a kind that belong to the user, the least recently used first."""
    return sorted(_iterate_entries(kind), key=lambda entry: entry.used_s)


def clear_cache(kind: CacheKind) -> list[CacheEntry]:
    """Remove all entries of a kind that nobody is reading, and return the removed entries."""
    return [entry for entry in list_entries(kind) if _remove(entry.path)]


def summarize_entries(
    entries: Sequence[CacheEntry], kinds: tuple[CacheKind, ...], *, is_removed: bool
) -> CacheSummary:
    """Return the number and size of the entries of each kind."""
    folder = find_cache_folder()
    sizes = {kind: [entry.bytes for entry in entries if entry.kind is kind] for kind in kinds}
    uses = [
        CacheUse(kind=kind, entries=len(sizes[kind]), bytes=sum(sizes[kind]), max_bytes=MAX_BYTES[kind])
        for kind in kinds
    ]
    return CacheSummary(
        folder="" if folder is None else os.fspath(folder), kinds=tuple(uses), is_removed=is_removed
    )


def limit_cache(kind: CacheKind) -> None:
    """Remove the least recently used entries until the rest fit, but none used in the last hour.

    Unfinished reports of killed processes are removed, too.
    """
    _remove_unfinished_reports()
    entries = list_entries(kind)
    excess = sum(entry.bytes for entry in entries) - MAX_BYTES[kind]
    newest = time.time() - _MIN_AGE_S
    for entry in entries:
        if excess <= 0 or entry.used_s > newest:
            return
        if _remove(entry.path, MAX_CLEANUP_S):
            excess -= entry.bytes


def mark_as_used(path: Path) -> None:
    """Record that an entry is used now."""
    with suppress(OSError):
        os.utime(path)


def is_owned_by_user(path: Path) -> bool:
    """Return True if the path exists, is not a link, and belongs to the user."""
    try:
        return not path.is_symlink() and path.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _remove_unfinished_reports() -> None:
    """Remove temporary files of reports whose process has ended; writers on other hosts count as ended."""
    root = find_cache_folder()
    if root is None or not is_owned_by_user(root / CacheKind.REPORTS):
        return
    for path in (root / CacheKind.REPORTS).glob(f".*{REPORT_SUFFIX}.*.tmp"):
        number = path.suffixes[-2].removeprefix(".")
        with suppress(PermissionError, ValueError, OverflowError):  # another user's process; no number
            try:
                os.kill(int(number), 0)
            except ProcessLookupError:
                if is_owned_by_user(path):
                    path.unlink(missing_ok=True)


def _iterate_entries(kind: CacheKind) -> Iterator[CacheEntry]:
    root = find_cache_folder()
    if root is None or not is_owned_by_user(root / kind):
        return
    suffix = IMPORT_SUFFIX if kind is CacheKind.IMPORTS else REPORT_SUFFIX
    for path in sorted((root / kind).glob(f"*{suffix}")):
        with suppress(OSError):  # another command has just removed it
            if is_owned_by_user(path):
                yield CacheEntry(kind=kind, path=path, bytes=_measure(path), used_s=path.stat().st_mtime)


def _measure(path: Path) -> int:
    """Return the size of a file, or of all files in a folder, in bytes."""
    if not path.is_dir():
        return path.stat().st_size
    files = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    return sum(file.lstat().st_size for file in files)


def _remove(path: Path, max_s: float = float("inf")) -> bool:
    if path.is_dir():
        return remove_unused(path, max_s)
    try:
        path.unlink()
    except OSError:
        return False
    return True


def lock_entry(entry: Path, *, is_exclusive: bool) -> BufferedReader | None:
    """Return the open, locked lock file; None if another process holds it or the entry does not exist.

    On a file system without locks, the file is returned as if it were locked.
    """
    try:
        lock = open_plain(entry / LOCK_NAME)
    except OSError:
        return None
    try:
        fcntl.flock(lock, (fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError:
        pass
    with suppress(OSError):
        if os.path.samestat(os.fstat(lock.fileno()), os.stat(entry / LOCK_NAME)):
            return lock
    lock.close()
    return None


@cache
def hold_entry(entry: Path) -> BufferedReader:
    """Hold an entry for reading until this process ends.

    Raises:
        FileNotFoundError: Another process is removing the entry, or has removed it.
    """
    lock = lock_entry(entry, is_exclusive=False)
    if lock is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(entry))
    return lock


def remove_unused(entry: Path, max_s: float = float("inf")) -> bool:
    """Remove an entry that nobody holds, in at most ``max_s`` seconds; return True if it is gone."""
    lock = lock_entry(entry, is_exclusive=True)
    if lock is None and not _is_stale(entry):
        return False
    try:
        with suppress(OSError):
            (entry / KEY_NAME).unlink()  # its remains are not used
        # Remove as much of a folder as possible before the deadline.
        deadline_s = time.monotonic() + max_s
        for parent, _, names in os.walk(entry, topdown=False):
            for name in names:
                if time.monotonic() > deadline_s:
                    return False
                with suppress(OSError):
                    os.unlink(os.path.join(parent, name))
        shutil.rmtree(entry, ignore_errors=True)
        return not entry.exists()
    finally:
        if lock is not None:
            lock.close()


def _is_stale(entry: Path) -> bool:
    """Return True for an old entry without a lock file: its writer was killed or was an older zprof."""
    with suppress(OSError):
        return not os.path.lexists(entry / LOCK_NAME) and time.time() - entry.stat().st_mtime > _STALE_S
    return False
