"""What one child that runs HTA on one trace may use."""

import resource
from dataclasses import dataclass
from pathlib import Path

_MEBIBYTE = 1 << 20
#: HTA keeps a trace as Python objects and as a table: about 80 bytes for each byte of a .json.gz.
_MEMORY_PER_FILE_BYTE = 250
_LEAST_MEMORY_BYTES = 2 << 30
_OUTPUT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``memory_bytes`` come on top of what Python and its libraries have mapped when they are loaded."""

    memory_bytes: int
    processor_s: int
    wall_s: float


def limits_for(file_bytes: int, wall_s: float | None = None, children: int = 1) -> Limits:
    """The bounds for a file of this size; ``wall_s`` where the user names one.

    ``children`` that run at once share the machine's memory.
    """
    processor_s = 120 + 30 * file_bytes // _MEBIBYTE if wall_s is None else round(wall_s) + 1
    memory_bytes = max(_LEAST_MEMORY_BYTES, _MEMORY_PER_FILE_BYTE * file_bytes)
    return Limits(
        memory_bytes=min(memory_bytes, _most_memory_bytes() // children),
        processor_s=processor_s,
        wall_s=wall_s or 2.0 * processor_s,
    )


def apply(limits: Limits) -> None:
    """Bind this process, for good."""
    _lower(resource.RLIMIT_AS, _mapped_bytes() + limits.memory_bytes)
    _lower(resource.RLIMIT_CPU, limits.processor_s)
    _lower(resource.RLIMIT_FSIZE, _OUTPUT_BYTES)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(which: int, value: int) -> None:
    """A limit that is lower already stays."""
    bounds = [bound for bound in resource.getrlimit(which) if bound != resource.RLIM_INFINITY]
    chosen = min([value, *bounds])
    resource.setrlimit(which, (chosen, chosen))


def _mapped_bytes() -> int:
    return _pages_of("/proc/self/statm") or 1 << 30


def _pages_of(path: str) -> int:
    """The first number of a file, in pages; 0 where the system has no such file."""
    try:
        pages = int(Path(path).read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


def _most_memory_bytes() -> int:
    """Three quarters of what the machine has."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        total = int(lines[0].split()[1]) << 10
    except (OSError, ValueError, IndexError):
        return 16 << 30
    return total * 3 // 4
