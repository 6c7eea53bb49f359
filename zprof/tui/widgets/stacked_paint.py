"""Bars of memory as lines of text: the bars, the legend in columns, the sum, the notes."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text
from textual.widget import Widget

from zprof.model.printable import printable, shorten
from zprof.tui.pages.memory import RankBar, Stacks
from zprof.tui.tables import Cell, Line
from zprof.tui.theme.looks import look_of
from zprof.tui.theme.palette import TENANTS, Look
from zprof.tui.widgets.paint import bar, cell_text

_SHORTER = (("communication ", "comm. "), ("temporary ", "temp. "), ("optimizer state", "optimizer"))
_MOMENT = 22
_LEAST_BAR = 10
#: Where nothing of the legend is.
NOT_FOUND = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pen:
    """How to draw: the look, plain letters or glyphs, and whether this part has the focus."""

    look: Look
    ascii_only: bool
    focused: bool

    @classmethod
    def of(cls, widget: Widget) -> "Pen":
        """How a widget is drawn now."""
        ascii_only = bool(getattr(widget.app, "ascii_only", False))
        return cls(look=look_of(widget.app), ascii_only=ascii_only, focused=widget.has_focus)

    def head(self) -> Text:
        """Where a headline begins: with a mark where this part has the focus."""
        return Text(self.pick("▸", ">") if self.focused else " ", style="bold", no_wrap=True, end="")

    @property
    def head_style(self) -> str:
        """Of a headline."""
        return "bold reverse" if self.focused else "bold"

    def pick(self, glyph: str, letter: str) -> str:
        """The glyph, or the letter."""
        return letter if self.ascii_only else glyph


def shown_bars(stacks: Stacks, most: int) -> list[RankBar]:
    """As many as fit, in the order of the ranks."""
    return sorted(stacks.bars[:most], key=lambda entry: entry.rank)


def bars_lines(
    stacks: Stacks, width: int, most_bars: int, most_notes: int, cursor: int, pen: Pen
) -> list[Text]:
    """All lines; ``cursor`` is the place in the legend that is marked while this part has the focus."""
    bars = shown_bars(stacks, most_bars)
    beside = max((cell_len(_moment(entry)) for entry in bars), default=0)
    return [
        _headline(stacks, len(bars), width, pen),
        *(_bar_line(entry, stacks.whole.value or 0, width, beside, pen) for entry in bars),
        *_legend(stacks.legend.lines, width, cursor, pen),
        *(_said(cells, width, pen.look) for cells in (stacks.total, *stacks.notes[:most_notes])),
    ]


def _headline(stacks: Stacks, shown: int, width: int, pen: Pen) -> Text:
    peaks = f"own peaks, memory window ({stacks.window})" if stacks.window else "each rank at its own peak"
    some = f" · {shown} of {len(stacks.order)} ranks" if shown < len(stacks.order) else ""
    said = f" {peaks}{some} · full bar {stacks.whole.text}, {stacks.whole_is}"
    return pen.head().append(shorten(said, width - 1), style=pen.head_style)


def _bar_line(entry: RankBar, whole: float, width: int, beside: int, pen: Pen) -> Text:
    mark = pen.pick("▶", ">") if entry.is_subject else " "
    style = "bold" if entry.is_subject else ""
    text = Text(f"{mark} rank {entry.rank:<4} ", style=style, no_wrap=True, end="")
    size = f" {entry.bound}{entry.peak.text}"
    room = max(_LEAST_BAR, width - len(text) - 1 - max(11, len(size)) - beside - 2)
    parts = [(TENANTS[name], float(size_bytes)) for name, size_bytes in entry.parts]
    drawn = bar(parts, room, whole, pen.look, ascii_only=pen.ascii_only)
    text.append_text(drawn).append(" " * (room - len(drawn.plain)) + pen.pick("│", "|"))
    return text.append(f"{size:>11}  {_moment(entry)}", style=style)


def _moment(entry: RankBar) -> str:
    return shorten(printable(entry.moment), _MOMENT)


def _legend(lines: Sequence[Line], width: int, cursor: int, pen: Pen) -> list[Text]:
    texts = []
    for row in legend_rows(lines, width):
        text = Text(no_wrap=True, end="")
        for place, said, column in row:
            paint = TENANTS[lines[place].key]
            under = pen.focused and place == cursor
            text.append(" " * (column - cell_len(text.plain)))
            text.append(paint.shown(ascii_only=pen.ascii_only), style=paint.colour(pen.look))
            text.append(f" {said}", style="reverse bold" if under else "")
        texts.append(text)
    return texts


def legend_rows(lines: Sequence[Line], width: int) -> list[list[tuple[int, str, int]]]:
    """(place, name and bytes, column) of the items of each row: in columns, in as few rows as fit."""
    for columns in range(len(lines), 0, -1):
        for shorter in (False, True):
            items = [_item(line, shorter=shorter) for line in lines]
            widths = [max(len(item) for item in items[at::columns]) + 4 for at in range(columns)]
            if sum(widths) - 2 <= width or (columns == 1 and shorter):
                begins = [sum(widths[:at]) for at in range(columns)]
                placed = [(at, item, begins[at % columns]) for at, item in enumerate(items)]
                return [placed[at : at + columns] for at in range(0, len(placed), columns)]
    return []


def _item(line: Line, *, shorter: bool) -> str:
    name, size, by = line.cells[0].text, line.cells[1].text, line.cells[3].text
    for long, short in _SHORTER if shorter else ():
        name = name.replace(long, short)
    return f"{name} {by if by == '~' else ''}{size}"


def item_at(rows: list[list[tuple[int, str, int]]], row: int, x: int) -> int:
    """The place in the legend that is drawn there."""
    items = rows[row] if 0 <= row < len(rows) else []
    return next((place for place, said, column in items if column <= x <= column + len(said) + 2), NOT_FOUND)


def _said(cells: Sequence[Cell], width: int, look: Look) -> Text:
    text = Text(" ", no_wrap=True, end="").join(cell_text(cell, look) for cell in cells)
    text.truncate(width, overflow="ellipsis")
    return text
