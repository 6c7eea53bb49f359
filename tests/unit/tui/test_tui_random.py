"""Random sizes and keys, as fast as they come: the terminal UI ends with no exception."""

import random

import pytest
from textual.pilot import Pilot

from tests.support.tui_app import app_on, play
from zprof.tui.app import ZprofApp
from zprof.tui.keys import KEYS
from zprof.tui.session import LoadedRun

#: Sizes at which it once ended, the first ones of each walk.
_SMALL_SIZES = ((8, 10), (4, 4), (1, 1))
_OTHER_KEYS = ("enter", "escape", "tab", "up", "down", "left", "right", "a", "home", "end", "pagedown")
#: What ends the app, or writes a file.
_LEFT_OUT = ("quit", "export", "perfetto", "copy_markdown", "copy_json")


def list_keys() -> list[str]:
    named = [key for each in KEYS if each.action not in _LEFT_OUT for key in each.keys.split(",")]
    return sorted({*named, *_OTHER_KEYS} - {"q", "ctrl+q", "ctrl+c"})


@pytest.mark.parametrize(
    ("seed", "moves"),
    [(0, 16), *(pytest.param(seed, 60, marks=pytest.mark.slow) for seed in range(6))],
)
def test_no_size_and_no_key_ends_it(loaded: LoadedRun, seed: int, moves: int) -> None:
    draw = random.Random(seed)
    keys, sizes = list_keys(), list(_SMALL_SIZES)
    app = app_on(loaded)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for _ in range(moves):
            size = sizes.pop() if sizes else (draw.randint(1, 250), draw.randint(1, 80))
            await pilot.resize_terminal(*size)
            for key in draw.choices(keys, k=5):
                await pilot.press(key)

    play(app, act)
    assert app.return_code in (None, 0)
