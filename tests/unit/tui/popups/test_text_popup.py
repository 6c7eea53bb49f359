"""A page of text in a frame: laid out for the columns that the frame has."""

import pytest
from textual.pilot import Pilot

from tests.support.tui_app import LARGE, SIZES, SMALL, app_on, play, screen_text
from zprof.tui.app import ZprofApp
from zprof.tui.popups import TextPopup
from zprof.tui.session import LoadedRun


def shown(loaded: LoadedRun, popup: TextPopup, size: tuple[int, int]) -> list[str]:
    """Lines of the frame, whole."""
    seen: list[str] = []

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        app.push_screen(popup)
        await pilot.pause()
        await pilot.pause()
        seen.extend(line for line in screen_text(app).split("\n") if "¤" * 20 in line)

    play(app_on(loaded), act, size)
    return seen


@pytest.mark.parametrize("size", SIZES)
def test_text_that_is_laid_out_fills_its_lines(alone: LoadedRun, size: tuple[int, int]) -> None:
    lines = shown(alone, TextPopup("t", lambda columns: "\n".join(["¤" * columns] * 3)), size)
    assert len(lines) == 3
    assert all("¤ │" in line and "│ ¤" in line for line in lines)


def test_more_lines_than_fit_leave_room_for_the_scroll_bar(alone: LoadedRun) -> None:
    lines = shown(alone, TextPopup("t", lambda columns: "\n".join(["¤" * columns] * 99)), SMALL)
    assert len({line.count("¤") for line in lines}) == 1


def test_what_is_copied_is_the_text_where_nothing_else_is_said() -> None:
    assert TextPopup("t", "all of it").copies == "all of it"
    assert TextPopup("t", lambda columns: "all", copies="a fix").copies == "a fix"
    assert TextPopup("t", lambda columns: "¤" * columns).copies == "¤" * 80


def test_text_as_it_stands_is_broken_by_the_frame(alone: LoadedRun) -> None:
    assert len(shown(alone, TextPopup("t", "¤" * 150), LARGE)) == 2
