"""Decide when the state of a rank is saved, and when it went on. Without clock, thread or torch."""

from collections.abc import Hashable, Set
from enum import StrEnum


class StallAction(StrEnum):
    """What is to be done now."""

    SAVE = "save"
    RESUME = "resume"


class StallDetector:
    """Follow the progress of one rank.

    Args:
        limit_ns: A rank is stuck after this time without progress.
        now_ns: The time of the start, on any clock.
    """

    def __init__(self, limit_ns: int, now_ns: int) -> None:
        self._limit_ns, self._progress_ns = limit_ns, now_ns
        self._progress: Hashable = None
        self._answered: Set[Hashable] = frozenset()
        self.is_stuck = False
        #: The state was saved, and the stall has not ended.
        self.is_saved = False

    def observe(self, now_ns: int, progress: Hashable, requests: Set[Hashable]) -> StallAction | None:
        """Return what is to be done.

        A rank that moves is saved too, once per request: others may wait for it. That stall ends when nobody
        is stuck any more.

        Args:
            now_ns: The time of this observation.
            progress: Anything that changes whenever the rank has moved.
            requests: The stalls of other ranks that have not ended.
        """
        has_moved = progress != self._progress
        if has_moved:
            self._progress, self._progress_ns = progress, now_ns
        if self.is_stuck:
            self._answered |= requests
            if has_moved:
                self.is_stuck = self.is_saved = False
                return StallAction.RESUME
            return None
        if now_ns - self._progress_ns >= self._limit_ns:
            self.is_stuck = True
        elif self.is_saved and not requests:
            self.is_saved = False
            return StallAction.RESUME
        elif not requests - self._answered:
            return None
        self._answered |= requests
        self.is_saved = True
        return StallAction.SAVE

    def get_stall_ns(self, now_ns: int) -> int:
        """Return how long the rank has made no progress."""
        return now_ns - self._progress_ns
