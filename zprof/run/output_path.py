"""Check, lock and replace the path of a run.

Each output has one writer, which holds a lock file next to the output while writing.

The lock belongs to the open file, so the system releases it however the process ends. The file contains its
owner, for the error message of another writer.
"""

import errno
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zprof.base.errors import BadInput
from zprof.run.manifest import read_run_manifest

#: Errors of file systems without locks: there, a second writer is not noticed.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_MAX_OWNER_BYTES = 4096
#: More bytes than a file system stores in a file without allocating a block.
_PROBE_BYTES = 1 << 16


@contextmanager
def replace_run(path: Path, *, force: bool) -> Iterator[None]:
    """Lock ``path`` and move an existing run away from it; restore it if no new run was written.

    Raises:
        BadInput: A run exists and ``force`` is not given, something else exists at the path, another process
            is writing it, or it cannot be written.
    """
    check_output_path(path, force=force)
    with lock_output(path):
        # Restore a run that a killed process had moved away and not replaced.
        backup = _get_backup(path)
        if not _is_taken(path) and backup.is_dir():
            with suppress(OSError):
                backup.rename(path)
        # Another process may have written it since.
        check_output_path(path, force=force)
        with _move_away(path):
            yield


@contextmanager
def _move_away(path: Path) -> Iterator[None]:
    if not _is_taken(path):
        yield
        return
    backup = _get_backup(path)
    path = backup.with_name(path.resolve().name if not path.name.strip(".") else path.name)
    shutil.rmtree(backup, ignore_errors=True)
    try:
        path.rename(backup)
    except OSError as error:
        raise BadInput(
            f"{path}: cannot be replaced ({error.strerror})", hint="choose another folder"
        ) from None
    try:
        yield
    finally:
        if _is_run(path):
            shutil.rmtree(backup, ignore_errors=True)
        else:
            shutil.rmtree(path, ignore_errors=True)
            backup.rename(path)


def _get_backup(path: Path) -> Path:
    path = path if path.name.strip(".") else path.resolve()
    return path.with_name(f".{path.name}.replaced")


def check_output_path(path: Path, *, force: bool, since_ns: int | None = None) -> None:
    """Reject a path with content that a run must not replace.

    Args:
        path: Output path of the run.
        force: Whether an existing run may be replaced.
        since_ns: Anything created after this time was written by another rank of the same job.

    Raises:
        BadInput: A run exists and ``force`` is not given, or something else exists at the path.
    """
    if not _is_taken(path) or (since_ns is not None and path.stat().st_mtime_ns >= since_ns):
        return
    if not _is_run(path):
        raise BadInput(f"{path}: exists and is not a run", hint="choose another folder")
    if not force:
        raise BadInput(f"{path}: a run already exists", hint="--force overwrites it")


def _is_taken(path: Path) -> bool:
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))


def _is_run(path: Path) -> bool:
    try:
        read_run_manifest(path)
    except BadInput:
        return False
    return True


@contextmanager
def lock_output(path: Path) -> Iterator[None]:
    """Hold the lock of an output; create the folder that will contain the output.

    Raises:
        BadInput: Another process is writing the output, or the folder cannot be written.
    """
    path = Path(os.path.abspath(path))
    lock = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() and not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        handle = _open_locked(lock, path)
    except OSError as error:
        raise BadInput(
            f"{path}: cannot be written ({error.strerror})", hint="choose another folder"
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()  # before releasing the lock, so a waiting process notices
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # a fork of this process may have the file open too
        os.close(handle)


def find_write_error(folder: Path) -> str:
    """Return why nothing can be written to a folder now, such as a full disk; empty if it can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or ""
    return ""


def _open_locked(lock: Path, path: Path) -> int:
    """Return the lock file, open and locked."""
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(handle, _MAX_OWNER_BYTES, 0).decode(errors="replace").strip()
                raise BadInput(
                    f"{path}: is being written by {owner or 'another process'}",
                    hint="wait until it ends, or choose another output",
                ) from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            if _is_same_file(handle, lock):
                os.ftruncate(handle, 0)
                os.pwrite(
                    handle, f"process {os.getpid()} on {socket.gethostname()}".encode()[:_MAX_OWNER_BYTES], 0
                )
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its owner removed it between our opening and locking it


def _is_same_file(handle: int, lock: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(lock))
    except FileNotFoundError:
        return False
