"""Two runs side by side: the verdict, what differs in how they were run, then leaf by leaf."""

from collections.abc import Sequence

from zprof.model.printable import display_width, printable, shorten
from zprof.model.side_by_side import Row, Section, Setting, SideBySide
from zprof.reports.escape_log import log_line
from zprof.reports.shown.compare_presenter import (
    UNKNOWN,
    change,
    figure,
    label,
    shown_rows,
    shown_settings,
)
from zprof.reports.shown.run_words import describe_run, steps_text
from zprof.reports.text.layout import INDENT, heading, page_width, wrap
from zprof.reports.text.summary import modelled_in

_CELL, _CHANGE = 16, 9
_WIDE_CELL = 20
#: Sections of many rows: kernels.
_MOST_ROWS = 12
_MOST_RANKS = 4


def render(both: SideBySide, *, everything: bool = False) -> str:
    """The page; with ``everything`` also settings that are equal and rows that are zero or unknown."""
    lines = wrap(printable(both.verdict.sentence))
    lines += ["", *wrap(describe_run(both.a, steps_text(both.a.steps)), first="  A  ")]
    lines += wrap(describe_run(both.b, steps_text(both.b.steps)), first="  B  ")
    lines += modelled_in([both.b, both.a])
    lines += _settings(both, everything=everything)
    sections = both.sections if everything else _few_ranks(both.sections)
    for section in sections:
        lines += _section(section, everything=everything)
    if not everything:
        lines += ["", "  left out: what is 0 or unknown in both, and settings that are equal: --all"]
    return "\n".join(log_line(printable(line)) for line in lines) + "\n"


def _few_ranks(sections: Sequence[Section]) -> list[Section]:
    """Without the ranks of a large job one by one."""
    ranks = [section for section in sections if section.title.startswith("rank ")]
    single = [section for section in ranks if section.title.count(" ") == 1]
    dropped = {section.title for section in (*single[_MOST_RANKS:], *ranks[2 * _MOST_RANKS :])}
    return [section for section in sections if section.title not in dropped]


def _settings(both: SideBySide, *, everything: bool) -> list[str]:
    found = shown_settings(both.settings, everything=everything)
    title = "SETTINGS" if everything else "DIFFERENT SETTINGS"
    if not found:
        return ["", heading(title), "  none"]
    lines = ["", heading(title, "A, then B")]
    for setting in found:
        lines += _setting(setting)
    return lines


def _setting(setting: Setting) -> list[str]:
    word = setting.name if setting.where == "environment" else setting.name.replace("_", " ")
    name = printable(f"{setting.where}: {word}")
    before, after = (printable(UNKNOWN if value is None else value) for value in (setting.a, setting.b))
    width = page_width() - len(INDENT) - 2 * (_WIDE_CELL + 2)
    if max(display_width(before), display_width(after)) <= _WIDE_CELL and display_width(name) <= width:
        return [f"{INDENT}{_left(name, width)}  {_left(before, _WIDE_CELL)}  {after}"]
    return [
        shorten(f"{INDENT}{name}", page_width()),
        *wrap(before, first="    A  "),
        *wrap(after, first="    B  "),
    ]


def _section(section: Section, *, everything: bool) -> list[str]:
    rows = shown_rows(section, everything=everything)
    if not rows:
        return []
    shown = rows if everything else rows[:_MOST_ROWS]
    title = shorten(printable(section.title).upper(), page_width() - display_width(section.note) - 2)
    lines = ["", heading(title, section.note)]
    for row in shown:
        lines += _row(row)
    if len(shown) < len(rows):
        lines.append(f"{INDENT}and {len(rows) - len(shown)} more: --all")
    return lines


def _row(row: Row) -> list[str]:
    """A line; a name or a text that has no room in it gets lines of its own."""
    name = printable(label(row))
    cells = [printable(figure(value, row.unit)) for value in (row.a, row.b)]
    if row.unit == "text" and max(map(display_width, cells)) > _CELL:
        sides = [
            line for side, cell in zip("AB", cells, strict=True) for line in wrap(cell, first=f"    {side}  ")
        ]
        return [shorten(f"{INDENT}{name}", page_width()), *sides]
    head = [shorten(f"{INDENT}{name}", page_width())] if display_width(name) > _name_width() else []
    first = _left("" if head else name, _name_width())
    numbers = "  ".join(_right(shorten(cell, _CELL), _CELL) for cell in cells)
    return [*head, f"{INDENT}{first}  {numbers}  {_right(change(row), _CHANGE)}".rstrip()]


def _left(text: str, width: int) -> str:
    return text + " " * max(0, width - display_width(text))


def _right(text: str, width: int) -> str:
    return " " * max(0, width - display_width(text)) + text


def _name_width() -> int:
    return page_width() - 2 * len(INDENT) - 2 * (_CELL + 2) - (_CHANGE + 2)
