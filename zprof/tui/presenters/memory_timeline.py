"""Prepare live memory over time for a terminal: the highest point per column, stacked by tenant.

No peak is lost.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from msgspec import Struct

from zprof.model.memory import Memory, MemoryTimeline
from zprof.model.paths import Path
from zprof.model.quantities import Aggregation, Unit, Value
from zprof.model.tenants import DISPLAY_ORDER
from zprof.reports.presenters.memory_formatting import largest_rank
from zprof.reports.table import Column, Kind, Row, Table
from zprof.tui.presenters.memory import name_tenant
from zprof.tui.session import LoadedRun
from zprof.tui.theme import UNTAGGED

#: From bottom to top: long-lived tenants below short-lived ones.
ORDER = (*(tenant.value for tenant in DISPLAY_ORDER), UNTAGGED)


class Curve(Struct, frozen=True, kw_only=True, dict=True):
    """A timeline and its index in the report; ``instead_of``: the selected rank, if it has no timeline."""

    timeline: MemoryTimeline
    place: int
    instead_of: int | None = None

    @cached_property
    def heights(self) -> tuple[int, ...]:
        """Return the live bytes at each point: all tenants plus untagged."""
        return tuple(sum(values) for values in zip(*self.timeline.tenants.values(), strict=True))

    @cached_property
    def peak(self) -> int:
        """Return the index of the first highest point."""
        return self.heights.index(max(self.heights))

    @property
    def end_ns(self) -> int:
        """Return the end of the last point, whose duration is taken to be the mean of the others."""
        times = self.timeline.time_ns
        return times[-1] + max(1, (times[-1] - times[0]) // max(1, len(times) - 1))

    def total(self, point: int) -> Value:
        """Return the live bytes at a point: the sum of its leaves."""
        leaves = tuple(self._make_path("tenants", name, point) for name in self.timeline.tenants)
        return Value(number=self.heights[point], unit=Unit.BYTES, leaves=leaves, how=Aggregation.SUM)

    def tenant(self, name: str, point: int) -> Value:
        """Return the bytes of a tenant at a point."""
        leaf = self._make_path("tenants", name, point)
        return Value(number=self.timeline.tenants[name][point], unit=Unit.BYTES, leaves=(leaf,))

    def time(self, point: int) -> Value:
        """Return the time of a point since the start of the window."""
        leaf = self._make_path("time_ns", point)
        return Value(number=self.timeline.time_ns[point], unit=Unit.NS, leaves=(leaf,))

    def _make_path(self, *parts: str | int) -> Path:
        return Path(("memory", "timelines", self.place, *parts))


def find_curve(loaded: LoadedRun, rank: int) -> Curve | None:
    """Return the rank's timeline, else that of the rank with the largest peak, else None."""
    memory = loaded.report.memory
    index = _find_timeline(memory, rank)
    if index is not None:
        return Curve(timeline=memory.timelines[index], place=index)
    largest = largest_rank(memory.per_rank)
    other = _find_timeline(memory, largest.rank) if largest else None
    return None if other is None else Curve(timeline=memory.timelines[other], place=other, instead_of=rank)


def _find_timeline(memory: Memory, rank: int) -> int | None:
    timelines = enumerate(memory.timelines)
    return next((index for index, entry in timelines if entry.rank == rank and entry.time_ns), None)


def decimate(times: Sequence[int], end_ns: int, heights: Sequence[int], columns: int) -> list[int]:
    """Return for each column the highest point that lasts into it; a point lasts until the next one.

    Never a mean: the highest point of all is in some column.
    """
    edges = [times[0] + (end_ns - times[0]) * column // columns for column in range(columns + 1)]
    points = []
    for start, end in pairwise(edges):
        first = max(0, bisect_right(times, start) - 1)
        last = max(first + 1, bisect_left(times, end))
        points.append(max(range(first, last), key=lambda point: (heights[point], -point)))
    return points


def find_column(time_ns: int, begin_ns: int, end_ns: int, columns: int) -> int:
    """Return the column that contains a time, clamped to the first and last column."""
    length = max(1, end_ns - begin_ns)
    return max(0, min(columns - 1, (time_ns - begin_ns) * columns // length))


def stack_cells(sizes: Sequence[tuple[str, int]], top: int, rows: int) -> list[str]:
    """Return tenant names for the cells of a column, bottom first; empty above the top.

    Each cell shows the tenant with the largest part of it. A non-zero total fills at least one cell, and a
    total of ``top`` fills all.
    """
    total = sum(size for _, size in sizes)
    filled = min(rows, max(1, (2 * total * rows + top) // (2 * top))) if total > 0 and top > 0 else 0
    cells = []
    for row in range(filled):
        low, high = row * top, min((row + 1) * top, max(total * rows, row * top + 1))
        cells.append(_find_owner(sizes, low, high, rows))
    return cells + [""] * (rows - filled)


def _find_owner(sizes: Sequence[tuple[str, int]], low: int, high: int, rows: int) -> str:
    """Return the tenant with the most bytes between two heights, in units of 1/``rows`` byte."""
    bottom, owner, max_overlap = 0, sizes[0][0], -1
    for name, size in sizes:
        top = bottom + size * rows
        overlap = min(top, high) - max(bottom, low)
        if size > 0 and overlap > max_overlap:
            owner, max_overlap = name, overlap
        bottom = top
    return owner


def layout_marks(named: Sequence[tuple[int, str]], curve: Curve, columns: int) -> list[tuple[int, int, str]]:
    """Return (first column, end column, name) of phases or steps."""
    times = curve.timeline.time_ns
    starts = [find_column(time, times[0], curve.end_ns, columns) for time, _ in named]
    ends = [*starts[1:], columns]
    spans = zip(starts, ends, named, strict=True)
    return [(start, end, name) for start, end, (_, name) in spans if end > start]


def find_name_at(named: Sequence[tuple[int, object]], time_ns: int) -> str:
    """Return the phase or step at a time; empty before the first."""
    names = [str(name) for start, name in named if start <= time_ns]
    return names[-1] if names else ""


def format_moment_at(curve: Curve, point: int) -> str:
    """Format the moment of a point as ``step 4 backward``, omitting unknown parts."""
    timeline, time_ns = curve.timeline, curve.timeline.time_ns[point]
    step = find_name_at(timeline.steps, time_ns)
    parts = (f"step {step}" if step else "", find_name_at(timeline.phases, time_ns))
    return " ".join(part for part in parts if part)


def build_point_table(curve: Curve, point: int) -> Table:
    """Build a table with one point of the timeline as its only row, to copy and open."""
    names = [name for name in ORDER if name in curve.timeline.tenants]
    return Table(
        name="point",
        title=f"live bytes over time, rank {curve.timeline.rank}",
        columns=(
            Column(title="point", kind=Kind.TEXT),
            Column(
                title="live",
            ),
            Column(
                title="time",
            ),
            *(
                Column(
                    title=name_tenant(name),
                )
                for name in names
            ),
        ),
        rows=(
            Row(
                key=str(point),
                cells=(
                    f"live bytes, rank {curve.timeline.rank} {format_moment_at(curve, point)}",
                    curve.total(point),
                    curve.time(point),
                    *(curve.tenant(name, point) for name in names),
                ),
            ),
        ),
        help=(
            "Live bytes over the recorded window, stacked by tenant. Each column shows its highest point, so "
            "no peak is lost. Press left and right to select a point, and enter to explain its bytes."
        ),
    )
