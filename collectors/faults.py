"""The boundary between recording and training: a fault on this side becomes a gap, never an exception."""

import logging
from collections.abc import Callable
from typing import TypeVar

from zprof.model.gaps import Gap

_log = logging.getLogger("zprof")
_T = TypeVar("_T")


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
            remedy = "please report this; training was not touched"
            self.gaps.append(Gap(what=what, reason=reason, remedy=remedy))
            _log.warning("zprof: %s failed, training goes on: %s", what, reason)
            return None

    def succeeds(self, what: str, action: Callable[[], object]) -> bool:
        """Whether ``action`` returned."""
        before = len(self.gaps)
        self.run(what, action)
        return len(self.gaps) == before


def first_line(error: BaseException) -> str:
    """An error as one short line."""
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
