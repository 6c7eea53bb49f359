"""The communication screen, by keys: the tables, the line that follows the focus, the drill to instances."""

from dataclasses import replace

import pytest
from textual.pilot import Pilot

from tests.support.tui_app import LARGE, MIDDLE, app_on, play, press, screen_text, settled
from tests.unit.tui.pages.test_communication_page import many_groups, with_collective, with_time
from zprof.tui.app import ZprofApp
from zprof.tui.session import Loaded
from zprof.tui.tables import MOST_ROWS
from zprof.tui.widgets.fact_table import FactTable


def test_collectives_sizes_and_checks_are_seen_at_once(loaded: Loaded) -> None:
    text = press(app_on(loaded), "3")
    for word in ("all_gather", "reduce_scatter", "message sizes", "law", "ledger", "clocks"):
        assert word in text
    assert "units (wrapped" not in text


@pytest.mark.parametrize(("presses", "seen"), [(1, "units (wrapped"), (2, "the link:"), (3, "message sizes")])
def test_m_shows_the_next_table(loaded: Loaded, presses: int, seen: str) -> None:
    text = press(app_on(loaded), "3", *["m"] * presses)
    assert seen in text
    assert sum(title in text for title in ("units (wrapped", "the link:", "message sizes")) == 1


@pytest.mark.parametrize("size", [MIDDLE, LARGE], ids=str)
def test_a_wide_terminal_shows_all(loaded: Loaded, size: tuple[int, int]) -> None:
    text = press(app_on(loaded), "3", size=size)
    assert all(title in text for title in ("units (wrapped", "the link:", "message sizes", "launch delay"))


def test_a_terminal_that_is_made_wider_shows_more(loaded: Loaded) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("3")
        await settled(app, pilot)
        await pilot.resize_terminal(*MIDDLE)
        await settled(app, pilot)
        assert "the link:" in screen_text(app)
        await pilot.resize_terminal(80, 24)
        await settled(app, pilot)
        assert "the link:" not in screen_text(app)

    play(app_on(loaded), act)


def test_the_line_follows_the_focus(loaded: Loaded) -> None:
    first, second = loaded.report.time.collectives
    assert f"{first.kind} 0,1  hidden" in press(app_on(loaded), "3")
    assert f"{second.kind} 0,1  hidden" in press(app_on(loaded), "3", "down")


def split_line(text: str) -> str:
    return next(
        row for row in text.splitlines() if " wait " in row and "exposed" in row and "collective" not in row
    )


def test_hidden_and_exposed_are_told_apart_without_colour_or_glyphs(loaded: Loaded) -> None:
    half = loaded.report.time.collectives[0].total_ns // 2
    even = with_collective(loaded, exposed_ns=half, exposed_wait_ns=half // 2, exposed_transfer_ns=half // 2)
    line = split_line(press(app_on(even, mono=True), "3"))
    assert "╌▒" in line
    assert "▒━" in line
    line = split_line(press(app_on(even, ascii_only=True), "3"))
    assert "-w" in line
    assert "w=" in line
    assert line.isascii()


def test_enter_on_a_name_opens_the_worst_instances(loaded: Loaded) -> None:
    text = press(app_on(loaded), "3", "enter")
    assert "most exposed first; all matched" in text
    assert "why" in text
    assert "most exposed first;" not in press(app_on(loaded), "3", "enter", "escape")


def test_instances_are_sorted_and_searched(loaded: Loaded) -> None:
    sorted_up = press(app_on(loaded), "3", "enter", "s", "S")
    assert "rank ▲" in sorted_up
    found = press(app_on(loaded), "3", "enter", "slash", *"blocks.3", "enter")
    assert "blocks.3" in found
    assert "blocks.0" not in found


def test_enter_on_a_number_explains_it(loaded: Loaded) -> None:
    text = press(app_on(loaded), "3", *["right"] * 5, "enter", size=MIDDLE)
    assert "exposed = union(collectives) minus union(compute)" in text


def test_a_job_of_512_kinds_and_groups(loaded: Loaded) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("3")
        await settled(app, pilot)
        assert app.screen.query_one("#collectives", FactTable).row_count == MOST_ROWS
        text = screen_text(app)
        assert f"first {MOST_ROWS} of 512 rows" in text
        for row in (row for row in text.splitlines() if "kind_0" in row and "hidden" not in row):
            assert row.rstrip().endswith("│")
        assert "law" in text
        assert "message sizes" in text

    play(app_on(many_groups(loaded)), act)


def test_names_from_a_run_are_text(loaded: Loaded) -> None:
    evil = "a[bold]b\x1b[2J"
    units = tuple(replace(unit, unit=evil) for unit in loaded.report.time.units)
    text = press(app_on(with_time(loaded, replace(loaded.report.time, units=units))), "3", "m")
    assert "a[bold]b\\x1b[2J" in text
    text = press(app_on(with_collective(loaded, group=evil, dtype=evil)), "3", "enter")
    assert "a[bold]b\\x1b[2J" in text
