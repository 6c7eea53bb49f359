"""Handle low memory and other limits: recognize their errors, and check address space (``ulimit -v``).

Libraries in C and C++ abort the process if the loader, OpenBLAS or a thread gets no memory, which cannot be
turned into an error message. Under a limit, each of them is therefore imported only if it fits.
"""

import errno
import importlib.machinery
import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

_MIB = 1 << 20
#: Address space that importing a library takes, measured with one thread, plus a quarter.
_LIBRARY_BYTES = {
    "numpy": 112 * _MIB,
    "pyarrow": 256 * _MIB,
    "pandas": 96 * _MIB,
    "torch": 768 * _MIB,
}
#: A limit counts what each thread and memory pool reserves, used or not.
_FRUGAL = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
#: With less than this to spare, any failure is attributed to the limit.
_SPARE_BYTES = 16 * _MIB
#: Limits on open files, disk space, quota and file size.
_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WORDS = (
    "failed to map segment",
    "cannot allocate memory",
    "can't allocate memory",
    "can't start new thread",
    "std::bad_alloc",
    "not enough memory",
)


@contextmanager
def import_within_memory_limit() -> Iterator[None]:
    """Raise MemoryError instead of crashing if an import in the block exceeds the memory limit."""
    if read_memory_limit() is None:
        yield
        return
    for name, value in _FRUGAL.items():
        os.environ.setdefault(name, value)
    finder = _AddressSpaceCheck()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def read_memory_limit() -> int | None:
    """Return the bytes that this process may map, or None if there is no limit."""
    try:
        import resource
    except ImportError:
        return None
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)


def check_address_space(library: str) -> None:
    """Raise MemoryError if importing a library would exceed a limit."""
    size = _LIBRARY_BYTES.get(library, 0)
    if size and read_memory_limit() is not None and not _can_map(size):
        raise MemoryError(f"{library} needs {size // _MIB} MiB of address space")


def is_memory_shortage(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, was raised because memory ran out."""
    for cause in _iterate_causes(error):
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM):
            return True
        if isinstance(cause, OSError | ImportError | RuntimeError) and _mentions_memory_shortage(cause):
            return True
    return read_memory_limit() is not None and not _can_map(_SPARE_BYTES)


def find_exhausted_limit(error: BaseException) -> str:
    """Return which limit an error, or one of its causes, ran into, in the words of the system; else "".

    A C++ library raises a RuntimeError that contains these words.
    """
    for cause in _iterate_causes(error):
        for code in _LIMITS:
            words = os.strerror(code)
            if getattr(cause, "errno", None) == code or (
                isinstance(cause, RuntimeError) and words in str(cause)
            ):
                return words
    return ""


def _iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its chain of causes."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _mentions_memory_shortage(error: BaseException) -> bool:
    text = str(error).lower()
    return any(word in text for word in _WORDS)


def _can_map(size: int) -> bool:
    try:
        mmap.mmap(-1, size).close()
    except (OSError, ValueError, MemoryError):
        return False
    return True


class _AddressSpaceCheck:
    """Meta path finder that finds nothing and raises for a library that would not fit."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Raise MemoryError if the library does not fit."""
        check_address_space(name)
        return None
