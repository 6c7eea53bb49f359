"""Progress of a run on stderr: one line that is drawn again on a terminal, a few plain lines elsewhere."""

import sys
import time
from typing import TextIO

_BAR = 24
_PLAIN_LINES = 20


class Progress:
    """Tells of finished steps: step, loss, steps per second."""

    def __init__(self, steps: int, *, first: int = 0, stream: TextIO | None = None) -> None:
        """``first`` is the number of steps that were made before this run."""
        self._steps, self._first = steps, first
        self._stream = sys.stderr if stream is None else stream
        self._every = -(-(steps - first) // _PLAIN_LINES)
        self._open = False
        self._begin_s = time.monotonic()

    def step_done(self, step: int, loss: float) -> None:
        """``step`` counts from 0."""
        done = step + 1
        if self._stream.isatty():
            self._open = done < self._steps
            self._write(f"\r{self._bar(done)} {self._words(done, loss)}\x1b[K", "" if self._open else "\n")
        elif (done - self._first) % self._every == 0 or done == self._steps:
            self._write(self._words(done, loss), "\n")

    def close(self) -> None:
        """End a line that is open: what is printed next begins at its start."""
        if self._open:
            self._open = False
            self._write("", "\n")

    def _words(self, done: int, loss: float) -> str:
        elapsed_s = max(time.monotonic() - self._begin_s, 1e-9)
        rate = (done - self._first) / elapsed_s
        return f"step {done}/{self._steps}  loss {loss:.4f} on rank 0  {rate:.1f} steps/s"

    def _bar(self, done: int) -> str:
        full = _BAR * done // self._steps
        return f"[{'#' * full}{'.' * (_BAR - full)}]"

    def _write(self, text: str, end: str) -> None:
        print(text, end=end, file=self._stream, flush=True)
