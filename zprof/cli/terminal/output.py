"""Where a document goes: to stdout, or whole or not at all to a file that is not there yet."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from zprof.cli.terminal import console
from zprof.model.errors import BadInput


def check_target(path: Path, *, force: bool) -> None:
    """Refuse, before any work, a target that cannot or must not be written."""
    try:
        _check(path, force=force)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="name another file") from None


def _check(path: Path, *, force: bool) -> None:
    if path.is_dir():
        raise BadInput(f"{path}: is a folder", hint="name a file")
    if path.exists() and not force:
        raise BadInput(f"{path}: exists", hint="--force overwrites it")
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent}: no such folder", hint="make it, or name another file")


def deliver(document: str, path: Path | None, *, force: bool = False, page: bool = False) -> None:
    """Write to ``path``, or to stdout where there is none; ``page``: it is text for a reader.

    Raises:
        BadInput: the file exists and ``force`` is not given, or it cannot be written.
    """
    if path is None:
        (console.page if page else console.data)(document)
        return
    check_target(path, force=force)
    try:
        _write(document, path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="name another file") from None
    console.note(f"zprof: wrote {path}")


@contextmanager
def written_whole(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file to write to that becomes ``path`` when the context ends, or nothing where it fails.

    Raises:
        BadInput: the file exists and ``force`` is not given, or it cannot be written.
    """
    check_target(path, force=force)
    try:
        with _put_in_place(path) as file:
            yield file
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="name another file") from None


def _write(document: str, path: Path) -> None:
    with _put_in_place(path) as file:
        file.write(document.encode("utf-8", errors="backslashreplace"))


@contextmanager
def _put_in_place(path: Path) -> Iterator[BinaryIO]:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            yield file
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
