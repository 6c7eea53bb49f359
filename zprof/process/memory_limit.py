"""Handle memory shortage and other limits: recognize their errors, and check address space (``ulimit -v``).

C and C++ libraries abort the process if the loader, OpenBLAS or a thread cannot allocate memory, which cannot
be turned into an error message. Under a limit, a library is therefore imported only if it fits.
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
#: Address space that importing a library needs, measured with one thread, plus 25 %.
_LIBRARY_BYTES = {
    "numpy": 112 * _MIB,
    "pyarrow": 256 * _MIB,
    "pandas": 96 * _MIB,
    "torch": 768 * _MIB,
}
#: Settings that reduce reserved address space, which counts towards the limit even if unused.
LOW_MEMORY_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
#: If less than this can be mapped, the limit is blamed for any failure.
_SPARE_BYTES = 16 * _MIB
#: Error codes of limits on open files, disk space, quota and file size.
_LIMIT_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SHORTAGE_MESSAGES = (
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
    for name, value in LOW_MEMORY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    finder = _AddressSpaceCheck()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def read_memory_limit() -> int | None:
    """Return the number of bytes that this process may map, or None if there is no limit."""
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
    """Return True if an error or one of its causes was raised because memory ran out."""
    for cause in _iterate_causes(error):
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM):
            return True
        if isinstance(cause, OSError | ImportError | RuntimeError) and _mentions_memory_shortage(cause):
            return True
    return read_memory_limit() is not None and not _can_map(_SPARE_BYTES)


def find_exhausted_limit(error: BaseException) -> str:
    """Return the system's message for the limit that caused an error, or an empty string without one.

    C++ libraries raise a RuntimeError that contains this message.
    """
    for cause in _iterate_causes(error):
        for code in _LIMIT_ERRORS:
            message = os.strerror(code)
            if getattr(cause, "errno", None) == code or (
                isinstance(cause, RuntimeError) and message in str(cause)
            ):
                return message
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
    return any(word in text for word in _SHORTAGE_MESSAGES)


def _can_map(size: int) -> bool:
    try:
        mmap.mmap(-1, size).close()
    except (OSError, ValueError, MemoryError):
        return False
    return True


class _AddressSpaceCheck:
    """Meta path finder that never finds a module, but raises for a library that would not fit."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Raise MemoryError if the library does not fit."""
        check_address_space(name)
        return None
