"""The memory bars widget: one bar per rank on one scale, one part per tenant, and a legend.

The legend has the bytes of one rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from zprof.model.formatting import printable, shorten
from zprof.tui.figures import Figure
from zprof.tui.presenters.memory import RankBar, Stacks
from zprof.tui.tables import Cell, Line, Table
from zprof.tui.theme import TENANTS, Look, get_look
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.text import render_cell, render_parts


class StackedBars(Static, can_focus=True):
    """Draws :class:`~zprof.tui.presenters.memory.Stacks` with a cursor on one tenant of the legend."""

    class Chosen(Message):
        """Another rank was chosen."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    def __init__(self, *, id: str | None = None) -> None:
        """Create an empty widget; ``most_bars`` and ``most_notes`` limit what it draws."""
        super().__init__("", id=id)
        self.stacks: Stacks | None = None
        self.most_bars, self.most_notes = 4, 1
        self.cursor = 0

    @property
    def table(self) -> Table | None:
        """The legend as a table."""
        return self.stacks.legend if self.stacks else None

    def show(self, stacks: Stacks) -> None:
        """Show these bars."""
        self.stacks = stacks
        self.cursor = min(self.cursor, len(stacks.legend.lines) - 1)
        self.redraw()

    def shown_bars(self) -> list[RankBar]:
        """Return as many bars as fit, in the order of the ranks."""
        return select_bars(self.stacks, self.most_bars) if self.stacks else []

    def shown_figures(self) -> list[Figure]:
        """Return the scale, peaks of the bars, the legend with its sum, and the notes' numbers."""
        if self.stacks is None:
            return []
        legend = [line.cells[1] for line in self.stacks.legend.lines]
        notes = [cell for note in self.stacks.notes[: self.most_notes] for cell in note]
        cells = [*legend, *self.stacks.total, *notes]
        numbers = [cell for cell in cells if isinstance(cell, Figure)]
        return [self.stacks.whole, *(entry.peak for entry in self.shown_bars()), *numbers]

    def focused_line(self) -> tuple[Line, Cell] | None:
        """Return the line and cell of the tenant under the cursor."""
        if self.stacks is None:
            return None
        line = self.stacks.legend.lines[self.cursor]
        return line, line.cells[1]

    def open(self) -> None:
        """Open the bytes of the tenant under the cursor."""
        focused = self.focused_line()
        if self.stacks is not None and focused is not None:
            self.post_message(FactTable.Opened(self.stacks.legend, *focused))

    def along(self, by: int) -> None:
        """Move to another tenant."""
        if self.stacks is not None:
            self.cursor = max(0, min(len(self.stacks.legend.lines) - 1, self.cursor + by))
            self.redraw()

    def across(self, by: int) -> None:
        """Choose another rank."""
        if self.stacks is None:
            return
        order = self.stacks.order
        at = max(0, min(len(order) - 1, order.index(self.stacks.subject) + by))
        if order[at] != self.stacks.subject:
            self.post_message(self.Chosen(order[at]))

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
        """Choose the clicked bar's rank, or move to the clicked tenant of the legend."""
        bars = self.shown_bars()
        row = event.y - 1
        if 0 <= row < len(bars):
            self.post_message(self.Chosen(bars[row].rank))
        elif self.stacks is not None and row >= len(bars):
            rows = layout_legend(self.stacks.legend.lines, self.size.width)
            found = find_item(rows, row - len(bars), event.x)
            if found != NOT_FOUND:
                self.cursor = found
                self.redraw()

    def redraw(self) -> None:
        """Draw all lines for the present width."""
        if self.stacks is not None and self.size.width:
            most = (self.most_bars, self.most_notes)
            lines = draw_bars(self.stacks, self.size.width, *most, self.cursor, Pen.of(self))
            self.styles.height = len(lines)
            self.update(Text("\n").join(lines))


_SHORT_NAMES = (("communication ", "comm. "), ("temporary ", "temp. "), ("optimizer state", "optimizer"))
_MOMENT_WIDTH = 22
_MIN_BAR = 10
#: No legend item is at the clicked position.
NOT_FOUND = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pen:
    """Drawing settings: colour scheme, ASCII or glyphs, and whether the widget has the focus."""

    look: Look
    ascii_only: bool
    focused: bool

    @classmethod
    def of(cls, widget: Widget) -> "Pen":
        """Return the settings for a widget in its present state."""
        ascii_only = bool(getattr(widget.app, "ascii_only", False))
        return cls(look=get_look(widget.app), ascii_only=ascii_only, focused=widget.has_focus)

    def head(self) -> Text:
        """Return the start of a headline, with a mark if the widget has the focus."""
        return Text(self.pick("▸", ">") if self.focused else " ", style="bold", no_wrap=True, end="")

    @property
    def head_style(self) -> str:
        """Style of a headline."""
        return "bold reverse" if self.focused else "bold"

    def pick(self, glyph: str, letter: str) -> str:
        """Return the glyph, or the letter in ASCII mode."""
        return letter if self.ascii_only else glyph


def select_bars(stacks: Stacks, most: int) -> list[RankBar]:
    """Return the first `most` bars, in the order of the ranks."""
    return sorted(stacks.bars[:most], key=lambda entry: entry.rank)


def draw_bars(
    stacks: Stacks, width: int, most_bars: int, most_notes: int, cursor: int, pen: Pen
) -> list[Text]:
    """Draw all lines; ``cursor`` is the legend index that is marked while the widget has the focus."""
    bars = select_bars(stacks, most_bars)
    beside = max((cell_len(_format_moment(entry)) for entry in bars), default=0)
    return [
        _draw_headline(stacks, len(bars), width, pen),
        *(_draw_bar(entry, stacks.whole.value or 0, width, beside, pen) for entry in bars),
        *_draw_legend(stacks.legend.lines, width, cursor, pen),
        *(_draw_cells(cells, width, pen.look) for cells in (stacks.total, *stacks.notes[:most_notes])),
    ]


def _draw_headline(stacks: Stacks, shown: int, width: int, pen: Pen) -> Text:
    peaks = f"own peaks, memory window ({stacks.window})" if stacks.window else "each rank at its own peak"
    some = f" · {shown} of {len(stacks.order)} ranks" if shown < len(stacks.order) else ""
    said = f" {peaks}{some} · full bar {stacks.whole.text}, {stacks.whole_is}"
    return pen.head().append(shorten(said, width - 1), style=pen.head_style)


def _draw_bar(entry: RankBar, whole: float, width: int, beside: int, pen: Pen) -> Text:
    mark = pen.pick("▶", ">") if entry.is_subject else " "
    style = "bold" if entry.is_subject else ""
    text = Text(f"{mark} rank {entry.rank:<4} ", style=style, no_wrap=True, end="")
    size = f" {entry.bound}{entry.peak.text}"
    bar_width = max(_MIN_BAR, width - len(text) - 1 - max(11, len(size)) - beside - 2)
    parts = [(TENANTS[name], float(size_bytes)) for name, size_bytes in entry.parts]
    drawn = render_parts(parts, bar_width, whole, pen.look, ascii_only=pen.ascii_only)
    text.append_text(drawn).append(" " * (bar_width - len(drawn.plain)) + pen.pick("│", "|"))
    return text.append(f"{size:>11}  {_format_moment(entry)}", style=style)


def _format_moment(entry: RankBar) -> str:
    return shorten(printable(entry.moment), _MOMENT_WIDTH)


def _draw_legend(lines: Sequence[Line], width: int, cursor: int, pen: Pen) -> list[Text]:
    texts = []
    for row in layout_legend(lines, width):
        text = Text(no_wrap=True, end="")
        for place, said, column in row:
            paint = TENANTS[lines[place].key]
            under = pen.focused and place == cursor
            text.append(" " * (column - cell_len(text.plain)))
            text.append(paint.shown(ascii_only=pen.ascii_only), style=paint.colour(pen.look))
            text.append(f" {said}", style="reverse bold" if under else "")
        texts.append(text)
    return texts


def layout_legend(lines: Sequence[Line], width: int) -> list[list[tuple[int, str, int]]]:
    """Return (index, text, column) of the legend items per row, in as few rows as fit."""
    for columns in range(len(lines), 0, -1):
        for shorter in (False, True):
            items = [_format_item(line, shorter=shorter) for line in lines]
            widths = [max(len(item) for item in items[at::columns]) + 4 for at in range(columns)]
            if sum(widths) - 2 <= width or (columns == 1 and shorter):
                begins = [sum(widths[:at]) for at in range(columns)]
                placed = [(at, item, begins[at % columns]) for at, item in enumerate(items)]
                return [placed[at : at + columns] for at in range(0, len(placed), columns)]
    return []


def _format_item(line: Line, *, shorter: bool) -> str:
    name, size, by = line.cells[0].text, line.cells[1].text, line.cells[3].text
    for long, short in _SHORT_NAMES if shorter else ():
        name = name.replace(long, short)
    return f"{name} {by if by == '~' else ''}{size}"


def find_item(rows: list[list[tuple[int, str, int]]], row: int, x: int) -> int:
    """Return the index of the legend item at a position, or `NOT_FOUND`."""
    items = rows[row] if 0 <= row < len(rows) else []
    return next((place for place, said, column in items if column <= x <= column + len(said) + 2), NOT_FOUND)


def _draw_cells(cells: Sequence[Cell], width: int, look: Look) -> Text:
    text = Text(" ", no_wrap=True, end="").join(render_cell(cell, look) for cell in cells)
    text.truncate(width, overflow="ellipsis")
    return text
