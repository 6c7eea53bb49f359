"""Search while typing: causes, units and ranks, and the rows of the focused table."""

from textual.pilot import Pilot
from textual.widgets import OptionList

from tests.support.tui_app import app_on, play, press, screen_text
from zprof.tui.app import ZprofApp
from zprof.tui.session import LoadedRun
from zprof.tui.widgets.fact_table import FactTable


def test_typing_filters_and_enter_goes_there(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        text = await press(app, pilot, "4", "slash", *"resharded")
        assert "needless_reshard_after_forward" in text
        assert app.screen.query_one(OptionList).option_count == 1
        await press(app, pilot, "enter")
        assert app.screen.name_of == "overview"
        focused = app.screen.query_one("#findings", FactTable).get_focused_line()
        assert alone.report.findings[focused[0].target].cause == "needless_reshard_after_forward"
        unit = alone.report.time.units[-1].unit
        await press(app, pilot, "4", "slash", *f"unit {unit}", "enter")
        assert app.screen.name_of == "communication"
        assert app.focused.id == "units"
        assert app.focused.get_focused_line()[0].cells[0] == unit
        assert app.focused.search_text == unit
        await press(app, pilot, "5", "slash", *"rank 0", "enter")
        assert (app.screen.name_of, app.selected.rank) == ("ranks", 0)
        await press(app, pilot, "1", "escape", "slash", *"rank 1", "enter")
        assert (app.screen.name_of, app.selected.rank) == ("timeline", 1)

    play(app_on(alone), act)


def test_the_focused_table_is_filtered_while_typing_and_esc_takes_it_back(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "3")
        table = app.focused
        assert isinstance(table, FactTable)
        rows = table.row_count
        await press(app, pilot, "slash", *"reduce")
        assert 0 < table.match_count < rows
        await press(app, pilot, "escape")
        assert (table.row_count, table.search_text) == (rows, "")
        await press(app, pilot, "slash", *"reduce", "enter")
        assert table.search_text == "reduce"
        assert "/reduce (esc to clear)" in screen_text(app)

    play(app_on(alone), act)
