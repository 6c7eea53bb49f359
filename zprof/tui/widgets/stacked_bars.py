"""The memory bars widget: one bar per rank on one scale, one part per tenant, and a legend.

The legend has the bytes of one rank.
"""

from collections.abc import Sequence

from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from zprof.model.formatting import printable, shorten
from zprof.model.quantities import Value
from zprof.reports.table import Cell, Row, Table
from zprof.tui.presenters.memory import RankBar, Stacks
from zprof.tui.table_view import get_text
from zprof.tui.theme import TENANTS, Look, get_look
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.text import render_cell, render_parts


class StackedBars(Static, can_focus=True):
    """Draws :class:`~zprof.tui.presenters.memory.Stacks` with a cursor on one tenant of the legend."""

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
        return self.stacks.legend if self.stacks else None

    def show(self, stacks: Stacks) -> None:
        """Show these bars."""
        self.stacks = stacks
        self.cursor = min(self.cursor, len(stacks.legend.rows) - 1)
        self.redraw()

    def list_shown_bars(self) -> list[RankBar]:
        """Return as many bars as fit, in the order of the ranks."""
        return select_bars(self.stacks, self.max_bars) if self.stacks else []

    def shown_figures(self) -> list[Value]:
        """Return the scale, peaks of the bars, the legend with its sum, and the notes' numbers."""
        if self.stacks is None:
            return []
        legend = [line.cells[1] for line in self.stacks.legend.rows]
        notes = [cell for note in self.stacks.notes[: self.max_notes] for cell in note]
        cells = [*legend, *self.stacks.total, *notes]
        numbers = [cell for cell in cells if isinstance(cell, Value)]
        return [self.stacks.whole, *(entry.peak for entry in self.list_shown_bars()), *numbers]

    def get_focused_line(self) -> tuple[Row, Cell] | None:
        """Return the line and cell of the tenant under the cursor."""
        if self.stacks is None:
            return None
        line = self.stacks.legend.rows[self.cursor]
        return line, line.cells[1]

    def open(self) -> None:
        """Open the bytes of the tenant under the cursor."""
        focused = self.get_focused_line()
        if self.stacks is not None and focused is not None:
            self.post_message(FactTable.Opened(self.stacks.legend, *focused))

    def move_horizontally(self, by: int) -> None:
        """Move to another tenant."""
        if self.stacks is not None:
            self.cursor = max(0, min(len(self.stacks.legend.rows) - 1, self.cursor + by))
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
            rows = layout_legend(self.stacks.legend.rows, self.size.width)
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


class Pen(Struct, frozen=True, kw_only=True):
    """Drawing settings: colour scheme, ASCII or glyphs, and whether the widget has the focus."""

    look: Look
    ascii_only: bool
    focused: bool

    @classmethod
    def for_widget(cls, widget: Widget) -> "Pen":
        """Return the settings for a widget in its current state."""
        ascii_only = bool(getattr(widget.app, "ascii_only", False))
        return cls(look=get_look(widget.app), ascii_only=ascii_only, focused=widget.has_focus)

    def start_headline(self) -> Text:
        """Return the start of a headline, with a mark if the widget has the focus."""
        return Text(self.pick("▸", ">") if self.focused else " ", style="bold", no_wrap=True, end="")

    @property
    def head_style(self) -> str:
        """Style of a headline."""
        return "bold reverse" if self.focused else "bold"

    def pick(self, glyph: str, letter: str) -> str:
        """Return the glyph, or the letter in ASCII mode."""
        return letter if self.ascii_only else glyph


def select_bars(stacks: Stacks, max_bars: int) -> list[RankBar]:
    """Return the first `max_bars` bars, in the order of the ranks."""
    return sorted(stacks.bars[:max_bars], key=lambda entry: entry.rank)


def draw_bars(stacks: Stacks, width: int, max_bars: int, max_notes: int, cursor: int, pen: Pen) -> list[Text]:
    """Draw all lines; ``cursor`` is the legend index that is marked while the widget has the focus."""
    bars = select_bars(stacks, max_bars)
    moment_width = max((cell_len(_format_moment(entry)) for entry in bars), default=0)
    return [
        _draw_headline(stacks, len(bars), width, pen),
        *(_draw_bar(entry, stacks.whole.number or 0, width, moment_width, pen) for entry in bars),
        *_draw_legend(stacks.legend.rows, width, cursor, pen),
        *(_draw_cells(cells, width, pen.look) for cells in (stacks.total, *stacks.notes[:max_notes])),
    ]


def _draw_headline(stacks: Stacks, shown: int, width: int, pen: Pen) -> Text:
    peaks = f"own peaks, memory window ({stacks.window})" if stacks.window else "each rank at its own peak"
    shown_ranks = f" · {shown} of {len(stacks.order)} ranks" if shown < len(stacks.order) else ""
    headline = f" {peaks}{shown_ranks} · full bar {stacks.whole.text}, {stacks.whole_is}"
    return pen.start_headline().append(shorten(headline, width - 1), style=pen.head_style)


def _draw_bar(entry: RankBar, full_bar: float, width: int, moment_width: int, pen: Pen) -> Text:
    mark = pen.pick("▶", ">") if entry.is_subject else " "
    style = "bold" if entry.is_subject else ""
    text = Text(f"{mark} rank {entry.rank:<4} ", style=style, no_wrap=True, end="")
    size = f" {entry.bound}{entry.peak.text}"
    bar_width = max(_MIN_BAR, width - len(text) - 1 - max(11, len(size)) - moment_width - 2)
    parts = [(TENANTS[name], float(size_bytes)) for name, size_bytes in entry.parts]
    drawn = render_parts(parts, bar_width, full_bar, pen.look, ascii_only=pen.ascii_only)
    text.append_text(drawn).append(" " * (bar_width - len(drawn.plain)) + pen.pick("│", "|"))
    return text.append(f"{size:>11}  {_format_moment(entry)}", style=style)


def _format_moment(entry: RankBar) -> str:
    return shorten(printable(entry.moment), _MOMENT_WIDTH)


def _draw_legend(lines: Sequence[Row], width: int, cursor: int, pen: Pen) -> list[Text]:
    texts = []
    for row in layout_legend(lines, width):
        text = Text(no_wrap=True, end="")
        for index, label, column in row:
            paint = TENANTS[lines[index].key]
            is_selected = pen.focused and index == cursor
            text.append(" " * (column - cell_len(text.plain)))
            text.append(paint.shown(ascii_only=pen.ascii_only), style=paint.colour(pen.look))
            text.append(f" {label}", style="reverse bold" if is_selected else "")
        texts.append(text)
    return texts


def layout_legend(lines: Sequence[Row], width: int) -> list[list[tuple[int, str, int]]]:
    """Return (index, text, column) of the legend items per row, in as few rows as fit."""
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
    name, size, mark = (get_text(line.cells[index]) for index in (0, 1, 3))
    for long, short in _SHORT_NAMES if shorter else ():
        name = name.replace(long, short)
    return f"{name} {mark if mark == '~' else ''}{size}"


def find_item(rows: list[list[tuple[int, str, int]]], row: int, x: int) -> int:
    """Return the index of the legend item at a position, or `NOT_FOUND`."""
    items = rows[row] if 0 <= row < len(rows) else []
    return next(
        (index for index, label, column in items if column <= x <= column + len(label) + 2), NOT_FOUND
    )


def _draw_cells(cells: Sequence[Cell], width: int, look: Look) -> Text:
    text = Text(" ", no_wrap=True, end="").join(render_cell(cell, look) for cell in cells)
    text.truncate(width, overflow="ellipsis")
    return text
