"""Each screen as a picture: three sizes, dark, light and without colours, on the frozen runs.

``pytest tests/unit/tui/test_snapshots.py --snapshot-update`` takes them anew.  Another version of Textual or
Rich draws other pictures: then they are not compared.
"""

import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import product
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from textual.pilot import Pilot

from tests.support.tui_app import LARGE, MIDDLE, SIZES, SMALL, app_on, settled
from zprof.tui.app import SCREENS, ZprofApp
from zprof.tui.session import LoadedRun

LOOKS = {"dark": "textual-dark", "light": "textual-light", "mono": "textual-dark"}
#: The default look from the smallest to the largest, the others each at one size; slowly all of them.
FAST = {("dark", SMALL), ("dark", LARGE), ("light", MIDDLE), ("mono", SMALL)}
CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"


def pictured() -> Iterator[ParameterSet]:
    for look, size in product(LOOKS, SIZES):
        marks = () if (look, size) in FAST else pytest.mark.slow
        yield pytest.param(size, look, marks=marks, id=f"{size[0]}x{size[1]}-{look}")


def is_pinned(package: str) -> bool:
    return f"\n{package}=={version(package)}\n" in CONSTRAINTS.read_text(encoding="utf-8")


@pytest.mark.skipif(
    not (is_pinned("textual") and is_pinned("rich")),
    reason="pictures are those of the versions of textual and rich in constraints.txt",
)
@pytest.mark.parametrize(("size", "look"), pictured())
@pytest.mark.parametrize("name", SCREENS)
def test_picture(
    loaded: LoadedRun, snap_compare: Callable[..., bool], name: str, size: tuple[int, int], look: str
) -> None:
    app = app_on(loaded, mono=look == "mono")
    app.theme = LOOKS[look]

    async def show(pilot: Pilot[int]) -> None:
        await settled(app, pilot)
        app.action_show(name)
        await settled(app, pilot)

    assert isinstance(app, ZprofApp)
    assert snap_compare(app, terminal_size=size, run_before=show)


@pytest.mark.skipif(
    not (is_pinned("textual") and is_pinned("rich")),
    reason="pictures are those of the versions of textual and rich in constraints.txt",
)
@pytest.mark.parametrize(
    "size",
    [(80, 24), pytest.param((120, 40), marks=pytest.mark.slow)],
    ids=lambda size: f"{size[0]}x{size[1]}",
)
def test_turned_knobs(loaded: LoadedRun, snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    app = app_on(loaded)

    async def show(pilot: Pilot[int]) -> None:
        for key in ("7", "left", "down", "down", "down", "right", "tab"):
            await settled(app, pilot)
            await pilot.press(key)
        await settled(app, pilot)

    assert snap_compare(app, terminal_size=size, run_before=show)


def test_the_pin_is_read() -> None:
    assert re.search(r"^textual==\d", CONSTRAINTS.read_text(), re.MULTILINE)
