"""Names from a run are text: on every screen, in popups, in messages and on the clipboard."""

import unicodedata

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from tests.support.hostile_run import poison
from tests.support.tui_app import LARGE, SMALL, app_on, finish_workers, messages, play, press, screen_text
from tests.support.tui_keys import close_popups, list_focusable, show_screen
from zprof.model.quantities import Path, Unit, Value
from zprof.reports.table import Column, Kind, Row, Table
from zprof.run.reader import load as open_run
from zprof.tui.app import SCREENS, ZprofApp
from zprof.tui.export import format_json, format_markdown
from zprof.tui.session import LoadedRun, RunRequest, load
from zprof.tui.widgets.fact_table import FactTable

NAME = "run[bold]\x1b[2J\u202e[@click=app.quit]q[/].zprof"
_STEERS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


@pytest.fixture(scope="module")
def hostile(loaded: LoadedRun, tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    """The slow run with such names, beside itself."""
    run = poison(loaded.run.path, tmp_path_factory.mktemp("hostile") / NAME)
    return load(RunRequest(path=run, baseline=run, opener=open_run), lambda doing: None)


def find_steering(text: str) -> set[str]:
    return {sign for sign in text if sign != "\n" and unicodedata.category(sign) in _STEERS}


def assert_inert(app: ZprofApp) -> None:
    """Assert that nothing drawn steers a terminal, is a link or acts by a click of the run's."""
    assert not find_steering(screen_text(app))
    for strip in app.screen._compositor.render_strips():
        for segment in strip:
            style = segment.style
            assert not (style and style.link)
            assert "quit" not in (str(style.meta.get("@click", "")) if style else "")


@pytest.mark.parametrize(
    ("size", "parts", "rows"),
    [(SMALL, 2, 1), pytest.param(LARGE, 9, 4, marks=pytest.mark.slow)],
    ids=["small", "large"],
)
def test_screens_and_what_they_open_and_copy_are_inert(
    hostile: LoadedRun, size: tuple[int, int], parts: int, rows: int
) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for name in SCREENS:
            await show_screen(app, pilot, name)
            assert_inert(app)
            for key in ("question_mark", *(("g", "r", "e", "b") if name == "overview" else ())):
                await press(app, pilot, key)
                assert_inert(app)
                await close_popups(app, pilot)
            for part in list(list_focusable(app))[:parts]:
                app.screen.set_focus(part)
                for _ in range(rows):
                    await press(app, pilot, "enter")
                    assert_inert(app)
                    await close_popups(app, pilot)
                    await press(app, pilot, "y", "down")
                    assert not find_steering(app.clipboard)
        assert app.return_code is None

    play(app_on(hostile), act, size)


def test_a_copied_name_is_escaped_in_markdown_and_json() -> None:
    table = Table(
        name="t",
        title="t",
        columns=(
            Column(title="a|b", kind=Kind.TEXT),
            Column(
                title="n",
            ),
        ),
    )
    figure = Value(number=1, unit=Unit.COUNT, leaves=(Path(("a",)),))
    line = Row(key="k", cells=("x|`code`<img src=x>*b*[a](b)\n| --- |\\\x1b", figure))
    head, _, row = format_markdown(table, line, line.cells[0]).split("\n")
    assert head == r"| a\|b | n |"
    assert row == r"| x\|\`code\`\<img src=x\>\*b\*\[a\](b)\\x0a\| --- \|\\\\x1b | 1 |"
    assert not find_steering(format_json(table, line, line.cells[0]))


def test_titles_messages_and_errors_are_text(hostile: LoadedRun) -> None:
    wild = Table(
        name="wild",
        title="[@click=app.quit]t[/]\x1b[2J",
        columns=(Column(title="[bold]c[/bold]\x1b[1m", kind=Kind.TEXT),),
        rows=(Row(key="[k]", cells=("[red]w[/red]\u202e",)),),
        note="[link=x]n[/link]\x07",
    )

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        app.screen.query(FactTable).first().show(wild)
        await pilot.pause()
        for text in ("[@click=app.quit]t[/]\\x1b", "[bold]c[/bold]", "[red]w[/red]\\u202e", "[link=x]n"):
            assert text in screen_text(app)
        assert "/[b]" in await press(app, pilot, "slash", *"[b]", "enter")
        await press(app, pilot, "e", "ctrl+u", *"/nowhere/[bold]a.txt", "enter")
        await finish_workers(app, pilot)
        assert "/nowhere/[bold]a.txt" in messages(app)[0]
        assert "/nowhere/[bold]a" in screen_text(app)
        assert_inert(app)
        await app.screen.mount(Static("[@click=app.quit]x[/]"), before=0)
        await pilot.pause()
        with pytest.raises(AssertionError):  # the check sees markup that is drawn
            assert_inert(app)

    play(app_on(hostile), act, LARGE, notifications=True)
