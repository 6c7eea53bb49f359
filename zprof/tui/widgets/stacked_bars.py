"""The memory bars widget: one bar per rank on one scale, one part per tenant, and a legend.

The legend lists the bytes of one rank.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import Static

from zprof.base.formatting import printable, shorten
from zprof.model.cursor import Cursor, get, read
from zprof.model.memory import RankMemory
from zprof.model.quantities import Aggregation, Value
from zprof.model.report import Report
from zprof.model.tenants import DISPLAY_ORDER
from zprof.reports.pages.memory import build_tenant_table, describe_attribution
from zprof.reports.pages.tenants import (
    OUTSIDE_LIVE_TERMS,
    UNTAGGED,
    largest_rank,
    sort_by_peak,
    tenant_name,
)
from zprof.reports.table import Cell, Mark, Marked, Row, Table
from zprof.tui.missing_memory import explain_missing_rank
from zprof.tui.session import Selection
from zprof.tui.table_view import get_text
from zprof.tui.theme import TENANTS, Pen
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.text import render_cell, render_parts

#: Maximum bars per page; a terminal shows as many as fit.
MAX_BARS = 32
#: Minimum used share of device memory to scale bars by the device; shorter bars would be unreadable.
_MIN_DEVICE_RATIO = 0.1


class RankBar(Struct, frozen=True, kw_only=True):
    """One rank at its peak.

    ``parts``: colour name and bytes. ``moment``: step and phase of the peak.
    """

    rank: int
    parts: tuple[tuple[str, int], ...]
    peak: Value
    moment: str
    is_subject: bool


class Stacks(Struct, frozen=True, kw_only=True):
    """Bars in order of interest on one scale; the tenants of rank ``subject`` are the legend.

    ``window``: steps with recorded memory, if known. ``order``: all measured ranks, in the
    order of the up and down keys. ``total``: cells of the line below the legend.
    """

    bars: tuple[RankBar, ...]
    order: tuple[int, ...]
    subject: int
    whole: Value
    whole_is: str
    window: str
    tenants: Table
    total: tuple[Cell, ...]
    notes: tuple[tuple[Cell, ...], ...]

    @property
    def legend(self) -> tuple[Row, ...]:
        """The rows of the legend, without the sum, which has its own line."""
        return tuple(row for row in self.tenants.rows if not row.total)


def build_stacks(report: Report, selected: Selection) -> Stacks | None:
    """Return the bars, or None if no memory was measured."""
    ranks = Cursor(report).memory.per_rank
    subject = find_subject(report, selected)
    if subject is None:
        return None
    subject_index = get(ranks).index(subject)
    whole, whole_is = _find_scale(report)
    return Stacks(
        bars=tuple(
            _build_bar(ranks[index], is_subject=index == subject_index)
            for index in sort_indices(get(ranks), subject_index)[:MAX_BARS]
        ),
        order=tuple(sorted(rank.rank for rank in get(ranks))),
        subject=subject.rank,
        whole=whole,
        whole_is=whole_is,
        window=_format_window(report),
        tenants=build_tenant_table(ranks[subject_index]),
        total=_build_total(ranks[subject_index]),
        notes=tuple(_build_notes(report, selected, subject)),
    )


def find_subject(report: Report, selected: Selection) -> RankMemory | None:
    """Return the selected rank, or the rank with the largest peak if the selected rank was not measured."""
    ranks = report.memory.per_rank
    return next((rank for rank in ranks if rank.rank == selected.rank), None) or largest_rank(ranks)


def sort_indices(ranks: Sequence[RankMemory], subject: int) -> list[int]:
    """Sort rank indices: the subject, the largest peak, the smallest peak, then the rest by size."""
    by_size = sort_by_peak(ranks)
    return list(dict.fromkeys([subject, *by_size[:1], *by_size[-1:], *by_size]))


def _format_window(report: Report) -> str:
    """Format the steps of the memory window as ``steps 2-3``; empty if unknown."""
    steps = report.run.memory_steps
    if not steps:
        return ""
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {min(steps)}-{max(steps)}"


def _build_bar(place: Cursor, *, is_subject: bool) -> RankBar:
    rank: RankMemory = get(place)
    tenants = [(tenant.value, rank.tenants.get(tenant, 0)) for tenant in DISPLAY_ORDER]
    outside = [(name.removesuffix("_bytes"), getattr(rank, name) or 0) for name in OUTSIDE_LIVE_TERMS]
    step = f"step {rank.peak_step}" if rank.peak_step >= 0 else ""
    return RankBar(
        rank=rank.rank,
        parts=(*tenants, (UNTAGGED, rank.untagged_bytes), *outside),
        peak=read(place.peak_bytes),
        moment=" ".join(part for part in (step, rank.peak_phase) if part),
        is_subject=is_subject,
    )


def _find_scale(report: Report) -> tuple[Value, str]:
    """Return the size of a full bar and its name: device memory, or the largest use on any rank."""
    memory = report.memory
    used = [_read_used(rank) for rank in Cursor(report).memory.per_rank]
    largest = max(used, key=lambda value: value.number or 0)
    totals = [entry.device_total_bytes or 0 for entry in memory.devices]
    peak = max(rank.peak_bytes for rank in memory.per_rank)
    if totals and max(totals) * _MIN_DEVICE_RATIO <= peak and (largest.number or 0) <= max(totals):
        device = Cursor(report).memory.devices[totals.index(max(totals))]
        return read(device.device_total_bytes), "device memory"
    return largest, "the largest rank"


def _read_used(rank: Cursor) -> Value:
    """Return the total memory of a rank's process, if known."""
    known = [rank[name] for name in OUTSIDE_LIVE_TERMS if get(rank[name]) is not None]
    return read(rank.peak_bytes, *known, how=Aggregation.SUM) if known else read(rank.peak_bytes)


def _build_total(place: Cursor) -> tuple[Cell, ...]:
    """Build the cells of the line below the legend: the tenant sum and the process total."""
    rank: RankMemory = get(place)
    cells: tuple[Cell, ...] = (
        Marked("sum", Mark.TITLE),
        read(place.peak_bytes),
        f"allocated, rank {rank.rank}",
    )
    if all(getattr(rank, name) is None for name in OUTSIDE_LIVE_TERMS):
        return (*cells, Marked("· reserved, outside PyTorch: unknown (g)", Mark.MUTED))
    total_name = "reserved" if rank.non_pytorch_bytes is None else "used by the process"
    return (*cells, "·", _read_used(place), total_name)


def _build_notes(report: Report, selected: Selection, subject: RankMemory) -> Iterator[tuple[Cell, ...]]:
    """Yield notes on the rank and its bars, as cells."""
    if selected.rank is not None and subject.rank != selected.rank:
        text = f"rank {selected.rank}: {explain_missing_rank(report, selected.rank)}"
        yield (Marked(text, Mark.DOUBTFUL),)
    if note := describe_attribution(subject):
        yield (note,)
    spread = report.memory.spread
    if spread is None or not spread.difference_bytes:
        return
    place = Cursor(report).memory.spread
    tenant = (
        (f"· {tenant_name(spread.tenant)}", read(place.delta_bytes[spread.tenant], signed=True))
        if spread.tenant
        else ()
    )
    yield (
        f"rank {spread.largest_rank} uses",
        read(place.difference_bytes),
        f"more than rank {spread.smallest_rank}",
        *tenant,
    )


class StackedBars(Static, can_focus=True):
    """Draws :class:`Stacks` with a cursor on one legend tenant."""

    class Chosen(Message):
        """Another rank was selected."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    def __init__(self, *, id: str | None = None) -> None:
        """Create an empty widget; ``max_bars`` and ``max_notes`` limit what it draws."""
        super().__init__("", id=id)
        self.stacks: Stacks | None = None
        self.max_bars, self.max_notes = 4, 1
        self.cursor = 0

    @property
    def table(self) -> Table | None:
        """The legend as a table."""
        return self.stacks.tenants if self.stacks else None

    def show(self, stacks: Stacks) -> None:
        """Show these bars."""
        self.stacks = stacks
        self.cursor = min(self.cursor, len(stacks.legend) - 1)
        self.redraw()

    def list_shown_bars(self) -> list[RankBar]:
        """Return as many bars as fit, in rank order."""
        return sorted(self.stacks.bars[: self.max_bars], key=lambda entry: entry.rank) if self.stacks else []

    def shown_figures(self) -> list[Value]:
        """Return the numbers of the scale, bar peaks, legend with sum, and notes."""
        if self.stacks is None:
            return []
        legend = [line.cells[1] for line in self.stacks.legend]
        notes = [cell for note in self.stacks.notes[: self.max_notes] for cell in note]
        cells = [*legend, *self.stacks.total, *notes]
        numbers = [cell for cell in cells if isinstance(cell, Value)]
        return [self.stacks.whole, *(entry.peak for entry in self.list_shown_bars()), *numbers]

    def get_focused_line(self) -> tuple[Row, Cell] | None:
        """Return the line and cell of the tenant under the cursor."""
        if self.stacks is None:
            return None
        line = self.stacks.legend[self.cursor]
        return line, line.cells[1]

    def open(self) -> None:
        """Open the bytes of the tenant under the cursor."""
        focused = self.get_focused_line()
        if self.stacks is not None and focused is not None:
            self.post_message(FactTable.Opened(self.stacks.tenants, *focused))

    def move_horizontally(self, by: int) -> None:
        """Move to another tenant."""
        if self.stacks is not None:
            self.cursor = max(0, min(len(self.stacks.legend) - 1, self.cursor + by))
            self.redraw()

    def move_vertically(self, by: int) -> None:
        """Select another rank."""
        if self.stacks is None:
            return
        order = self.stacks.order
        index = max(0, min(len(order) - 1, order.index(self.stacks.subject) + by))
        if order[index] != self.stacks.subject:
            self.post_message(self.Chosen(order[index]))

    def on_resize(self, event: events.Resize) -> None:
        """Redraw for the new width."""
        self.redraw()

    def on_focus(self, event: events.Focus) -> None:
        """Show the cursor."""
        self.redraw()

    def on_blur(self, event: events.Blur) -> None:
        """Hide the cursor."""
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        """Select the clicked bar's rank, or move to the clicked tenant of the legend."""
        bars = self.list_shown_bars()
        row = event.y - 1
        if 0 <= row < len(bars):
            self.post_message(self.Chosen(bars[row].rank))
        elif self.stacks is not None and row >= len(bars):
            rows = layout_legend(self.stacks.legend, self.size.width)
            item = find_item(rows, row - len(bars), event.x)
            if item != NOT_FOUND:
                self.cursor = item
                self.redraw()

    def redraw(self) -> None:
        """Draw all lines for the current width."""
        if self.stacks is not None and self.size.width:
            limits = (self.max_bars, self.max_notes)
            lines = draw_bars(self.stacks, self.size.width, *limits, self.cursor, Pen.for_widget(self))
            self.styles.height = len(lines)
            self.update(Text("\n").join(lines))


_SHORT_NAMES = (("communication ", "comm. "), ("temporary ", "temp. "), ("optimizer state", "optimizer"))
_MOMENT_WIDTH = 22
_MIN_BAR = 10
#: No legend item is at the clicked position.
NOT_FOUND = -1


def draw_bars(stacks: Stacks, width: int, max_bars: int, max_notes: int, cursor: int, pen: Pen) -> list[Text]:
    """Draw all lines; ``cursor``: legend index marked while the widget has the focus."""
    # The first `max_bars` bars, in rank order.
    bars = sorted(stacks.bars[:max_bars], key=lambda entry: entry.rank)
    moment_width = max((cell_len(_format_moment(entry)) for entry in bars), default=0)
    shown = len(bars)
    peaks = f"own peaks, memory window ({stacks.window})" if stacks.window else "each rank at its own peak"
    shown_ranks = f" · {shown} of {len(stacks.order)} ranks" if shown < len(stacks.order) else ""
    headline = f" {peaks}{shown_ranks} · full bar {stacks.whole.text}, {stacks.whole_is}"
    texts = []
    for row in layout_legend(stacks.legend, width):
        text = Text(no_wrap=True, end="")
        for index, label, column in row:
            paint = TENANTS[stacks.legend[index].key]
            is_selected = pen.focused and index == cursor
            text.append(" " * (column - cell_len(text.plain)))
            text.append(paint.shown(ascii_only=pen.ascii_only), style=paint.colour(pen.look))
            text.append(f" {label}", style="reverse bold" if is_selected else "")
        texts.append(text)
    for cells in (stacks.total, *stacks.notes[:max_notes]):
        text = Text(" ", no_wrap=True, end="").join(render_cell(cell, pen.look) for cell in cells)
        text.truncate(width, overflow="ellipsis")
        texts.append(text)
    return [
        pen.start_headline().append(shorten(headline, width - 1), style=pen.head_style),
        *(_draw_bar(entry, stacks.whole.number or 0, width, moment_width, pen) for entry in bars),
        *texts,
    ]


def _draw_bar(entry: RankBar, full_bar: float, width: int, moment_width: int, pen: Pen) -> Text:
    mark = pen.pick("▶", ">") if entry.is_subject else " "
    style = "bold" if entry.is_subject else ""
    text = Text(f"{mark} rank {entry.rank:<4} ", style=style, no_wrap=True, end="")
    size = f" {entry.peak.text}"
    bar_width = max(_MIN_BAR, width - len(text) - 1 - max(11, len(size)) - moment_width - 2)
    parts = [(TENANTS[name], float(size_bytes)) for name, size_bytes in entry.parts]
    drawn = render_parts(parts, bar_width, full_bar, pen)
    text.append_text(drawn).append(" " * (bar_width - len(drawn.plain)) + pen.pick("│", "|"))
    return text.append(f"{size:>11}  {_format_moment(entry)}", style=style)


def _format_moment(entry: RankBar) -> str:
    return shorten(printable(entry.moment), _MOMENT_WIDTH)


def layout_legend(lines: Sequence[Row], width: int) -> list[list[tuple[int, str, int]]]:
    """Return (index, text, column) of the legend items per row, in as few rows as possible."""
    for columns in range(len(lines), 0, -1):
        for shorter in (False, True):
            items = [_format_item(line, shorter=shorter) for line in lines]
            widths = [max(len(item) for item in items[i::columns]) + 4 for i in range(columns)]
            if sum(widths) - 2 <= width or (columns == 1 and shorter):
                starts = [sum(widths[:i]) for i in range(columns)]
                placed = [(i, item, starts[i % columns]) for i, item in enumerate(items)]
                return [placed[i : i + columns] for i in range(0, len(placed), columns)]
    return []


def _format_item(line: Row, *, shorter: bool) -> str:
    name, size = (get_text(line.cells[index]) for index in (0, 1))
    for long, short in _SHORT_NAMES if shorter else ():
        name = name.replace(long, short)
    return f"{name} {size}"


def find_item(rows: list[list[tuple[int, str, int]]], row: int, x: int) -> int:
    """Return the index of the legend item at a position, or `NOT_FOUND`."""
    items = rows[row] if 0 <= row < len(rows) else []
    return next(
        (index for index, label, column in items if column <= x <= column + len(label) + 2), NOT_FOUND
    )
