"""The timeline, by keys: from gap to gap, zoomed and moved, events that open."""

import re
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from tests.support.tui_app import MIDDLE, app_on, messages, play, press, text_after
from zprof.analysis.analysis import analyse_memory_only
from zprof.diagnosis.diagnose import diagnose
from zprof.run.reader import load as open_run
from zprof.tui.app import ZprofApp
from zprof.tui.popups import TextPopup
from zprof.tui.session import LoadedRun, PendingAnalysis
from zprof.tui.widgets.lanes import Lanes


def read_gap(text: str) -> tuple[int, int, float]:
    """Return number, count and milliseconds of the gap that the screen names."""
    found = re.search(r"exposed gap (\d+) of (\d+): ([\d.]+) ms", " ".join(text.split()))
    assert found is not None, text
    return int(found[1]), int(found[2]), float(found[3])


def read_ruler(text: str) -> str:
    return next(line for line in text.split("\n") if "ms of step" in line)


def lanes_of(app: ZprofApp) -> Lanes:
    return app.screen.query_one(Lanes)


def test_it_begins_on_the_longest_gap_and_keys_go_from_gap_to_gap(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        begun = read_gap(await press(app, pilot, "4"))
        assert lanes_of(app).view.shows_full_step
        first, count, length = read_gap(await press(app, pilot, "home", "n"))
        assert first == 1
        assert read_gap(await press(app, pilot, "n"))[0] == 2
        assert read_gap(await press(app, pilot, "N"))[0] == 1
        assert not messages(app)
        await press(app, pilot, "N")
        assert len(messages(app)) == 1, "there is none before"
        assert read_gap(await press(app, pilot, "end", "N"))[0] == count
        assert read_gap(await press(app, pilot, "x")) == begun
        assert begun[2] >= length
        await press(app, pilot, "home", "tab")
        assert app.focused is not lanes_of(app)
        assert read_gap(await press(app, pilot, "n", "n"))[0] == 2, "from the ledger, too"

    play(app_on(alone), act)


def test_in_a_gap_the_exposed_collective_is_named_and_opened(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "4", "home")
        lanes = lanes_of(app)
        for _ in range(12):
            text = " ".join((await press(app, pilot, "n")).split())
            assert re.search(r"by \S+ of \S+ \(", text)
            spot = lanes.find_target()
            shown = lanes.model.collectives.list_rows()[lanes.lane.items.row[spot.index or 0]]
            assert shown["end_ns"] > lanes.view.cursor_ns
            assert shown["exposed_wait_ns"] + shown["exposed_transfer_ns"] > 0
            assert sum(spot.shares.values()) == pytest.approx(1)
        await press(app, pilot, "x", "enter")
        assert isinstance(app.screen, TextPopup)
        title = app.screen.shown_title
        assert f"by {title}" in " ".join((await press(app, pilot, "escape")).split())
        await press(app, pilot, "down", "enter")
        assert isinstance(app.screen, TextPopup)
        assert app.screen.shown_title != title
        await press(app, pilot, "escape", "home", "up", "up", "enter")
        assert len(messages(app)) == 1, "nothing ran there"

    play(app_on(alone), act, MIDDLE)


def test_it_zooms_pans_and_shows_all_again_and_keeps_the_view_in_another_step(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        whole = read_ruler(await press(app, pilot, "4", "home"))
        near = read_ruler(await press(app, pilot, "plus", "plus", "plus"))
        assert near != whole
        assert read_ruler(await press(app, pilot, "shift+right", "shift+right", "shift+right")) != near
        assert read_ruler(await press(app, pilot, "home")) == whole
        right = read_ruler(await press(app, pilot, "right"))
        assert right != whole
        assert read_ruler(await press(app, pilot, "h")) == whole
        assert read_ruler(await press(app, pilot, "l")) == right
        await press(app, pilot, "x", "plus", "down")
        lanes = lanes_of(app)
        span, lane, model = lanes.view.span_ns, lanes.lane, lanes.model
        await press(app, pilot, "left_square_bracket")
        assert lanes.model is not model
        assert (lanes.view.span_ns, lanes.lane.key) == (span, lane.key)
        await pilot.click(Lanes, offset=(33, 4))
        assert (lanes.lane_index, lanes.view.column(lanes.width)) == (3, 20)

    play(app_on(alone), act)


def test_a_damaged_table_and_a_run_without_times_are_said(alone: LoadedRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(alone.run.path, folder)
    for path in folder.glob("rank*/events.parquet"):
        path.write_bytes(path.read_bytes()[:-9])
    assert "damaged" in text_after(app_on(replace(alone, run=open_run(folder))), "4")
    analysis = analyse_memory_only(alone.run)
    loaded = LoadedRun(
        run=alone.run,
        report=diagnose(analysis),
        pending=PendingAnalysis(lambda: analysis),
    )
    assert "no step" in text_after(app_on(loaded), "4")
