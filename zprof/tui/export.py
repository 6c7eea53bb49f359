"""Copy the focused row, write the report to a file, write a step as a Perfetto trace.

Existing files are never overwritten. Textual sets the terminal's clipboard with OSC 52. It cannot detect
whether the terminal accepts that, so the message mentions the alternative.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from zprof.base.errors import BadInput
from zprof.base.formatting import printable
from zprof.model.cursor import follow, get
from zprof.model.quantities import Value
from zprof.model.report import Report
from zprof.reports.formats import by_path, make_report_formats
from zprof.reports.table import Cell, Row, Table
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.shell import Shell
from zprof.tui.table_view import TableSource, get_text, is_of_model
from zprof.tui.widgets.fact_table import FactTable

#: Common file systems limit a file name to 255 bytes; this limit leaves space for the suffixes added below.
_MAX_NAME_BYTES = 180
#: Traces of more ranks are too large to view; above this limit only the selected rank is written.
_MAX_RANKS = 16


def suggest_report_name(name: str, folder: Path) -> str:
    """Return an unused file name in `folder` for the report of a run."""
    return find_free_name(f"{_sanitize_name(name)}-report", ".txt", folder)


def find_free_name(stem: str, suffix: str, folder: Path) -> str:
    """Return ``stem.txt`` or the first unused name of ``stem-2.txt``, ``stem-3.txt``, ..."""
    number, name = 1, f"{stem}{suffix}"
    while (folder / name).exists() or (folder / name).is_symlink():
        number += 1
        name = f"{stem}-{number}{suffix}"
    return name


def _sanitize_name(name: str) -> str:
    safe = printable(name).replace("/", "_")
    return safe.encode()[:_MAX_NAME_BYTES].decode(errors="ignore") or "run"


def export_report(loaded: LoadedRun | None, path: Path) -> str:
    """Write the report in the format of the file's suffix; return a message for the user.

    Raises:
        BadInput: nothing is loaded, the suffix is unknown, or the file exists or cannot be created.
    """
    if loaded is None or not loaded.is_judged:
        raise BadInput("no findings yet", hint="wait for the analysis to finish")
    from zprof.analysis.step_timeline.overview import build_step_overview  # the preview of a run needs none

    formats = make_report_formats(lambda: build_step_overview(loaded.analysis))
    suffixes = [suffix for form in formats for suffix in form.suffixes]
    if path.suffix.lower() not in suffixes:
        raise BadInput(f"{path}: unknown suffix", hint=f"use one of {', '.join(suffixes)}")
    document = by_path(path, formats).render(loaded.report)
    _write_new_file(path, lambda file: file.write(document.encode("utf-8")))
    return f"wrote {path.absolute()}"


def export_perfetto(loaded: LoadedRun | None, selected: Selection, folder: Path) -> str:
    """Write the selected step as a Perfetto trace; return a message for the user.

    All loaded ranks are written, or only the selected rank if more than `_MAX_RANKS` are loaded.

    Raises:
        BadInput: nothing is loaded, no step is selected, or the file cannot be created.
    """
    from zprof.integrations.perfetto.export import export_trace
    from zprof.integrations.perfetto.rank_rows import ExportChoice

    if loaded is None or selected.step is None:
        raise BadInput(
            "no timed step is selected", hint="wait for the analysis to finish, or press t to pick a step"
        )
    count = len(loaded.report.run.ranks_loaded)
    ranks = None if count <= _MAX_RANKS or selected.rank is None else frozenset({selected.rank})
    stem = f"{_sanitize_name(loaded.report.run.name)}-step{selected.step}"
    stem += f"-rank{selected.rank}" if ranks else "-all-ranks"
    path = folder / find_free_name(stem, ".json", folder)
    choice = ExportChoice(ranks=ranks, steps=frozenset({selected.step}), python=False)
    _write_new_file(path, lambda file: export_trace(loaded.run, choice, file, loaded.analysis))
    numbers = ", ".join(map(str, loaded.report.run.ranks_loaded))
    ranks_text = f"rank {numbers}" if count == 1 else f"all loaded ranks: {numbers}"
    if ranks:
        ranks_text = f"rank {selected.rank} only: {count} ranks are too many for one trace"
    return (
        f"wrote {path.absolute()} (step {selected.step} of {ranks_text}): open it at https://ui.perfetto.dev"
    )


def _write_new_file(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Create a file and fill it; delete it again if filling fails."""
    try:
        with path.open("xb") as file:
            try:
                fill(file)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise BadInput(f"{path}: already exists", hint="choose another name") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{path}: cannot be written ({reason})", hint="choose another name") from None


RowFormat = Callable[[Table, Row, Cell], str]
_MARKS = frozenset("\\|`*_[]<>#!&~$")


def copy_focused_row(app: Shell, form: RowFormat) -> None:
    """Copy the row under the cursor of the focused table, or else of the first table.

    If the screen defines ``copies`` (a text popup, such as a finding's fix), copy that text instead.
    """
    text = getattr(app.screen, "copies", "")
    if text:
        app.copy_to_clipboard(text)
        app.notify(describe_copy(os.environ), markup=False)
        return
    table = find_focused_table(app)
    focused = table.get_focused_line() if table is not None else None
    if table is None or table.table is None or focused is None:
        app.notify("nothing to copy: focus a table row", severity="warning", markup=False)
        return
    app.copy_to_clipboard(form(table.table, *focused))
    app.notify(describe_copy(os.environ), markup=False)


def find_focused_table(app: Shell) -> TableSource | None:
    """Return the focused table or chart, else the first visible table."""
    if isinstance(app.screen.focused, TableSource):
        return app.screen.focused
    tables = [table for table in app.screen.query(FactTable) if table.display]
    return tables[0] if tables else None


def describe_copy(environment: Mapping[str, str]) -> str:
    """Return the notification after a copy, with a fallback for terminals without OSC 52."""
    if environment.get("TMUX"):
        return "copied (tmux needs: set -g set-clipboard on). Press e to save the report to a file"
    return "copied (if the terminal supports OSC 52). Press e to save the report to a file"


def format_markdown(table: Table, line: Row, cell: Cell) -> str:
    """Return the row as a Markdown table with column titles as the header."""
    titles = [escape_markdown(column.title) for column in table.columns]
    cells = [escape_markdown(get_text(cell)) for cell in line.cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), cells))


def escape_markdown(text: str) -> str:
    """Escape all Markdown and HTML syntax in a text."""
    return "".join(f"\\{character}" if character in _MARKS else character for character in text)


def format_json(table: Table, line: Row, cell: Cell, report: Report | None = None) -> str:
    """Return the row as one JSON object; numbers include their report leaves."""
    row = {
        column.title: _json_value(cell, report)
        for column, cell in zip(table.columns, line.cells, strict=True)
    }
    return json.dumps(row)


def _json_value(cell: Cell, report: Report | None) -> object:
    if not isinstance(cell, Value):
        return get_text(cell)
    number: dict[str, object] = {"value": cell.number, "unit": cell.unit, "bound": cell.bound}
    number |= {"leaves": [str(leaf) for leaf in cell.leaves], "how": cell.how}
    if is_of_model(cell):
        figure = get(follow(report, cell.leaves[0].parent))
        kind = "predicted" if cell.is_estimate else "modelled"
        number |= {"is": kind, "shown": cell.text, "assumption": getattr(figure, "assumption", "")}
    return number
