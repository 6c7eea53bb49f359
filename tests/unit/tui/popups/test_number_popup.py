"""A number, opened: its rows are seen, all of them."""

import pytest
from textual.pilot import Pilot

from tests.support.tui_app import LARGE, SIZES, app_on, play, press, screen_text
from tests.support.tui_keys import pressed
from zprof.tui.app import ZprofApp
from zprof.tui.popups.number import NumberPopup
from zprof.tui.session import Loaded


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_only_row_is_not_hidden_by_a_bar(alone: Loaded, size: tuple[int, int]) -> None:
    """A step of a rank is one row, with more columns than there is room for in 80."""

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pressed(app, pilot, "5", "m", "space")
        assert isinstance(app.screen, NumberPopup)
        lines = screen_text(app).split("\n")
        titles = next(at for at, line in enumerate(lines) if "wall_ns" in line and "compute_ns" in line)
        wall = f"{app.screen.number.text}"
        assert wall in lines[titles + 1]
        says_more = "more columns" in screen_text(app)
        assert says_more == (size != LARGE)
        await pressed(app, pilot, "tab", *["right"] * 9)
        assert "overlapped_ns" in screen_text(app)

    play(app_on(alone), act, size)


@pytest.mark.parametrize(
    ("keys", "title"),
    [
        (("4", "tab", "right", "enter"), "─ █ compute: "),
        (("5", "tab", "right", "right", "enter"), ", compute: "),
        (("6", "right", "right", "enter"), "─ step time, B: "),
        (("shift+tab", "enter"), "─ exposed transfer: "),
        (("shift+tab", "right", "right", "enter"), "─ exposed transfer, of step: "),
    ],
)
def test_its_title_says_which_number_of_the_row_it_is(
    loaded: Loaded, keys: tuple[str, ...], title: str
) -> None:
    assert title in press(app_on(loaded), *keys)
