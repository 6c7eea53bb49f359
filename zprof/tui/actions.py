"""What keys do beside showing: text to explain, to copy, and files to write."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.model.errors import BadInput, ZprofError
from zprof.model.printable import printable
from zprof.reports.pages import page
from zprof.reports.registry import by_path
from zprof.reports.shown.presenter import grouped_gaps
from zprof.reports.text.markdown import as_text
from zprof.tui.figures import Figure, Unit, figure
from zprof.tui.keys import KEYS, Key, Where
from zprof.tui.popups.popup import Popup
from zprof.tui.popups.text import TextPopup
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import Asked, Loaded
from zprof.tui.tables import Cell, Line, Opens, Table
from zprof.tui.widgets.fact_table import FactTable

if TYPE_CHECKING:
    from zprof.tui.app import ZprofApp

_MOST_CHOICES = 4096


def with_baseline(asked: Asked, path: Path) -> Asked:
    """The same with another baseline."""
    return replace(asked, baseline=path)


def explained(app: "ZprofApp") -> tuple[str, str]:
    """Title and text on what is focused: the table, and its columns."""
    screen = app.screen
    if not isinstance(screen, PageScreen):
        return "help", keys_text([key for key in KEYS if key.where is Where.POPUP])
    table = screen.focused_table()
    parts = [screen.help_of]
    if table is not None and table.table is not None:
        parts += [table.table.help, *(f"{c.title}: {c.says}" for c in table.table.columns if c.says)]
    return screen.name_of, "\n".join(part for part in parts if part)


def keys_text(keys: Sequence[Key]) -> str:
    """Keys by where they work."""
    lines: list[str] = []
    for where in Where:
        mine = [key for key in keys if key.where is where]
        if mine:
            lines += ["", where.value, *(f"  {key.written:<10} {key.says}" for key in mine)]
    return "\n".join(lines[1:])


def gaps_text(app: "ZprofApp") -> str:
    """What could not be measured, why, and what helps."""
    if app.loaded is None:
        return app.waiting_text()
    groups = grouped_gaps(app.loaded.report.gaps)
    lines = []
    for gap in groups:
        ranks = f" (ranks {', '.join(map(str, gap.ranks[:8]))}{' ...' if len(gap.ranks) > 8 else ''})"
        lines += [f"{gap.what}{ranks if gap.ranks else ''}", f"  {gap.reason}", f"  {gap.remedy}", ""]
    return "\n".join(lines) if lines else "nothing: all that zprof asks for was measured"


def rank_choices(app: "ZprofApp") -> list[tuple[str, str]]:
    """The loaded ranks."""
    if app.loaded is None:
        return []
    return [(str(rank), f"rank {rank}") for rank in app.loaded.report.run.ranks_loaded[:_MOST_CHOICES]]


def step_choices(app: "ZprofApp") -> list[tuple[str, str]]:
    """The timed steps of the selected rank."""
    if app.loaded is None:
        return []
    steps = [entry for entry in app.loaded.report.time.steps if entry.rank == app.selected.rank]
    return [(str(entry.step), f"step {entry.step}") for entry in steps[:_MOST_CHOICES]]


def opened(app: "ZprofApp", line: Line) -> Popup[None] | None:
    """What a row leads to."""
    loaded = app.loaded
    if loaded is None or line.opens is not Opens.FINDING:
        return None
    found = loaded.report.findings[line.target]
    said = [found.sentence, "", "evidence", *evidence_lines(loaded, line.target), ""]
    said += ["what to change", found.fix, "", "how to disprove it", found.disprove, ""]
    said.append(as_text(page(found.cause)))
    return TextPopup(f"{found.id} {found.cause.value}", "\n".join(said))


def evidence_lines(loaded: Loaded, place: int) -> list[str]:
    """The facts behind a finding, in their units."""
    facts = enumerate(loaded.report.findings[place].evidence)
    stem = f"findings[{place}].evidence"
    shown = [(fact.what, figure(loaded.tree, Unit(fact.unit), f"{stem}[{at}].value")) for at, fact in facts]
    return [f"  {value.text:>12}  {what}" for what, value in shown]


def copy(app: "ZprofApp", form: Callable[[Table, Line, Cell], str]) -> None:
    """To the clipboard; terminals that have none need the file that ``export`` writes."""
    screen = app.screen
    table = screen.focused_table() if isinstance(screen, PageScreen) else _first_table(app)
    focused = table.focused_line() if table is not None else None
    if table is None or table.table is None or focused is None:
        app.notify("nothing is focused that can be copied", severity="warning", markup=False)
        return
    app.copy_to_clipboard(form(table.table, *focused))
    app.notify("copied, as far as this terminal has a clipboard", markup=False)


def _first_table(app: "ZprofApp") -> FactTable | None:
    tables = list(app.screen.query(FactTable))
    return tables[0] if tables else None


def as_markdown(table: Table, line: Line, cell: Cell) -> str:
    """The row under its column titles."""
    titles = [column.title for column in table.columns]
    cells = [_inert(cell.text) for cell in line.cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), cells))


def _inert(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\|`*_[]<>#!" else c for c in text)


def as_json(table: Table, line: Line, cell: Cell) -> str:
    """The row as one object; numbers with their leaves."""
    row = {column.title: _value(cell) for column, cell in zip(table.columns, line.cells, strict=True)}
    return json.dumps(row)


def _value(cell: Cell) -> object:
    if isinstance(cell, Figure):
        return {
            "value": cell.value,
            "unit": cell.unit.value,
            "leaves": list(cell.leaves),
            "how": cell.how.value,
        }
    return cell.text


def told(app: "ZprofApp", act: Callable[[], str]) -> None:
    """Do it, and say what was done or why not."""
    try:
        app.notify(printable(act()), markup=False)
    except ZprofError as error:
        app.notify(printable(f"{error} ({error.hint})"), severity="error", markup=False)


def report_name(app: "ZprofApp") -> str:
    """A name for the report's file that is free."""
    name = printable(app.look.facts.name) if app.look else "run"
    return f"{name}-report.txt"


def export_report(app: "ZprofApp", path: Path) -> str:
    """Write the report; never over a file.

    Raises:
        BadInput: nothing is loaded, no such format, or the file is there already.
    """
    if app.loaded is None:
        raise BadInput("nothing is loaded yet", hint="wait until the run is measured")
    document = by_path(path).render(app.loaded.report)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(document)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="name another file") from None
    return f"wrote {path}"


def export_perfetto(app: "ZprofApp") -> str:
    """Write the selected step of all loaded ranks, for Perfetto.

    Raises:
        BadInput: nothing is loaded, or the file is there already.
    """
    from zprof.integrations.perfetto.choice import Choice
    from zprof.integrations.perfetto.export import export

    if app.loaded is None or app.selected.step is None:
        raise BadInput("no timed step is selected", hint="wait until the run is measured, or pick one with t")
    path = Path(f"{printable(app.loaded.report.run.name)}-step{app.selected.step}.json")
    choice = Choice(ranks=None, steps=frozenset({app.selected.step}), python=False)
    try:
        with path.open("xb") as file:
            export(app.loaded.run, choice, file)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="move it away") from None
    return f"wrote {path}: open it at https://ui.perfetto.dev"
