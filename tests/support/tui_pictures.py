"""Pictures of the screens for the README, as the program draws them.

python -m tests.support.tui_pictures zprof-demo/zero3.zprof zprof-demo/ddp.zprof docs/pictures
"""

import re
import sys
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
#: A font from elsewhere: a picture asks for nothing.
_FONTS = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def draw(run: Path, baseline: Path, folder: Path) -> None:
    """Write each picture as ``NAME.svg``."""
    asked = RunRequest(path=run, baseline=baseline, opener=open_run)
    loaded = load(asked, lambda doing: None)
    for name, keys in PICTURES.items():

        async def act(
            app: ZprofApp, pilot: Pilot[int], keys: tuple[str, ...] = keys, name: str = name
        ) -> None:
            await press(app, pilot, *keys)
            drawn = app.export_screenshot(title=f"zprof tui {run.name}")
            (folder / f"{name}.svg").write_text(_FONTS.sub("", drawn), encoding="utf-8")

        play(app_on(loaded), act, _SIZE)


if __name__ == "__main__":
    draw(*(Path(argument) for argument in sys.argv[1:4]))
