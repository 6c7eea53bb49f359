"""Define the collector protocol, and turn a fault on the recording side into a gap instead of an exception in
the training loop.
"""

import errno
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from zprof.model.gaps import Gap, GapKind

#: Columns of one table of ``zprof.run.schema``.
Columns = Mapping[str, Sequence[Any]]


class Collector(Protocol):
    """A collector of one window of steps. Both ends of the window are step boundaries."""

    def start(self) -> None:
        """Start recording."""

    def stop(self) -> None:
        """Stop recording, and restore the process to its state before ``start``."""

    def tables(self) -> Mapping[str, Columns]:
        """Return the columns recorded, by table name. Called once, after ``stop``."""

    def gaps(self) -> Sequence[Gap]:
        """Return a gap for everything that could not be recorded."""


_log = logging.getLogger("zprof")
_T = TypeVar("_T")
#: No space left, quota exceeded, file size limit exceeded.
_DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class FaultGuard:
    """Runs actions of the recorder, logs the exceptions that they raise and keeps each as a gap."""

    def __init__(self) -> None:
        self.gaps: list[Gap] = []

    def run(self, what: str, action: Callable[[], _T]) -> _T | None:
        """Return the result of ``action``, or None if it raised."""
        try:
            return action()
        except Exception as error:
            reason = first_line(error)
            self.gaps.append(_make_fault_gap(what, reason, error))
            _log.warning("zprof: %s failed, training goes on: %s", what, reason)
            return None

    def succeeds(self, what: str, action: Callable[[], object]) -> bool:
        """Run ``action`` and return True if it did not raise."""
        before = len(self.gaps)
        self.run(what, action)
        return len(self.gaps) == before


def _make_fault_gap(what: str, reason: str, error: Exception) -> Gap:
    if isinstance(error, OSError) and error.errno in _DISK_FULL_ERRORS:
        return Gap(
            kind=GapKind.DISK_FULL,
            what="disk full",
            reason=f"{what} could not be written: {os.strerror(error.errno or 0)}",
            remedy="free space where the run is written, or raise the quota; then record again",
        )
    return Gap(
        kind=GapKind.RECORDING,
        what=what,
        reason=reason,
        remedy="please report this; training was not touched",
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters, or its type's name without one."""
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
