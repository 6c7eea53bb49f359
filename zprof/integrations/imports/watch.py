"""How an import tells of its progress."""

from typing import Protocol


class ImportWatch(Protocol):
    """Told from the process that the user started, in the order of the calls."""

    def begin(self, ranks: int, total_bytes: int) -> None:
        """Reading begins."""

    def bytes_read(self, total_bytes: int) -> None:
        """So many bytes of all files have been read by now."""

    def rank_done(self) -> None:
        """One more file is done."""


class Unwatched:
    """Nobody looks."""

    def begin(self, ranks: int, total_bytes: int) -> None:
        """Nothing."""

    def bytes_read(self, total_bytes: int) -> None:
        """Nothing."""

    def rank_done(self) -> None:
        """Nothing."""
