"""Names from a run are text in every output: no markup, no link, no command, no broken document."""

import json
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import comments, diagnosis_reports, junit_schema, plans, sarif_schema
from tests.support.hostile_names import NAMES, poisoned
from tests.support.html_pages import Parsed, without_assets
from tests.support.judged_checks import CHECKS
from tests.support.markdown_reading import is_active, tokens, visible
from tests.support.report_pages import both_runs
from tests.support.reports import memory_only, slower, straggler, trace
from tests.support.snapshot_reports import snapshot_against_baseline, snapshot_report
from zprof.base.formatting import display_width, printable
from zprof.model.comparison import Check, Outcome
from zprof.model.report import Report
from zprof.reports import junit, sarif, svg_memory
from zprof.reports.check_ci import render_github, render_junit, render_sarif
from zprof.reports.formats import render_page_html, render_page_markdown, render_page_text
from zprof.reports.html import build_chart_data
from zprof.reports.layout import escape_log_line, escape_prose, format_code, format_code_block, format_command
from zprof.reports.page import AreaChart, AxisMark, Page, Paragraph, Section, Series, VerdictBlock
from zprof.reports.pages.check import build_check_page
from zprof.reports.pages.check_comment import build_comment_page
from zprof.reports.pages.compare import build_compare_page
from zprof.reports.pages.diagnosis import build_diagnosis_page
from zprof.reports.pages.plan import build_plan_page
from zprof.reports.pages.report import build_report_page
from zprof.reports.pages.whatif import build_whatif_page

#: Categories of characters that steer a terminal or are not seen.
STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: Markdown that zprof writes itself.
OWN_MARKDOWN = frozenset({"strong_open", "blockquote_open", "hr", "em_open"})
BLOCKS = ("tr", "td", "th", "table", "strong", "heading", "list", "bullet", "ordered", "fence", "html", "hr")
#: Attributes of HTML whose values are the templates' own words or numbers.
OWN_ATTRIBUTES = ("class", "id", "href", "scope", "role", "type", "name", "lang", "d", "for")


def compare_page(name: str) -> Page:
    """Two runs; the units and leaves of rows stay zprof's own."""
    kept = both_runs()
    found = poisoned(kept, name)
    sections = [
        replace(theirs, rows=tuple(
            replace(row, unit=was.unit, leaf=was.leaf)
            for row, was in zip(theirs.rows, ours.rows, strict=True)
        ))
        for theirs, ours in zip(found.sections, kept.sections, strict=True)
    ]  # fmt: skip
    return build_compare_page(replace(found, sections=tuple(sections)), everything=True)


def poisoned_snapshot(report: Report, name: str) -> Report:
    """A report on a snapshot; the tenants of its groups and stacks stay zprof's own."""
    memory, found = report.memory, poisoned(report, name)
    trees = tuple(
        replace(theirs, nodes=tuple(
            replace(node, tenant=was.tenant) for node, was in zip(theirs.nodes, ours.nodes, strict=True)
        ))
        for theirs, ours in zip(found.memory.stacks, memory.stacks, strict=True)
    )  # fmt: skip
    return replace(found, memory=replace(found.memory, stacks=trees))


def small_page(name: str) -> Page:
    """The blocks of small pages: a verdict, a paragraph, a section of that name."""
    blocks = (VerdictBlock(tone="ok", mark="✓", text=name), Paragraph(text=name))
    section = Section(anchor="a", title="A", note=name, blocks=blocks)
    return Page(kind="small", subject=name, head=blocks, sections=(section,), made_by="", data_command="")


PAGES: dict[str, Callable[[str], Page]] = {
    **{
        make.__name__: lambda name, make=make: build_report_page(poisoned(make(), name))  # type: ignore[misc]
        for make in (slower, straggler, trace, memory_only)
    },
    "check": lambda name: build_check_page(poisoned(CHECKS["failed"], name), poisoned(slower(), name)),
    "comment": lambda name: build_comment_page(comments.poisoned_check(name)),
    "diagnosis": lambda name: build_diagnosis_page(poisoned(diagnosis_reports.larger_batch(), name)),
    "plan": lambda name: build_plan_page(poisoned(plans.full(), name), everything=True),
    "whatif": lambda name: build_whatif_page(
        replace(plans.whatif(), run=poisoned(plans.whatif().run, name)), everything=True
    ),
    "compare": compare_page,
    "snapshot": lambda name: build_report_page(poisoned_snapshot(snapshot_report(), name)),
    "snapshot_baseline": lambda name: build_diagnosis_page(
        poisoned_snapshot(snapshot_against_baseline(), name)
    ),
    "small": small_page,
}


def pairs() -> Iterator[Any]:
    """Each name on one page, each page with several names; all others are slow."""
    for at, name in enumerate(NAMES):
        for place, page in enumerate(PAGES):
            marks = [] if place == at % len(PAGES) else [pytest.mark.slow]
            yield pytest.param(page, name, id=f"{page}-{ascii(name)[:24]}", marks=marks)


each_name = pytest.mark.parametrize("name", NAMES, ids=[ascii(name)[:24] for name in NAMES])


def steering(document: str) -> set[str]:
    return {sign for sign in document if sign != "\n" and unicodedata.category(sign) in STEERING}


def commands(document: str) -> list[str]:
    """The lines that GitHub, Azure or TeamCity would act on."""
    lines = document.split("\n")
    return [line for line in lines if line.lstrip().startswith("::") or re.search(r"##\w*\[", line)]


@pytest.mark.parametrize(("page", "name"), pairs())
def test_a_page_shows_names_as_text(page: str, name: str) -> None:
    made = PAGES[page](name)
    text = render_page_text(made)
    assert not commands(text)
    assert not steering(text)
    assert max(map(display_width, text.split("\n"))) <= 80
    document = render_page_markdown(made)
    assert not is_active(document, own=OWN_MARKDOWN)
    assert not steering(document)
    assert len(document) < 65_000
    if name.strip():
        assert markdown_shape(document) == harmless(page)[0]
    html = render_page_html(made)
    parsed = Parsed(html)
    assert (parsed.problems, parsed.comments) == ([], [])
    assert not steering(without_assets(html))
    if page != "compare":  # texts of equal settings are left out
        assert html_shape(parsed) <= harmless(page)[1]


def markdown_shape(document: str) -> list[str]:
    """The blocks of a document, in their order: what a name that breaks out of its place would change."""
    return [token.type for token in tokens(document) if token.type.startswith(BLOCKS)]


def html_shape(page: Parsed) -> set[tuple[str, ...]]:
    """Elements by tag and attributes, with those values that zprof writes itself."""
    return {
        (element.tag, *(name if name not in OWN_ATTRIBUTES else f"{name}={value}"
                        for name, value in sorted(element.attributes.items())))
        for element in page.elements
    }  # fmt: skip


@cache
def harmless(page: str) -> tuple[list[str], set[tuple[str, ...]]]:
    """The shapes of a page with names that try nothing, of usual length and too long."""
    made, long = PAGES[page]("name"), PAGES[page]("x" * 10_000)
    shapes = html_shape(Parsed(render_page_html(made))) | html_shape(Parsed(render_page_html(long)))
    return markdown_shape(render_page_markdown(made)), shapes


def test_the_checks_see_what_is_active() -> None:
    texts = [
        "<b>",
        "[a](b)",
        "![a](b)",
        "www.a.example",
        "*a*",
        "@team",
        "#12",
        ":tada:",
        "/close",
        "[epic:1]",
    ]
    texts += ["    code", '%"a b"']
    assert [text for text in texts if not is_active(text)] == []
    assert markdown_shape("a | b") != markdown_shape("| a | b |\n| --- | --- |\n| c | d |")
    html = render_page_html(PAGES["slower"]("name"))
    assert not html_shape(Parsed(html.replace("<h1>", "<h1><b onclick='x'>x</b>"))) <= harmless("slower")[1]


@each_name
def test_documents_for_ci_keep_their_schema(name: str) -> None:
    report, check = poisoned(slower(), name), poisoned(CHECKS["failed"], name)
    for document in (junit.render(report), render_junit(check, report)):
        root = junit_schema.parsed(document)
        assert junit_schema.properties(document)["run"] == cut(printable(name), 4_000)
        assert not steering(document)
        again = ElementTree.fromstring(ElementTree.tostring(root))
        assert "".join(again.itertext()) == "".join(root.itertext())
    for document in (sarif.render(report), render_sarif(check, report)):
        assert document.isascii()
        if printable(name).strip():
            hold_sarif(sarif_schema.parsed(document))
        else:
            json.loads(document)


def cut(text: str, most: int) -> str:
    return text if display_width(text) <= most else f"{text[: most - 1]}…"


def hold_sarif(run: dict[str, Any]) -> None:
    assert not any(map(steering, strings(run)))
    messages = [result["message"]["text"] for result in run["results"]]
    messages += [note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]]
    assert not any("](" in text for text in messages), "a link"
    assert not any(re.search(r"\{\d+\}", text) for text in messages), "a placeholder"
    places = [place for result in run["results"] for place in result["locations"]]
    uris = [place["physicalLocation"]["artifactLocation"]["uri"] for place in places]
    assert not any(re.search(r"[:/\\]", uri) for uri in uris), "an address"


def strings(tree: Any) -> list[str]:
    if isinstance(tree, dict | list):
        children = tree.values() if isinstance(tree, dict) else tree
        return [text for child in children for text in strings(child)]
    return [tree] if isinstance(tree, str) else []


@each_name
def test_github_gets_exactly_the_commands_that_were_meant(name: str) -> None:
    check: Check = poisoned(CHECKS["failed"], name)
    document = render_github(check, poisoned(slower(), name))
    lines = document.removesuffix("\n").split("\n")
    loud = (Outcome.FAILED, Outcome.WARNED, Outcome.UNKNOWN)
    meant = sum(result.outcome in loud for result in check.results) + len(check.notices)
    assert [line for line in document.splitlines() if line.strip().startswith("::")] == lines
    assert len(lines) == meant
    assert not steering(document)
    for line in lines:
        _, properties, _ = line.split("::", 2)
        kind, title = properties.split(" title=", 1)
        assert kind in ("error", "warning", "notice")
        assert "," not in title


@each_name
def test_a_name_is_shown_as_it_stands(name: str) -> None:
    said = " ".join(printable(name).split())
    shown = visible(f"before {escape_prose(name, 20_000)} after").replace("\\x7c", "|")
    assert " ".join(shown.split()) == " ".join(f"before {said} after".split())
    if said:
        assert visible(f"x {format_code(name, 20_000)}").replace("\\x7c", "|") == f"x {said}"
    line = escape_log_line(cut(printable(name), 400))
    assert visible(f"{format_code_block([name, 'end'])}\n\nafter") == f"{line}\nend\n\nafter"
    assert not commands(format_code_block([name, *name.split(" ")]))


@each_name
def test_pictures_and_data_of_scripts_hold_no_markup(name: str) -> None:
    report: Report = poisoned(memory_only(), name)
    picture = svg_memory.render(report)
    assert not [
        node.tag for node in ElementTree.fromstring(picture).iter() if node.tag.endswith(("script", "b"))
    ]
    assert not steering(picture)
    series = Series(colour="tenant-parameters", name=name, values=(1.0,), outline="")
    chart = AreaChart(
        title="", caption="", time_ms=(0.0,), unit="MiB", series=(series,), heights=(), steps=(), phases=(),
        peak=AxisMark(at=0, text=""), end="", legend=(), end_ms=1.0, peak_ms=0.0, steps_ms=((0.0, name),),
        phases_ms=((0.0, 1.0, name),),
    )  # fmt: skip
    text = build_chart_data(chart)
    assert text.isascii()
    assert not set("<>&") & set(text)


def test_lines_and_commands_are_escaped_as_github_documents() -> None:
    assert escape_log_line("  ::error::x") == "  : error::x"
    assert escape_log_line("a ##[group]x ##vso[y]") == "a # [group]x # vso[y]"
    assert escape_log_line("at::native::add") == "at::native::add"
    assert format_command("error", "a:b,c%", "1 %, two", "", "line\rtwo") == (
        "::error title=a%3Ab%2Cc%25::1 %25, two%0Aline\\x0dtwo"
    )
