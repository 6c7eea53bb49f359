"""The timeline, by keys."""

import json
import re
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.support.tui_app import LARGE, MIDDLE, SMALL, app_on, play, press, screen_text, settled
from zprof.analysis.analysis import analyse_memory_alone
from zprof.rules.diagnose import diagnose
from zprof.run.reader import load as open_run
from zprof.tui.app import ZprofApp
from zprof.tui.screens import timeline as screen_module
from zprof.tui.session import LoadedRun
from zprof.tui.widgets.lanes import Lanes

GAP = re.compile(r"exposed gap (\d+) of (\d+): ([\d.]+) ms")
#: Presses keys and gives the text of the terminal.
Keys = Callable[..., Awaitable[str]]


def on_timeline(
    loaded: LoadedRun, act: Callable[[ZprofApp, Keys], Awaitable[None]], size: tuple[int, int] = SMALL
) -> None:
    """Act on the fourth screen, with a function that presses keys and gives the text."""

    async def acting(app: ZprofApp, pilot: Pilot[int]) -> None:
        async def keys(*names: str) -> str:
            for name in names:
                await pilot.press(name)
                await settled(app, pilot)
            return screen_text(app)

        await keys("4")
        await act(app, keys)

    play(app_on(loaded), acting, size)


def gap(text: str) -> tuple[int, int, float]:
    """Number, count and milliseconds of the gap that the screen names."""
    found = GAP.search(" ".join(text.split()))
    assert found is not None, text
    return int(found[1]), int(found[2]), float(found[3])


def ruler(text: str) -> str:
    return next(line for line in text.split("\n") if "ms of step" in line)


def said(app: ZprofApp) -> list[str]:
    return [notification.message for notification in app._notifications]


def test_the_ledger_and_the_lanes_are_seen_at_once(alone: LoadedRun) -> None:
    text = press(app_on(alone), "4")
    for word in ("step ms", "█ compute", "phase", "forward", "unit", "collectives", "main thread", "━"):
        assert word in text
    assert "reading" not in text


def test_from_gap_to_gap(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, keys: Keys) -> None:
        first, count, length = gap(await keys("home", "n"))
        assert (first, count > 10) == (1, True)
        assert gap(await keys("n"))[0] == 2
        assert gap(await keys("N"))[0] == 1
        assert not said(app)
        await keys("N")
        assert said(app) == ["no exposed gap before the cursor"]
        assert gap(await keys("end", "N"))[0] == count
        text = await keys("x")
        assert gap(text)[2] >= length
        assert re.search(r"by (all_gather|reduce_scatter) of \S+ \(", " ".join(text.split()))

    on_timeline(alone, act)


def test_in_a_gap_the_exposed_collective_is_said_and_opened(alone: LoadedRun) -> None:
    """Not the event that ends in the same column before the gap begins, be it longer there."""

    async def act(app: ZprofApp, keys: Keys) -> None:
        await keys("home")
        for _ in range(25):
            text = " ".join((await keys("n")).split())
            found = re.search(r"by (\S+ of \S+) \(", text)
            spot, lanes = app.screen.query_one(Lanes).spot(), app.screen.query_one(Lanes)
            assert found is not None
            assert spot is not None
            assert lanes.model is not None
            assert lanes.lane is not None
            shown = lanes.model.collectives.iloc[int(lanes.lane.items.row[spot.place or 0])]
            assert shown["end_ns"] > lanes.view.cursor_ns
            assert shown["exposed_wait_ns"] + shown["exposed_transfer_ns"] > 0
            assert sum(spot.shares.values()) == pytest.approx(1)
        text = await keys("x", "enter")
        title = re.search(r"─ (\S+ of \S+) ─", text)
        blocking = re.search(r"by (\S+ of \S+)", " ".join((await keys("escape")).split()))
        assert title is not None
        assert blocking is not None
        assert title[1] == blocking[1]

    on_timeline(alone, act)


def test_it_begins_on_the_longest_gap_with_all_of_the_step_seen(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, keys: Keys) -> None:
        begun = screen_text(app)
        assert app.screen.query_one(Lanes).view.is_whole
        assert " of the gap " in " ".join(begun.split())
        assert gap(begun) == gap(await keys("x"))
        assert ruler(await keys("home")).split()[3] == "0"

    on_timeline(alone, act)


def test_wide_and_high_terminals_have_no_empty_half(alone: LoadedRun) -> None:
    """All that is known of the longest gap's event, and what the glyphs mean."""
    text = press(app_on(alone), "4", size=MIDDLE)
    assert "sequence" in text
    assert "t and a number: a thread" in text

    async def act(app: ZprofApp, keys: Keys) -> None:
        assert "t and a number: a thread" not in screen_text(app)
        assert "a thin glyph" in " ".join((await keys("question_mark")).split())

    on_timeline(alone, act)


def test_a_tick_is_read_under_the_cursor(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, keys: Keys) -> None:
        found = re.search(r"ms of step +(0 .*)", await keys("home"))
        assert found is not None
        plain = [column for column, label in enumerate(found[1]) if label.isdigit()]
        for _ in range(plain[-1]):
            text = await keys("right")
        assert "".join(re.findall(r"\d", ruler(text))) == "".join(re.findall(r"\d", found[1]))
        assert "▼" not in ruler(text)
        assert "▼" in ruler(await keys("left", "left", "left", "left"))

    on_timeline(alone, act)


def test_shares_and_counts_say_of_what(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, keys: Keys) -> None:
        text = " ".join((await keys("x", "minus", "minus", "minus", "right", "right")).split())
        assert re.search(r"[\d.]+ % of the column", text), text
        for _ in range(40):
            if re.search(r"\(1 of \d+ events in this column\)", " ".join((await keys("right")).split())):
                break
        else:
            pytest.fail("no column has several events")

    on_timeline(alone, act)


def test_keys_of_the_lanes_work_from_the_ledger(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, keys: Keys) -> None:
        lanes = app.screen.query_one(Lanes)
        await keys("home", "tab")
        assert app.focused is not lanes
        assert gap(await keys("n"))[0] == 1
        assert gap(await keys("n"))[0] == 2
        assert gap(await keys("N"))[0] == 1
        begun = screen_text(app)
        assert gap(await keys("x")) != gap(begun)
        span = lanes.view.span_ns
        await keys("plus")
        assert lanes.view.span_ns == span // 2
        await keys("minus")
        assert lanes.view.span_ns == span
        assert app.focused is not lanes

    on_timeline(alone, act)


def test_it_zooms_pans_and_sees_all_again(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, keys: Keys) -> None:
        whole = ruler(await keys("home"))
        near = ruler(await keys("plus", "plus", "plus"))
        assert near != whole
        assert ruler(await keys("shift+right", "shift+right", "shift+right")) != near
        assert ruler(await keys("home")) == whole
        assert ruler(await keys("plus", "minus")) == whole
        right = ruler(await keys("right"))
        assert right != whole
        assert ruler(await keys("h")) == whole
        assert ruler(await keys("l")) == right

    on_timeline(alone, act)


def test_an_event_opens(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, keys: Keys) -> None:
        text = await keys("x", "enter")
        assert "sequence" in text
        assert "last rank" in text
        text = await keys("escape", "down", "enter")
        assert "category" in text
        assert "esc: back" in text
        await keys("escape", "home", "up", "up", "enter")
        assert said(app) == ["nothing ran there"]

    on_timeline(alone, act, MIDDLE)


def test_the_part_that_is_seen_stays_with_another_step(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, keys: Keys) -> None:
        await keys("x", "plus", "plus", "down")
        lanes = app.screen.query_one(Lanes)
        before, lane, model = lanes.view, lanes.lane, lanes.model
        await keys("left_square_bracket")
        assert lane is not None
        assert lanes.lane is not None
        assert lanes.model is not model
        assert lanes.view.span_ns == before.span_ns
        assert lanes.lane.key == lane.key

    on_timeline(alone, act)


def test_a_step_is_read_once(alone: LoadedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []
    build = screen_module.build

    def counted(run: object, analysis: object, rank: int, step: int) -> object:
        read.append((rank, step))
        return build(run, analysis, rank, step)  # type: ignore[arg-type]

    monkeypatch.setattr(screen_module, "build", counted)
    press(app_on(alone), "4", "left_square_bracket", "right_square_bracket", "1", "4")
    assert len(read) == len(set(read)) == 2


def test_a_damaged_table_is_said_in_a_line(alone: LoadedRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(alone.run.path, folder)
    for path in folder.glob("rank*/events.parquet"):
        path.write_bytes(path.read_bytes()[:-9])
    text = press(app_on(replace(alone, run=open_run(folder))), "4")
    assert "damaged, its checksum is not the one that was written (copy the run" in " ".join(text.split())


def test_a_run_without_times_says_what_helps(alone: LoadedRun) -> None:
    analysis = analyse_memory_alone(alone.run)
    loaded = LoadedRun(run=alone.run, report=diagnose(analysis), analysis=analysis)
    assert "no step of this run was timed: g says why" in " ".join(press(app_on(loaded), "4").split())


@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)], ids=str)
def test_all_lanes_and_words_are_on_the_screen(alone: LoadedRun, size: tuple[int, int]) -> None:
    text = press(app_on(alone), "4", "x", size=size)
    assert "exposed gap" in text
    assert text.count(" comm ") >= 5
    assert all(len(line) <= size[0] for line in text.split("\n"))


def test_letters_where_there_are_no_glyphs(alone: LoadedRun) -> None:
    text = press(app_on(alone, ascii_only=True), "4", "x")
    body = [line for line in text.split("\n") if line.startswith(("collectives", "main thread", "ms of"))]
    assert len(body) == 3
    assert all(line.isascii() for line in body)
    assert "=" in body[1]


def test_a_click_puts_the_cursor_there(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("4")
        await settled(app, pilot)
        lanes = app.screen.query_one(Lanes)
        await pilot.click(Lanes, offset=(33, 4))
        assert lanes.at == 3
        assert lanes.view.column(lanes.width) == 20
        span = lanes.view.span_ns
        lanes.on_mouse_scroll_up(None)  # type: ignore[arg-type]
        assert lanes.view.span_ns == span // 2

    play(app_on(alone), act)


def test_the_ledger_is_copied_and_searched(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, keys: Keys) -> None:
        await keys("y")
        titles, _, row = app.clipboard.split("\n")
        assert titles.startswith("| step ms | █ compute |")
        assert row.count("|") == titles.count("|")
        await keys("Y")
        assert json.loads(app.clipboard)["step ms"]["leaves"][0].endswith(".wall_ns")
        await keys("tab", "slash", *"zzz", "enter")
        assert "esc shows all" in screen_text(app)
        assert "step ms" in await keys("escape")
        assert "step ms ▼" in await keys("s")
        assert "step ms ▲" in await keys("S")

    on_timeline(alone, act)
