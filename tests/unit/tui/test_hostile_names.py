"""Names from a run are text: on every screen, in what is opened, in messages and on the clipboard."""

import unicodedata
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from tests.support.hostile_run import poison
from tests.support.tui_app import LARGE, SMALL, app_on, play, screen_text
from tests.support.tui_keys import closed, focusable, pressed, shown
from zprof.run.reader import load as open_run
from zprof.tui.app import SCREENS, ZprofApp
from zprof.tui.export import format_json, format_markdown
from zprof.tui.figures import Figure, Unit
from zprof.tui.session import LoadedRun, RunRequest, load
from zprof.tui.tables import Column, Line, Table, TextCell
from zprof.tui.widgets.fact_table import FactTable

NAME = "run[bold]\x1b[2J\u202e[@click=app.quit]q[/].zprof"
#: Rows of a part are made by the same code, and each has such names: slowly more of them, at the other size.
_MOST_ROWS = {SMALL: 2, LARGE: 4}
#: What these open is of the run and not of the screen in front; a screen's own words are.
_EVERYWHERE = ("g", "r", "e", "b")
_STEERS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


@pytest.fixture(scope="module")
def hostile(slow_run: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    """The slow run with such names, beside itself."""
    run = poison(slow_run, tmp_path_factory.mktemp("hostile") / NAME)
    return load(RunRequest(path=run, baseline=run, opener=open_run), lambda doing: None)


def steering(text: str) -> set[str]:
    return {sign for sign in text if sign != "\n" and unicodedata.category(sign) in _STEERS}


def hold(app: ZprofApp) -> None:
    """Nothing that is drawn steers a terminal, is a link or acts by a click of the run's."""
    assert not steering(screen_text(app))
    for strip in app.screen._compositor.render_strips():
        for segment in strip:
            style = segment.style
            action = str(style.meta.get("@click", "")) if style else ""
            assert not (style and style.link)
            assert "quit" not in action


async def open_rows(app: ZprofApp, pilot: Pilot[int], most: int) -> None:
    """Open some rows of each part that has the focus."""
    for part in list(focusable(app)):
        app.screen.set_focus(part)
        for _ in range(most):
            await pressed(app, pilot, "enter")
            hold(app)
            await closed(app, pilot)
            await pressed(app, pilot, "down")


@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_and_what_it_opens(hostile: LoadedRun, name: str, size: tuple[int, int]) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await shown(app, pilot, name)
        hold(app)
        opened = ("question_mark", *(_EVERYWHERE if name == "overview" else ()))
        for key in opened if size == SMALL else ():
            await pressed(app, pilot, key)
            hold(app)
            await closed(app, pilot)
        await open_rows(app, pilot, _MOST_ROWS[size])
        assert app.return_code is None

    play(app_on(hostile), act, size)


def test_what_is_copied_is_inert(hostile: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for name in SCREENS:
            await shown(app, pilot, name)
            for table in app.screen.query(FactTable):
                for line in table._lines[: _MOST_ROWS[LARGE]] if table.table else ():
                    for form in (format_markdown, format_json):
                        assert table.table is not None
                        assert not steering(form(table.table, line, line.cells[0]))

    play(app_on(hostile), act)


def test_markdown_shows_a_name_as_it_stands() -> None:
    table = Table(name="t", title="t", columns=(Column(title="a|b"), Column(title="n", numeric=True)))
    figure = Figure(value=1, unit=Unit.COUNT, leaves=("a",))
    line = Line(key="k", cells=(TextCell("x|`code`<img src=x>*b*[a](b)\n| --- |\\"), figure))
    head, _, row = format_markdown(table, line, line.cells[0]).split("\n")
    assert head == r"| a\|b | n |"
    assert row == (r"| x\|\`code\`\<img src=x\>\*b\*\[a\](b)\\x0a\| --- \|\\ | 1 |")


def test_titles_messages_and_errors_are_text(hostile: LoadedRun) -> None:
    wild = Table(
        name="wild",
        title="[@click=app.quit]t[/]\x1b[2J",
        columns=(Column(title="[bold]c[/bold]\x1b[1m"),),
        lines=(Line(key="[k]", cells=(TextCell("[red]w[/red]\u202e"),)),),
        note="[link=x]n[/link]\x07",
    )

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        table = app.screen.query(FactTable).first()
        table.show(wild)
        await pilot.pause()
        for says in ("[@click=app.quit]t[/]\\x1b", "[bold]c[/bold]", "[red]w[/red]\\u202e", "[link=x]n"):
            assert says in screen_text(app)
        await pressed(app, pilot, "slash", *"[b]", "enter")
        assert "/[b]" in screen_text(app)
        app._export("/nowhere/[bold]\x1b[2J.txt")
        await app.workers.wait_for_complete()
        await pilot.pause()
        (note,) = app._notifications
        assert "[bold]\\x1b[2J.txt" in note.message
        assert not note.markup
        assert "/nowhere/[bold]" in screen_text(app)
        hold(app)

    play(app_on(hostile), act, LARGE, notifications=True)


def test_the_check_sees_what_steers(hostile: LoadedRun) -> None:
    """Markup that is drawn, or an escape sequence, is seen by ``hold``."""

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await app.screen.mount(Static("[@click=app.quit]x[/]"), before=0)
        await pilot.pause()
        with pytest.raises(AssertionError):
            hold(app)

    play(app_on(hostile), act)
    assert steering("a\x1bb\u202e") == {"\x1b", "\u202e"}
