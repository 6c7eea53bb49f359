"""Blocks of a page that can be rendered as text, Markdown or HTML.

``reports/pages`` turns reports, plans, predictions, checks and comparisons into a ``Page``; the backends know
only its blocks.  Any string may contain names from a recording, so backends escape all strings except
``tone``, ``colour`` and ``anchor``, which zprof sets itself.
"""

from itertools import pairwise

from msgspec import Struct

from zprof.model.step_overview import StepOverview
from zprof.reports.table import MAX_TEXT_ROWS, Table

#: Anchor of the section on gaps.
GAPS = "gaps"


class VerdictBlock(Struct, frozen=True, kw_only=True):
    """The answer in one sentence.  ``tone``: ok, slower, risk or inconclusive."""

    tone: str
    mark: str
    text: str


class Paragraph(Struct, frozen=True, kw_only=True):
    """One or more sentences."""

    text: str


class Note(Struct, frozen=True, kw_only=True):
    """A sentence that qualifies the block above it; a label makes it stand out."""

    text: str
    label: str = ""


class Code(Struct, frozen=True, kw_only=True):
    """Lines to copy. ``brief``: replacement in compact outputs, the first lines and where the rest is."""

    lines: tuple[str, ...]
    title: str = ""
    brief: str = ""


class Item(Struct, frozen=True, kw_only=True):
    """An entry of a list.  ``remedy``: what to do; ``details``: (name, text) pairs."""

    text: str
    label: str = ""
    mark: str = ""
    remedy: str = ""
    details: tuple[tuple[str, str], ...] = ()


class ItemList(Struct, frozen=True, kw_only=True):
    """A list.

    ``brief``: without details in a terminal. ``total``: number of items before truncation. ``tight``: no
    blank lines between the items in Markdown, which omits all of them or none.
    """

    items: tuple[Item, ...]
    brief: bool = False
    tight: bool = False
    total: int | None = None
    noun: str = "items"


class KeyFigures(Struct, frozen=True, kw_only=True):
    """Headline numbers as (name, value, note).

    ``repeated``: the surrounding text already has these numbers, so the terminal omits them.
    """

    figures: tuple[tuple[str, str, str], ...]
    repeated: bool = False


class Facts(Struct, frozen=True, kw_only=True):
    """Names and values; with ``values_first`` (measurements), values precede names."""

    rows: tuple[tuple[str, str], ...]
    values_first: bool = False


class Explanation(Struct, frozen=True, kw_only=True):
    """The documentation page of a finding: HTML contains it, other outputs name the command to read it."""

    finding: str

    @property
    def text(self) -> str:
        """Return the command that shows the page."""
        return f"zprof explain {self.finding}"


class Card(Struct, frozen=True, kw_only=True):
    """A self-contained item with labelled parts.  ``tone``: high, medium or low."""

    title: str
    note: str
    tone: str
    text: str
    parts: tuple[tuple[str, "Paragraph | Facts | Code | Explanation"], ...] = ()


class LegendEntry(Struct, frozen=True, kw_only=True):
    """A colour, the letter drawn on it, and its meaning."""

    colour: str
    letter: str
    name: str


class Segment(Struct, frozen=True, kw_only=True):
    """A segment of a stacked bar; positions in percent of the longest bar."""

    colour: str
    letter: str
    text: str
    start: float
    width: float

    @property
    def middle(self) -> float:
        """Return the centre of the segment, where its letter is drawn."""
        return self.start + self.width / 2


class StackedBar(Struct, frozen=True, kw_only=True):
    """A bar of segments, and a thin reference bar below it."""

    name: str
    note: str
    segments: tuple[Segment, ...]
    reference: tuple[Segment, ...] = ()


class Bars(Struct, frozen=True, kw_only=True):
    """Stacked bars on a common scale; a table on the page has the same numbers."""

    title: str
    bars: tuple[StackedBar, ...]
    legend: tuple[LegendEntry, ...]
    notes: tuple[str, ...] = ()


class HeatCell(Struct, frozen=True, kw_only=True):
    """A number and its level on the colour scale, -1 if unknown; ``label``: its rank, if the row is none."""

    text: str
    level: int
    label: str = ""


class HeatMap(Struct, frozen=True, kw_only=True):
    """Numbers by row and column.

    ``scale``: lower bound of each colour. ``in_text``: the terminal draws it too, as no table has its
    numbers by place.
    """

    title: str
    unit: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[HeatCell, ...]], ...]
    scale: tuple[HeatCell, ...]
    notes: tuple[str, ...]
    in_text: bool = False


class AxisMark(Struct, frozen=True, kw_only=True):
    """A label at a position on an axis, in percent; ``width``: width of the labelled interval."""

    at: float
    text: str
    width: float = 0.0


class Series(Struct, frozen=True, kw_only=True):
    """Values of one area, and its outline as an SVG path in a 1000 by 1000 view box."""

    colour: str
    name: str
    values: tuple[float, ...]
    outline: str


class AreaChart(Struct, frozen=True, kw_only=True):
    """Stacked areas over time, bottom first, as a static drawing and as points to read and zoom.

    ``steps_ms``: start and name of each step. ``phases_ms``: start, end and name of each phase.
    """

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
    end_ms: float
    peak_ms: float
    steps_ms: tuple[tuple[float, str], ...]
    phases_ms: tuple[tuple[float, float, str], ...]


class IcicleBox(Struct, frozen=True, kw_only=True):
    """A box of an icicle chart; positions in percent.

    ``values``: size and share; ``details``: tooltip lines.
    """

    depth: int
    start: float
    width: float
    colour: str
    text: str
    values: tuple[str, str]
    details: tuple[str, ...]


class Icicle(Struct, frozen=True, kw_only=True):
    """A tree of boxes below their parents, in depth-first order; an indented list in text.

    ``max_text_rows``: maximum number of boxes in a terminal, largest first; 0 omits the chart.
    """

    title: str
    boxes: tuple[IcicleBox, ...]
    legend: tuple[LegendEntry, ...]
    note: str = ""
    max_text_rows: int = MAX_TEXT_ROWS

    @property
    def levels(self) -> int:
        """Return the number of levels."""
        return max(box.depth for box in self.boxes) + 1

    @property
    def steps(self) -> tuple[tuple[IcicleBox, int], ...]:
        """Return each box and how much deeper the next one is: 1 has children, negative closes parents."""
        depths = [box.depth for box in self.boxes] + [0]
        return tuple((box, depths[at + 1] - box.depth) for at, box in enumerate(self.boxes))

    def select_rows(self, max_rows: int) -> tuple[IcicleBox, ...]:
        """Return the widest boxes in order; parents are at least as wide as their children."""
        order = sorted(
            range(len(self.boxes)), key=lambda at: (-self.boxes[at].width, self.boxes[at].depth, at)
        )
        return tuple(self.boxes[at] for at in sorted(order[:max_rows]))


class LinePoint(Struct, frozen=True, kw_only=True):
    """A point of a line, in percent of the drawing, and its tooltip; ``label``: drawn beside it."""

    x: float
    y: float
    text: str
    label: str = ""


class Line(Struct, frozen=True, kw_only=True):
    """A named line, or with ``is_joined`` False only its points; ``is_muted``: grey."""

    name: str
    points: tuple[LinePoint, ...]
    is_joined: bool = True
    is_muted: bool = False

    @property
    def segments(self) -> tuple[tuple[LinePoint, LinePoint], ...]:
        """Return the segments of the line as pairs of points."""
        return tuple(pairwise(self.points)) if self.is_joined else ()


class LineChart(Struct, frozen=True, kw_only=True):
    """Up to four lines with both axes; a table on the page has the same numbers.

    ``limit``: a line across the horizontal axis.
    """

    title: str
    lines: tuple[Line, ...]
    heights: tuple[AxisMark, ...]
    marks: tuple[AxisMark, ...]
    x_title: str
    y_title: str
    limit: AxisMark | None = None


class StepLane(Struct, frozen=True, kw_only=True):
    """A lane of a step chart: its place in px, and an SVG path for each kind of slice."""

    name: str
    full_name: str
    top: int
    height: int
    paths: tuple[tuple[str, str], ...]


class StepRow(Struct, frozen=True, kw_only=True):
    """A rank of a step chart: its place in px, what is said of it, its lanes."""

    name: str
    notes: tuple[str, ...]
    top: int
    lanes: tuple[StepLane, ...]


class StepArrow(Struct, frozen=True, kw_only=True):
    """An arrow from a wait to the arrival that ended it: x in percent, y in px, and what it says."""

    start: float
    start_top: int
    end: float
    end_top: int
    text: str


class StepChart(Struct, frozen=True, kw_only=True):
    """One step of all ranks: a coarse drawing in a view box 1000 wide, and the slices to read and zoom.

    ``rows`` match ``overview.rows``; ``waits``: the longest waits as sentences.
    """

    title: str
    rows: tuple[StepRow, ...]
    arrows: tuple[StepArrow, ...]
    marks: tuple[AxisMark, ...]
    height: int
    legend: tuple[LegendEntry, ...]
    waits: tuple[str, ...]
    notes: tuple[str, ...]
    overview: StepOverview


class WaitLane(Struct, frozen=True, kw_only=True):
    """The part of a lane in one row of a wait graph: ``x`` in pixels from the left.

    ``starts``, ``ends``: it comes from the middle of the row, or goes no further. ``joins``: the row waits
    for what the lane leads to. ``arrives``: it leads to this row.
    """

    x: int
    starts: bool
    ends: bool
    joins: bool
    arrives: bool
    is_cause: bool


class WaitRow(Struct, frozen=True, kw_only=True):
    """The name of a box of ranks, or (``is_wait``) one of its waits, and the lanes beside it."""

    text: str
    mark: str = ""
    is_cause: bool = False
    is_wait: bool = False
    lanes: tuple[WaitLane, ...] = ()


class WaitGraph(Struct, frozen=True, kw_only=True):
    """Boxes of ranks with arrows to what they wait for; ``width``: of all lanes, in pixels.

    ``text``: replaces it in outputs without drawings.
    """

    title: str
    width: int
    rows: tuple[WaitRow, ...]
    notes: tuple[str, ...]
    text: Code


Text = VerdictBlock | Paragraph | Note | Code | ItemList | KeyFigures | Facts | Table | Card
Drawing = Bars | HeatMap | AreaChart | LineChart | Icicle | StepChart | WaitGraph
Block = Text | Drawing


class Section(Struct, frozen=True, kw_only=True):
    """A heading and the blocks below it.

    ``lead``: the question it answers; ``note``: what the numbers are.  HTML folds tables of ``fold_rows``
    rows or more.  ``detail``: Markdown folds the section and the terminal omits it.
    """

    anchor: str
    title: str
    blocks: tuple[Block, ...]
    lead: str = ""
    note: str = ""
    detail: bool = False
    fold_rows: int = 24


class Page(Struct, frozen=True, kw_only=True):
    """A complete page.

    ``kind``: type of the page, such as ``zprof report``; ``subject``: the run or job.  ``repeat_verdict``:
    the terminal repeats the verdict at the end, the part of a CI log that people read.
    """

    kind: str
    subject: str
    head: tuple[Block, ...]
    sections: tuple[Section, ...]
    made_by: str
    data_command: str
    repeat_verdict: bool = False

    @property
    def verdict(self) -> VerdictBlock | None:
        """Return the verdict, if the page has one."""
        return next((block for block in self.head if isinstance(block, VerdictBlock)), None)


def make_section(
    anchor: str,
    title: str,
    lead: str,
    *blocks: Block | None,
    note: str = "",
    detail: bool = False,
    fold_rows: int = 24,
) -> tuple[Section, ...]:
    """Return a section with the non-empty blocks, if any; a table without rows is empty."""
    known = (block for block in blocks if block is not None)
    present = tuple(block for block in known if not isinstance(block, Table) or block.rows)
    if not present:
        return ()
    section = Section(
        anchor=anchor, title=title, lead=lead, blocks=present, note=note, detail=detail, fold_rows=fold_rows
    )
    return (section,)
