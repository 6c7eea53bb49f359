"""The windows of a recording: each opens its collector and closes it again, whatever fails on the way."""

from collections.abc import Callable, Mapping

from zprof.collectors.base import Collector
from zprof.collectors.clock import ClockPings
from zprof.collectors.faults import FaultGuard
from zprof.collectors.marks import MarkLog
from zprof.collectors.schedule import Window

#: Makes the collector of a window when the window opens.
Collectors = Mapping[Window, Callable[[], Collector]]


class Windows:
    """One window at a time.  ``done`` holds the steps that were watched, by window."""

    def __init__(self, collectors: Collectors, marks: MarkLog, guard: FaultGuard) -> None:
        self._collectors, self._marks, self._guard = collectors, marks, guard
        self._collector: Collector | None = None
        self.pings: ClockPings | None = None
        self.current: Window | None = None
        self.done: dict[Window, list[int]] = {Window.MEMORY: [], Window.TIME: []}

    def open(self, window: Window, step: int) -> None:
        """Open it before ``step``."""
        self.current = window
        self._collector = self._guard.run(f"{window} collector", self._collectors[window])
        if self._collector is not None and not self._guard.succeeds(f"{window} start", self._collector.start):
            self._guard.run(f"{window} stop", self._collector.stop)
            self._collector = None
        if window is Window.TIME and self.pings is not None:
            self.pings.fire()
        self._marks.add("window_begin", step, str(window))

    def close(self, step: int) -> Collector | None:
        """Close the one that is open before ``step``; its collector, where it has something to say."""
        window, collector = self.current, self._collector
        self.current = self._collector = None
        self._marks.add("window_end", step, str(window))
        if window is Window.TIME and self.pings is not None:
            self.pings.fire()
        stopped = collector is not None and self._guard.succeeds(f"{window} stop", collector.stop)
        return collector if stopped else None

    def step_done(self, step: int) -> None:
        """A step is over."""
        if self.current is not None:
            self.done[self.current].append(step)

    def forget(self) -> None:
        """Let go of the collectors' makers: they hold the model."""
        self._collectors = {}

    def abandon(self) -> None:
        """In a fork of the recording process: take off what a collector installed, and keep nothing."""
        collector, self._collector = self._collector, None
        self.current = None
        abandon = getattr(collector, "abandon", None)
        if abandon is not None:
            self._guard.run("fork", abandon)
