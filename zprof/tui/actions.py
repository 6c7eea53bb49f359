"""What keys show: explanations, gaps, what there is to pick, what a row leads to."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from zprof.model.findings import Finding
from zprof.reports.pages import page
from zprof.reports.shown.presenter import grouped_gaps
from zprof.reports.text.findings import worth
from zprof.reports.text.markdown import as_text
from zprof.tui.figures import Unit, figure
from zprof.tui.keys import KEYS, Key, Where
from zprof.tui.pages.compare import said_of_row
from zprof.tui.pages.memory_opened import allocation_text, law_text
from zprof.tui.popups.instances import InstancesPopup
from zprof.tui.popups.popup import Popup
from zprof.tui.popups.text import TextPopup
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import Asked, Loaded
from zprof.tui.shell import Shell
from zprof.tui.tables import Line, Opens

_MOST_CHOICES = 4096


def with_baseline(asked: Asked, path: Path) -> Asked:
    """The same with another baseline."""
    return replace(asked, baseline=path)


def explained(app: Shell) -> tuple[str, str]:
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


def gaps_text(app: Shell) -> str:
    """What could not be measured, why, and what helps."""
    if app.loaded is None:
        return app.waiting_text()
    groups = grouped_gaps(app.loaded.report.gaps)
    lines = []
    for gap in groups:
        ranks = f" (ranks {', '.join(map(str, gap.ranks[:8]))}{' ...' if len(gap.ranks) > 8 else ''})"
        lines += [f"{gap.what}{ranks if gap.ranks else ''}", f"  {gap.reason}", f"  {gap.remedy}", ""]
    return "\n".join(lines) if lines else "nothing: all that zprof asks for was measured"


def rank_choices(app: Shell) -> list[tuple[str, str]]:
    """The loaded ranks."""
    if app.loaded is None:
        return []
    return [(str(rank), f"rank {rank}") for rank in app.loaded.report.run.ranks_loaded[:_MOST_CHOICES]]


def step_choices(app: Shell) -> list[tuple[str, str]]:
    """The timed steps of the selected rank."""
    if app.loaded is None:
        return []
    steps = [entry for entry in app.loaded.report.time.steps if entry.rank == app.selected.rank]
    return [(str(entry.step), f"step {entry.step}") for entry in steps[:_MOST_CHOICES]]


def opened(app: Shell, line: Line) -> Popup[None] | None:
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
    found = loaded.report.findings[line.target]
    said = [found.sentence, "", *worth_lines(found), "", "evidence", *evidence_lines(loaded, line.target)]
    said += ["", "what to change (y copies it)", *_indented(found.fix)]
    said += ["", "how to disprove it", *_indented(found.disprove), "", as_text(page(found.cause))]
    return TextPopup(f"{found.id} {found.cause.value}", "\n".join(said), copies=found.fix)


def worth_lines(found: Finding) -> list[str]:
    """What a fix saves and frees, and how sure the rule is."""
    return [f"  {part.strip()}" for part in worth(found).split(", ")]


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.strip().split("\n")]


def evidence_lines(loaded: Loaded, place: int) -> list[str]:
    """The facts behind a finding, in their units."""
    facts = enumerate(loaded.report.findings[place].evidence)
    stem = f"findings[{place}].evidence"
    shown = [(fact.what, figure(loaded.tree, Unit(fact.unit), f"{stem}[{at}].value")) for at, fact in facts]
    return [f"  {value.text:>12}  {what}" for what, value in shown]
