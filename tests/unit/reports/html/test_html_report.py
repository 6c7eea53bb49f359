"""The HTML report: golden files, structure, one plotly where it is needed, the figures of the text report.

``ZPROF_UPDATE_GOLDEN=1 pytest tests/unit/reports`` writes the golden files anew: read the difference.
"""

import base64
import hashlib
import os
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.html_pages import Parsed, without_assets
from tests.support.reports import SITUATIONS
from zprof.reports.html.report import render
from zprof.reports.text import report as text_report

GOLDEN = Path(__file__).parents[3] / "golden/html"
GOLDEN_ONES = ("slower", "trace", "memory_only", "nothing_timed")
WITH_TIMELINE = frozenset({"memory_only", "snapshot"})
UNITLESS = frozenset({"rank", "waiting ranks", "in step", "stream"})
#: A figure with its unit, as the text report writes it.
FIGURE = re.compile(r"\d+\.\d (?:ns|µs|ms|s|KiB|MiB|GiB|%|GB/s|MB/s)(?![A-Za-z])")


@cache
def page(name: str) -> str:
    return render(SITUATIONS[name]())


@cache
def parsed(name: str) -> Parsed:
    return Parsed(page(name))


@pytest.mark.parametrize("name", GOLDEN_ONES)
def test_html_golden(name: str) -> None:
    text = without_assets(page(name))
    path = GOLDEN / f"{name}.html"
    if os.environ.get("ZPROF_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SITUATIONS)
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


@pytest.mark.parametrize("name", SITUATIONS)
def test_contents_name_every_section(name: str) -> None:
    seen = parsed(name)
    links = [link for link in seen.all("a") if "nav" in link.path]
    assert [link.text for link in links] == [title.text for title in seen.all("h2")]
    sections = [section.attributes["id"] for section in seen.all("section")]
    assert [link.attributes["href"] for link in links] == [f"#{anchor}" for anchor in sections]


@pytest.mark.parametrize("name", SITUATIONS)
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


@pytest.mark.parametrize("name", SITUATIONS)
def test_nothing_is_loaded_and_no_attribute_is_a_script(name: str) -> None:
    for element in parsed(name).elements:
        assert element.tag not in {"link", "iframe", "object", "embed", "img", "base", "form", "video"}
        assert not {"src", "action", "style", "srcset", "data"} & set(element.attributes)
        assert not [attribute for attribute in element.attributes if attribute.startswith("on")]
        assert element.attributes.get("href", "#").startswith("#")


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_figures_of_the_text_report_are_in_it(name: str) -> None:
    shown = parsed(name).text
    figures = set(FIGURE.findall(" ".join(text_report.render(SITUATIONS[name]()).split())))
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
