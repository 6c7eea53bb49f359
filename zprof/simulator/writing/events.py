"""Format the events of one rank, with times on the rank's own clock, in libkineto's layout.

Templates have a %s for each variable value.  The indented layout matches libkineto's output; the compact
layout is that of JSON tools.
"""

import re
from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from zprof.simulator.engine.schedule import ExecutedInstruction, SimulatedRun, get_rank_clock
from zprof.simulator.plan import Stamps

_LEAD_NS = 150_000
_TAIL_NS = 400_000
_OPTIONAL_WHITESPACE = re.compile(r'\s*\n\s*|(?<=":) (?=["\d\[{%-])|(?<=,) (?=")')


class RecordingWindow(Struct, frozen=True, kw_only=True):
    """Recording window of a rank, on its own clock."""

    start_ns: int
    end_ns: int


class EventBuffer:
    """Collect formatted events."""

    def __init__(
        self, window: RecordingWindow, base_ns: int, stamps: Stamps, drop: tuple[float, np.random.Generator]
    ) -> None:
        self.window = window
        self.texts: list[str] = []
        self.dropped = 0
        self._base_ns = base_ns
        self._whole_microseconds = stamps is Stamps.WHOLE_MICROSECONDS
        self._drop_ratio, self._rng = drop

    def add_complete(self, template: str, begin_ns: int, end_ns: int, *values: object) -> bool:
        """Add a complete event; return True if it was added."""
        if begin_ns < self.window.start_ns or end_ns > self.window.end_ns:
            return False
        if self._drop_ratio and self._rng.random() < self._drop_ratio:
            self.dropped += 1
            return False
        self.texts.append(
            template % (self.format_time(begin_ns), self.format_duration(begin_ns, end_ns), *values)
        )
        return True

    def add_flow(self, template: str, number: int, time_ns: int) -> None:
        """Add one end of a flow arrow."""
        if self.window.start_ns <= time_ns <= self.window.end_ns:
            self.texts.append(template % (number, self.format_time(time_ns)))

    def add_unconditionally(self, texts: Iterable[str]) -> None:
        """Add events that are written even outside the window."""
        self.texts.extend(texts)

    def format_time(self, time_ns: int) -> str:
        """Return a time in the file's format."""
        if self._whole_microseconds:
            return str(time_ns // 1000)
        relative = time_ns - self._base_ns
        return f"{relative // 1000}.{relative % 1000:03d}"

    def format_duration(self, begin_ns: int, end_ns: int) -> str:
        """Return a duration in the file's format."""
        if self._whole_microseconds:
            return str(end_ns // 1000 - begin_ns // 1000)
        length = end_ns - begin_ns
        return f"{length // 1000}.{length % 1000:03d}"


class InstructionTiming(Struct, frozen=True, kw_only=True):
    """Times of one instruction on one rank, in nanoseconds on its clock."""

    line: ExecutedInstruction
    host_begin: int
    host_end: int
    launch: int
    begin: int
    end: int


class LocalTimes:
    """Convert the times of a schedule to each rank's clock."""

    def __init__(self, schedule: SimulatedRun) -> None:
        self._schedule = schedule
        lines = schedule.lines
        self._all = np.stack(
            [
                np.stack([getattr(line, name) for line in lines])
                for name in ("host_begin", "host_end", "launch", "begin", "end")
            ]
        )

    def get_timings(self, rank: int) -> list[InstructionTiming]:
        """Return the instructions that a rank took part in, in program order."""
        clock = get_rank_clock(self._schedule.plan, rank)
        columns = clock.to_local(self._all[:, :, rank]).tolist()
        return [
            InstructionTiming(
                line=line, host_begin=host_begin, host_end=host_end, launch=launch, begin=begin, end=end
            )
            for line, host_begin, host_end, launch, begin, end in zip(
                self._schedule.lines, *columns, strict=True
            )
            if line.ranks is None or rank in line.ranks
        ]

    def get_common_window(self, rank: int) -> RecordingWindow:
        """Return a rank's recording window on the common clock, since the origin."""
        plan_window = self._schedule.plan.windows.get(rank)
        start_delay_ns, early_end_ns = (
            (plan_window.opens_late_ns, plan_window.closes_early_ns) if plan_window else (0, 0)
        )
        start_delay_ns += plan_window.opening_ns if plan_window else 0
        end = int(self._schedule.end_ns[rank])
        return RecordingWindow(start_ns=start_delay_ns - _LEAD_NS, end_ns=end + _TAIL_NS - early_end_ns)

    def get_local_window(self, rank: int) -> RecordingWindow:
        """Return a rank's recording window on its own clock."""
        common = self.get_common_window(rank)
        stamps = get_rank_clock(self._schedule.plan, rank).to_local(
            np.array([common.start_ns, common.end_ns])
        )
        return RecordingWindow(start_ns=int(stamps[0]), end_ns=int(stamps[1]))


class Layout(Struct, frozen=True, kw_only=True):
    """Layout of the files: indented or compact."""

    indented: bool = True

    def complete_template(self, category: str, name: str, pid: str, tid: str, *arguments: str) -> str:
        """Return the template of a complete event; values: ts and dur, then those in the arguments."""
        head = f'"ph": "X", "cat": "{category}", "name": {quote_name(name)}, "pid": {pid}, "tid": {tid}'
        args = ",\n      ".join(arguments)
        body = f',\n    "args": {{\n      {args}\n    }}' if arguments else ""
        return self.apply_layout(f'  {{\n    {head},\n    "ts": %s, "dur": %s{body}\n  }}')

    def flow_template(self, is_end: bool, pid: str, tid: str) -> str:
        """Return the template of one end of the flow arrow from a call to its work; values: id and ts."""
        phase, point = ("f", ', "bp": "e"') if is_end else ("s", "")
        return self.apply_layout(
            f'  {{\n    "ph": "{phase}", "id": %s, "pid": {pid}, "tid": {tid}, "ts": %s,\n'
            f'    "cat": "ac2g", "name": "ac2g"{point}\n  }}'
        )

    def metadata_template(self, event_name: str, pid: str, tid: str, key: str, value: str) -> str:
        """Return the template of a metadata event; value: ts."""
        return self.apply_layout(
            f'  {{\n    "name": "{event_name}", "ph": "M", "ts": %s, "pid": {pid}, "tid": {tid},\n'
            f'    "args": {{\n      "{key}": {value}\n    }}\n  }}'
        )

    def apply_layout(self, template: str) -> str:
        """Return a template in this layout."""
        return template if self.indented else _OPTIONAL_WHITESPACE.sub("", template)


def quote_name(text: str) -> str:
    """Return a name as JSON text, escaped for use in a template."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'
