"""Say that ranks are writing their recording, if that takes longer than a moment, and that one is stuck."""

from collections.abc import Callable, Collection
from pathlib import Path

from zprof.integrations.program.session import Session
from zprof.integrations.program.stalls import format_stall

#: Ranks that the note lists.
_MAX_LISTED = 8


class WritingObserver:
    """Observer of a command that prints one note while its ranks write; it never owns the terminal."""

    def __init__(self, session: Session, run: Path, print_note: Callable[[str], None]) -> None:
        self._session, self._run, self._print_note = session, run, print_note
        self._seen: Collection[int] = ()
        self._has_noted = False

    def start(self) -> None:
        """Do nothing: the terminal is the command's."""

    def poll(self) -> None:
        """Print the note if a rank was writing at the last poll already; called about once a second."""
        self._note_stall()
        writing = self._session.list_writing_ranks()
        slow = [rank for rank in writing if rank in self._seen]
        self._seen = writing
        if slow and not self._has_noted:
            self._has_noted = True
            self._print_note(f"writing the recording of {_format_ranks(slow)}; training waits for it")

    def _note_stall(self) -> None:
        if stalls := self._session.take_stalls():
            self._print_note(format_stall(self._run, max(stalls)))

    def handle_signal(self, number: int) -> None:
        """Do nothing: the command handles its signals."""

    def finish_job(self, code: int) -> None:
        """Do nothing: the caller prints what was written."""

    def close(self) -> None:
        """Do nothing: no terminal is held."""


def _format_ranks(ranks: list[int]) -> str:
    listed = ", ".join(map(str, ranks[:_MAX_LISTED]))
    more = f" and {len(ranks) - _MAX_LISTED} more" if len(ranks) > _MAX_LISTED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}{more}"
