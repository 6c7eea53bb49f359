"""The HTML report in a real browser: no error, no request, themes, no scripts, on paper, hostile names."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.browser import Tab, executable
from tests.support.hostile_names import NAMES, poisoned
from tests.support.reports import memory_only, straggler, trace
from zprof.model.report import Report
from zprof.reports.formats import by_name

pytestmark = pytest.mark.skipif(executable() is None, reason="no chromium or google-chrome on the PATH")

render = by_name("html").render
AREAS = "document.querySelector('svg.areas')"
BOX = f"(() => {{ const b = {AREAS}.getBoundingClientRect(); return [b.left, b.top, b.width, b.height] }})()"
#: Start and width of what the chart shows, in thousandths of the timeline.
VIEW = f"{AREAS}.getAttribute('viewBox').split(' ').filter((_, at) => at % 2 == 0).map(Number)"
READOUT = "document.querySelector('.readout').textContent"
DATA = "JSON.parse(document.getElementById('timeline-data').textContent)"
#: What is not seen: nothing of it takes any room.
ROOM = "document.querySelector({}).getBoundingClientRect().height"
PAPER = "getComputedStyle(document.body).backgroundColor"
DARK, LIGHT = "rgb(21, 24, 28)", "rgb(255, 255, 255)"
SEGMENT = "getComputedStyle(document.querySelector('rect.tenant-parameters')).fill"

RANKS = 12
#: A clipboard that works, and one that the browser refuses.
WRITERS = {
    True: "{ writeText: async text => { window.copied = text } }",
    False: "{ writeText: () => Promise.reject(new Error()) }",
}


def late_report() -> Report:
    """Twelve ranks, one of which all others wait for; their step times as text are in another order."""
    report = straggler()
    first = report.time.per_rank[0]
    ranks = [
        replace(first, rank=rank, wall_ns=10**6 * (3 + 37 * (5 * rank % RANKS))) for rank in range(RANKS)
    ]
    run = replace(report.run, world_size=RANKS, ranks_loaded=tuple(range(RANKS)))
    return replace(report, run=run, time=replace(report.time, per_rank=tuple(ranks)))


LATE = late_report()


@pytest.fixture(scope="module")
def charted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with a memory timeline, thus with a script."""
    path = tmp_path_factory.mktemp("page") / "memory.html"
    path.write_text(render(memory_only()), encoding="utf-8")
    return path


def test_it_renders_without_a_complaint_or_a_request(tab: Tab, charted: Path) -> None:
    tab.open(charted)
    assert tab.value("document.documentElement.scrollWidth") <= 1280
    assert tab.value(ROOM.format("'.plot'")) > 100
    assert tab.value(ROOM.format("'.readout'")) > 10
    assert tab.complaints() == []
    assert tab.requests() == [charted.as_uri()]


@pytest.fixture(scope="module")
def many_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "ranks.html"
    path.write_text(render(LATE), encoding="utf-8")
    return path


def open_at_chart(tab: Tab, path: Path) -> None:
    tab.open(path)
    tab.value("document.getElementById('timeline-figure').scrollIntoView()")


def mouse(tab: Tab, kind: str, part: float, **options: object) -> None:
    """An event of the mouse over the chart, at a part of its width."""
    left, top, width, height = tab.value(BOX)
    tab.call("Input.dispatchMouseEvent", type=kind, x=left + part * width, y=top + height / 2, **options)


def press(tab: Tab, key: str) -> None:
    text = {"text": key} if len(key) == 1 else {}
    named = {"\r": "Enter"}.get(key, key)
    for kind in ("keyDown", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=kind, key=named, **(text if kind == "keyDown" else {}))


def shown_total(tab: Tab) -> float:
    return float(tab.value(READOUT).partition(": ")[2].split()[0])


def test_the_pointer_reads_the_values_of_its_time(tab: Tab, charted: Path) -> None:
    open_at_chart(tab, charted)
    data = tab.value(DATA)
    for part in (0.01, 0.37, 0.8, 0.99):
        mouse(tab, "mouseMoved", part)
        time_ms = tab.value(f"Number({AREAS}.getAttribute('aria-valuenow'))")
        assert time_ms == pytest.approx(part * data["end_ms"], abs=data["end_ms"] / 500)
        index = max(at for at, start in enumerate(data["time_ms"]) if start <= time_ms)
        values = {series["name"]: series["values"][index] for series in data["series"]}
        assert shown_total(tab) == pytest.approx(sum(values.values()), abs=0.06)
        assert all((name in tab.value(READOUT)) == (value > 0) for name, value in values.items())
    assert tab.value(f"{AREAS}.getAttribute('aria-valuetext')") == tab.value(READOUT)


def test_a_drag_zooms_and_a_double_click_shows_all(tab: Tab, charted: Path) -> None:
    open_at_chart(tab, charted)
    before = tab.value("document.querySelector('svg.times').outerHTML")
    mouse(tab, "mousePressed", 0.2, button="left", buttons=1, clickCount=1)
    mouse(tab, "mouseMoved", 0.3, buttons=1)
    mouse(tab, "mouseMoved", 0.7, buttons=1)
    mouse(tab, "mouseReleased", 0.7, button="left", clickCount=1)
    assert tab.value(VIEW) == pytest.approx([200, 500], abs=3)
    assert tab.value("document.querySelector('svg.times').outerHTML") != before
    mouse(tab, "mouseMoved", 0.5)
    half = tab.value(f"{AREAS}.getAttribute('aria-valuenow') / {DATA}.end_ms")
    assert half == pytest.approx(0.45, abs=0.005)
    for count in (1, 2):
        mouse(tab, "mousePressed", 0.5, button="left", buttons=1, clickCount=count)
        mouse(tab, "mouseReleased", 0.5, button="left", clickCount=count)
    assert tab.value(VIEW) == [0, 1000]
    assert tab.value("document.querySelector('svg.times').outerHTML") == before


def test_the_keyboard_reaches_all_of_it(tab: Tab, charted: Path) -> None:
    tab.open(charted)
    tab.value(f"{AREAS}.focus()")
    press(tab, "Home")
    first = tab.value(f"Number({AREAS}.getAttribute('aria-valuenow'))")
    press(tab, "ArrowRight")
    assert first == 0
    assert tab.value(f"Number({AREAS}.getAttribute('aria-valuenow'))") == tab.value(f"{DATA}.time_ms[1]")
    press(tab, "+")
    assert tab.value(VIEW)[1] == pytest.approx(500)
    press(tab, "End")
    assert tab.value(VIEW) == pytest.approx([500, 500]), "the view follows the cursor"
    press(tab, "-")
    assert tab.value(VIEW) == [0, 1000]
    press(tab, "+")
    press(tab, "Escape")
    assert tab.value(VIEW) == [0, 1000]
    assert tab.complaints() == []


def test_what_tries_to_leave_is_stopped_and_seen(tab: Tab, tmp_path: Path, charted: Path) -> None:
    """The checks above see a picture from elsewhere, and a script that the policy does not name."""
    text = charted.read_text(encoding="utf-8")
    path = tmp_path / "planted.html"
    planted = '<img src="http://192.0.2.1/x.png"><script>document.title = "owned"</script></body>'
    path.write_text(text.replace("</body>", planted), encoding="utf-8")
    tab.open(path)
    assert len([text for text in tab.complaints() if "Content Security Policy" in text]) == 2
    assert tab.value("document.title") != "owned"


def test_themes_follow_the_system_and_the_choice(tab: Tab, charted: Path) -> None:
    tab.open(charted)
    assert tab.value(PAPER) == LIGHT
    ticks = "getComputedStyle(document.querySelector('svg.times text')).fill"
    before = tab.value(ticks)
    tab.value("document.getElementById('theme-dark').click()")
    assert tab.value(PAPER) == DARK
    assert tab.value(ticks) != before
    tab.prefer("dark")
    tab.value("document.getElementById('theme-light').click()")
    assert tab.value(PAPER) == LIGHT
    tab.value("document.getElementById('theme-system').click()")
    assert tab.value(PAPER) == DARK
    assert tab.complaints() == []


def test_without_scripts_the_picture_and_the_numbers_are_there(tab: Tab, charted: Path) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    tab.open(charted)
    tree = json.dumps(tab.call("DOMSnapshot.captureSnapshot", computedStyles=["display"]))
    assert "parameters" in tree
    assert tab.value(f"{AREAS}.getAttribute('role')") == "img"
    assert tab.value(ROOM.format("'.plot'")) > 100
    assert tab.value(ROOM.format("'.reading'")) == tab.value(ROOM.format("'.keys'")) == 0
    assert tab.value(SEGMENT) == "rgb(0, 114, 178)"
    tab.prefer("dark")
    assert tab.value(PAPER) == DARK
    assert tab.complaints() == []


def test_on_paper_it_is_light_and_open(tab: Tab, charted: Path, tmp_path: Path) -> None:
    tab.open(charted)
    tab.value("document.getElementById('theme-dark').click()")
    tab.prefer("dark", media="print")
    assert tab.value(PAPER) == LIGHT
    assert tab.value(ROOM.format("'.plot'")) > 100
    assert tab.value(ROOM.format("'.reading'")) == tab.value(ROOM.format("'.keys'")) == 0
    assert tab.value(ROOM.format("'.theme'")) == 0
    assert len(tab.print()) > 20_000
    path = tmp_path / "trace.html"
    path.write_text(render(trace()), encoding="utf-8")
    tab.prefer("light")
    tab.open(path)
    assert tab.value(ROOM.format("'details'")) < 60
    tab.prefer("light", media="print")
    assert tab.value(ROOM.format("'details'")) > 100, "what was folded is open"


HEADS = "[...document.querySelectorAll('#ranks th[data-sort]')]"
ROWS = (
    "[...document.querySelectorAll('#ranks table:not(.heat) tbody tr')].map(row => row.cells[0].textContent)"
)


def test_a_table_is_sorted_by_its_heads_and_back(tab: Tab, many_ranks: Path) -> None:
    """By value and not by text: the numbers are those of the report, as they were written."""
    tab.open(many_ranks)
    first = tab.value(ROWS)
    walls = {str(entry.rank): entry.wall_ns for entry in LATE.time.per_rank}
    assert [len(first), len(set(walls.values()))] == [RANKS, RANKS]
    tab.value(f"{HEADS}[1].firstChild.focus()")
    for order, expected in (
        ("descending", sorted(walls, key=lambda rank: -walls[rank])),
        ("ascending", sorted(walls, key=lambda rank: walls[rank])),
        (None, first),
    ):
        press(tab, "\r" if order == "ascending" else " ")
        assert tab.value(ROWS) == expected
        assert tab.value(f"{HEADS}[1].getAttribute('aria-sort')") == order
    tab.value(f"{HEADS}[0].firstChild.click()")
    assert tab.value(ROWS) == sorted(walls, key=int), "text with numbers, by number"
    assert tab.complaints() == []


def test_a_total_stays_in_its_place(tab: Tab, many_ranks: Path) -> None:
    tab.open(many_ranks)
    names = "[...document.querySelectorAll('tr.total')][0].closest('tbody').rows"
    names = f"[...{names}].map(row => row.cells[0].textContent)"
    before = tab.value(names)
    tab.value("document.querySelector('tr.total').closest('table').querySelector('.sort').click()")
    after = tab.value(names)
    assert after != before
    assert after == [*sorted(before[:-1]), before[-1]]


@pytest.mark.parametrize("has_clipboard", [True, False])
def test_a_fix_is_copied(tab: Tab, many_ranks: Path, has_clipboard: bool) -> None:
    tab.open(many_ranks)
    tab.value(f"Object.defineProperty(navigator, 'clipboard', {{ value: {WRITERS[has_clipboard]} }})")
    tab.value("document.addEventListener('copy', () => { window.copied = document.activeElement.value })")
    tab.value("document.querySelector('.finding .copy').focus()")
    press(tab, "\r")
    tab.value("new Promise(done => setTimeout(done, 50))")
    assert tab.value("window.copied") == LATE.findings[0].fix
    assert tab.value("document.activeElement.textContent") == "Copied"
    assert tab.value("document.querySelector('[role=status]').textContent") == "Copied"
    assert tab.value("document.querySelectorAll('textarea').length") == 0
    assert tab.complaints() == []


def test_hostile_names_do_nothing(tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(render(poisoned(memory_only(), "".join(NAMES))), encoding="utf-8")
    tab.size(400, 800)
    tab.open(path)
    assert tab.value("document.querySelectorAll('img,b').length") == 0
    assert (
        tab.value("[...document.querySelectorAll('*')].filter(e => e.onmouseover || e.onerror).length") == 0
    )
    assert tab.value(ROOM.format("'.readout'")) > 10
    assert tab.complaints() == []
    assert tab.requests() == [path.as_uri()]
    assert tab.value("document.documentElement.scrollWidth") <= 400
