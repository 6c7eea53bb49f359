"""The communication screen, by keys: the tables, the line that follows the focus, the drill to instances."""

from dataclasses import replace

import pytest
from textual.pilot import Pilot

from tests.support.tui_app import LARGE, MIDDLE, SMALL, app_on, play, press, screen_text, settled
from tests.support.tui_keys import pressed
from tests.unit.tui.pages.test_communication_page import many_groups, with_collective, with_time
from zprof.tui.app import ZprofApp
from zprof.tui.metric_help.registry import find_help
from zprof.tui.session import LoadedRun
from zprof.tui.tables import MAX_LINES, MAX_ROWS, LazyLines
from zprof.tui.widgets.fact_table import FactTable

_PARTS = ("message sizes", "units (wrapped", "the link:")


def texts(app: ZprofApp, *presses: str, size: tuple[int, int] = SMALL) -> list[str]:
    """What the terminal shows after each of these, keys parted by blanks."""
    seen: list[str] = []

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for keys in presses:
            for key in keys.split():
                await pilot.press(key)
            await settled(app, pilot)
            seen.append(screen_text(app))

    play(app, act, size)
    return seen


def test_collectives_and_checks_are_seen_and_one_of_three_tables(loaded: LoadedRun) -> None:
    seen = texts(app_on(loaded), "3", "m", "m", "m")
    for word in ("all_gather", "reduce_scatter", "law", "ledger", "clocks"):
        assert word in seen[0]
    shown = [[part for part in _PARTS if part in text] for text in seen]
    assert shown == [[_PARTS[0]], [_PARTS[1]], [_PARTS[2]], [_PARTS[0]]]
    assert "latency" in seen[2]
    assert "blocks.1" in seen[1]


def test_a_wide_terminal_shows_all(loaded: LoadedRun) -> None:
    text = press(app_on(loaded), "3", size=LARGE)
    assert all(title in text for title in (*_PARTS, "launch delay", "exposed transfer"))


def test_a_terminal_that_is_made_wider_shows_more(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("3")
        await settled(app, pilot)
        await pilot.resize_terminal(*MIDDLE)
        await settled(app, pilot)
        text = screen_text(app)
        assert all(word in text for word in (*_PARTS, "blocks.1", "latency", "launch delay"))
        await pilot.resize_terminal(*SMALL)
        await settled(app, pilot)
        assert "the link:" not in screen_text(app)

    play(app_on(loaded), act)


def test_the_line_follows_the_focus(loaded: LoadedRun) -> None:
    kinds = [entry.kind for entry in loaded.report.time.collectives]
    seen = texts(app_on(loaded), "3", "down")
    for kind, text in zip(kinds, seen, strict=True):
        assert split_line(text).startswith(f" {kind} 0,1  hidden")


def test_a_name_opens_its_worst_instances_and_a_number_its_formula(loaded: LoadedRun) -> None:
    seen = texts(
        app_on(loaded),
        "3 enter",
        "s S",
        "slash b l o c k s full_stop 3 enter",
        "escape escape",
        "right right right right right enter",
        size=MIDDLE,
    )
    assert "90 of 90, most exposed first; all matched; ? why late" in seen[0]
    assert "rank ▲" in seen[1]
    assert "blocks.3" in seen[2]
    assert "blocks.0" not in seen[2]
    assert "most exposed first;" not in seen[3]
    assert "exposed = union(collectives) minus union(compute)" in seen[4]


def split_line(text: str) -> str:
    return next(
        row for row in text.splitlines() if " wait " in row and "exposed:" in row and "collective" not in row
    )


def test_hidden_and_exposed_are_told_apart_without_colour_or_glyphs(loaded: LoadedRun) -> None:
    half = loaded.report.time.collectives[0].total_ns // 2
    even = with_collective(loaded, exposed_ns=half, exposed_wait_ns=half // 2, exposed_transfer_ns=half // 2)
    line = split_line(press(app_on(even, mono=True), "3"))
    assert "╌▒" in line
    assert "▒━" in line
    line = split_line(press(app_on(even, ascii_only=True), "3"))
    assert "-w" in line
    assert "w=" in line
    assert line.isascii()


def test_a_job_of_512_kinds_and_groups(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("3")
        await settled(app, pilot)
        assert app.screen.query_one("#collectives", FactTable).row_count == MAX_ROWS
        text = screen_text(app)
        assert f"first {MAX_ROWS} of 512 rows" in text
        for row in (row for row in text.splitlines() if "kind_0" in row and "hidden" not in row):
            assert row.rstrip().endswith("│")
        assert "law" in text
        assert "message sizes" in text

    play(app_on(many_groups(loaded)), act)


def test_names_from_a_run_are_text(loaded: LoadedRun) -> None:
    evil = "a[bold]b\x1b[2J"
    units = tuple(replace(unit, unit=evil) for unit in loaded.report.time.units)
    text = press(app_on(with_time(loaded, replace(loaded.report.time, units=units))), "3", "m")
    assert "a[bold]b\\x1b[2J" in text
    text = press(app_on(with_collective(loaded, group=evil, dtype=evil)), "3", "enter")
    assert "a[bold]b\\x1b[2J" in text


def test_a_search_without_a_hit_says_so_and_splits_nothing(loaded: LoadedRun) -> None:
    seen = texts(app_on(loaded), "3 slash z z z enter", "slash g a t h e r enter")
    assert "no row has 'zzz'" in seen[0]
    assert "hidden ╌" not in seen[0]
    assert " wait " not in seen[0].splitlines()[4]
    assert split_line(seen[1]).startswith(" all_gather 0,1  hidden")


def test_of_thousands_of_rows_those_are_made_that_are_drawn(loaded: LoadedRun) -> None:
    first, unit = loaded.report.time.collectives[0], loaded.report.time.units[0]
    time = replace(
        loaded.report.time,
        collectives=tuple(replace(first, kind=f"kind_{at}") for at in range(2500)),
        units=tuple(replace(unit, unit=f"blocks.{at}") for at in range(2500)),
    )

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("3")
        await settled(app, pilot)
        for name in ("collectives", "units"):
            part = app.screen.query_one(f"#{name}", FactTable)
            lines = part.table.lines if part.table else ()
            assert isinstance(lines, LazyLines)
            assert (len(lines), lines.made, part.row_count) == (MAX_LINES, MAX_ROWS, MAX_ROWS)
        assert "the 2000 most exposed of 2500" in screen_text(app)
        assert f"first {MAX_ROWS} of {MAX_LINES} rows: / narrows" in screen_text(app)

    play(app_on(with_time(loaded, time)), act, MIDDLE)


def test_what_the_columns_of_the_worst_are_is_said_beside_them(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pressed(app, pilot, "3", "enter", "question_mark")
        text = screen_text(app)
        assert "why late: what that rank did longer" in text
        assert "tied: all came within" in text

    play(app_on(loaded), act, LARGE)


def test_numbers_that_are_not_the_same_say_what_they_are(loaded: LoadedRun) -> None:
    """All of a transfer, its exposed part, and that of a finding: three numbers, each with its name."""
    text = press(app_on(loaded), "3")
    assert "hidden + exposed = wait + transfer, ms a step" in text
    assert "exposed:  ▒ wait" in text
    for key, number in (("transfer_ns", "transfer"), ("exposed_transfer_ns", "exposed transfer")):
        meaning = find_help(f"time.collectives[0].{key}")
        assert meaning is not None, number
        assert "without the first collective of each group in the window" in meaning.says


def test_a_findings_transfer_is_that_of_the_rows_without_the_first_of_the_window(loaded: LoadedRun) -> None:
    time, rows = loaded.report.time, loaded.analysis.collectives
    gathers = rows[rows["kind"] == "all_gather"]
    steps = sum(rank.steps for rank in time.per_rank)
    entry = next(entry for entry in time.collectives if entry.kind == "all_gather")
    first = gathers[gathers["first_of_window"].astype(bool)]
    said = {fact.what: fact.value for fact in loaded.report.findings[0].evidence}
    assert said["all_gathers looked at, all ranks and steps"] == entry.count * steps - len(first)
    for what, leaf in (
        ("all_gather transfer a step", "transfer_ns"),
        ("of it exposed", "exposed_transfer_ns"),
    ):
        assert said[what] == pytest.approx(getattr(entry, leaf) - first[leaf].sum() / steps, abs=1)
