"""Convert one trace file in a worker process: the job, what it returns, and how far it has read.

The rank is unknown until the file has been read, so the tables are written to a provisional folder. Only a
small result is returned. The trace reader is imported with the first trace: the process that waits for the
workers does not need it.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from zprof.model.gaps import Gap
from zprof.run.manifest import TableFile

#: File in the job's folder with the number of bytes read so far; deleted when the tables are written.
_READ_BYTES_NAME = "read_bytes"


class TraceJob(Struct, frozen=True, kw_only=True):
    """One file to import; paths are absolute, because the worker may run on another machine."""

    position: int
    path: str
    folder: str
    bytes: int


class RankFacts(Struct, frozen=True, kw_only=True):
    """Facts of one file for the run's manifest, and the tables in its provisional folder."""

    version: str
    rank: int | None
    world_size: int | None
    backend: str
    device: str
    host: str
    files: dict[str, TableFile]
    steps: tuple[int, ...]
    collectives: int
    gaps: tuple[Gap, ...]


class Refusal(Struct, frozen=True, kw_only=True):
    """Reason why a file could not be imported; ``is_permanent``: another attempt would fail in the same
    way.
    """

    reason: str
    hint: str = ""
    is_permanent: bool = True


def import_trace(job: TraceJob, on_bytes: Callable[[int], None] | None = None) -> RankFacts | Refusal:
    """Write the tables of one trace to the job's folder.

    Args:
        job: The file.
        on_bytes: Called with the bytes of the file read so far; without it, use ``count_read_bytes``.

    Raises:
        OSError: the tables cannot be written.
    """
    from zprof.collectors.read.imports.trace_tables import write_trace_tables

    return write_trace_tables(job, on_bytes or _make_counter(job))


def count_read_bytes(job: TraceJob) -> int:
    """Return the bytes of the file that a process importing it has read so far."""
    folder = Path(job.folder)
    with suppress(OSError):
        return int.from_bytes((folder / _READ_BYTES_NAME).read_bytes(), "little")
    return job.bytes if folder.is_dir() else 0


def _make_counter(job: TraceJob) -> Callable[[int], None]:
    """Return a function that records the bytes read so far for ``count_read_bytes``; failures are ignored."""
    folder = Path(job.folder)
    with suppress(OSError):
        folder.mkdir(exist_ok=True)

    def write_count(size: int) -> None:
        with suppress(OSError):  # a full disk is reported when the tables are written
            descriptor = os.open(folder / _READ_BYTES_NAME, os.O_WRONLY | os.O_CREAT, 0o600)
            os.pwrite(descriptor, size.to_bytes(8, "little"), 0)
            os.close(descriptor)

    return write_count
