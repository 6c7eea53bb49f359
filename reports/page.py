"""A report as blocks, ready to be written as text, Markdown or HTML.

Presenters (``reports/presenters``) turn reports, plans, predictions, checks and comparisons into a
``Page``; the backends write its blocks and know nothing else.  Every string may hold names from a
recording: backends escape them.  Only ``tone``, ``colour`` and ``anchor`` are always zprof's own words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

#: Rows of a table that any output shows; the JSON has the rest.
MAX_ROWS = 200
#: Rows of a table that the terminal shows, if its presenter does not say otherwise.
MAX_TEXT_ROWS = 24
#: Stands for a number that is not known.
UNKNOWN = "-"


class Kind(StrEnum):
    """What the cells of a column are."""

    NUMBER = "number"
    TEXT = "text"
    NAME = "name"
    BAR = "bar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer in one sentence.  ``tone``: ok, slower, risk or inconclusive."""

    tone: str
    mark: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """Sentences."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A sentence that qualifies what is above it; with a label, one that must not be overlooked."""

    text: str
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Lines to copy.  ``brief`` replaces several lines where there is little room."""

    lines: tuple[str, ...]
    title: str = ""
    brief: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An entry of a list.  ``remedy``: what to do about it; ``details``: (name, text) pairs below it."""

    text: str
    label: str = ""
    mark: str = ""
    remedy: str = ""
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemList:
    """A list.  ``brief``: the terminal shows one line per item."""

    items: tuple[Item, ...]
    brief: bool = False
    total: int | None = None
    what: str = "items"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigures:
    """The numbers that a reader looks for first: name, value, note.

    ``repeated``: the text around them has these numbers too, so that the terminal leaves them out.
    """

    figures: tuple[tuple[str, str, str], ...]
    repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Names and values; ``values_first`` for measurements, whose value stands before what it is of."""

    rows: tuple[tuple[str, str], ...]
    values_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The head of a column.

    ``wide``: a terminal has no room for it.  ``lifted``: the terminal writes the value above the rows that
    share it. ``min_width``: the least width in a terminal, so that tables below each other align.
    """

    title: str
    unit: str = ""
    kind: Kind = Kind.NUMBER
    wide: bool = False
    lifted: bool = False
    min_width: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar in a cell: its length as a share, and its place on the axis (0 to 1) from ``zero``."""

    share: float
    start: float
    end: float
    zero: float = 0.0
    colour: str = "time-sum"


Cell = str | Bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Cells of a row, the first names it.

    ``short``: that name where there are only 80 columns; ``below``: lines that the terminal writes below it.
    """

    cells: tuple[Cell, ...]
    total: bool = False
    short: str = ""
    below: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table.

    ``unit``: of all its numbers; ``note``: what they are.  ``max_text_rows``: the terminal shows as many,
    Markdown twice as many.  ``order``: places of the rows by importance, if that is not their order.
    ``total`` and ``what``: how many rows there are in all, and of what.  ``sideways``: where there is
    little room, rows are drawn side by side as columns.  ``below``: what the lines below the rows are.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    unit: str = ""
    note: str = ""
    notes: tuple[str, ...] = ()
    max_text_rows: int = MAX_TEXT_ROWS
    order: tuple[int, ...] = ()
    total: int | None = None
    what: str = "rows"
    sideways: bool = False
    below: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Something that is read as a whole, with labelled parts.  ``tone``: high, medium or low."""

    title: str
    note: str
    tone: str
    text: str
    parts: tuple[tuple[str, "Paragraph | Facts | Code"], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """A colour, the letter drawn on it, and what it stands for."""

    colour: str
    letter: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of a stacked bar, in percent of the longest bar."""

    colour: str
    letter: str
    text: str
    start: float
    width: float

    @property
    def middle(self) -> float:
        """Return where the letter stands."""
        return self.start + self.width / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedBar:
    """A bar in pieces, and below it a thin one to compare it with."""

    name: str
    note: str
    segments: tuple[Segment, ...]
    reference: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Stacked bars on one scale; a table on the page has the same numbers."""

    title: str
    bars: tuple[StackedBar, ...]
    legend: tuple[LegendEntry, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """A number and its step on the colour scale; -1 where it is unknown."""

    text: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Numbers by row and column; ``scale`` has the least number of each colour."""

    title: str
    unit: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[HeatCell, ...]], ...]
    scale: tuple[HeatCell, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisMark:
    """A word at a place of an axis, in percent; ``width`` of the stretch that it names."""

    at: float
    text: str
    width: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The values of one area, and its outline as a path in a square of 1000 by 1000."""

    colour: str
    name: str
    values: tuple[float, ...]
    outline: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AreaChart:
    """Stacked areas over time, bottom first, as a picture and as points for a chart that zooms."""

    title: str
    caption: str
    time_ms: tuple[float, ...]
    unit: str
    series: tuple[Series, ...]
    heights: tuple[AxisMark, ...]
    steps: tuple[AxisMark, ...]
    phases: tuple[AxisMark, ...]
    peak: AxisMark
    end: str
    legend: tuple[LegendEntry, ...]
    steps_ms: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePoint:
    """A point of a line in percent of the drawing, and what it says."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line through its points."""

    name: str
    points: tuple[LinePoint, ...]

    @property
    def pieces(self) -> tuple[tuple[LinePoint, LinePoint], ...]:
        """Return each point with the next one."""
        return tuple(pairwise(self.points))


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """At most four lines with both axes; a table on the page has the same numbers."""

    title: str
    lines: tuple[Line, ...]
    heights: tuple[AxisMark, ...]
    marks: tuple[AxisMark, ...]
    x_title: str
    y_title: str


Text = Verdict | Paragraph | Note | Code | ItemList | KeyFigures | Facts | Table | Card
Drawing = Bars | HeatMap | AreaChart | LineChart
Block = Text | Drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with what is under it.

    ``lead``: what it answers; ``note``: what its numbers are.  HTML folds tables with ``fold_rows`` or more.
    ``detail``: Markdown folds it, the terminal
    leaves it out.
    """

    anchor: str
    title: str
    blocks: tuple[Block, ...]
    lead: str = ""
    note: str = ""
    detail: bool = False
    fold_rows: int = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole page.

    ``kind``: what it is, in zprof's words; ``subject``: of which run or job.  ``repeat_verdict``: the
    terminal ends with the verdict, because the end of a CI log is what is read.
    """

    kind: str
    subject: str
    head: tuple[Block, ...]
    sections: tuple[Section, ...]
    made_by: str
    data_command: str
    repeat_verdict: bool = False

    @property
    def verdict(self) -> Verdict | None:
        """Return the answer, if the page has one."""
        return next((block for block in self.head if isinstance(block, Verdict)), None)


def make_section(
    anchor: str,
    title: str,
    lead: str,
    *blocks: Block | None,
    note: str = "",
    detail: bool = False,
    fold_rows: int = 24,
) -> tuple[Section, ...]:
    """Return a section with the blocks that are there; none without any."""
    kept = tuple(block for block in blocks if block is not None)
    if not kept:
        return ()
    section = Section(
        anchor=anchor, title=title, lead=lead, blocks=kept, note=note, detail=detail, fold_rows=fold_rows
    )
    return (section,)


def make_table(
    title: str,
    columns: tuple[Column, ...],
    rows: Sequence[Row | tuple[Cell, ...]],
    *,
    unit: str = "",
    note: str = "",
    notes: Sequence[str] = (),
    max_text_rows: int = MAX_TEXT_ROWS,
    order: Sequence[int] = (),
    total: int | None = None,
    what: str = "rows",
    sideways: bool = False,
    below: str = "",
) -> Table | None:
    """Return a table of the first ``MAX_ROWS`` rows; None without rows."""
    if not rows:
        return None
    made = [row if isinstance(row, Row) else Row(cells=row) for row in rows[:MAX_ROWS]]
    return Table(
        title=title,
        columns=columns,
        rows=tuple(made),
        unit=unit,
        note=note,
        notes=tuple(notes),
        max_text_rows=max_text_rows,
        order=tuple(order),
        total=len(rows) if total is None else total,
        what=what,
        sideways=sideways,
        below=below,
    )


def make_number_columns(*titles: str, unit: str = "", wide: bool = False) -> tuple[Column, ...]:
    """Return columns of numbers in one unit."""
    return tuple(Column(title=title, unit=unit, wide=wide) for title in titles)


def make_name_column(title: str, *, lifted: bool = False) -> Column:
    """Return a column of names from a recording."""
    return Column(title=title, kind=Kind.NAME, lifted=lifted)


def make_text_column(title: str, unit: str = "") -> Column:
    """Return a column of words."""
    return Column(title=title, unit=unit, kind=Kind.TEXT)
