"""Make the temporary folders of recordings, and remove those that killed processes left behind."""

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import to_builtins

from zprof.process.identity import ProcessIdentity, identify_this_process

_PREFIX = "zprof-"
_OWNER_NAME = "owner.json"
_MAX_OWNER_BYTES = 4096


@contextmanager
def open_scratch_folder(purpose: str) -> Iterator[Path]:
    """Make a folder ``zprof-PURPOSE-…`` with this process as its owner, and remove it on exit."""
    folder = make_scratch_folder(purpose)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_scratch_folder(purpose: str) -> Path:
    """Make a folder ``zprof-PURPOSE-…`` with this process as its owner, which must remove it."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
    (folder / _OWNER_NAME).write_text(json.dumps(to_builtins(identify_this_process())), encoding="utf-8")
    return folder


def remove_leftovers() -> None:
    """Remove the folders of this user whose owner has certainly ended; call it where a recording starts."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()  # a link may lead to anything
            if (
                (stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid())
                and (owner := _read_owner(folder)) is not None
                and owner.is_gone
            ):
                shutil.rmtree(folder, ignore_errors=True)


def _read_owner(folder: Path) -> ProcessIdentity | None:
    """Return the owner of the folder, or None if it is not known (yet)."""
    try:
        handle = os.open(folder / _OWNER_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            return ProcessIdentity(**json.loads(file.read(_MAX_OWNER_BYTES)))
    except (OSError, ValueError, TypeError):
        return None
