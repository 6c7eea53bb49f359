"""The status line."""

from dataclasses import replace

from textual.pilot import Pilot

from tests.support.tui_app import app_on, play
from zprof.tui.app import ZprofApp
from zprof.tui.session import FirstLook, Loaded
from zprof.tui.widgets.status import status_text


def test_one_of_a_kind_is_not_several(alone: Loaded) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        assert "2 ranks · 5 steps" in status_text(app)
        facts = replace(alone.report.run, ranks_loaded=(0,), world_size=1, steps=alone.report.run.steps[:1])
        app.look = FirstLook(facts=facts)
        assert " · 1 rank · 1 step · " in status_text(app)
        app.look = FirstLook(facts=replace(facts, world_size=8))
        assert " · 1 of 8 ranks · 1 step · " in status_text(app)

    play(app_on(alone), act)
