"""Plain text in 80 columns: headings, tables, bars, wrapped lines."""

from collections.abc import Sequence

from zprof.model.printable import display_width, shorten

WIDTH = 80
INDENT = "  "


def heading(title: str, note: str = "") -> str:
    """A title on the left, what the numbers under it mean on the right, shortened where it has no room."""
    note = shorten(note, max(0, WIDTH - display_width(title) - 2))
    space = WIDTH - display_width(title) - display_width(note)
    return f"{title}{' ' * max(2, space)}{note}".rstrip()


def wrap(text: str, *, first: str = INDENT, rest: str | None = None, width: int = WIDTH) -> list[str]:
    """Words of ``text`` in lines of so many columns at most; ``rest`` begins the lines after the first."""
    rest = " " * display_width(first) if rest is None else rest
    lines, line = [], first
    empty = True
    for word in _words(text, width - max(display_width(first), display_width(rest))):
        if not empty and display_width(line) + 1 + display_width(word) > width:
            lines.append(line)
            line, empty = rest, True
        line += word if empty else f" {word}"
        empty = False
    return [*lines, line.rstrip()]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells as columns: the first to the left and shortened where needed, the others to the right.

    The last column may hold a bar: it stands to the left and ends the line.
    """
    columns = range(len(rows[0]))
    widths = [max(display_width(row[column]) for row in rows) for column in columns]
    spare = WIDTH - len(INDENT) - sum(widths[1:]) - 2 * (len(widths) - 1)
    widths[0] = min(widths[0], spare)
    return [_line(row, widths) for row in rows]


def bar(share: float, width: int) -> str:
    """A bar of ``share`` (0 to 1) of ``width`` columns, in eighths; nothing only for nothing."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if share > 0 and eighths == 0:
        eighths = 1
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first = shorten(row[0], widths[0])
    cells = [first + " " * (widths[0] - display_width(first))]
    for cell, width in zip(row[1:], widths[1:], strict=True):
        space = " " * (width - display_width(cell))
        cells.append(cell + space if _is_bar(cell) else space + cell)
    return (INDENT + "  ".join(cells)).rstrip()


def _is_bar(cell: str) -> bool:
    return cell[:1] in "█▏▎▍▌▋▊▉"


def _words(text: str, width: int) -> list[str]:
    """Words, and those that no line can hold in pieces."""
    words: list[str] = []
    for word in text.split(" "):
        left = word
        while display_width(left) > width:
            piece = shorten(left, width + 1)[:-1] or left[:1]
            words.append(piece)
            left = left[len(piece) :]
        words.append(left)
    return words
