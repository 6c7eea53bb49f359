"""Format Chrome JSON trace events: rows of slices on lanes, flows, and row names.

Strings come from untrusted files: they are escaped, truncated, and written as ASCII JSON. Times are
nanoseconds since the start of the trace, written as microseconds with exactly three decimals.

Lanes keep slices nested or disjoint, as viewers require.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.intervals import Int64s
from zprof.base.formatting import printable

#: Slices beyond this number of overlapping lanes are omitted, to keep a track readable and bounded.
MAX_LANES = 16
NO_LANE = -1


class ChromeTraceRow(Struct, frozen=True, kw_only=True):
    """Slices of one row in the viewer, in any order, in ns on the common clock since the start of the trace.

    ``name``, ``category`` and ``args`` return JSON for a slice index.
    """

    title: str
    start_ns: Int64s
    end_ns: Int64s
    name: Callable[[int], str]
    category: Callable[[int], str]
    args: Callable[[int], str]


class ProcessRows:
    """Numbers the rows of one rank in output order, and counts slices that did not fit."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.omitted_slices = 0
        self._next_tid = 1

    def format_row(self, row: ChromeTraceRow) -> Iterator[str]:
        """Yield the row's lines, lane by lane, each lane in order of time."""
        for _, _, lines in self.format_lanes(row):
            yield from lines

    def format_lanes(self, row: ChromeTraceRow) -> Iterator[tuple[int, list[int], Iterator[str]]]:
        """Yield for each lane its thread, the indices of its slices, and its lines."""
        order = sort_slices(row.start_ns, row.end_ns)
        lane = assign_lanes(row.start_ns[order], row.end_ns[order])
        self.omitted_slices += int((lane == NO_LANE).sum())
        for number in range(int(lane.max(initial=NO_LANE)) + 1):
            tid, self._next_tid = self._next_tid, self._next_tid + 1
            indices = order[lane == number].tolist()
            title = row.title if number == 0 else f"{row.title} ({number + 1})"
            yield tid, indices, self._format_lane(row, tid, title, indices)

    def _format_lane(
        self, row: ChromeTraceRow, tid: int, title: str, indices: Sequence[int]
    ) -> Iterator[str]:
        yield from format_thread(self.pid, tid, title)
        starts, lengths = row.start_ns, row.end_ns - row.start_ns
        for index in indices:
            yield format_slice(
                self.pid,
                tid,
                int(starts[index]),
                int(lengths[index]),
                row.name(index),
                row.category(index),
                row.args(index),
            )


def make_spans_row(
    title: str, spans: Int64s, labels: Sequence[tuple[str, str]], category: str
) -> ChromeTraceRow:
    """Return a row of a few slices; ``labels``: name and arguments of each slice, as JSON."""
    spans = np.asarray(spans, dtype=np.int64).reshape(-1, 2)
    return ChromeTraceRow(
        title=title,
        start_ns=spans[:, 0],
        end_ns=spans[:, 1],
        name=lambda index: labels[index][0],
        category=lambda index: category,
        args=lambda index: labels[index][1],
    )


def sort_slices(start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Return the slice indices ordered by start, longer slices first."""
    return np.lexsort((-end_ns, start_ns)).astype(np.int64)


def assign_lanes(start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Return the lowest free lane for each slice; slices must be in the order of :func:`sort_slices`."""
    open_ends: list[list[int]] = []
    lanes = np.full(len(start_ns), NO_LANE, dtype=np.int64)
    for index, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        for ends in open_ends:
            while ends and ends[-1] <= start:
                ends.pop()
        lane = next((n for n, ends in enumerate(open_ends) if not ends or end <= ends[-1]), len(open_ends))
        if lane == len(open_ends):
            if lane == MAX_LANES:
                continue
            open_ends.append([])
        open_ends[lane].append(end)
        lanes[index] = lane
    return lanes


_MAX_TEXT_LENGTH = 300
Args = Mapping[str, str | int | float]


def encode_text(value: str) -> str:
    """Encode a name as a JSON string."""
    return json.dumps(printable(value[:_MAX_TEXT_LENGTH]))


def format_us(time_ns: int) -> str:
    """Format nanoseconds as microseconds: ``1234567`` as ``1234.567``."""
    sign, left = ("-", -time_ns) if time_ns < 0 else ("", time_ns)
    return f"{sign}{left // 1000}.{left % 1000:03d}"


def encode_arguments(values: Args) -> str:
    """Encode the arguments of a slice as JSON."""
    parts = []
    for key, value in values.items():
        encoded = encode_text(value) if isinstance(value, str) else json.dumps(value, allow_nan=False)
        parts.append(f"{encode_text(key)}:{encoded}")
    return "{" + ",".join(parts) + "}"


def format_slice(
    pid: int, tid: int, start_ns: int, duration_ns: int, name: str, category: str, args: str
) -> str:
    """Format a complete event; ``name``, ``category`` and ``args`` are already JSON."""
    return (
        f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{format_us(start_ns)},'
        f'"dur":{format_us(duration_ns)},"name":{name},"cat":{category},"args":{args}}}'
    )


def format_flow(number: int, name: str, start: tuple[int, int, int], end: tuple[int, int, int]) -> list[str]:
    """Format an arrow between two slices, each given as process, thread and a time within the slice."""
    common = f'"id":{number},"cat":"collective","name":{encode_text(name)}'
    return [
        f'{{"ph":"s",{common},{_encode_endpoint(*start)}}}',
        f'{{"ph":"f","bp":"e",{common},{_encode_endpoint(*end)}}}',
    ]


def format_process(pid: int, name: str, index: int) -> list[str]:
    """Format the name and position of a process."""
    return [
        _format_metadata("process_name", pid, 0, f'"name":{encode_text(name)}'),
        _format_metadata("process_sort_index", pid, 0, f'"sort_index":{index}'),
    ]


def format_thread(pid: int, tid: int, name: str) -> list[str]:
    """Format the name and position of a row; rows are ordered by thread number."""
    return [
        _format_metadata("thread_name", pid, tid, f'"name":{encode_text(name)}'),
        _format_metadata("thread_sort_index", pid, tid, f'"sort_index":{tid}'),
    ]


def _format_metadata(kind: str, pid: int, tid: int, args: str) -> str:
    return f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"{kind}","args":{{{args}}}}}'


def _encode_endpoint(pid: int, tid: int, time_ns: int) -> str:
    return f'"pid":{pid},"tid":{tid},"ts":{format_us(time_ns)}'
