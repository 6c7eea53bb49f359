"""What a page is made of: frozen values with ready text and places, which templates only lay out.

Places and widths are percent of the room that a drawing has.  ``kind`` is the name of a style class, always
one of this package's own words; everything else may come from a run.  ``macro`` names the template's macro.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Protocol


class Block(Protocol):
    """Anything that a section holds."""

    macro: ClassVar[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The head of a column: what it is, and in which unit; a bar's column has drawings."""

    title: str
    unit: str = ""
    numeric: bool = False
    bar: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar from one place to another, and the line at which it begins to count (``zero``)."""

    begin: float
    width: float
    zero: float
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Cells of a row, the first names it; a total stands out."""

    cells: tuple[str | Bar, ...]
    total: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with its caption and what must be said below it; folded ones open by a click, and in print."""

    macro: ClassVar[str] = "table"
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Paragraphs of small print."""

    macro: ClassVar[str] = "notes"
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Names and values."""

    macro: ClassVar[str] = "facts"
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of a stacked bar; its letter is drawn where it has room, its text is what it says."""

    kind: str
    letter: str
    text: str
    begin: float
    width: float

    @property
    def middle(self) -> float:
        """Where the letter stands."""
        return self.begin + self.width / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedBar:
    """One bar, and below it a thin one to hold it against (``law``)."""

    name: str
    note: str
    segments: tuple[Segment, ...]
    law: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """A kind, its letter and its name."""

    kind: str
    letter: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Stacked bars with one scale."""

    macro: ClassVar[str] = "bars"
    caption: str
    bars: tuple[StackedBar, ...]
    legend: tuple[LegendEntry, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """A number and its step of the scale; -1 where it is unknown."""

    text: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatRow:
    """The cells of a rank, or of several that share a row."""

    name: str
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """A map of numbers by rank and step; ``scale`` says what the lightest and darkest step mean."""

    macro: ClassVar[str] = "heat"
    caption: str
    unit: str
    columns: tuple[str, ...]
    rows: tuple[HeatRow, ...]
    scale: tuple[HeatCell, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisMark:
    """A word at a place of an axis; ``width`` is that of the stretch that it names, if any."""

    at: float
    text: str
    width: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AreaShape:
    """A filled area as the path of its rim, in a square of 1000 by 1000."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Live memory over time: the picture, and the same points for the script that lets a reader zoom."""

    macro: ClassVar[str] = "timeline"
    title: str
    caption: str
    areas: tuple[AreaShape, ...]
    heights: tuple[AxisMark, ...]
    steps: tuple[AxisMark, ...]
    phases: tuple[AxisMark, ...]
    peak: AxisMark
    end: str
    legend: tuple[LegendEntry, ...]
    data: "TimelineData"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineData:
    """What the script draws: milliseconds, and sizes in ``unit``, one series a tenant, bottom first."""

    time_ms: tuple[float, ...]
    unit: str
    series: tuple["Series", ...]
    steps: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A tenant's heights."""

    kind: str
    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSpot:
    """A point of a line, and what it says."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineShape:
    """A line through its points."""

    kind: str
    spots: tuple[LineSpot, ...]

    @property
    def pieces(self) -> tuple[tuple[LineSpot, LineSpot], ...]:
        """From each point to the next."""
        return tuple(pairwise(self.spots))


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Lines over a condition, with both axes; a table beside it holds the same numbers."""

    macro: ClassVar[str] = "lines"
    title: str
    lines: tuple[LineShape, ...]
    heights: tuple[AxisMark, ...]
    marks: tuple[AxisMark, ...]
    x_title: str
    y_title: str
    legend: tuple[LegendEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCard:
    """A finding as it is read: head, claim, evidence, fix line by line, how to disprove it."""

    number: int
    name: str
    severity: str
    worth: str
    sentence: str
    evidence: tuple[tuple[str, str], ...]
    fix: tuple[str, ...]
    disprove: str
    doc: str
    explain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingList:
    """All findings, the one that saves most first."""

    macro: ClassVar[str] = "findings"
    cards: tuple[FindingCard, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    """One number that a reader looks for first."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with what is under it; ``anchor`` is one of this package's own words."""

    anchor: str
    title: str
    lead: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a reader with ten seconds reads; ``more``: sentences after the verdict."""

    title: str
    status: str
    mark: str
    verdict: str
    attempt: tuple[str, ...]
    runs: tuple[tuple[str, str], ...]
    modelled: str
    figures: tuple[KeyFigure, ...]
    more: tuple[str, ...] = ()
    product: str = "zprof report"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The whole page; ``data_command`` gives the same numbers as data."""

    head: Head
    sections: tuple[Section, ...]
    made_by: str
    data_command: str = "zprof report RUN -f json"

    @property
    def timeline(self) -> Timeline | None:
        """The chart that needs a script, where there is one."""
        blocks = (block for section in self.sections for block in section.blocks)
        return next((block for block in blocks if isinstance(block, Timeline)), None)
