"""Names from strangers stay text in every format of a plan, a prediction, and the outlook of a report."""

import json
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.support import plans
from tests.support.hostile_names import NAMES, poisoned
from tests.support.html_pages import Parsed, without_assets
from tests.support.markdown_reading import is_active, tokens
from tests.support.reports import slower
from zprof.model.planning.plan import Plan
from zprof.model.planning.whatif import Outlook
from zprof.model.planning.whatif_document import WhatIf
from zprof.model.printable import display_width
from zprof.model.report import Report
from zprof.reports.html.report import render as html_report
from zprof.reports.markdown.report import render as markdown_report
from zprof.reports.plan_pages import html, markdown, text
from zprof.reports.plan_pages.registry import PLANS
from zprof.reports.registry import by_name
from zprof.reports.text.report import render as text_report

_STEERS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_OWN = frozenset({"strong_open", "blockquote_open", "hr", "em_open"})
_BLOCKS = ("tr", "td", "th", "table", "heading", "list", "bullet", "ordered", "fence", "html", "hr")
LONG = "y" * 10_000


@cache
def plan_of(name: str) -> Plan:
    found: Plan = poisoned(plans.full(), name)
    return found


@cache
def whatif_of(name: str) -> WhatIf:
    found: WhatIf = poisoned(plans.whatif(), name)
    return replace(found, outlook=named(found.outlook))


def named(outlook: Outlook) -> Outlook:
    """Leaves keep their names: those are zprof's own, and without them there are no figures."""
    was = plans.outlook()
    predictions = tuple(
        replace(
            ours,
            step=tuple(replace(e, name=w.name) for e, w in zip(ours.step, kept.step, strict=True)),
            memory=tuple(replace(e, name=w.name) for e, w in zip(ours.memory, kept.memory, strict=True)),
        )
        for ours, kept in zip(outlook.predictions, was.predictions, strict=True)
    )
    return replace(outlook, predictions=predictions)


@cache
def report_of(name: str) -> Report:
    return replace(slower(), outlook=named(poisoned(plans.outlook(), name)))


PAGES: dict[
    str, tuple[Callable[[str], Any], Callable[[Any], str], Callable[[Any], str], Callable[[Any], str]]
]
PAGES = {
    "plan": (plan_of, text.render_plan, markdown.render_plan, html.render_plan),
    "whatif": (whatif_of, text.render_whatif, markdown.render_whatif, html.render_whatif),
    "report": (report_of, text_report, markdown_report, html_report),
}
#: Each name alone on the page that is short, all at once on the others.
ALL = " ".join(name for name in NAMES if "\n" not in name)
CASES = [*(("whatif", name) for name in NAMES), *((page, name) for page in PAGES for name in (ALL, LONG))]
each_case = pytest.mark.parametrize(
    ("page", "name"), CASES, ids=[f"{page}-{ascii(name)[:24]}" for page, name in CASES]
)


@each_case
def test_text_steers_nothing_and_fits(page: str, name: str) -> None:
    make, render, *_ = PAGES[page]
    lines = render(make(name)).removesuffix("\n").split("\n")
    assert max(map(display_width, lines)) <= 80
    assert not [line for line in lines if steering(line) or line.lstrip().startswith("::") or "##[" in line]


def test_text_in_full_steers_nothing() -> None:
    for name in (*NAMES, LONG):
        lines = text.render_plan(plan_of(name), everything=True).removesuffix("\n").split("\n")
        assert not [line for line in lines if steering(line) or display_width(line) > 80]


@each_case
def test_markdown_is_no_markup_of_theirs(page: str, name: str) -> None:
    make, _, render, _ = PAGES[page]
    document = render(make(name))
    assert not is_active(document, own=_OWN)
    assert not steering(document)
    assert len(document) < 65_000
    if name not in (LONG, ALL, ""):  # cut in other places, or nothing to list
        assert shape(document) == harmless_shape(page)


@cache
def harmless_shape(page: str) -> list[str]:
    make, _, render, _ = PAGES[page]
    return shape(render(make("name")))


@cache
def plain(page: str) -> Parsed:
    make, *_, render = PAGES[page]
    return Parsed(render(make("name")))


@each_case
def test_html_has_no_element_and_no_attribute_of_theirs(page: str, name: str) -> None:
    make, *_, render = PAGES[page]
    document = render(make(name))
    seen = Parsed(document)
    assert not seen.problems
    assert not seen.comments
    known = shapes(plain(page)) | {("td", ("class",)), ("th", ("class", "scope"))}
    assert shapes(seen) <= known
    assert not steering(without_assets(document))
    document.encode("utf-8")


def test_json_is_ascii() -> None:
    for name in (*NAMES, LONG):
        document = by_name("json", PLANS).render(plan_of(name))
        assert document.isascii()
        json.loads(document)


def steering(document: str) -> set[str]:
    return {sign for sign in document if sign != "\n" and unicodedata.category(sign) in _STEERS}


def shape(document: str) -> list[str]:
    return [token.type for token in tokens(document) if token.type.startswith(_BLOCKS)]


def shapes(page: Parsed) -> set[tuple[str, tuple[str, ...]]]:
    return {(e.tag, tuple(sorted(e.attributes))) for e in page.elements}
