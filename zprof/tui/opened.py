"""What a number or a row leads to.

It is imported when something is opened first: what numbers mean needs the analysis, which takes longer to
import than a first screen may.
"""

from zprof.model.findings import Finding
from zprof.model.printable import shorten
from zprof.reports.finding_pages import page
from zprof.reports.layout import wrap
from zprof.reports.presenters.findings import worth
from zprof.reports.terminal import markdown_text
from zprof.tui.actions import gaps_text
from zprof.tui.figures import Figure, Unit, figure
from zprof.tui.pages.compare import said_of_row
from zprof.tui.pages.memory_opened import allocation_text, law_text
from zprof.tui.plan.foreseen import Foreseen
from zprof.tui.popups.instances import InstancesPopup
from zprof.tui.popups.number import NumberPopup
from zprof.tui.popups.popup import Popup
from zprof.tui.popups.text import TextPopup
from zprof.tui.session import Loaded
from zprof.tui.shell import Shell
from zprof.tui.tables import Line, Opens, Table

#: Titles of columns that say no more than their numbers do.
_PLAIN = frozenset({"ms", "bytes", "size"})
#: Of a name in a title.
_LONGEST_TITLE = 120


def number(loaded: Loaded, found: Figure, line: Line, table: Table) -> Popup[None]:
    """A number of this row, explained."""
    title = shorten(title_of(found, line, table), _LONGEST_TITLE)
    if isinstance(found, Foreseen):
        return TextPopup(f"{title}: {found.text}", found.said)
    return NumberPopup(found, title, loaded)


def title_of(found: Figure, line: Line, table: Table) -> str:
    """The names of its row and column; a row that begins with a number has no name."""
    first = line.cells[0]
    columns = zip(table.columns, line.cells, strict=True)
    column = next((column.title for column, cell in columns if cell is found), "")
    names = ["" if isinstance(first, Figure) else first.text, "" if column in _PLAIN else column]
    return ", ".join(name for name in names if name)


def row(app: Shell, line: Line) -> Popup[None] | None:
    """What a row leads to."""
    loaded = app.loaded
    if loaded is not None and line.opens is Opens.ALLOCATION:
        return TextPopup(*allocation_text(loaded, line.target))
    if loaded is not None and line.opens is Opens.LAW:
        return TextPopup(*law_text(loaded, line.target))
    if loaded is not None and line.opens is Opens.GAP:
        return TextPopup("what could not be measured", gaps_text(app))
    if loaded is not None and line.opens is Opens.COLLECTIVE:
        return InstancesPopup(loaded, line.target)
    if loaded is not None and line.opens is Opens.COMPARED:
        return TextPopup(*said_of_row(loaded, line.key))
    if loaded is None or line.opens is not Opens.FINDING:
        return None
    return _finding(loaded, line.target)


def _finding(loaded: Loaded, place: int) -> Popup[None]:
    found = loaded.report.findings[place]

    def laid(columns: int) -> str:
        said = [*wrap(found.sentence, first="", width=columns), "", *worth_lines(found)]
        said += ["", "evidence", *evidence_lines(loaded, place, columns)]
        said += ["", "what to change (y copies it)", *_indented(found.fix)]
        said += ["", "how to disprove it", *wrap(found.disprove, width=columns)]
        return "\n".join([*said, "", markdown_text(page(found.cause), columns)])

    return TextPopup(f"{found.id} {found.cause.value}", laid, copies=found.fix)


def worth_lines(found: Finding) -> list[str]:
    """What a fix saves and frees, and how sure the rule is."""
    return [f"  {part.strip()}" for part in worth(found).split(", ")]


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.strip().split("\n")]


def evidence_lines(loaded: Loaded, place: int, columns: int) -> list[str]:
    """The facts behind a finding, in their units."""
    stem = f"findings[{place}].evidence"
    lines: list[str] = []
    for at, fact in enumerate(loaded.report.findings[place].evidence):
        value = figure(loaded.tree, Unit(fact.unit), f"{stem}[{at}].value")
        lines += wrap(fact.what, first=f"  {value.text:>12}  ", width=columns)
    return lines
