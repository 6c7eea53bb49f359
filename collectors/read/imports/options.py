"""Define the options, progress and outcome of an import."""

from collections.abc import Callable

from msgspec import Struct

from zprof.collectors.read.imports.file_ranks import RankedFile
from zprof.model.stated_mesh import StatedMesh


class ImportOptions(Struct, frozen=True, kw_only=True):
    """Options of an import.

    ``workers``: local processes, 0 for one per processor. ``executor``: dask://HOST:PORT. ``while_reading``:
    work of the caller to do while other processes read; not called if this process reads. ``mesh``: the
    parallelism of the job, if stated.
    """

    workers: int = 0
    executor: str = ""
    while_reading: Callable[[], None] | None = None
    mesh: StatedMesh = ()


class Written(Struct, frozen=True, kw_only=True):
    """The file of each rank, and notes.

    ``is_cacheable``: True if another import would give the same result.
    """

    files: tuple[RankedFile, ...]
    notes: tuple[str, ...]
    is_cacheable: bool = True


class ImportProgress:
    """Progress of an import; by default it is discarded.

    Called in order, in the process that the user started.
    """

    def start(self, ranks: int, total_bytes: int) -> None:
        """Report that reading the files of ``ranks`` ranks starts."""

    def report_bytes(self, total_bytes: int) -> None:
        """Report the total bytes of all files read so far."""

    def finish_rank(self) -> None:
        """Report that one more file has been imported."""
