"""Open and place the files of a run, which may be untrusted. Does not need pyarrow.

Only regular files are opened: a pipe, or a link to a device, instead of a file would block the reader or
never end. A file appears complete or not at all.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from msgspec import to_builtins

from zprof.process.identity import ProcessIdentity, identify_this_process

_LOCK_POLL_S = 0.01
_PREFIX = "zprof-"
_OWNER_NAME = "owner.json"
_MAX_OWNER_BYTES = 4096


def open_plain(path: Path) -> BufferedReader:
    """Open a regular file, or a link to one.

    Raises:
        OSError: The file does not exist, cannot be read, or is not a regular file.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


@contextmanager
def lock_folder(folder: Path, max_wait_s: float) -> Iterator[bool]:
    """Hold the lock of a rank's folder; yield False if another process held it until the timeout.

    On a file system that cannot lock a folder, the rank is written without a lock: it may be damaged if
    another process saves it while it continues.

    Raises:
        OSError: The folder does not exist.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        is_locked = _lock(handle, time.monotonic() + max_wait_s)
        yield is_locked and os.path.samestat(os.fstat(handle), os.stat(folder))  # otherwise it was replaced
    finally:
        os.close(handle)


def _lock(handle: int, deadline_s: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_LOCK_POLL_S)
        except OSError:
            return True
        else:
            return True


def write_atomically(target: Path, content: bytes) -> None:
    """Write a small file atomically: readers see either the old or the new content."""
    with remove_on_error(get_temporary_path(target)) as temporary:
        temporary.write_bytes(content)
        sync_and_rename(temporary, target)


@contextmanager
def remove_on_error(temporary: Path) -> Iterator[Path]:
    """Remove a file that could not be written: a full disk needs its blocks for the error report."""
    try:
        yield temporary
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def get_temporary_path(target: Path) -> Path:
    """Return the path at which a file is written until it is complete."""
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


def sync_and_rename(temporary: Path, target: Path) -> str:
    """Fsync a complete file, rename it to its final name, and return its SHA-256."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    temporary.rename(target)
    return digest


@contextmanager
def open_scratch_folder(purpose: str) -> Iterator[Path]:
    """Make a folder ``zprof-PURPOSE-…`` owned by this process, and remove it on exit."""
    folder = make_scratch_folder(purpose)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_scratch_folder(purpose: str) -> Path:
    """Make a folder ``zprof-PURPOSE-…`` owned by this process, which must remove it."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
    (folder / _OWNER_NAME).write_text(json.dumps(to_builtins(identify_this_process())), encoding="utf-8")
    return folder


def remove_leftovers() -> None:
    """Remove this user's folders whose owner has certainly ended; called when a recording starts."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()  # a link may point to anything
            if (
                (stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid())
                and (owner := _read_owner(folder)) is not None
                and owner.is_gone
            ):
                shutil.rmtree(folder, ignore_errors=True)


def _read_owner(folder: Path) -> ProcessIdentity | None:
    """Return the owner of the folder, or None if it is unknown (yet)."""
    try:
        handle = os.open(folder / _OWNER_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            return ProcessIdentity(**json.loads(file.read(_MAX_OWNER_BYTES)))
    except (OSError, ValueError, TypeError):
        return None
