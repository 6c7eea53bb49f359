"""Options, progress and outcome of an import."""

from dataclasses import dataclass
from typing import Protocol

from zprof.integrations.imports.file_ranks import RankedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """``workers``: processes of this machine, 0 for as many as it has.  ``executor``: dask://HOST:PORT."""

    workers: int = 0
    executor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """From which file each rank is, and what is worth saying.

    ``lasting``: another try would end the same.
    """

    files: tuple[RankedFile, ...]
    notes: tuple[str, ...]
    lasting: bool = True


class ImportWatch(Protocol):
    """Told from the process that the user started, in the order of the calls."""

    def begin(self, ranks: int, total_bytes: int) -> None:
        """Reading begins."""

    def bytes_read(self, total_bytes: int) -> None:
        """So many bytes of all files have been read by now."""

    def rank_done(self) -> None:
        """One more file is done."""


class NoImportWatch:
    """Nobody looks."""

    def begin(self, ranks: int, total_bytes: int) -> None:
        """Nothing."""

    def bytes_read(self, total_bytes: int) -> None:
        """Nothing."""

    def rank_done(self) -> None:
        """Nothing."""
