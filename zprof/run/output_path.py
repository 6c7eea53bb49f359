"""Check that a run may be written to a path, and replace the run that is there."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zprof.model.errors import BadInput
from zprof.run.manifest import read_run_manifest


@contextmanager
def replace_run(path: Path, *, force: bool) -> Iterator[None]:
    """Make room for a run at ``path``; restore the previous run if no new one was written.

    Raises:
        BadInput: a run exists and ``force`` is not given, or something else is there.
    """
    check_output_path(path, force=force)
    if not _is_taken(path):
        yield
        return
    path = path if path.name.strip(".") else path.resolve()
    aside = path.with_name(f".{path.name}.replaced")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        path.rename(aside)
    except OSError as error:
        raise BadInput(f"{path}: cannot be replaced ({error.strerror})", hint="name another folder") from None
    try:
        yield
    finally:
        if _is_run(path):
            shutil.rmtree(aside, ignore_errors=True)
        else:
            shutil.rmtree(path, ignore_errors=True)
            aside.rename(path)


def check_output_path(path: Path, *, force: bool, since_ns: int | None = None) -> None:
    """Refuse a path that holds something that a run must not replace.

    Args:
        path: Output path of the run.
        force: An existing run may be replaced.
        since_ns: Anything created after this time was written by another rank of the same job.

    Raises:
        BadInput: a run exists and ``force`` is not given, or something else is there.
    """
    if not _is_taken(path) or (since_ns is not None and path.stat().st_mtime_ns >= since_ns):
        return
    if not _is_run(path):
        raise BadInput(f"{path}: exists and is not a run", hint="name another folder")
    if not force:
        raise BadInput(f"{path}: a run is there already", hint="--force overwrites it")


def _is_taken(path: Path) -> bool:
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))


def _is_run(path: Path) -> bool:
    try:
        read_run_manifest(path)
    except BadInput:
        return False
    return True
