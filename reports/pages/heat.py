"""Build a heat map of a time by rank and step.

A cell that covers several ranks or steps has their maximum: one late rank in a thousand would vanish in a
mean.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from zprof.model.formatting import format_ms
from zprof.reports.page import HeatCell, HeatMap
from zprof.reports.table import UNKNOWN

MAX_ROWS, MAX_COLUMNS = 64, 24
LEVELS = 10
#: Scales below this are in microseconds.
_MICROSECONDS_BELOW_NS = 10_000_000
#: Minimum width of a scale relative to its smallest time, so that similar times have similar colours.
_MIN_BREADTH = 0.1


class Measured(Struct, frozen=True, kw_only=True):
    """A time measured on one rank in one step."""

    rank: int
    step: int
    ns: int


class _HeatScale(Struct, frozen=True):
    low: int
    high: int

    @property
    def unit(self) -> str:
        return "µs" if self.high < _MICROSECONDS_BELOW_NS else "ms"

    def cell(self, ns: int | None) -> HeatCell:
        if ns is None:
            return HeatCell(text=UNKNOWN, level=-1)
        share = (ns - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        text = f"{ns / 1e3:.0f}" if self.unit == "µs" else format_ms(ns)
        return HeatCell(text=text, level=min(LEVELS - 1, int(share * LEVELS)))

    def legend(self) -> tuple[HeatCell, ...]:
        """Return the lower bound of each colour."""
        breadth = self.high - self.low
        if not breadth:
            return (self.cell(self.low),)
        starts = (self.low + round(breadth * level / LEVELS) for level in range(LEVELS))
        return tuple(
            HeatCell(text=self.cell(start).text, level=cell_key) for cell_key, start in enumerate(starts)
        )


def heat_map(title: str, entries: Sequence[Measured], notes: Iterable[str] = ()) -> HeatMap | None:
    """Build the heat map, or return None if nothing was measured."""
    if not entries:
        return None
    ranks = split_evenly(sorted({entry.rank for entry in entries}), MAX_ROWS)
    steps = split_evenly(sorted({entry.step for entry in entries}), MAX_COLUMNS)
    # The maximum time of each cell; cells without times are missing.
    row_of = {rank: row for row, ranks_in in enumerate(ranks) for rank in ranks_in}
    column_of = {step: column for column, steps_in in enumerate(steps) for step in steps_in}
    cells: dict[tuple[int, int], int] = {}
    for entry in entries:
        cell_key = row_of[entry.rank], column_of[entry.step]
        cells[cell_key] = max(entry.ns, cells.get(cell_key, entry.ns))
    min_ns, max_ns = min(cells.values()), max(cells.values())
    scale = _HeatScale(min_ns, max(max_ns, round(min_ns * (1 + _MIN_BREADTH))))
    worst = max(entries, key=lambda entry: (entry.ns, -entry.rank, -entry.step))
    largest = f"Largest: rank {worst.rank} in step {worst.step}, {scale.cell(worst.ns).text} {scale.unit}."
    return HeatMap(
        title=title,
        unit=scale.unit,
        corner="step",
        columns=tuple(_format_range("", steps_in) for steps_in in steps),
        rows=tuple(
            (
                _format_range("rank ", ranks_in),
                tuple(scale.cell(cells.get((row, column))) for column in range(len(steps))),
            )
            for row, ranks_in in enumerate(ranks)
        ),
        scale=scale.legend(),
        notes=(largest, *_describe_grouping(ranks, "rank"), *_describe_grouping(steps, "step"), *notes),
    )


def split_evenly(values: Sequence[int], max_groups: int) -> list[Sequence[int]]:
    """Split the values, in order, into at most ``max_groups`` groups of about equal size."""
    count = len(values)
    rows = min(max_groups, count)
    return [values[count * row // rows : count * (row + 1) // rows] for row in range(rows)]


def _format_range(noun: str, values: Sequence[int]) -> str:
    return f"{noun}{values[0]}" if len(values) == 1 else f"{noun}{values[0]}-{values[-1]}"


def _describe_grouping(groups: Sequence[Sequence[int]], noun: str) -> tuple[str, ...]:
    """Describe the grouping of ranks or steps, if there is any."""
    count = sum(len(group) for group in groups)
    if count == len(groups):
        return ()
    return (f"{count:,} {noun}s in {len(groups)} groups: each cell shows the maximum of its {noun}s.",)
