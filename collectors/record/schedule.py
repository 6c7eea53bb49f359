"""Define the recorded steps, their windows (memory or time), and the mode in which memory is recorded.
Imports no torch: ``zprof.steps`` and the launcher import this module before torch is loaded.
"""

from enum import StrEnum

from msgspec import Struct


class ScheduledWindow(StrEnum):
    """Kind of a recorded window of steps; ``init`` lasts from the start of the program to its first step.

    ``oom`` is the moment of a failed allocation outside of the others.
    """

    INIT = "init"
    MEMORY = "memory"
    TIME = "time"
    OUT_OF_MEMORY = "oom"


class RecordingSchedule(Struct, frozen=True, kw_only=True):
    """``skip`` unrecorded steps, then ``memory`` steps, then ``time`` steps."""

    skip: int = 2
    memory: int = 2
    time: int = 8

    def __post_init__(self) -> None:
        if min(self.skip, self.memory, self.time) < 0:
            raise ValueError("steps(): skip, memory and time cannot be negative")

    def window(self, step: int) -> ScheduledWindow | None:
        """Return the window of a step (counted from 0), or None if it is not recorded."""
        if self.skip <= step < self.skip + self.memory:
            return ScheduledWindow.MEMORY
        if self.skip + self.memory <= step < self.total:
            return ScheduledWindow.TIME
        return None

    @property
    def total(self) -> int:
        """Number of steps until the recording is complete."""
        return self.skip + self.memory + self.time


def steps(*, skip: int = 2, memory: int = 2, time: int = 8) -> RecordingSchedule:
    """Return the schedule of a recording: steps to skip, then to watch memory, then time."""
    return RecordingSchedule(skip=skip, memory=memory, time=time)


class MemoryMode(StrEnum):
    """``full``: every operator and every allocation. ``light``: hooks only, operators are not recorded."""

    FULL = "full"
    LIGHT = "light"
