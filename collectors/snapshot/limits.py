"""Limit the resources for reading a snapshot: an honest file of n bytes needs about 7 n of memory."""

import resource
from dataclasses import dataclass
from pathlib import Path

MEBIBYTE = 1 << 20
#: Larger files are refused: the allocator's ring never gets near this size with practical settings.
MAX_FILE_BYTES = 2 << 30
_MAX_MEMORY_BYTES = 28 << 30
#: Highest compression ratio; real files have 10 to 40.
_MAX_INFLATION = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the process that reads one file.

    ``memory_bytes`` is in addition to what Python and its libraries have mapped when the limits are set.
    """

    memory_bytes: int
    processor_s: int
    wall_s: float
    output_bytes: int
    rows: int
    open_files: int = 32


def limits_for(file_bytes: int) -> Limits:
    """Return the limits for a file of this size (an uncompressed pickle)."""
    processor_s = 20 + file_bytes // (2 * MEBIBYTE)
    return Limits(
        memory_bytes=min(12 * file_bytes + 512 * MEBIBYTE, _MAX_MEMORY_BYTES),
        processor_s=processor_s,
        wall_s=60.0 + 4.0 * processor_s,
        output_bytes=4 * file_bytes + 64 * MEBIBYTE,
        rows=file_bytes,
    )


def max_inflated_bytes(file_bytes: int) -> int:
    """Return the size up to which a compressed file may be decompressed."""
    return min(_MAX_INFLATION * file_bytes, MAX_FILE_BYTES)


def apply_limits(limits: Limits) -> None:
    """Apply the limits to this process, irrevocably.

    Raises:
        OSError, ValueError: the system refuses a limit.
    """
    _lower_limit(resource.RLIMIT_AS, _read_mapped_bytes() + limits.memory_bytes)
    _lower_limit(resource.RLIMIT_CPU, limits.processor_s)
    _lower_limit(resource.RLIMIT_FSIZE, limits.output_bytes)
    _lower_limit(resource.RLIMIT_NOFILE, limits.open_files)
    _lower_limit(resource.RLIMIT_CORE, 0)


def _lower_limit(which: int, value: int) -> None:
    """Lower a limit, unless it is lower already."""
    bounds = [bound for bound in resource.getrlimit(which) if bound != resource.RLIM_INFINITY]
    chosen = min([value, *bounds])
    resource.setrlimit(which, (chosen, chosen))


def _read_mapped_bytes() -> int:
    """Return the address space of this process; 1 GiB if the system does not report it (macOS)."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 1 << 30
    return pages * resource.getpagesize()
