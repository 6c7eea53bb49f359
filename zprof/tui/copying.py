"""``y`` and ``Y``: the row that is focused as Markdown or JSON, on the clipboard.

Textual asks the terminal for its clipboard by OSC 52.  Whether that was done cannot be known: so the message
says what else there is.
"""

import json
import os
from collections.abc import Callable, Mapping

from zprof.tui.figures import Figure
from zprof.tui.shell import Shell
from zprof.tui.tables import Cell, Line, ShowsTable, Table
from zprof.tui.widgets.fact_table import FactTable

Form = Callable[[Table, Line, Cell], str]
_MARKS = frozenset("\\|`*_[]<>#!&~$")


def copy(app: Shell, form: Form) -> None:
    """The focused row in front, else that of the first table; a page of text says what of it, as a fix."""
    whole = getattr(app.screen, "copies", "")
    if whole:
        app.copy_to_clipboard(whole)
        app.notify(copied_text(os.environ), markup=False)
        return
    table = focused_table(app)
    focused = table.focused_line() if table is not None else None
    if table is None or table.table is None or focused is None:
        app.notify("nothing is focused that can be copied", severity="warning", markup=False)
        return
    app.copy_to_clipboard(form(table.table, *focused))
    app.notify(copied_text(os.environ), markup=False)


def focused_table(app: Shell) -> ShowsTable | None:
    """The table, or picture of one, that keys act on."""
    if isinstance(app.screen.focused, ShowsTable):
        return app.screen.focused
    tables = [table for table in app.screen.query(FactTable) if table.display]
    return tables[0] if tables else None


def copied_text(environment: Mapping[str, str]) -> str:
    """What was done, and what to do where the terminal keeps its clipboard to itself."""
    if environment.get("TMUX"):
        return "copied, if tmux may: set -g set-clipboard on. e writes the report to a file"
    return "copied, if this terminal has a clipboard (OSC 52). e writes the report to a file"


def as_markdown(table: Table, line: Line, cell: Cell) -> str:
    """The row under its column titles."""
    titles = [inert(column.title) for column in table.columns]
    cells = [inert(cell.text) for cell in line.cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), cells))


def inert(text: str) -> str:
    """Text that Markdown shows as it stands: no emphasis, link, cell, code or HTML."""
    return "".join(f"\\{sign}" if sign in _MARKS else sign for sign in text)


def as_json(table: Table, line: Line, cell: Cell) -> str:
    """The row as one object; numbers with their leaves."""
    row = {column.title: _value(cell) for column, cell in zip(table.columns, line.cells, strict=True)}
    return json.dumps(row)


def _value(cell: Cell) -> object:
    return cell.in_json() if isinstance(cell, Figure) else cell.text
