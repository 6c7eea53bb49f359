"""Define the options, progress and outcome of an import."""

from dataclasses import dataclass
from typing import Protocol

from zprof.integrations.imports.file_ranks import RankedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Options of an import.

    ``workers``: local processes, 0 for one per processor. ``executor``: dask://HOST:PORT.
    """

    workers: int = 0
    executor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The file of each rank, and notes.

    ``lasting``: True if another try would give the same result.
    """

    files: tuple[RankedFile, ...]
    notes: tuple[str, ...]
    lasting: bool = True


class ImportWatch(Protocol):
    """Progress of an import; called in the process that the user started, in order."""

    def begin(self, ranks: int, total_bytes: int) -> None:
        """Start to read the files of ``ranks`` ranks."""

    def bytes_read(self, total_bytes: int) -> None:
        """Report the total bytes of all files read so far."""

    def rank_done(self) -> None:
        """Report that one more file is done."""


class NoImportWatch:
    """Progress that nobody watches."""

    def begin(self, ranks: int, total_bytes: int) -> None:
        """Do nothing."""

    def bytes_read(self, total_bytes: int) -> None:
        """Do nothing."""

    def rank_done(self) -> None:
        """Do nothing."""
