"""A folder that the processes of one recording share: who records which rank, and what they have to say."""

import os
from collections.abc import Iterator
from pathlib import Path

_MOST_NOTES = 1000
_LONGEST_NOTE = 500


class Session:
    """Files are written by the children, and read by the parent after they ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._said = 0

    def claim(self, rank: int) -> bool:
        """Whether this process is the one that records the rank: the first one that trains as it.

        A launcher that starts a failed job again replaces the ranks that it started before.
        """
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        try:
            (self._folder / f"rank{rank}.{attempt}").touch(exist_ok=False)
        except FileExistsError:
            self.say(f"another process trained as rank {rank}: only the first one was recorded")
            return False
        return True

    def say(self, note: str) -> None:
        """Leave a line for the parent."""
        self._said += 1  # one file a note: a process may have several to leave
        path = self._folder / f"note.{os.getpid()}.{self._said}"
        path.write_text(note, encoding="utf-8")

    def notes(self) -> Iterator[str]:
        """Each different line once."""
        seen: set[str] = set()
        for path in sorted(self._folder.glob("note.*"))[:_MOST_NOTES]:
            note = path.read_text(encoding="utf-8", errors="replace")[:_LONGEST_NOTE]
            if note not in seen:
                seen.add(note)
                yield note
