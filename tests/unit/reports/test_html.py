"""Pages as HTML: structure, one plotly where it is needed, nothing loaded, names that stay names."""

import base64
import hashlib
import re
import unicodedata
from functools import cache
from itertools import pairwise

import pytest

from tests.support.hostile_report import NAMES, poisoned
from tests.support.html_pages import Parsed, without_assets
from tests.support.report_pages import PAGES
from tests.support.reports import SITUATIONS, memory_only, slower, straggler, trace
from zprof.model.report import Report
from zprof.reports.formats import by_name, page_html
from zprof.reports.html import chart_data
from zprof.reports.page import AreaChart, AxisMark, Series
from zprof.reports.presenters.report import report_page

WITH_TIMELINE = frozenset({"memory_only", "snapshot"})
UNITLESS = frozenset({"rank", "waiting ranks", "in step", "stream"})
EVERY_PAGE = {**PAGES, **{name: lambda make=make: report_page(make()) for name, make in SITUATIONS.items()}}
#: Attributes whose values are the templates' own words or numbers, whatever the run says.
OWN_WORDS = ("class", "id", "href", "scope", "role", "type", "name", "lang", "d", "for")
_STEERS = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
#: A figure with its unit, as the text report writes it.
FIGURE = re.compile(r"\d+\.\d (?:ns|µs|ms|s|KiB|MiB|GiB|%|GB/s|MB/s)(?![A-Za-z])")


@cache
def page(name: str) -> str:
    return page_html(EVERY_PAGE[name]())


@cache
def parsed(name: str) -> Parsed:
    return Parsed(page(name))


@pytest.mark.parametrize("name", EVERY_PAGE)
def test_tags_match_and_ids_are_one_each(name: str) -> None:
    seen = parsed(name)
    assert not seen.problems
    assert not seen.comments
    ids = [element.attributes["id"] for element in seen.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    wanted = [e.attributes[a] for e in seen.elements for a in ("aria-labelledby",) if a in e.attributes]
    wanted += [link.attributes["href"].removeprefix("#") for link in seen.all("a")]
    assert set(wanted) <= set(ids)
    assert seen.text.count("None") == 0


@pytest.mark.parametrize("name", EVERY_PAGE)
def test_contents_name_every_section(name: str) -> None:
    seen = parsed(name)
    links = [link for link in seen.all("a") if "nav" in link.path]
    assert [link.text for link in links] == [title.text for title in seen.all("h2")]
    sections = [section.attributes["id"] for section in seen.all("section")]
    assert [link.attributes["href"] for link in links] == [f"#{anchor}" for anchor in sections]


@pytest.mark.parametrize("name", EVERY_PAGE)
def test_headings_step_down_one_at_a_time(name: str) -> None:
    levels = [int(e.tag[1]) for e in parsed(name).elements if re.fullmatch("h[1-6]", e.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    for landmark in ("header", "nav", "main", "footer"):
        assert len(parsed(name).all(landmark)) == 1


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_keyboard_skips_to_the_report_and_tables_are_no_landmarks(name: str) -> None:
    seen = parsed(name)
    assert seen.all("a")[0].attributes["href"] == "#main"
    assert seen.all("main")[0].attributes["id"] == "main"
    assert not [element for element in seen.elements if element.attributes.get("role") == "region"]


@pytest.mark.parametrize("name", sorted(WITH_TIMELINE))
def test_a_chart_has_a_name_and_replaces_the_picture_once_it_is_drawn(name: str) -> None:
    (chart,) = [e for e in parsed(name).elements if e.attributes.get("id") == "timeline-chart"]
    assert chart.attributes["role"] == "img"
    assert chart.attributes["aria-label"].endswith("the tables hold the numbers")
    script = "".join(parsed(name).all("script")[-1].texts)
    assert 0 < script.index("  draw();") < script.index('classList.add("live")')


@pytest.mark.parametrize("name", SITUATIONS)
def test_table_heads_have_scopes_and_units(name: str) -> None:
    seen = parsed(name)
    assert all(head.attributes.get("scope") in {"row", "col"} for head in seen.all("th"))
    assert len(seen.all("caption")) == len(seen.all("table"))
    assert all(caption.text for caption in seen.all("caption"))
    for head, inside in pairwise([*seen.elements, seen.elements[0]]):
        if head.tag == "th" and head.attributes.get("class") == "number" and head.text not in UNITLESS:
            assert (inside.tag, inside.attributes.get("class")) == ("span", "unit"), head.text


@pytest.mark.parametrize("name", SITUATIONS)
def test_plotly_is_in_it_once_where_a_chart_needs_it(name: str) -> None:
    scripts = [e for e in parsed(name).all("script") if "type" not in e.attributes]
    large = [script for script in scripts if len("".join(script.texts)) > 1_000_000]
    assert len(large) == (1 if name in WITH_TIMELINE else 0)
    assert len(scripts) == 2 * len(large)
    assert len(page(name).encode()) < (5_200_000 if large else 300_000)


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_policy_names_just_its_scripts(name: str) -> None:
    seen = parsed(name)
    (policy,) = [m.attributes["content"] for m in seen.all("meta") if "http-equiv" in m.attributes]
    scripts = ["".join(e.texts) for e in seen.all("script") if "type" not in e.attributes]
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    assert f"script-src {allowed};" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe-inline" not in policy.partition("style-src")[0]


@pytest.mark.parametrize("name", EVERY_PAGE)
def test_nothing_is_loaded_and_no_attribute_is_a_script(name: str) -> None:
    for element in parsed(name).elements:
        assert element.tag not in {"link", "iframe", "object", "embed", "img", "base", "form", "video"}
        assert not {"src", "action", "style", "srcset", "data"} & set(element.attributes)
        assert not [attribute for attribute in element.attributes if attribute.startswith("on")]
        assert element.attributes.get("href", "#").startswith("#")


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_figures_of_the_text_report_are_in_it(name: str) -> None:
    shown = parsed(name).text
    figures = set(FIGURE.findall(" ".join(by_name("text").render(SITUATIONS[name]()).split())))
    assert not figures - set(FIGURE.findall(shown))
    assert name == "nothing_timed" or len(figures) > 5


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_is_unknown_and_what_is_modelled_is_said(name: str) -> None:
    report, shown = SITUATIONS[name](), parsed(name).text
    assert " ".join(report.verdict.sentence.split()) in shown
    for gap in report.gaps:
        assert " ".join(gap.reason.split()) in shown
    for said in report.run.modelled:
        assert said in shown
    for finding in report.findings:
        assert finding.sentence in shown
        assert " ".join(finding.disprove.split()) in shown


REPORTS = {"slower": slower, "straggler": straggler, "trace": trace, "memory_only": memory_only}


@cache
def plain(name: str) -> Parsed:
    return parsed(name)


def shapes(page: Parsed) -> set[tuple[str, tuple[str, ...]]]:
    """Elements by tag and names of attributes."""
    return {(e.tag, tuple(sorted(e.attributes))) for e in page.elements}


def own_words(page: Parsed) -> set[tuple[str, str, str]]:
    return {
        (e.tag, word, e.attributes[word]) for e in page.elements for word in OWN_WORDS if word in e.attributes
    }


def hold(report: Report, like: Parsed) -> None:
    """The page of ``report`` is made of nothing that ``like`` has not, but for its texts."""
    text = by_name("html").render(report)
    page = Parsed(text)
    assert not page.problems
    assert page.comments == []
    assert shapes(page) <= shapes(like) | {("td", ("class",)), ("th", ("class", "scope"))}
    assert own_words(page) <= own_words(like) | {
        ("td", "class", "long"),
        ("th", "class", "long"),
        ("rect", "class", "time-sum"),
    }
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


def test_a_name_is_seen_as_it_stands_and_not_longer_than_a_sentence() -> None:
    page = Parsed(by_name("html").render(poisoned(slower(), NAMES["element"])))
    assert NAMES["element"] in page.text
    assert page.all("h1")[0].text.endswith(NAMES["element"])
    long = Parsed(by_name("html").render(poisoned(straggler(), NAMES["long"])))
    assert max(len(line) for text in long.shown for line in text.splitlines()) <= 2_100
    assert len(long.all("h1")[0].text) <= 160


@pytest.mark.parametrize("end", NAMES)
def test_data_for_a_script_cannot_end_its_element(end: str) -> None:
    series = Series(colour="tenant-parameters", name=NAMES[end], values=(1.0,), outline="")
    chart = AreaChart(
        title="", caption="", time_ms=(0.0,), unit="MiB", series=(series,), heights=(), steps=(), phases=(),
        peak=AxisMark(at=0, text=""), end="", legend=(), steps_ms=((0.0, NAMES[end]),),
    )  # fmt: skip
    text = chart_data(chart)
    assert not set("<>&") & set(text)
    assert text.isascii()


def test_the_check_sees_an_element_of_a_name() -> None:
    text = page("slower").replace("<h1>", "<h1><b onclick='x'>x</b>")
    assert not shapes(Parsed(text)) <= shapes(plain("slower"))
