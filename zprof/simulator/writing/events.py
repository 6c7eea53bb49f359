"""Format the events of one rank, with times on the rank's own clock, in libkineto's layout.

Templates have a %s for each value that changes.  Indented is the layout of libkineto's own printer; compact
is the layout that JSON tools produce.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from zprof.simulator.engine.schedule import Line, Schedule, get_rank_clock
from zprof.simulator.plan import Stamps


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingWindow:
    """Recording window of a rank, on its own clock."""

    opens_ns: int
    closes_ns: int


class EventSheet:
    """Collect the texts of events."""

    def __init__(
        self, opening: RecordingWindow, base_ns: int, stamps: Stamps, drop: tuple[float, np.random.Generator]
    ) -> None:
        self.opening = opening
        self.texts: list[str] = []
        self.dropped = 0
        self._base_ns = base_ns
        self._whole = stamps is Stamps.WHOLE_MICROSECONDS
        self._share, self._random = drop

    def complete(self, template: str, begin_ns: int, end_ns: int, *values: object) -> bool:
        """Add a complete event; return whether it was added."""
        if begin_ns < self.opening.opens_ns or end_ns > self.opening.closes_ns:
            return False
        if self._share and self._random.random() < self._share:
            self.dropped += 1
            return False
        self.texts.append(template % (self.stamp(begin_ns), self.length(begin_ns, end_ns), *values))
        return True

    def flow(self, template: str, number: int, time_ns: int) -> None:
        """Add one end of an arrow."""
        if self.opening.opens_ns <= time_ns <= self.opening.closes_ns:
            self.texts.append(template % (number, self.stamp(time_ns)))

    def always(self, texts: Iterable[str]) -> None:
        """Add texts that belong to the file regardless of its window."""
        self.texts.extend(texts)

    def stamp(self, time_ns: int) -> str:
        """Return a time in the file's format."""
        if self._whole:
            return str(time_ns // 1000)
        relative = time_ns - self._base_ns
        return f"{relative // 1000}.{relative % 1000:03d}"

    def length(self, begin_ns: int, end_ns: int) -> str:
        """Return a duration in the file's format."""
        if self._whole:
            return str(end_ns // 1000 - begin_ns // 1000)
        length = end_ns - begin_ns
        return f"{length // 1000}.{length % 1000:03d}"


_LEAD_NS = 150_000
_TAIL_NS = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One instruction on one rank, in nanoseconds of its clock."""

    line: Line
    host_begin: int
    host_end: int
    launch: int
    begin: int
    end: int


class LocalTimes:
    """All times of a schedule as one array, to be read rank by rank."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        lines = schedule.lines
        self._all = np.stack(
            [
                np.stack([getattr(line, name) for line in lines])
                for name in ("host_begin", "host_end", "launch", "begin", "end")
            ]
        )

    def moments(self, rank: int) -> list[Moment]:
        """Return the instructions that a rank took part in, in program order."""
        clock = get_rank_clock(self._schedule.plan, rank)
        columns = clock.stamps(self._all[:, :, rank]).tolist()
        return [
            Moment(line=line, host_begin=called, host_end=returned, launch=launch, begin=begin, end=end)
            for line, called, returned, launch, begin, end in zip(self._schedule.lines, *columns, strict=True)
            if line.did is None or rank in line.did
        ]

    def common_opening(self, rank: int) -> RecordingWindow:
        """Return when a rank records, on the common clock since the origin."""
        window = self._schedule.plan.windows.get(rank)
        late, early = (window.opens_late_ns, window.closes_early_ns) if window else (0, 0)
        late += window.opening_ns if window else 0
        end = int(self._schedule.end_ns[rank])
        return RecordingWindow(opens_ns=late - _LEAD_NS, closes_ns=end + _TAIL_NS - early)

    def local_opening(self, rank: int) -> RecordingWindow:
        """Return when a rank records, on its own clock."""
        common = self.common_opening(rank)
        stamps = get_rank_clock(self._schedule.plan, rank).stamps(
            np.array([common.opens_ns, common.closes_ns])
        )
        return RecordingWindow(opens_ns=int(stamps[0]), closes_ns=int(stamps[1]))


_LOOSE = re.compile(r'\s*\n\s*|(?<=":) (?=["\d\[{%-])|(?<=,) (?=")')


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Layout of the files: indented or compact."""

    indented: bool = True

    def complete(self, category: str, name: str, pid: str, tid: str, *arguments: str) -> str:
        """Return the template of a complete event; values: ts and dur, then those of the arguments."""
        head = f'"ph": "X", "cat": "{category}", "name": {quote_name(name)}, "pid": {pid}, "tid": {tid}'
        args = ",\n      ".join(arguments)
        body = f',\n    "args": {{\n      {args}\n    }}' if arguments else ""
        return self.fitted(f'  {{\n    {head},\n    "ts": %s, "dur": %s{body}\n  }}')

    def flow(self, ends: bool, pid: str, tid: str) -> str:
        """Return the template of one end of an arrow from a call to what it launched; values: id and ts."""
        phase, point = ("f", ', "bp": "e"') if ends else ("s", "")
        return self.fitted(
            f'  {{\n    "ph": "{phase}", "id": %s, "pid": {pid}, "tid": {tid}, "ts": %s,\n'
            f'    "cat": "ac2g", "name": "ac2g"{point}\n  }}'
        )

    def named(self, what: str, pid: str, tid: str, key: str, value: str) -> str:
        """Return the template of a metadata event; value: ts."""
        return self.fitted(
            f'  {{\n    "name": "{what}", "ph": "M", "ts": %s, "pid": {pid}, "tid": {tid},\n'
            f'    "args": {{\n      "{key}": {value}\n    }}\n  }}'
        )

    def fitted(self, template: str) -> str:
        """Return a template in this layout."""
        return template if self.indented else _LOOSE.sub("", template)


def quote_name(text: str) -> str:
    """Return a name as JSON text, escaped for use in a template."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'
