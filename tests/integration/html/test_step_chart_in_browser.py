"""The step chart in a real browser: read, zoomed, by keys, on paper, without scripts, accessible."""

from pathlib import Path

import pytest

from tests.support.axe import find_serious, needs_axe
from tests.support.browser import Tab, executable
from tests.support.hostile_names import NAMES, poisoned
from tests.support.reports import memory_only, straggler
from tests.support.simulations import make_three_hosts, simulated
from tests.support.step_overviews import make_overview
from zprof.analysis.analysis import analyse
from zprof.analysis.step_timeline.overview import build_step_overview
from zprof.diagnosis.diagnose import diagnose
from zprof.reports.formats import by_name
from zprof.reports.html import render_html
from zprof.reports.pages.report import build_report_page

pytestmark = pytest.mark.skipif(executable() is None, reason="no chromium or google-chrome on the PATH")

CANVAS = "document.querySelector('.stage canvas')"
BOX = f"(() => {{ const b = {CANVAS}.getBoundingClientRect(); return [b.left, b.top, b.width] }})()"
READOUT = "document.querySelector('#step-figure .readout').textContent"
FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
#: Of the step made by hand: the place of rank 0's group lane in px, from the data that the script draws.
LANE = "JSON.parse(document.getElementById('step-data').textContent).rows[1].lanes[1]"
LAST_TIME = "[...document.querySelectorAll('#step-figure svg.times text')].pop().textContent"
WIDTHS = (400, 1000, 1600)


@pytest.fixture(scope="module")
def charted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "step.html"
    path.write_text(render_html(build_report_page(straggler(), make_overview())), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on three simulated ranks, one slow."""
    folder = tmp_path_factory.mktemp("recorded")
    analysis = analyse(simulated(make_three_hosts(), folder).run)
    path = folder / "recorded.html"
    page = build_report_page(diagnose(analysis), build_step_overview(analysis))
    path.write_text(render_html(page), encoding="utf-8")
    return path


def open_at_chart(tab: Tab, path: Path) -> None:
    tab.open(path)
    tab.value("document.getElementById('step-figure').scrollIntoView()")


def point(tab: Tab, kind: str, part: float, y: float, **options: object) -> None:
    left, top, width = tab.value(BOX)
    tab.call("Input.dispatchMouseEvent", type=kind, x=left + part * width, y=top + y, **options)


def press(tab: Tab, key: str) -> None:
    text = {"text": key} if len(key) == 1 else {}
    tab.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)


def test_the_pointer_reads_what_rank_start_length_bytes_and_who_was_last(tab: Tab, charted: Path) -> None:
    open_at_chart(tab, charted)
    lane = tab.value(LANE)
    point(tab, "mouseMoved", 0.55, lane["top"] + lane["height"] / 2)
    text = tab.value(READOUT)
    for part in (
        "rank 0",
        "exposed wait",
        "3.000 ms",
        "4.000 ms",
        "all_gather",
        "1.0 MiB",
        "rank 1 arrived last",
    ):
        assert part in text, text
    assert tab.complaints() == []
    assert tab.requests() == [charted.as_uri()]


def test_the_wheel_zooms_once_focused_and_else_scrolls(tab: Tab, charted: Path) -> None:
    open_at_chart(tab, charted)
    tab.value(FRAMES)
    whole = tab.value(LAST_TIME)
    point(tab, "mouseWheel", 0.5, 20, deltaX=0, deltaY=-400)
    tab.value(FRAMES)
    assert tab.value(LAST_TIME) == whole
    tab.value(f"{CANVAS}.focus({{ preventScroll: true }})")
    point(tab, "mouseWheel", 0.5, 20, deltaX=0, deltaY=-400)
    tab.value(FRAMES)
    assert tab.value(LAST_TIME) != whole
    press(tab, "Escape")
    tab.value(FRAMES)
    assert tab.value(LAST_TIME) == whole


def test_the_keyboard_reaches_all_of_it(tab: Tab, charted: Path) -> None:
    open_at_chart(tab, charted)
    tab.value(f"{CANVAS}.focus()")
    press(tab, "ArrowDown")
    assert "rank 1: compute" in tab.value(READOUT)
    press(tab, "ArrowRight")
    assert "2.000 ms from 8.0" in tab.value(READOUT)
    for _ in range(3):
        press(tab, "ArrowDown")
    assert "rank 0: exposed" in tab.value(READOUT)
    press(tab, "Home")
    assert "rank 0: exposed wait" in tab.value(READOUT)
    press(tab, "End")
    assert "rank 0: exposed transfer" in tab.value(READOUT)
    press(tab, "w")
    assert "rank 0 waits 3.0 ms for rank 1 in all_gather" in tab.value(READOUT)
    for key in ("+", "-", "PageDown", "PageUp"):
        press(tab, key)
    assert tab.complaints() == []


def test_without_scripts_and_on_paper_the_drawing_is_seen(tab: Tab, charted: Path) -> None:
    drawing = "getComputedStyle(document.querySelector('svg.slices')).visibility"
    tab.open(charted)
    assert tab.value(drawing) == "hidden"
    tab.prefer("dark", media="print")
    assert tab.value(drawing) == "visible"
    assert tab.value(f"getComputedStyle({CANVAS}).display") == "none"
    tab.prefer("light")
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    tab.open(charted)
    assert tab.value(drawing) == "visible"
    assert tab.value(CANVAS) is None
    assert tab.complaints() == []


def test_the_theme_changes_the_canvas(tab: Tab, charted: Path) -> None:
    pixel = f"[...{CANVAS}.getContext('2d').getImageData(2, 8, 1, 1).data].join()"
    open_at_chart(tab, charted)
    tab.value(FRAMES)
    light = tab.value(pixel)
    tab.value("document.getElementById('theme-dark').click()")
    tab.value(FRAMES)
    assert tab.value(pixel) != light


@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_any_window(tab: Tab, recorded: Path, width: int) -> None:
    tab.size(width, 900)
    open_at_chart(tab, recorded)
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value(f"{CANVAS}.getBoundingClientRect().width") >= width / 4
    assert tab.complaints() == []
    assert tab.requests() == [recorded.as_uri()]


def test_hostile_names_do_nothing(tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    name = "".join(NAMES)
    page = build_report_page(poisoned(memory_only(), name), poisoned(make_overview(), name))
    path.write_text(render_html(page), encoding="utf-8")
    open_at_chart(tab, path)
    press(tab, "w")
    lane = tab.value(LANE)
    point(tab, "mouseMoved", 0.55, lane["top"] + lane["height"] / 2)
    assert "exposed wait" in tab.value(READOUT)
    assert tab.value("document.querySelectorAll('img,b').length") == 0
    assert tab.complaints() == []
    assert tab.requests() == [path.as_uri()]


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(tab: Tab, recorded: Path, scheme: str) -> None:
    tab.prefer(scheme)
    tab.open(recorded)
    assert find_serious(tab) == []


def test_the_size_of_a_page_is_small(recorded: Path) -> None:
    assert recorded.stat().st_size < 1_500_000


def test_the_format_of_a_report_alone_has_no_chart() -> None:
    assert "step-figure" not in by_name("html").render(straggler())
