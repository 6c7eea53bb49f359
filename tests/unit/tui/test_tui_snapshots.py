"""Pictures of screens and states; ``--snapshot-update`` takes them anew."""

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.support.hung_runs import import_hung_job
from tests.support.pinned import is_pinned
from tests.support.tui_app import LARGE, MIDDLE, SMALL, app_on, press, settle
from zprof.run.reader import load as open_run
from zprof.tui.session import LoadedRun, RunRequest, load

#: Name of the picture: keys, size of the terminal, theme or look.
PICTURES: dict[str, tuple[tuple[str, ...], tuple[int, int], str]] = {
    "overview": ((), SMALL, "textual-dark"),
    "overview-wide": ((), LARGE, "textual-dark"),
    "overview-mono": ((), SMALL, "mono"),
    "finding": (("enter",), SMALL, "textual-dark"),
    "memory": (("2",), SMALL, "textual-dark"),
    "memory-light": (("2",), MIDDLE, "textual-light"),
    "communication": (("3",), SMALL, "textual-dark"),
    "instances": (("3", "enter"), SMALL, "textual-dark"),
    "timeline": (("4",), SMALL, "textual-dark"),
    "ranks": (("5",), SMALL, "textual-dark"),
    "number": (("5", "m", "space"), SMALL, "textual-dark"),
    "compare": (("6",), SMALL, "textual-dark"),
    "plan": (("7", "left", "down", "down", "down", "right", "tab"), SMALL, "textual-dark"),
}


_PINNED = pytest.mark.skipif(
    not (is_pinned("textual") and is_pinned("rich")),
    reason="pictures are those of the versions of textual and rich in constraints.txt",
)


@_PINNED
@pytest.mark.parametrize("name", PICTURES)
def test_picture(loaded: LoadedRun, snap_compare: Callable[..., bool], name: str) -> None:
    keys, size, look = PICTURES[name]
    app = app_on(loaded, mono=look == "mono")
    app.theme = look if look.startswith("textual") else "textual-dark"

    async def show(pilot: Pilot[int]) -> None:
        await settle(app, pilot)
        await press(app, pilot, *keys)

    assert snap_compare(app, terminal_size=size, run_before=show)


@_PINNED
def test_picture_of_a_hang(tmp_path: Path, snap_compare: Callable[..., bool]) -> None:
    loaded = load(RunRequest(path=import_hung_job(tmp_path), opener=open_run), lambda doing: None)

    async def show(pilot: Pilot[int]) -> None:
        await settle(app, pilot)

    app = app_on(loaded)
    app.theme = "textual-dark"
    assert snap_compare(app, terminal_size=SMALL, run_before=show)
