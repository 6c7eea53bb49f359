"""A stuck job on the screens: who waits for whom, what each rank does, and what both open."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from tests.support.hung_runs import import_hostile_dumps, import_hung_job
from tests.support.tui_app import LARGE, MIDDLE, SMALL, app_on, play, press, screen_text, text_after
from tests.support.tui_leaves import assert_leaves
from tests.unit.tui.test_tui_hostile_names import assert_inert
from zprof.model.hang import HangStatus
from zprof.model.json_format import to_json
from zprof.reports.pages.hang import build_hang_section
from zprof.reports.table import Table
from zprof.run.reader import load as open_run
from zprof.tui.app import ZprofApp
from zprof.tui.session import LoadedRun, RunRequest, load
from zprof.tui.table_view import get_text
from zprof.tui.widgets.fact_table import FactTable


def open_hung(run: Path) -> LoadedRun:
    return load(RunRequest(path=run, opener=open_run), lambda doing: None)


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    """Rank 8 of 16 does not go on."""
    return open_hung(import_hung_job(tmp_path_factory.mktemp("hung")))


def test_each_count_of_ranks_of_a_report_is_of_a_list_of_its_json(hung: LoadedRun) -> None:
    (section,) = build_hang_section(hung.report)
    numbers = [
        number for block in section.blocks if isinstance(block, Table) for number in block.list_values()
    ]
    assert_leaves(json.loads(to_json(hung.report)), numbers)
    assert {number.number for number in numbers} > {0, 1}


@pytest.mark.parametrize("size", [SMALL, MIDDLE, LARGE], ids=str)
def test_the_overview_has_the_cause_first(hung: LoadedRun, size: tuple[int, int]) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        waits = app.screen.query_one("#waits", FactTable)
        assert waits.display
        assert waits.table is not None
        first = [get_text(cell) for cell in waits.table.rows[0].cells]
        assert first[1:3] == ["8 and 9", "cause: 8"]
        assert "who waits for whom" in screen_text(app)
        assert "ZP602" in screen_text(app)
        app.screen.set_focus(waits)
        text = await press(app, pilot, "enter")
        assert "its ranks     8-11" in text

    play(app_on(hung), act, size)


def test_the_ranks_screen_has_a_state_for_each_rank_instead_of_the_map(hung: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "5")
        table = app.screen.query_one("#ranks", FactTable)
        assert app.focused is table
        assert table.table is not None
        states = {line.target: get_text(line.cells[1]) for line in table.table.rows}
        assert states == {8: "cause"} | {rank: "waits" for rank in range(16) if rank != 8}
        assert not app.screen.query_one("#heat").display
        await press(app, pilot, "m", "1", "5")
        assert not app.screen.query_one("#heat").display
        assert "rank 8, the cause" in await press(app, pilot, "enter")

    play(app_on(hung), act)


def test_the_waits_of_a_run_with_times_replace_its_ledger_which_a_row_opens(
    alone: LoadedRun, hung: LoadedRun
) -> None:
    both = replace(alone, report=replace(alone.report, hang=hung.report.hang))

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        assert "who waits for whom" in screen_text(app)
        assert not app.screen.query_one("#ledger").display
        app.screen.set_focus(app.screen.query_one("#rest"))
        assert "Where the time goes" in await press(app, pilot, "enter")
        await press(app, pilot, "escape", "5")
        assert not app.screen.query_one("#heat").display

    play(app_on(both), act)


def test_a_job_that_is_not_stuck_shows_no_waits(hung: LoadedRun) -> None:
    assert hung.report.hang is not None
    ended = replace(hung.report.hang, status=HangStatus.RESUMED)
    text = text_after(app_on(replace(hung, report=replace(hung.report, hang=ended))))
    assert "who waits for whom" not in text


def test_names_from_dumps_are_inert(tmp_path: Path) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        assert_inert(app)
        app.screen.set_focus(app.screen.query_one("#waits"))
        await press(app, pilot, "enter")
        assert "\\x1b" in screen_text(app)
        assert_inert(app)
        await press(app, pilot, "escape", "5")
        assert_inert(app)
        await press(app, pilot, "down", "enter")
        assert_inert(app)

    play(app_on(open_hung(import_hostile_dumps(tmp_path))), act, LARGE)
