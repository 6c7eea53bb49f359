"""What the faces of a plan draw: chapters of sentences, tables of ready text, and lines in a chart.

All faces draw the same cells, so that all show the same figures.  ``short`` is the name of a row where there
are only 80 columns.  Texts may hold names from strangers: faces escape them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GridColumn:
    """The head of a column; words stand to the left, numbers to the right."""

    title: str
    unit: str = ""
    words: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRow:
    """Name and cells; a total stands out."""

    name: str
    cells: tuple[str, ...]
    short: str = ""
    total: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table; ``unit`` is that of all its numbers, ``note`` says what they are."""

    title: str
    unit: str = ""
    note: str = ""
    head: str = ""
    columns: tuple[GridColumn, ...]
    rows: tuple[GridRow, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """A place in the units of the axes, and what it says."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """Points in the order of x."""

    name: str
    points: tuple[ChartPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartAxis:
    """What is drawn along an axis, from where to where, and where it has marks (place, text)."""

    title: str
    low: float
    high: float
    marks: tuple[tuple[float, str], ...]
    logarithmic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over a condition; the table beside it holds the same numbers."""

    title: str
    x: ChartAxis
    y: ChartAxis
    lines: tuple[ChartLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """A heading with what is under it; ``anchor`` is one of this package's own words."""

    anchor: str
    title: str
    lead: str = ""
    sentences: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()
    charts: tuple[Chart, ...] = ()
