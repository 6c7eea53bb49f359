"""Define what the recorder expects of every collector, and turn a fault on the recording side into a gap
instead of an exception in the training loop.
"""

import errno
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from zprof.model.gaps import DISK_FULL, Gap

#: Columns of one table of ``zprof.run.schema``.
Columns = Mapping[str, Sequence[Any]]


class Collector(Protocol):
    """Watches one window of steps.  Both ends of the window are step boundaries."""

    def start(self) -> None:
        """Begin to watch."""

    def stop(self) -> None:
        """End, and leave the process as it was before ``start``."""

    def tables(self) -> Mapping[str, Columns]:
        """What was seen, by table name; called once, after ``stop``."""

    def gaps(self) -> Sequence[Gap]:
        """What could not be seen."""


_log = logging.getLogger("zprof")
_T = TypeVar("_T")
#: No space, quota used up, larger than a file may be.
_DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class FaultGuard:
    """Runs actions of the recorder; what they raise is kept as a gap and logged."""

    def __init__(self) -> None:
        self.gaps: list[Gap] = []

    def run(self, what: str, action: Callable[[], _T]) -> _T | None:
        """The result of ``action``, or None where it raised."""
        try:
            return action()
        except Exception as error:
            reason = first_line(error)
            self.gaps.append(_make_fault_gap(what, reason, error))
            _log.warning("zprof: %s failed, training goes on: %s", what, reason)
            return None

    def succeeds(self, what: str, action: Callable[[], object]) -> bool:
        """Whether ``action`` returned."""
        before = len(self.gaps)
        self.run(what, action)
        return len(self.gaps) == before


def _make_fault_gap(what: str, reason: str, error: Exception) -> Gap:
    if isinstance(error, OSError) and error.errno in _DISK_FULL_ERRORS:
        return Gap(
            what=DISK_FULL,
            reason=f"{what} could not be written: {os.strerror(error.errno or 0)}",
            remedy="free space where the run is written, or raise the quota; then record again",
        )
    return Gap(what=what, reason=reason, remedy="please report this; training was not touched")


def first_line(error: BaseException) -> str:
    """An error as one short line."""
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
