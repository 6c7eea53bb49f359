"""The overview screen: verdict, ledger, findings, and their layout."""

import io
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, Static

from zprof.base.formatting import printable_lines
from zprof.model.hang import is_stuck
from zprof.model.time import MIN_BLAMED_RATIO, find_culprit
from zprof.reports.pages.collectives import build_unit_table
from zprof.reports.pages.findings import (
    build_evidence_table,
    build_findings_table,
    describe_finding,
    list_untested,
)
from zprof.reports.pages.hang import build_waits_table
from zprof.reports.pages.head import build_rest_table, format_verdict, format_warning, format_warning_cell
from zprof.reports.pages.ledger import build_ledger_table
from zprof.reports.table import Mark, Marked, Table
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.theme import MARKS, get_look
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.text import render_cell

_HELP = (
    "The verdict, then the step split into terms that add up to it, then the findings by predicted saving.\n"
    "enter on a number: its formula and inputs; on a finding: its evidence, and what to change."
)
#: Lines for title, status and keys; margin columns next to the verdict.
_CHROME_LINES, _SIDE_MARGIN = 3, 2
_EVIDENCE_TABLES = ("evidence", "worst")
_NO_FINDINGS_YET = Table(
    name="findings",
    title="Causes",
    columns=(),
    rows=(),
    note="findings appear here when all causes are judged",
)


class OverviewScreen(PageScreen):
    """Verdict, ledger (for a stuck job: who waits for whom), findings, and other facts."""

    name_of: ClassVar[str] = "overview"
    page_help: ClassVar[str] = _HELP
    AUTO_FOCUS = "#findings"

    def __init__(self) -> None:
        super().__init__()
        self._verdict, self._warning, self._sizes = Text(""), Marked("", Mark.DOUBTFUL), OverviewLayout()
        self._waits_for_findings = False

    def parts(self) -> ComposeResult:
        """Yield the verdict, warnings, ledger or waits, findings and the tables below the findings."""
        with Vertical(id="answer"):
            yield Static("", id="verdict")
            yield Static("", id="warnings")
            yield FactTable(id="ledger")
            yield FactTable(id="waits")
            yield FactTable(id="findings", classes="fill")
            yield Static("", id="description")
            with Horizontal(id="behind"):
                yield FactTable(id="evidence", classes="fill")
                yield FactTable(id="worst", classes="fill")
            rest = FactTable(id="rest")
            rest.show_header = False
            yield rest

    def refill(self) -> None:
        """Refill the screen; while causes are looked for, their number."""
        super().refill()
        loaded = self.zprof.loaded
        if loaded is not None and not loaded.is_judged and self.filled is not None:
            self._verdict = Text(self.zprof.waiting_text(), MARKS[Mark.DOUBTFUL].colour(get_look(self.app)))
            if (culprit := find_culprit(loaded.report.time, MIN_BLAMED_RATIO)) is not None:
                self._verdict.append(f" the other ranks wait most for rank {culprit}")
            self._arrange()

    def fill(self, loaded: LoadedRun, selected: Selection) -> None:
        """Fill the verdict, warning and tables from the report."""
        look, report = get_look(self.app), loaded.report
        status, sentence = format_verdict(report)
        self.page_help = f"{status.text} {sentence}\n{format_warning(report)}\n{_HELP}"  # type: ignore[misc]
        self._verdict = Text(" ").join([render_cell(status, look), render_cell(sentence, look)])
        self._warning = format_warning_cell(report)
        self.query_one("#warnings", Static).display = bool(self._warning.text)
        tables = {
            "ledger": build_ledger_table(report),
            "findings": build_findings_table(report) if loaded.is_judged else _NO_FINDINGS_YET,
            "rest": build_rest_table(report),
            "worst": build_unit_table(report),
        }
        for name, table in tables.items():
            self.query_one(f"#{name}", FactTable).show(table)
        waits = self.query_one("#waits", FactTable)
        waits.show(build_waits_table(report))
        waits.display = waits.row_count > 0
        ledger = self.query_one("#ledger", FactTable)
        ledger.display = bool(report.time.per_rank) and not is_stuck(report.hang)
        self._arrange()
        # Focus the findings, or the ledger if there are no findings.
        findings = self.query_one("#findings", FactTable)
        has_waited, self._waits_for_findings = self._waits_for_findings, not loaded.is_judged
        if findings.row_count and (self.focused is None or (has_waited and self.focused is ledger)):
            self.set_focus(findings, scroll_visible=False)
        elif self.focused in (None, findings) and not findings.row_count and ledger.display:
            self.set_focus(ledger, scroll_visible=False)

    def on_data_table_cell_highlighted(self, event: DataTable.CellHighlighted) -> None:
        """Describe the newly focused finding."""
        if event.data_table.id == "findings":
            self._describe_focused()

    def on_resize(self, event: events.Resize) -> None:
        """Redo the layout for the new size."""
        if self.filled is not None:
            self._arrange()

    def on_fact_table_redrawn(self, event: FactTable.Redrawn) -> None:
        """Describe the finding focused after a search."""
        if event.source.id == "findings":
            self._describe_focused()

    def _arrange(self) -> None:
        """Allot lines: first to the verdict, then to rest table, ledger, findings and description."""
        width, height = self.app.size
        lines = wrap_verdict(self._verdict, width - _SIDE_MARGIN, height)
        self.query_one("#verdict", Static).update(Text("\n").join(lines))
        warning = replace(self._warning, text=shorten_warning(self._warning.text, width - _SIDE_MARGIN))
        self.query_one("#warnings", Static).update(render_cell(warning, get_look(self.app)))
        lines_above = len(lines) + bool(self.query_one("#warnings").display)
        terms, waits, rows, rest = (
            self._rows(name) if self.query_one(f"#{name}").display else 0
            for name in ("ledger", "waits", "findings", "rest")
        )
        self._sizes = compute_layout(width, height - _CHROME_LINES - lines_above - rest, terms or waits, rows)
        is_free, description = self._sizes.is_free, self.query_one("#description").styles
        findings = self.query_one("#findings").styles
        for name in ("ledger", "waits"):
            self.query_one(f"#{name}").styles.max_height = self._sizes.ledger
        if is_free:
            findings.height = findings.max_height = description.height = description.max_height = None
        elif rows:
            findings.height, findings.max_height = "1fr", "100%"
            description.height, description.max_height = "auto", max(1, self._sizes.description)
        else:
            findings.height, description.height, description.max_height = MIN_TABLE_HEIGHT, "1fr", "100%"
        self._describe_focused()

    def _rows(self, name: str) -> int:
        table = self.query_one(f"#{name}", FactTable).table
        return len(table.rows) if table else 0

    def _describe_focused(self) -> None:
        loaded = self.zprof.loaded
        focused = self.query_one("#findings", FactTable).get_focused_line()
        description = ""
        if loaded is not None and focused:
            description = describe_finding(loaded.report, focused[0].target, whole=self._sizes.is_free)
        elif loaded is not None and loaded.is_judged and not loaded.report.findings:
            description = list_untested(loaded.report)
        text = Text("\n".join(printable_lines(description)))
        self.query_one("#description", Static).update(text)
        self.query_one("#description", Static).display = bool(description) and (
            self._sizes.is_free or self._sizes.description > 0
        )
        # Show the focused finding's evidence and the worst units if they fit.
        finding = focused[0].target if focused else -1
        fits = loaded is not None and fits_evidence(self._sizes, text, self.app.size.width - _SIDE_MARGIN)
        if loaded is not None and fits:
            self.query_one("#evidence", FactTable).show(build_evidence_table(loaded.report, finding))
        visible = [fits and self._rows(name) > 0 for name in _EVIDENCE_TABLES]
        for name, is_visible in zip(_EVIDENCE_TABLES, visible, strict=True):
            self.query_one(f"#{name}").display = is_visible
        self.query_one("#behind").display = any(visible)
        if self._sizes.is_free:
            self.query_one("#description").styles.height = "auto" if any(visible) else None


#: Maximum lines of a verdict: in a small terminal, and in a larger one.
_MAX_VERDICT_SMALL, _MAX_VERDICT = 4, 5
_SMALL = 30
_ELLIPSIS = " … (?)"
_WIDE = 100
#: Separators between the facts of a warning.
_SEPARATORS = (";", ",", " ·")
#: Lines of a table's frame and titles; minimum height of a table with one row.
_FRAME, MIN_TABLE_HEIGHT = 3, 4
#: Lines of a finding's description in tight layouts; minimum free lines to show it in full.
_MAX_FINDING_LINES, _AMPLE_LINES = 2, 14
#: Minimum height, in lines, to show a finding's evidence.
_MIN_EVIDENCE_HEIGHT = 7


class OverviewLayout(Struct, frozen=True, kw_only=True):
    """Heights of the parts.

    ``ledger``: limit on the lines of the ledger, or of the waits in its place; None if all fit.
    ``description``: lines to describe the focused finding, or without findings the untested rules.
    ``is_free``: the description fits in full. ``below``: lines left below the findings.
    """

    ledger: int | None = None
    description: int = 0
    is_free: bool = False
    below: int = 0


def compute_layout(width: int, height: int, terms: int, findings: int) -> OverviewLayout:
    """Divide `height` lines among a ledger of `terms` rows, the findings, and the description."""
    ledger = terms + _FRAME if terms else 0
    free = height - ledger
    return OverviewLayout(
        ledger=max(MIN_TABLE_HEIGHT, height - MIN_TABLE_HEIGHT)
        if ledger > height - MIN_TABLE_HEIGHT
        else None,
        description=max(
            0, min(_MAX_FINDING_LINES, free - _FRAME - findings) if findings else free - MIN_TABLE_HEIGHT
        ),
        is_free=width >= _WIDE and free >= _AMPLE_LINES,
        below=free - _FRAME - findings,
    )


def fits_evidence(sizes: OverviewLayout, description: Text, width: int) -> bool:
    """Return True if evidence and units fit below the description."""
    lines = description.wrap(Console(file=io.StringIO(), width=width), width)
    return sizes.is_free and sizes.below - len(lines) >= _MIN_EVIDENCE_HEIGHT


def shorten_warning(warning: str, width: int) -> str:
    """Shorten a warning to whole facts plus the key that shows the full text."""
    if cell_len(warning) <= width:
        return warning
    if width <= len(_ELLIPSIS):
        return set_cell_size(warning, max(width, 0))
    start = chop_cells(warning, width - len(_ELLIPSIS))[0]
    end = max(start.rfind(separator) for separator in _SEPARATORS)
    return f"{start[:end] if end > width // 2 else start.rstrip()}{_ELLIPSIS}"


def wrap_verdict(words: Text, width: int, height: int) -> list[Text]:
    """Wrap the verdict; if too long, the last line ends with the key that shows the full text."""
    max_lines = _MAX_VERDICT_SMALL if height < _SMALL else _MAX_VERDICT
    lines = list(words.wrap(Console(file=io.StringIO(), width=width), width))
    if len(lines) > max_lines:
        last = lines[max_lines - 1]
        last.rstrip()
        last.truncate(max(width - len(_ELLIPSIS), 0))
        lines = [*lines[: max_lines - 1], last.append(_ELLIPSIS)]
    for line in lines:
        line.rstrip()
    return lines
