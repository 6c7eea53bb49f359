"""Without step marks a run is one window, and no table of the terminal UI speaks of a step."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from zprof.model.report import Report
from zprof.model.time import Window, WindowPolicy
from zprof.reports.pages.collectives import (
    build_check_table,
    build_collective_table,
    build_message_table,
    build_unit_table,
)
from zprof.reports.pages.findings import build_findings_table
from zprof.reports.pages.head import build_rest_table
from zprof.reports.pages.ledger import build_ledger_table
from zprof.reports.pages.ranks import build_rank_table
from zprof.reports.table import Table
from zprof.tui.session import LoadedRun
from zprof.tui.table_view import get_text

BUILDERS: tuple[Callable[[Report], Table], ...] = (
    build_check_table,
    build_collective_table,
    build_findings_table,
    build_ledger_table,
    build_message_table,
    build_rank_table,
    build_rest_table,
    build_unit_table,
)


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("is_marked", [True, False])
def test_a_window_without_marks_is_no_step(
    loaded: LoadedRun, build: Callable[[Report], Table], is_marked: bool
) -> None:
    window = Window(policy=WindowPolicy.STEP, source="recorder", is_whole=not is_marked)
    time = replace(loaded.report.time, window=window)
    report = replace(loaded.report, time=time, findings=())  # rules name the basis in their sentences
    table = build(report)
    texts = [table.title, table.help, table.note, *(column.help for column in table.columns)]
    texts += [get_text(cell) for line in table.rows for cell in line.cells]
    assert any("per step" in text for text in texts) <= is_marked
