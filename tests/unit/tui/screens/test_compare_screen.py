"""Both runs side by side, by keys; a baseline that is named later; A and B change places."""

from textual.pilot import Pilot

from tests.support.tui_app import app_on, play, press, screen_text, settle, wait_until
from zprof.tui.app import ZprofApp
from zprof.tui.session import LoadedRun
from zprof.tui.widgets.fact_table import FactTable


def names(app: ZprofApp) -> tuple[str, str]:
    """Return which run is A and which is B."""
    header = screen_text(app).partition("A ")[2].split()
    return header[0], header[header.index("B") + 1]


def test_d_n_and_search_change_the_rows_and_enter_opens_their_keys(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        everything = await press(app, pilot, "6")
        table = app.screen.query_one("#compare", FactTable)
        rows = len(table.table.rows)
        differing = await press(app, pilot, "d")
        assert len(table.table.rows) < rows
        assert differing != everything
        assert await press(app, pilot, "d") == everything
        text = await press(app, pilot, "n")
        assert all(part in text for part in ("6.3 ms", "10.1 ms", "+61.5 %"))
        for part in app.screen.query(FactTable):
            assert part.virtual_size.width <= part.size.width, part.id
        await press(app, pilot, "n")
        assert "sections[0].rows[0]" in await press(app, pilot, "enter")
        assert "settings[" in await press(app, pilot, "escape", "tab", "enter")
        await press(app, pilot, "escape", "shift+tab", "y")
        assert app.clipboard.split("\n")[2].startswith("| step time | 200.3 ms | 323.5 ms | +61.5 % |")
        text = await press(app, pilot, "slash", *"hidden", "enter")
        assert "compute" not in text

    play(app_on(loaded), act)


def test_x_makes_the_baseline_the_run(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "6")
        assert names(app) == ("ddp", "zero3")
        await pilot.press("x")
        await wait_until(pilot, lambda: not app.is_measuring)
        await settle(app, pilot)
        assert names(app) == ("zero3", "ddp")
        assert "ddp · 2 ranks" in screen_text(app), "the status line, too"

    play(app_on(loaded), act)


def test_without_a_baseline_it_says_how_to_name_one(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for key in ("6", "d", "n", "x"):
            text = await press(app, pilot, key)
            assert "--baseline" in text
            assert "differs" not in text.split("\n")[-1], "what needs a baseline is not offered"

    play(app_on(alone), act)
