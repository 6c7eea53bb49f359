"""Write the popups of the keys `?`, F1 and `g` (help, key list, gaps) and the choices of `r` and `t`."""

from collections.abc import Sequence
from typing import Any

from textual.screen import Screen

from zprof.model.gaps import Gap
from zprof.model.time import MIN_BLAMED_RATIO, find_culprit
from zprof.reports.pages.findings import merge_gaps
from zprof.reports.table import Table
from zprof.tui.keys import KEYS, Key, Where
from zprof.tui.popups import Popup
from zprof.tui.screens.page_screen import PageScreen, is_default_selection
from zprof.tui.session import LoadedRun
from zprof.tui.shell import Shell
from zprof.tui.widgets.fact_table import FactTable

_MAX_CHOICES = 4096
#: Units that cells do not show; the column help shows them.
_NAMED_UNITS = frozenset({"ms", "µs"})


def explain_focus(app: Shell) -> tuple[str, str]:
    """Return the title and text of the help for the focused table and its columns."""
    screen = app.screen
    if not isinstance(screen, PageScreen):
        tables = [widget.table for widget in screen.query(FactTable)]
        keys = format_keys([key for key in KEYS if key.where is Where.POPUP])
        lines = [line for table in tables if table is not None for line in _describe_table(table)]
        return "help", "\n".join([*lines, "", keys] if lines else [keys])
    table = screen.focused_table()
    parts = [screen.page_help]
    if is_default_selection(app):
        assert app.loaded is not None
        is_culprit = app.selected.rank == find_culprit(app.loaded.report.time, MIN_BLAMED_RATIO)
        reason = "makes the others wait" if is_culprit else "spends the most time outside compute"
        parts.append(
            f"Rank {app.selected.rank} {reason}, and step {app.selected.step} is its median step, so they "
            "are shown first. Press r, t, [ or ] to select others."
        )
    if table is not None and table.table is not None:
        parts += _describe_table(table.table)
    return screen.name_of, "\n".join(part for part in parts if part)


def _describe_table(table: Table) -> list[str]:
    texts = [table.help, *table.notes]
    for column in table.columns:
        unit = f", in {column.unit}" if column.unit in _NAMED_UNITS else ""
        texts.append(f"{column.title}: {column.help}{unit}" if column.help else "")
    return [text for text in texts if text]


def sort_keys(screen: Screen[Any]) -> list[Key]:
    """Return all keys, starting with those of this screen."""
    name = Where.POPUP.value if isinstance(screen, Popup) else getattr(screen, "name_of", "")
    return sorted(KEYS, key=lambda key: (key.where.value != name, list(Where).index(key.where)))


def format_keys(keys: Sequence[Key]) -> str:
    """Format keys as text, grouped by scope, in the given order."""
    lines: list[str] = []
    for where in dict.fromkeys(key.where for key in keys):
        scope_keys = [key for key in keys if key.where is where]
        if scope_keys:
            lines += ["", where.value, *(f"  {key.written:<10} {key.help}" for key in scope_keys)]
    return "\n".join(lines[1:])


def format_gaps(app: Shell) -> str:
    """Format the gaps: what could not be measured, why, and how to fix it."""
    if app.loaded is None:
        return app.waiting_text()
    groups = merge_gaps((*list_screen_gaps(app), *app.loaded.report.gaps))
    lines = []
    for gap in groups:
        ranks = f" (ranks {', '.join(map(str, gap.ranks[:8]))}{' ...' if len(gap.ranks) > 8 else ''})"
        lines += [f"{gap.what}{ranks if gap.ranks else ''}", f"  {gap.reason}", f"  {gap.remedy}", ""]
    return "\n".join(lines) if lines else "none: everything was measured"


def list_screen_gaps(app: Shell) -> list[Gap]:
    """Return the gaps specific to the topmost screen."""
    return [gap for page in _list_screens(app)[-1:] for gap in page.extra_gaps()]


def get_export(app: Shell) -> LoadedRun | None:
    """Return the run that ``e`` exports, including additions by the topmost screen."""
    pages = _list_screens(app)
    return pages[-1].make_export(app.loaded) if app.loaded is not None and pages else app.loaded


def _list_screens(app: Shell) -> list[PageScreen]:
    """Return the screens in the stack except popups, topmost last."""
    return [screen for screen in app.screen_stack if isinstance(screen, PageScreen)]


def list_rank_choices(app: Shell) -> list[tuple[str, str]]:
    """Return (key, label) pairs of the loaded ranks, at most `_MAX_CHOICES`."""
    if app.loaded is None:
        return []
    return [(str(rank), f"rank {rank}") for rank in app.loaded.report.run.ranks_loaded[:_MAX_CHOICES]]


def list_step_choices(app: Shell) -> list[tuple[str, str]]:
    """Return (key, label) pairs of the timed steps of the selected rank, at most `_MAX_CHOICES`."""
    if app.loaded is None:
        return []
    steps = [entry for entry in app.loaded.report.time.steps if entry.rank == app.selected.rank]
    return [(str(entry.step), f"step {entry.step}") for entry in steps[:_MAX_CHOICES]]
