"""Open, cut and close the collectors' windows; cuts keep a window's memory from growing with its steps."""

from collections.abc import Callable, Mapping

from zprof.collectors.record.base import ChunkedCollector, Collector, FaultGuard, WindowRows
from zprof.collectors.record.clock_pings import ClockPings
from zprof.collectors.record.logs import MarkLog
from zprof.collectors.record.schedule import ScheduledWindow

#: Factories of collectors, called when their window opens.
Collectors = Mapping[ScheduledWindow, Callable[[], Collector]]


#: Profiler events between two cuts of a window: they take about 2.5 KB each while they are read.
MAX_CHUNK_EVENTS = 25_000


class ChunkPlan:
    """Decide after which steps an open window is cut, so that its memory does not grow with its steps."""

    def __init__(self) -> None:
        self._steps_per_chunk, self._steps = 1, 0
        self.events_per_step = 0

    def restart(self, events_per_step: int = 0) -> None:
        """Start with a window; if nothing is known of its events (0), its first step shows them."""
        self._steps_per_chunk, self._steps = 1, 0
        if events_per_step:
            self.plan_next(events_per_step)

    def is_due(self) -> bool:
        """Count a step, and return True if the window is to be cut after it."""
        self._steps += 1
        return self._steps >= self._steps_per_chunk

    def get_events_per_step(self, event_count: int) -> int:
        """Return the events of one step of the chunk that ends, rounded up."""
        return -(-event_count // max(1, self._steps))

    def plan_next(self, events_per_step: int) -> None:
        """Start a chunk. A power of two, so that ranks that differ a little still cut after the same step."""
        self.events_per_step = events_per_step
        fitting = MAX_CHUNK_EVENTS // max(1, events_per_step)
        self._steps_per_chunk, self._steps = 1 << max(0, fitting.bit_length() - 1), 0


class WindowRecorder:
    """Open and close windows, one at a time. ``recorded_steps`` has the recorded steps by window."""

    def __init__(self, collectors: Collectors, marks: MarkLog, guard: FaultGuard) -> None:
        self._collectors, self._marks, self._guard = collectors, marks, guard
        self._collector: Collector | None = None
        self._plan = ChunkPlan()
        self.pings: ClockPings | None = None
        self.current: ScheduledWindow | None = None
        self.recorded_steps: dict[ScheduledWindow, list[int]] = {
            ScheduledWindow.MEMORY: [],
            ScheduledWindow.TIME: [],
        }

    def open(self, window: ScheduledWindow, step: int) -> None:
        """Open ``window`` before ``step``."""
        self.current = window
        # A step of a time window has at most the events of one of the memory window, on all ranks. A window
        # that does not have to be cut after its first step has one start of the profiler less.
        events = 0
        if window is ScheduledWindow.TIME and self.pings is not None:
            events = self.pings.find_largest(self._plan.events_per_step)
        self._plan.restart(events)
        self._collector = self._guard.run(f"{window} collector", self._collectors[window])
        if self._collector is not None and not self._guard.succeeds(f"{window} start", self._collector.start):
            self._guard.run(f"{window} stop", self._collector.stop)
            self._collector = None
        if window is ScheduledWindow.TIME and self.pings is not None:
            self.pings.send()
        self._marks.add("window_begin", step, str(window))

    def close(self, step: int) -> Collector | None:
        """Close the open window before ``step``. Return its collector, or None if it failed."""
        window, collector = self.current, self._collector
        self.current = self._collector = None
        self._marks.add("window_end", step, str(window))
        if window is ScheduledWindow.TIME and self.pings is not None:
            self.pings.send()
        has_stopped = collector is not None and self._guard.succeeds(f"{window} stop", collector.stop)
        return collector if has_stopped else None

    def cut(self) -> WindowRows | None:
        """Return the rows of the open window so far, if it is time to write them.

        In a time window all ranks do so after the same step, and leave together: a rank that reads for longer
        would be waited for in the next step.
        """
        window, collector = self.current, self._collector
        if not isinstance(collector, ChunkedCollector) or not self._plan.is_due():
            return None
        chunk = self._guard.run(f"{window} chunk", collector.cut)
        events = self._plan.get_events_per_step(chunk.event_count if chunk else 0)
        if window is ScheduledWindow.TIME and self.pings is not None:
            events = self.pings.find_largest(events)
        self._plan.plan_next(events)
        return chunk

    def align(self) -> None:
        """Let the ranks leave together, after a chunk of the time window has been written."""
        if self.current is ScheduledWindow.TIME and self.pings is not None:
            self.pings.send()

    def step_done(self, step: int) -> None:
        """Count ``step`` as recorded in the open window."""
        if self.current is not None:
            self.recorded_steps[self.current].append(step)

    def drop_factories(self) -> None:
        """Drop the collectors' factories, which hold the model."""
        self._collectors = {}

    def abandon(self) -> None:
        """Remove what the collector installed and discard its data, in a fork of the recording process."""
        collector, self._collector = self._collector, None
        self.current = None
        abandon = getattr(collector, "abandon", None)
        if abandon is not None:
            self._guard.run("fork", abandon)
