"""Pictures of the screens of a run, as the program draws them."""

import re
from collections.abc import Iterator
from pathlib import Path

from textual.pilot import Pilot

from tests.support.tui_app import app_on, play, press
from zprof.run.reader import load as open_run
from zprof.tui.app import ZprofApp
from zprof.tui.session import RunRequest, load

#: Name of the picture, and the keys that lead to it.
PICTURES = {
    "tui-overview": (),
    "tui-timeline": ("4", "x"),
    "tui-communication": ("3",),
    "tui-memory": ("2",),
}
_SIZE = (100, 30)
#: A font from elsewhere: a picture loads nothing.
_FONTS = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def draw_screens(run: Path, baseline: Path) -> Iterator[tuple[str, str]]:
    """Yield the file name and the SVG of each screen."""
    loaded = load(RunRequest(path=run, baseline=baseline, opener=open_run), lambda doing: None)
    for name, keys in PICTURES.items():
        drawn: list[str] = []

        async def act(
            app: ZprofApp, pilot: Pilot[int], keys: tuple[str, ...] = keys, drawn: list[str] = drawn
        ) -> None:
            await press(app, pilot, *keys)
            drawn.append(app.export_screenshot(title=f"zprof tui {run.name}"))

        play(app_on(loaded), act, _SIZE)
        yield f"{name}.svg", _FONTS.sub("", drawn[0])
