"""Draw blocks of a page as SVG documents: a table with bars, a heat map, stacked bars, lanes over time.

SVG documents consist of lines, labels and boxes; all text is made printable and escaped here.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from xml.sax.saxutils import escape

from msgspec import Struct

from zprof.base.formatting import format_ns, printable, shorten
from zprof.reports.layout import wrap
from zprof.reports.page import Bars, HeatMap, LegendEntry
from zprof.reports.table import Bar, Kind, Table, format_cell

WIDTH = 960
_MARGIN, _TOP, _ROW, _BAR = 16, 48, 24, 16
_NAME_WIDTH, _NUMBER_WIDTH = 190, 84
#: Heat map colours, lowest first (cividis), and the text colours on them.
_HEAT = (
    ("#00224e", "#fff"), ("#123570", "#fff"), ("#3b496c", "#fff"), ("#575d6d", "#fff"), ("#707173", "#fff"),
    ("#8a8678", "#111"), ("#a59c74", "#111"), ("#c3b369", "#111"), ("#e1cc55", "#111"), ("#fee838", "#111"),
)  # fmt: skip
#: Colours of ledger terms, safe for colour-blind readers on light and dark backgrounds.
TIME_COLOURS = {
    "time-compute": "#2a86c0",
    "time-exposed-transfer": "#d0602a",
    "time-exposed-wait": "#cc8a00",
    "time-exposed-memcpy": "#b9639a",
    "time-overlapped": "#4aa98c",
    "time-host": "#a9b4bf",
    "time-idle": "#8c8c8c",
    "time-unexplained": "#8c8c8c",
    "time-sum": "#5c6770",
}
#: Average width of a label character, in pixels.
CHARACTER_WIDTH = 6.6
_NOTE_HEIGHT = 18
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.m{fill:#666}.t{font-size:14px;font-weight:600}"
    ".g{stroke:#ccc}.s{stroke:#888;stroke-dasharray:3 3}.p{stroke:#222}"
    "@media(prefers-color-scheme:dark){rect.b{fill:#15181c}text{fill:#e6e6e6}.m{fill:#aaa}.g{stroke:#3a3f45}"
    ".p{stroke:#e6e6e6}}"
)


def draw_bar_table(table: Table, notes: Sequence[str] = ()) -> str:
    """Draw a table with a column of bars: names on the left, then numbers, bars on the right."""
    numbers = [index for index, column in enumerate(table.columns) if column.kind is Kind.NUMBER]
    bars_at = next(index for index, column in enumerate(table.columns) if column.kind is Kind.BAR)
    left = _MARGIN + _NAME_WIDTH + _NUMBER_WIDTH * len(numbers) + 16
    parts = []
    for place, index in enumerate(numbers):
        column = table.columns[index]
        title = fit_text(f"{column.title}, {column.unit or table.unit}".rstrip(", "), _NUMBER_WIDTH)
        parts.append(draw_label("m", _right_of(place), _TOP, title, anchor="end"))
    for line, row in enumerate(table.rows):
        y = _TOP + _ROW * (line + 1)
        parts.append(draw_label("", _MARGIN, y, fit_text(format_cell(row.cells[0]), _NAME_WIDTH)))
        parts += [
            draw_label("", _right_of(place), y, format_cell(row.cells[index]), anchor="end")
            for place, index in enumerate(numbers)
        ]
        bar = row.cells[bars_at]
        if isinstance(bar, Bar):
            scale = WIDTH - _MARGIN - left
            parts += [
                draw_box(
                    left + start * scale, y - 12, max(1.0, (end - start) * scale), _BAR, TIME_COLOURS[colour]
                )
                for colour, start, end in bar.segments
            ]
    height = _TOP + _ROW * (len(table.rows) + 1)
    title = f"{table.title}, {table.note}" if table.note else table.title
    return write_svg(title, WIDTH, height, parts, left=_MARGIN, notes=notes)


def _right_of(place: int) -> float:
    return _MARGIN + _NAME_WIDTH + _NUMBER_WIDTH * (place + 1)


def draw_bars(bars: Bars, notes: Sequence[str] = ()) -> str:
    """Draw stacked bars on a common scale, with names, totals and legend."""
    names = max((len(bar.name) for bar in bars.bars), default=0)
    left = _MARGIN + min(320.0, names * CHARACTER_WIDTH + 12)
    right = WIDTH - _MARGIN - _NUMBER_WIDTH
    parts = [*_draw_legend(bars.legend, _TOP)]
    y = _TOP + _ROW
    for bar in bars.bars:
        parts.append(draw_label("", _MARGIN, y + 12, fit_text(bar.name, left - _MARGIN)))
        scale = (right - left) / 100
        parts += [
            draw_box(
                left + part.start * scale, y, part.width * scale, _BAR, TIME_COLOURS[part.colour], part.text
            )
            for part in bar.segments
        ]
        parts.append(draw_label("m", WIDTH - _MARGIN, y + 12, bar.note, anchor="end"))
        y += _ROW
    return write_svg(bars.title, WIDTH, y + 8, parts, left=_MARGIN, notes=(*bars.notes, *notes))


def draw_heat_map(heat: HeatMap, notes: Sequence[str] = ()) -> str:
    """Draw numbers by row and column on a colour scale, with the scale below."""
    left = _MARGIN + 12 + CHARACTER_WIDTH * max(len(name) for name, _ in heat.rows)
    width = min(64.0, (WIDTH - _MARGIN - left) / max(1, len(heat.columns)))
    parts = [draw_label("m", _MARGIN, _TOP, heat.corner)]
    parts += [
        draw_label("m", left + (index + 0.5) * width, _TOP, fit_text(name, width), anchor="middle")
        for index, name in enumerate(heat.columns)
    ]
    y = _TOP + 8.0
    for name, cells in heat.rows:
        parts.append(draw_label("", _MARGIN, y + 15, name))
        for index, cell in enumerate(cells):
            parts += _draw_heat_cell(left + index * width, y, width, cell.text, cell.level)
        y += 22
    y += 12
    parts.append(draw_label("m", _MARGIN, y + 15, f"from, in {heat.unit}"))
    for index, cell in enumerate(heat.scale):
        parts += _draw_heat_cell(_MARGIN + 90 + index * 56, y, 56, cell.text, cell.level)
    title = f"{heat.title}, {heat.unit}"
    return write_svg(title, WIDTH, round(y + 36), parts, left=_MARGIN, notes=(*heat.notes, *notes))


def _draw_heat_cell(x: float, y: float, width: float, text: str, level: int) -> Iterator[str]:
    if level < 0:
        yield draw_label("m", x + width / 2, y + 15, text, anchor="middle")
        return
    fill, ink = _HEAT[level]
    yield draw_box(x, y, width - 1, 21, fill, text)
    # A style, because the document's rule for all text overrides attributes.
    place = f'x="{x + width / 2:.1f}" y="{y + 15:.1f}" text-anchor="middle"'
    yield f'<text {place} style="fill:{ink}">{escape_text(fit_text(text, width))}</text>'


class LaneSpan(Struct, frozen=True, kw_only=True):
    """A box of a lane: start and end as shares of the axis, colour class, and text.

    ``text``: drawn in the box if it fits, else only a tooltip.
    """

    start: float
    end: float
    colour: str
    text: str = ""
    tooltip: str = ""


_TICKS = 8
_LANE = 26


def draw_lanes(
    title: str,
    length_ns: int,
    lanes: Sequence[tuple[str, Sequence[LaneSpan]]],
    legend: Sequence[LegendEntry],
    notes: Sequence[str] = (),
) -> str:
    """Draw lanes (name and boxes) from top to bottom over a time axis from 0, with a legend."""
    names = max((len(name) for name, _ in lanes), default=0)
    left = _MARGIN + min(200.0, names * CHARACTER_WIDTH + 12)
    scale = WIDTH - _MARGIN - left
    top = _TOP + 18
    bottom = top + _LANE * len(lanes)
    parts = [*_draw_legend(legend, _TOP)]
    for tick in range(_TICKS + 1):
        x = left + scale * tick / _TICKS
        parts.append(draw_line("g", (x, top), (x, bottom)))
        anchor = "start" if tick == 0 else "end" if tick == _TICKS else "middle"
        label = format_ns(length_ns * tick // _TICKS) if tick else "0"
        parts.append(draw_label("m", x, bottom + 16, label, anchor=anchor))
    for index, (name, spans) in enumerate(lanes):
        y = top + _LANE * index
        parts.append(draw_label("", _MARGIN, y + 17, fit_text(name, left - _MARGIN)))
        for span in spans:
            x, width = left + span.start * scale, (span.end - span.start) * scale
            parts.append(draw_box(x, y + 3, width, _LANE - 6, TIME_COLOURS[span.colour], span.tooltip))
            text = fit_text(span.text, width - 6)
            parts += [draw_label("", x + 3, y + 17, text)] if text else []
    return write_svg(title, WIDTH, bottom + 32, parts, left=_MARGIN, notes=notes)


def _draw_legend(entries: Sequence[LegendEntry], y: float) -> Iterator[str]:
    widths = (len(entry.name) * CHARACTER_WIDTH + 34 for entry in entries)
    for entry, x in zip(entries, accumulate(widths, initial=float(_MARGIN)), strict=False):
        yield draw_box(x, y - 11, 12, 12, TIME_COLOURS[entry.colour])
        yield draw_label("m", x + 17, y, entry.name)


def write_svg(
    title: str, width: int, height: int, parts: Iterable[str], *, left: int, notes: Sequence[str] = ()
) -> str:
    """Return a document with the title above the parts and notes below, ``left`` pixels from the edge.

    ``height``: height of title and parts.
    """
    lines = [line for note in notes for line in wrap(note, first="", width=int(width / CHARACTER_WIDTH))]
    notes_at, height = height, height + _NOTE_HEIGHT * len(lines)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape_text(title)}</title><style>{_STYLE}</style>",
            f'<rect class="b" width="{width}" height="{height}" fill="#fff"/>',
            f'<text class="t" x="{left}" y="24">{escape_text(title)}</text>',
            *parts,
            *(
                draw_label("m", left, notes_at + _NOTE_HEIGHT * index + 8, line)
                for index, line in enumerate(lines)
            ),
            "</svg>\n",
        ]
    )


def draw_line(kind: str, start: tuple[float, float], end: tuple[float, float]) -> str:
    """Return a line; ``kind``: ``g`` grid, ``s`` dashed, ``p`` plain."""
    (x1, y1), (x2, y2) = start, end
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def draw_label(kind: str, x: float, y: float, text: str, *, anchor: str = "start") -> str:
    """Return a text element; ``kind``: empty or ``m`` (muted)."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape_text(text)}</text>'


def draw_box(x: float, y: float, width: float, height: float, fill: str, tooltip: str = "") -> str:
    """Return a filled box; a browser shows its tooltip."""
    note = f"<title>{escape_text(tooltip)}</title>" if tooltip else ""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"'
    return f"<rect {place}>{note}</rect>" if note else f"<rect {place}/>"


def fit_text(text: str, width: float) -> str:
    """Return the text, shortened to about ``width`` pixels; empty if not even two characters fit."""
    characters = int(width / CHARACTER_WIDTH)
    return shorten(printable(text), characters) if characters >= 2 else ""


def escape_text(value: str) -> str:
    """Return the text as character data, without control characters."""
    return escape(printable(value))
