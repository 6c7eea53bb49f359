"""What the view hears of its job: one line when it is over, and the lines that it writes.

The command that started both keeps the other end of a pipe: ``{"code": 0}`` comes when the job is over, and
the end of the pipe when the view is to go.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

from zprof.model.printable import printable
from zprof.run.plain_file import open_plain
from zprof.tui.live.seen import Job

_TAIL_BYTES = 16 << 10
_MOST_LINES = 100
_MOST_COLUMNS = 400


class JobLine:
    """The near end of the pipe; none where the view looks at somebody else's run."""

    def __init__(self, handle: int | None) -> None:
        self._handle = handle
        self._heard = b""
        self.now = Job(ours=handle is not None)
        self.hung_up = False
        if handle is not None:
            os.set_blocking(handle, False)

    def look(self) -> Job:
        """What is known now; ``hung_up`` is true once the view is to go."""
        if self._handle is None or self.hung_up:
            return self.now
        with suppress(BlockingIOError):
            content = os.read(self._handle, _TAIL_BYTES)
            self.hung_up = not content
            self._heard = (self._heard + content)[-_TAIL_BYTES:]
        if self.now.code is None and b"\n" in self._heard:
            self.now = Job(ours=True, code=_code(self._heard.split(b"\n")[0]))
        return self.now


def _code(line: bytes) -> int:
    try:
        return int(json.loads(line)["code"])
    except (ValueError, KeyError, TypeError):
        return -1


class LogTail:
    """The last lines of a file that grows; what is in it is shown as text, whatever it is."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._size = -1
        self.now: tuple[str, ...] = ()

    def look(self) -> tuple[str, ...]:
        """What they are now."""
        if self._path is not None:
            with suppress(OSError):
                self._read(self._path)
        return self.now

    def _read(self, path: Path) -> None:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size == self._size:
                return
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
        self._size = size
        lines = [_shown(line) for line in text.split("\n")[-_MOST_LINES:]]
        self.now = tuple(line for line in lines if line.strip())


def _shown(line: str) -> str:
    """A bar of progress draws its line over and over: what is seen at last."""
    last = [part for part in line.split("\r") if part]
    return printable(last[-1][:_MOST_COLUMNS]) if last else ""
