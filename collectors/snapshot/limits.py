"""Limit the resources for reading a snapshot: a well-formed file of n bytes needs about 7n bytes of
memory.
"""

import resource
from dataclasses import dataclass
from pathlib import Path

MEBIBYTE = 1 << 20
#: Larger files are rejected: the allocator's ring buffer stays far below this size with practical settings.
MAX_FILE_BYTES = 2 << 30
_MAX_MEMORY_BYTES = 28 << 30
#: Maximum compression ratio; real files have 10 to 40.
_MAX_INFLATION = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the process that reads one file.

    ``memory_bytes`` is in addition to the memory that Python and its libraries have mapped when the limits
    are set.
    """

    memory_bytes: int
    cpu_s: int
    wall_s: float
    output_bytes: int
    rows: int
    open_files: int = 32


def compute_limits(file_bytes: int) -> Limits:
    """Return the limits for a file of this size (an uncompressed pickle)."""
    cpu_s = 20 + file_bytes // (2 * MEBIBYTE)
    return Limits(
        memory_bytes=min(12 * file_bytes + 512 * MEBIBYTE, _MAX_MEMORY_BYTES),
        cpu_s=cpu_s,
        wall_s=60.0 + 4.0 * cpu_s,
        output_bytes=4 * file_bytes + 64 * MEBIBYTE,
        rows=file_bytes,
    )


def compute_max_inflated_bytes(file_bytes: int) -> int:
    """Return the size up to which a compressed file may be decompressed."""
    return min(_MAX_INFLATION * file_bytes, MAX_FILE_BYTES)


def apply_limits(limits: Limits) -> None:
    """Apply the limits to this process, irrevocably.

    Raises:
        OSError, ValueError: the system rejects a limit.
    """
    _lower_limit(resource.RLIMIT_AS, _read_mapped_bytes() + limits.memory_bytes)
    _lower_limit(resource.RLIMIT_CPU, limits.cpu_s)
    _lower_limit(resource.RLIMIT_FSIZE, limits.output_bytes)
    _lower_limit(resource.RLIMIT_NOFILE, limits.open_files)
    _lower_limit(resource.RLIMIT_CORE, 0)


def _lower_limit(limit_id: int, value: int) -> None:
    """Lower a limit, unless it is lower already."""
    current_limits = [limit for limit in resource.getrlimit(limit_id) if limit != resource.RLIM_INFINITY]
    new_limit = min([value, *current_limits])
    resource.setrlimit(limit_id, (new_limit, new_limit))


def _read_mapped_bytes() -> int:
    """Return the address space of this process; 1 GiB if the system does not report it (macOS)."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 1 << 30
    return pages * resource.getpagesize()
