"""A heat map of a time by rank and step.

A cell of several ranks or steps has the largest of them and not their mean, in which one late rank of a
thousand would vanish.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zprof.model.formatting import format_ms
from zprof.reports.page import UNKNOWN, HeatCell, HeatMap

MAX_ROWS, MAX_COLUMNS = 64, 24
LEVELS = 10
#: Below it, times are shown in microseconds.
_MICROSECONDS_BELOW_NS = 10_000_000
#: The least breadth of a scale, as a share of its least time, so that alike times have like colours.
_MIN_BREADTH = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A time of a rank in a step."""

    rank: int
    step: int
    ns: int


@dataclass(frozen=True, slots=True)
class _Scale:
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
        """Return where each colour begins."""
        breadth = self.high - self.low
        if not breadth:
            return (self.cell(self.low),)
        starts = (self.low + round(breadth * level / LEVELS) for level in range(LEVELS))
        return tuple(HeatCell(text=self.cell(start).text, level=at) for at, start in enumerate(starts))


def heat_map(title: str, entries: Sequence[Measured], notes: Iterable[str] = ()) -> HeatMap | None:
    """Return the map; None if nothing was measured."""
    if not entries:
        return None
    ranks = split_evenly(sorted({entry.rank for entry in entries}), MAX_ROWS)
    steps = split_evenly(sorted({entry.step for entry in entries}), MAX_COLUMNS)
    cells = _largest(entries, ranks, steps)
    least, most = min(cells.values()), max(cells.values())
    scale = _Scale(least, max(most, round(least * (1 + _MIN_BREADTH))))
    worst = max(entries, key=lambda entry: (entry.ns, -entry.rank, -entry.step))
    largest = f"Largest: rank {worst.rank} in step {worst.step}, {scale.cell(worst.ns).text} {scale.unit}."
    return HeatMap(
        title=title,
        unit=scale.unit,
        corner="step",
        columns=tuple(_span("", steps_in) for steps_in in steps),
        rows=tuple(
            (
                _span("rank ", ranks_in),
                tuple(scale.cell(cells.get((row, column))) for column in range(len(steps))),
            )
            for row, ranks_in in enumerate(ranks)
        ),
        scale=scale.legend(),
        notes=(largest, *_shared(ranks, "rank"), *_shared(steps, "step"), *notes),
    )


def split_evenly(values: Sequence[int], most: int) -> list[Sequence[int]]:
    """Return the values in order in at most ``most`` groups of equal size."""
    count = len(values)
    rows = min(most, count)
    return [values[count * row // rows : count * (row + 1) // rows] for row in range(rows)]


def _largest(
    entries: Iterable[Measured], ranks: Sequence[Sequence[int]], steps: Sequence[Sequence[int]]
) -> dict[tuple[int, int], int]:
    """Return the largest time of each cell; cells without one are missing."""
    row_of = {rank: row for row, ranks_in in enumerate(ranks) for rank in ranks_in}
    column_of = {step: column for column, steps_in in enumerate(steps) for step in steps_in}
    cells: dict[tuple[int, int], int] = {}
    for entry in entries:
        at = row_of[entry.rank], column_of[entry.step]
        cells[at] = max(entry.ns, cells.get(at, entry.ns))
    return cells


def _span(what: str, values: Sequence[int]) -> str:
    return f"{what}{values[0]}" if len(values) == 1 else f"{what}{values[0]}-{values[-1]}"


def _shared(groups: Sequence[Sequence[int]], what: str) -> tuple[str, ...]:
    """Return that cells stand for several, if they do."""
    known = sum(len(group) for group in groups)
    if known == len(groups):
        return ()
    return (f"{known:,} {what}s in {len(groups)} groups: a cell has the largest of its {what}s.",)
