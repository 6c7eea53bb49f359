"""A heat map of a time by rank and step.

A cell stands for one rank and step, or where they are many for several: then for the worst of them, never for
their mean, in which a single late rank of a thousand would vanish.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zprof.model.units import format_ms
from zprof.reports.html import words
from zprof.reports.html.blocks import Block, Heat, HeatCell, HeatRow

MOST_ROWS, MOST_COLUMNS = 64, 24
LEVELS = 10
#: Times whose largest is below this are shown in microseconds.
_MICROSECONDS_BELOW_NS = 10_000_000
#: A scale is at least so broad, as a share of its least time.
_ALIKE = 0.1


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
            return HeatCell(text=words.NOTHING, level=-1)
        share = (ns - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        text = f"{ns / 1e3:.0f}" if self.unit == "µs" else format_ms(ns)
        return HeatCell(text=text, level=min(LEVELS - 1, int(share * LEVELS)))


def _scale(least: int, largest: int) -> _Scale:
    """From the least to the largest, but broad enough that colours do not tell apart what is alike."""
    return _Scale(least, max(largest, round(least * (1 + _ALIKE))))


def heat(caption: str, entries: Sequence[Measured], notes: Iterable[str]) -> Sequence[Block]:
    """The map; none where nothing was measured."""
    if not entries:
        return ()
    ranks = binned(sorted({entry.rank for entry in entries}), MOST_ROWS)
    steps = binned(sorted({entry.step for entry in entries}), MOST_COLUMNS)
    cells = _worst(entries, ranks, steps)
    scale = _scale(min(cells.values()), max(cells.values()))
    worst = max(entries, key=lambda entry: (entry.ns, -entry.rank, -entry.step))
    largest = f"largest: rank {worst.rank} in step {worst.step}, {scale.cell(worst.ns).text} {scale.unit}"
    return (
        Heat(
            caption=caption,
            unit=scale.unit,
            columns=tuple(_span("", steps_in) for steps_in in steps),
            rows=tuple(
                HeatRow(
                    name=_span("rank ", ranks_in),
                    cells=tuple(scale.cell(cells.get((row, column))) for column in range(len(steps))),
                )
                for row, ranks_in in enumerate(ranks)
            ),
            scale=_legend(scale),
            notes=(largest, *_shared(ranks, "rank"), *_shared(steps, "step"), *notes),
        ),
    )


def binned(values: Sequence[int], most: int) -> list[Sequence[int]]:
    """In order, each alone; of more than ``most`` as many as even, so that there are ``most``."""
    count = len(values)
    rows = min(most, count)
    return [values[count * row // rows : count * (row + 1) // rows] for row in range(rows)]


def _worst(
    entries: Iterable[Measured], ranks: Sequence[Sequence[int]], steps: Sequence[Sequence[int]]
) -> dict[tuple[int, int], int]:
    """The largest time of each cell; cells without one are missing."""
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
    """That cells stand for several, where they do."""
    known = sum(len(group) for group in groups)
    if known == len(groups):
        return ()
    return (f"{known:,} {what}s in {len(groups)} groups: a cell has the largest of its {what}s",)


def _legend(scale: _Scale) -> tuple[HeatCell, ...]:
    """Where each step of the scale begins."""
    breadth = scale.high - scale.low
    if not breadth:
        return (scale.cell(scale.low),)
    starts = (scale.low + round(breadth * level / LEVELS) for level in range(LEVELS))
    return tuple(HeatCell(text=scale.cell(start).text, level=level) for level, start in enumerate(starts))
