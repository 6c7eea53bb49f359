"""Without colours, in ASCII, light and dark: what is drawn, segment by segment."""

from collections.abc import Callable

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.pilot import Pilot

from tests.support.tui_app import LARGE, SMALL, app_on, play, press, screen_text, settle
from tests.support.tui_keys import close_popups, show_screen, styled_cells
from zprof.base.errors import BadInput
from zprof.tui.app import SCREENS, ZprofApp
from zprof.tui.session import LoadedRun
from zprof.tui.theme import (
    AsciiOnly,
    resolve_theme,
    to_ascii,
    wants_no_colour,
)

POPUPS = ("question_mark", "g", "e", "r", "ctrl+p")


async def visit_all(app: ZprofApp, pilot: Pilot[int], check: Callable[[str], None]) -> None:
    """Check each screen, and over the first one a message and the popups."""
    for name in SCREENS:
        await show_screen(app, pilot, name)
        check(name)
    await show_screen(app, pilot, "overview")
    app.notify("a message", markup=False)
    for key in POPUPS:
        await press(app, pilot, key)
        check(key)
        await press(app, pilot, "escape")
    await close_popups(app, pilot)


@pytest.mark.parametrize("theme", ["textual-dark", pytest.param("ansi-light", marks=pytest.mark.slow)])
def test_without_colours_nothing_has_one(loaded: LoadedRun, theme: str) -> None:
    app = app_on(loaded, mono=True)

    def check(where: str) -> None:
        strips = app.screen._compositor.render_strips()
        styles = [segment.style for strip in strips for segment in strip if segment.style]
        assert not [style for style in styles if style.color or style.bgcolor], where
        assert any(style.reverse for style in styles), where

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        app.theme = theme
        await visit_all(app, pilot, check)

    play(app, act, notifications=True)


@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)], ids=str)
def test_in_ascii_nothing_else_is_drawn(loaded: LoadedRun, size: tuple[int, int]) -> None:
    app = app_on(loaded, ascii_only=True)

    def check(where: str) -> None:
        text = screen_text(app)
        assert text.isascii(), (where, {sign for sign in text if not sign.isascii()})

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await visit_all(app, pilot, check)

    play(app, act, size, notifications=True)


def test_another_theme_is_drawn_at_once_and_a_light_one_is_light(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for name in SCREENS:
            await show_screen(app, pilot, name)
            dark, text = styled_cells(app), screen_text(app)
            app.theme = "textual-light"
            await settle(app, pilot)
            light = styled_cells(app)
            assert light != dark, name
            assert screen_text(app) == text, name
            grounds = [style.bgcolor for line in light for _, style in line]
            assert sum(min(ground.triplet) > 200 for ground in grounds) > len(grounds) / 2, name
            app.theme = "textual-dark"
            await settle(app, pilot)
            assert styled_cells(app) == dark, name

    play(app_on(loaded), act)


def test_ascii_keeps_the_columns() -> None:
    assert to_ascii("╭─é表e\u0301│…✓") == "+-???e|.+"
    (line,) = AsciiOnly().apply([Segment("▲ µs", Style(bold=True))], Color.parse("black"))
    assert (line.text, line.style) == ("^ us", Style(bold=True))


def test_themes_are_resolved_by_name_and_no_color_by_any_value() -> None:
    assert (resolve_theme("light"), resolve_theme("dracula")) == ("textual-light", "dracula")
    with pytest.raises(BadInput) as refused:
        resolve_theme("lihgt")
    assert "ansi-light" in refused.value.hint
    assert [wants_no_colour(env) for env in ({}, {"NO_COLOR": ""}, {"NO_COLOR": "0"})] == [False, False, True]
