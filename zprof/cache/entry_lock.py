"""Lock imports in the cache: who reads one holds it until the process ends, and nobody removes what is held.

No function waits for a lock: a suspended process, or one on another machine, may hold it for ever.
"""

import errno
import fcntl
import os
import shutil
import time
from contextlib import suppress
from functools import cache
from io import BufferedReader
from pathlib import Path

from zprof.run.files import open_plain

#: Says which files an import was made from; without it, an import is not used.
KEY_NAME = "key.json"
LOCK_NAME = "lock"
#: Age from which an entry without a working lock is taken as not in use.
_STALE_S = 3600.0


def lock_entry(entry: Path, *, is_exclusive: bool) -> BufferedReader | None:
    """Return the open lock file, locked; None if another process holds it, or there is no entry (any more).

    On a file system without locks, the file is returned as if it was locked.
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
    """Hold an entry, which will be read, until this process ends.

    Raises:
        FileNotFoundError: another process removes it, or has done so.
    """
    lock = lock_entry(entry, is_exclusive=False)
    if lock is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(entry))
    return lock


def remove_unused(entry: Path, max_s: float = float("inf")) -> bool:
    """Remove an entry that nobody holds, for at most ``max_s`` seconds; return True if it is gone."""
    lock = lock_entry(entry, is_exclusive=True)
    if lock is None and not _is_stale(entry):
        return False
    try:
        with suppress(OSError):
            (entry / KEY_NAME).unlink()  # what is left of it is not used
        # Remove a folder, but no more of it than is possible until the deadline.
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
    """Return True for an old entry without a lock file, whose maker was killed or is an older zprof."""
    with suppress(OSError):
        return not os.path.lexists(entry / LOCK_NAME) and time.time() - entry.stat().st_mtime > _STALE_S
    return False
