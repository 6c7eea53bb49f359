"""Decide which steps are recorded, in which window (memory or time), and how closely memory is watched.
Free of torch: ``zprof.steps`` and the launcher import it before torch is there.
"""

from dataclasses import dataclass
from enum import StrEnum


class Window(StrEnum):
    """What is watched in a step; ``init`` is the time from the start of the program to its first step."""

    INIT = "init"
    MEMORY = "memory"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """``skip`` steps unwatched, then ``memory`` steps, then ``time`` steps."""

    skip: int = 2
    memory: int = 2
    time: int = 8

    def __post_init__(self) -> None:
        if min(self.skip, self.memory, self.time) < 0:
            raise ValueError("steps(): skip, memory and time cannot be negative")

    def window(self, step: int) -> Window | None:
        """The window that a step (counted from 0) belongs to."""
        if self.skip <= step < self.skip + self.memory:
            return Window.MEMORY
        if self.skip + self.memory <= step < self.total:
            return Window.TIME
        return None

    @property
    def total(self) -> int:
        """Steps until everything is recorded."""
        return self.skip + self.memory + self.time


def steps(*, skip: int = 2, memory: int = 2, time: int = 8) -> Schedule:
    """The schedule of a recording; see :class:`Schedule`."""
    return Schedule(skip=skip, memory=memory, time=time)


class MemoryMode(StrEnum):
    """``full``: every operator and every allocation.  ``light``: hooks only, operators are not seen."""

    FULL = "full"
    LIGHT = "light"
