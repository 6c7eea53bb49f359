"""Names from a run stay text: no element, attribute, class or character that is not the templates' own."""

import unicodedata
from functools import cache

import pytest

from tests.support.hostile_report import NAMES, poisoned
from tests.support.html_pages import Parsed, without_assets
from tests.support.reports import memory_only, slower, straggler, trace
from zprof.model.report import Report
from zprof.reports.html.assets import data_script
from zprof.reports.html.blocks import Series, TimelineData
from zprof.reports.html.report import render

REPORTS = {"slower": slower, "straggler": straggler, "trace": trace, "memory_only": memory_only}
#: Attributes whose values are the templates' own words or numbers, whatever the run says.
OWN_WORDS = ("class", "id", "href", "scope", "role", "type", "name", "lang", "d", "for")
_STEERS = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


@cache
def plain(name: str) -> Parsed:
    return Parsed(render(REPORTS[name]()))


def shapes(page: Parsed) -> set[tuple[str, tuple[str, ...]]]:
    """Elements by tag and names of attributes."""
    return {(e.tag, tuple(sorted(e.attributes))) for e in page.elements}


def own_words(page: Parsed) -> set[tuple[str, str, str]]:
    return {
        (e.tag, word, e.attributes[word]) for e in page.elements for word in OWN_WORDS if word in e.attributes
    }


def hold(report: Report, like: Parsed) -> None:
    """The page of ``report`` is made of nothing that ``like`` has not, but for its texts."""
    text = render(report)
    page = Parsed(text)
    assert not page.problems
    assert page.comments == []
    assert shapes(page) <= shapes(like) | {("td", ("class",)), ("th", ("class", "scope"))}
    assert own_words(page) <= own_words(like) | {("td", "class", "long"), ("th", "class", "long")}
    own = without_assets(text)
    assert not {c for c in own if c != "\n" and unicodedata.category(c) in _STEERS}
    text.encode("utf-8")


@pytest.mark.parametrize("end", NAMES)
@pytest.mark.parametrize("name", ["slower", "straggler", "trace"])
def test_every_name_is_text(name: str, end: str) -> None:
    hold(poisoned(REPORTS[name](), NAMES[end]), plain(name))


def test_every_name_of_memory_is_text() -> None:
    """All at once, because plotly makes the page large."""
    short = "".join(text for text in NAMES.values() if len(text) < 1_000)
    hold(poisoned(memory_only(), short), plain("memory_only"))


def test_a_name_is_seen_as_it_stands() -> None:
    page = Parsed(render(poisoned(slower(), NAMES["element"])))
    assert NAMES["element"] in page.text
    assert page.all("h1")[0].text.endswith(NAMES["element"])


def test_no_text_of_a_run_is_longer_than_a_sentence_may_be() -> None:
    page = Parsed(render(poisoned(straggler(), NAMES["long"])))
    assert max(len(line) for text in page.shown for line in text.splitlines()) <= 2_100
    assert max(len(cell.text) for cell in page.all("td")) <= 2_000
    assert len(page.all("h1")[0].text) <= 160


@pytest.mark.parametrize("end", NAMES)
def test_data_for_a_script_cannot_end_its_element(end: str) -> None:
    series = Series(kind="tenant-parameters", name=NAMES[end], values=(1.0,))
    data = TimelineData(time_ms=(0.0,), unit="MiB", series=(series,), steps=((0.0, NAMES[end]),))
    text = data_script(data)
    assert not set("<>&") & set(text)
    assert text.isascii()


def test_the_check_sees_an_element_of_a_name() -> None:
    text = render(slower()).replace("<h1>", "<h1><b onclick='x'>x</b>")
    assert not shapes(Parsed(text)) <= shapes(plain("slower"))
