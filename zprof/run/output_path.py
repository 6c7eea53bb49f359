"""Check that a run may be written to a path, and replace an existing run."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zprof.base.errors import BadInput
from zprof.run.manifest import read_run_manifest
from zprof.run.output_lock import lock_output


@contextmanager
def replace_run(path: Path, *, force: bool) -> Iterator[None]:
    """Lock ``path`` and move an existing run away from it; restore it if no new run was written.

    Raises:
        BadInput: a run exists and ``force`` is not given, something else exists at the path, another process
            is writing it, or it cannot be written.
    """
    check_output_path(path, force=force)
    with lock_output(path):
        # Put a run back that a killed process had moved away and not replaced.
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
    """Refuse a path with content that a run must not replace.

    Args:
        path: Output path of the run.
        force: An existing run may be replaced.
        since_ns: Anything created after this time was written by another rank of the same job.

    Raises:
        BadInput: a run exists and ``force`` is not given, or something else exists at the path.
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
