"""Write SVG documents: lines, labels and boxes; every text is made printable and escaped here."""

from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

from zprof.base.formatting import printable, shorten
from zprof.reports.layout import wrap

#: Colours of the ledger terms that a step's time is spent on, safe for colour-blind readers on both grounds.
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
#: Average width of a character of the labels, in pixels.
CHARACTER_WIDTH = 6.6
_NOTE_HEIGHT = 18
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.m{fill:#666}.t{font-size:14px;font-weight:600}"
    ".g{stroke:#ccc}.s{stroke:#888;stroke-dasharray:3 3}.p{stroke:#222}"
    "@media(prefers-color-scheme:dark){rect.b{fill:#15181c}text{fill:#e6e6e6}.m{fill:#aaa}.g{stroke:#3a3f45}"
    ".p{stroke:#e6e6e6}}"
)


def write_svg(
    title: str, width: int, height: int, parts: Iterable[str], *, left: int, notes: Sequence[str] = ()
) -> str:
    """Return a document with its title above the parts and notes below, ``left`` pixels from the edge.

    ``height``: of the title and the parts.
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
    """Return a text; ``kind``: empty or ``m`` (muted)."""
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
    """Return the text without control characters, as character data."""
    return escape(printable(value))
