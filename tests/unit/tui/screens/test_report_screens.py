"""Overview, memory and communication by keys; what they say is held by pictures and presenters."""

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from tests.support.full_memories import full_memory
from tests.support.tui_app import (
    SMALL,
    app_on,
    play,
    press,
    screen_text,
    settle,
    text_after,
    wait_until,
)
from tests.support.tui_memory import NO_MEMORY, of_ranks, on_a_device, with_memory
from zprof.model.memory import DeviceMemory, Memory
from zprof.tui.app import ZprofApp
from zprof.tui.popups import TextPopup
from zprof.tui.session import LoadedRun
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.stacked_bars import StackedBars
from zprof.tui.widgets.trend import Trend


def test_a_finding_scrolls_by_keys_and_y_copies_its_fix(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "enter")
        frame = app.screen.query_one("#popup")
        for keys, is_at_top in (("space", False), ("pageup", True), ("jj", False), ("kk", True)):
            await press(app, pilot, *([keys] if len(keys) > 2 else keys))
            await wait_until(pilot, lambda expected=is_at_top: (frame.scroll_y == 0) == expected)
        await press(app, pilot, "y")
        assert app.clipboard == loaded.report.findings[0].fix

    play(app_on(loaded), act)


@pytest.mark.parametrize("size", [(80, 24), (80, 30)], ids=str)
def test_a_long_verdict_cuts_nothing_off_but_its_own_end(loaded: LoadedRun, size: tuple[int, int]) -> None:
    report = loaded.report
    device = DeviceMemory(rank=0, device="cuda:0", moment="allocated peak", live_bytes=1, tenants={})
    used = replace(device, device_used_bytes=1 << 30, device_total_bytes=2 << 30)
    sentence = " and ".join(f"cause {at} of this rather long verdict" for at in range(12))
    much = replace(
        report,
        verdict=replace(report.verdict, sentence=f"! RISK {sentence}"),
        memory=replace(report.memory, devices=(used,)),
        unclaimed={"idle_ns": 1_000_000},
    )

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        text = screen_text(app)
        for name in ("peak memory", "headroom", "unclaimed", "not tested", "= step", "ZP401"):
            assert name in text
        for key in ("1", "6"):
            await press(app, pilot, key, "question_mark")
            assert isinstance(app.screen, TextPopup)
            assert "cause 11" in app.screen.copies, "help has all of it"
            await press(app, pilot, "escape")

    play(app_on(replace(loaded, report=much)), act, size)


def test_ranks_tenants_and_points_are_picked_by_keys_and_clicks(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "2", "up")
        assert app.selected.rank == 0
        await press(app, pilot, "down", "right", "y")
        assert app.selected.rank == 1
        assert "| gradients | 1.2 MiB | 11.7 % |" in app.clipboard
        await press(app, pilot, "tab", "right", "y")
        assert app.clipboard.startswith("| point | live |")
        await pilot.click("#bars", offset=(4, 1))
        await settle(app, pilot)
        assert app.selected.rank == 0
        await pilot.click("#bars", offset=(30, 3))
        assert app.screen.query_one(StackedBars).cursor == 1
        await pilot.click("#trend", offset=(12, 2))
        assert app.screen.query_one(Trend).point == 10

    play(app_on(alone), act)


@pytest.mark.parametrize("size", [SMALL, (160, 45)], ids=str)
def test_memory_of_many_ranks_fits_the_terminal(alone: LoadedRun, size: tuple[int, int]) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "2")
        shown = [part for part in app.screen.query("#memory *") if part.display and part.size.height]
        assert max(part.region.bottom for part in shown) <= size[1] - 2
        assert max(part.region.right for part in shown) <= size[0]
        for table in (one for one in app.screen.query(FactTable) if one in shown):
            assert table.region.height >= 4
            assert table.virtual_size.width <= table.size.width, table.id

    play(app_on(with_memory(alone, replace(on_a_device(), per_rank=of_ranks(64).per_rank))), act, size)


def test_memory_that_is_missing_says_why_and_without_a_timeline_the_rest_is_there(alone: LoadedRun) -> None:
    text = text_after(app_on(with_memory(alone, Memory(), NO_MEMORY)), "2")
    assert NO_MEMORY.reason in text
    assert NO_MEMORY.remedy in text
    assert "parameters" in text_after(app_on(with_memory(alone, replace(full_memory(), timelines=()))), "2")
