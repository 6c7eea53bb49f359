"""Open the files of a run, which may be untrusted: regular files only.

A pipe, or a link to a device, instead of a file would block the reader or never end.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_plain(path: Path) -> BufferedReader:
    """Open a regular file, or a link to one.

    Raises:
        OSError: it does not exist, cannot be read, or is not a regular file.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise
