"""The status line."""

from dataclasses import replace

from textual.pilot import Pilot

from tests.support.tui_app import app_on, play, screen_text
from tests.support.tui_keys import pressed
from zprof.tui.app import ZprofApp
from zprof.tui.popups import TextPopup
from zprof.tui.screens.page_screen import format_status
from zprof.tui.session import LoadedRun, RunPreview


def test_one_of_a_kind_is_not_several(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        assert "2 ranks · 5 steps" in format_status(app, 78)
        facts = replace(alone.report.run, ranks_loaded=(0,), world_size=1, steps=alone.report.run.steps[:1])
        app.look = RunPreview(facts=facts)
        assert " · 1 rank · 1 step · " in format_status(app, 78)
        app.look = RunPreview(facts=replace(facts, world_size=8))
        assert " · 1 of 8 ranks · 1 step · " in format_status(app, 78)

    play(app_on(alone), act)


def test_it_says_why_this_step_until_another_is_picked(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        step = app.selected.step
        assert format_status(app, 78).endswith(f" · 3 gaps · step {step}: the median one")
        assert format_status(app, 60).endswith(" · 3 gaps"), "where there is room"
        await pressed(app, pilot, "question_mark")
        assert isinstance(app.screen, TextPopup)
        assert f"and step {step} is its median one" in app.screen.copies
        await pressed(app, pilot, "escape", "left_square_bracket")
        assert "median" not in format_status(app, 78)
        await pressed(app, pilot, "question_mark")
        assert isinstance(app.screen, TextPopup)
        assert "its median one" not in app.screen.copies

    play(app_on(alone), act)


def test_a_long_name_gives_way_before_numbers_do(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        app.look = RunPreview(facts=replace(alone.report.run, name="a-job-with-a-name-" * 9))
        app.refill()
        await pilot.pause()
        said = next(line for line in screen_text(app).split("\n") if "a-job" in line)
        assert said.startswith("a-job-with-a-name-")
        assert said.endswith(
            f"… · 2 ranks · 5 steps · rank {app.selected.rank} step {app.selected.step} · 3 gaps"
        )

    play(app_on(alone), act)


def test_gaps_that_are_not_known_yet_are_not_counted(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        assert " · 3 gaps" in format_status(app, 78)
        app.loaded = None
        assert "gap" not in format_status(app, 78)

    play(app_on(alone), act)
