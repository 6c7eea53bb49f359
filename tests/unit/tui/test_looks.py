"""No colour at all, nothing but ASCII, light and dark: what is drawn, segment by segment."""

from collections.abc import Callable

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.pilot import Pilot

from tests.support.tui_app import LARGE, MIDDLE, SMALL, app_on, play, screen_text, settled
from tests.support.tui_keys import closed, drawn, pressed, shown
from zprof.model.errors import BadInput
from zprof.tui.app import SCREENS, ZprofApp
from zprof.tui.keys import KEYS, Where
from zprof.tui.session import LoadedRun
from zprof.tui.theme import (
    HEAT_GLYPHS,
    MARKS,
    TENANTS,
    TIMES,
    AsciiOnly,
    NoColours,
    resolve_theme,
    to_ascii,
    wants_no_colour,
)

OPENED = ("question_mark", "g", "e", "r", "ctrl+p")


def segments(app: ZprofApp) -> list[Segment]:
    return [segment for strip in app.screen._compositor.render_strips() for segment in strip]


async def everything(app: ZprofApp, pilot: Pilot[int], name: str, hold: Callable[[str], None]) -> None:
    await shown(app, pilot, name)
    hold(name)
    if name == "overview":
        app.notify("said", markup=False)
        for key in OPENED:
            await pressed(app, pilot, key)
            hold(f"{name} {key}")
            await pressed(app, pilot, "escape")
        await closed(app, pilot)


@pytest.mark.parametrize(
    ("theme", "names"), [("textual-dark", tuple(SCREENS)), ("ansi-light", ("overview",))]
)
def test_without_colours_nothing_has_one(loaded: LoadedRun, theme: str, names: tuple[str, ...]) -> None:
    app = app_on(loaded, mono=True)

    def hold(where: str) -> None:
        styles = [segment.style for segment in segments(app) if segment.style]
        assert not [style for style in styles if style.color or style.bgcolor], where
        assert any(style.reverse for style in styles), where

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        app.theme = theme
        for name in names:
            await everything(app, pilot, name, hold)

    play(app, act, notifications=True)


def test_in_ascii_nothing_is_above(loaded: LoadedRun) -> None:
    app = app_on(loaded, ascii_only=True)

    def hold(where: str) -> None:
        text = screen_text(app)
        assert text.isascii(), (where, {sign for sign in text if not sign.isascii()})
        assert not where.startswith("overview") or "+-" in text

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for name in SCREENS:
            await everything(app, pilot, name, hold)

    play(app, act, LARGE, notifications=True)


def test_another_theme_is_drawn_at_once(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for name in SCREENS:
            await shown(app, pilot, name)
            dark, text = drawn(app), screen_text(app)
            app.theme = "textual-light"
            await settled(app, pilot)
            light = drawn(app)
            assert light != dark, name
            assert screen_text(app) == text, name
            app.theme = "textual-dark"
            await settled(app, pilot)
            assert drawn(app) == dark, name

    play(app_on(loaded), act)


@pytest.mark.parametrize("size", [SMALL, MIDDLE])
def test_the_footer_fits(loaded: LoadedRun, size: tuple[int, int]) -> None:
    """With all its keys but the one of the list of keys, for which there is room in wide terminals alone."""

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for name in SCREENS:
            await shown(app, pilot, name)
            footer = screen_text(app).splitlines()[-1]
            for one in app.screen.active_bindings.values():
                if one.binding.show and (size != SMALL or one.binding.action not in ("app.help", "help")):
                    assert f"{one.binding.key_display} {one.binding.description}" in footer, name
            assert "q quit" in footer, name

    play(app_on(loaded), act, size)


def test_colours_out_and_all_else_stays() -> None:
    style = Style(color="red", bgcolor="blue", bold=True, reverse=True, meta={"row": 3})
    (plain,) = NoColours().apply([Segment("a", style)], Color.parse("black"))
    assert plain.text == "a"
    assert plain.style == Style(bold=True, reverse=True, meta={"row": 3})
    assert plain.style is not None
    assert plain.style.meta == {"row": 3}


def test_ascii_keeps_the_columns() -> None:
    assert to_ascii("╭─é表e\u0301│…✓") == "+-???e|.+"
    (line,) = AsciiOnly().apply([Segment("▲ µs", Style(bold=True))], Color.parse("black"))
    assert (line.text, line.style) == ("^ us", Style(bold=True))


def test_every_glyph_has_a_letter_of_its_own() -> None:
    for paints in (TENANTS, TIMES):
        letters = [paint.letter for paint in paints.values()]
        assert len(set(letters)) == len(letters)
        assert "".join(letters).isascii()
        assert len({paint.glyph for paint in paints.values()}) == len(paints)
    assert all(paint.letter.isascii() for paint in MARKS.values())
    assert len(set(HEAT_GLYPHS)) == len(HEAT_GLYPHS)


#: Lab distances between any two tenants: normal sight, protan, deutan, tritan (Machado's simulation).
OKABE_ITO = {"#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9"}


def test_tenants_have_the_palette_for_every_sight() -> None:
    six = list(TENANTS.values())[:6]
    assert {paint.dark for paint in six} == {paint.light for paint in six} == OKABE_ITO


def test_names_of_themes() -> None:
    assert resolve_theme("light") == "textual-light"
    assert resolve_theme("dracula") == "dracula"
    with pytest.raises(BadInput) as refused:
        resolve_theme("lihgt")
    assert "ansi-light" in refused.value.hint


def test_no_colour_is_wanted_by_anything_but_nothing() -> None:
    assert [wants_no_colour(env) for env in ({}, {"NO_COLOR": ""}, {"NO_COLOR": "0"})] == [False, False, True]


def test_keys_are_written_in_ascii() -> None:
    assert all(
        f"{key.written}{key.says}{key.footer}".isascii() for key in KEYS if key.where is not Where.LIVE
    )
