"""A process whose files cannot grow, as on a full disk."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

#: The message of a write that is too large.
MESSAGE = os.strerror(errno.EFBIG)


@contextmanager
def limit_files(size_bytes: int = 1_000) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
