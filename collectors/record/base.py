"""Define the collector protocol, and turn errors in the recorder into gaps instead of exceptions in the
training loop.
"""

import errno
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from msgspec import Struct, field

from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap

#: Columns of one table of ``zprof.run.schema``.
Columns = Mapping[str, Sequence[Any]]
#: No space left, quota exceeded, file size limit exceeded.
_DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class WindowRows(Struct, frozen=True, kw_only=True):
    """Rows of a window that is still open: ``complete`` rows never change again, ``open`` rows may.

    ``event_count``: the profiler's events since the last chunk, which determine the memory that it needed.
    """

    complete: Mapping[str, Columns]
    open: Mapping[str, Columns] = field(default_factory=dict)
    event_count: int = 0


@runtime_checkable
class ChunkedCollector(Protocol):
    """A collector that hands over its rows while its window is open."""

    def cut(self) -> WindowRows | None:
        """Return the rows since the last chunk, at a step boundary; None if that is not possible now."""


class Collector(Protocol):
    """Record one window of steps, which starts and ends at step boundaries."""

    def start(self) -> None:
        """Start recording."""

    def stop(self) -> None:
        """Stop recording, and restore the process to its state before ``start``."""

    def tables(self) -> Mapping[str, Columns]:
        """Return the recorded columns by table name, without those of chunks. Called once, after ``stop``."""

    def gaps(self) -> Sequence[Gap]:
        """Return a gap for everything that could not be recorded."""


_log = logging.getLogger("zprof")
_T = TypeVar("_T")


class FaultGuard:
    """Run actions of the recorder; log each exception and store it as a gap."""

    def __init__(self) -> None:
        self.gaps: list[Gap] = []

    def run(self, what: str, action: Callable[[], _T]) -> _T | None:
        """Return the result of ``action``, or None if it raised."""
        try:
            return action()
        except Exception as error:
            reason = first_line(error)
            if isinstance(error, OSError) and error.errno in _DISK_FULL_ERRORS:
                text, name = os.strerror(error.errno or 0), error.filename
                text += f" ({os.fsdecode(name)})" if isinstance(name, str | bytes) else ""
                self.gaps.append(make_gap("disk_full", what=what, error=text))
            else:
                self.gaps.append(make_gap("recorder_failed", what=what, error=reason))
            _log.warning("zprof: %s failed, training continues: %s", what, reason)
            return None

    def succeeds(self, what: str, action: Callable[[], object]) -> bool:
        """Run ``action`` and return True if it did not raise."""
        gap_count = len(self.gaps)
        self.run(what, action)
        return len(self.gaps) == gap_count


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters; the type's name if it has no
    message.
    """
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
