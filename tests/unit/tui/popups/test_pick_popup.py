"""Picking: where the list begins, and what narrows it."""

from textual.pilot import Pilot
from textual.widgets import OptionList

from tests.support.tui_app import app_on, play, screen_text, settled
from tests.support.tui_keys import pressed
from zprof.tui.app import ZprofApp
from zprof.tui.popups import PickPopup
from zprof.tui.session import LoadedRun


def test_the_list_begins_at_what_is_picked(alone: LoadedRun) -> None:
    """So enter changes nothing, and down is the next step."""

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        app.select(rank=1, step=alone.report.time.steps[-2].step)
        before = app.selected
        await pressed(app, pilot, "t", "enter")
        assert app.selected == before
        await pressed(app, pilot, "r", "enter")
        assert app.selected == before
        await pressed(app, pilot, "t", "down", "enter")
        assert app.selected.step == alone.report.time.steps[-1].step

    play(app_on(alone), act)


def test_of_very_many_those_around_it_are_shown_and_all_are_found(alone: LoadedRun) -> None:
    choices = [(str(rank), f"rank {rank}") for rank in range(1024)]

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        app.push_screen(PickPopup("rank", choices, "900"))
        await settled(app, pilot)
        listed = app.screen.query_one(OptionList)
        assert listed.get_option_at_index(listed.highlighted or 0).id == "900"
        assert "rank 900" in screen_text(app)
        assert "200 of 1024 shown" in screen_text(app)
        await pressed(app, pilot, "7", "7", "7")
        assert listed.option_count == 1
        assert "of 1024" not in screen_text(app)

    play(app_on(alone), act)
