"""Names from a run are text in Markdown and for CI: no markup, no link, no command, no broken document."""

import json
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.support import junit_schema, plans, sarif_schema
from tests.support.checks_by_hand import CHECKS
from tests.support.hostile_names import NAMES, poisoned
from tests.support.markdown_reading import is_active, tokens, visible
from tests.support.report_pages import both_runs
from tests.support.reports import memory_only, slower, straggler, trace
from zprof.model.check import Check, Outcome
from zprof.model.formatting import display_width, printable
from zprof.model.report import Report
from zprof.model.side_by_side import SideBySide
from zprof.reports import junit, sarif
from zprof.reports.check_ci import render_github, render_junit, render_sarif
from zprof.reports.escape import code, command, fenced, log_line, prose
from zprof.reports.formats import by_name, page_markdown, page_text
from zprof.reports.page import Page
from zprof.reports.presenters.check import check_page
from zprof.reports.presenters.diagnosis import diagnosis_page
from zprof.reports.presenters.plan import plan_page
from zprof.reports.presenters.side_by_side import side_by_side_page
from zprof.reports.presenters.whatif import whatif_page

_STEERS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: What zprof writes itself: the total of a table is bold, what is modelled is quoted, what is cut is said.
_OWN = frozenset({"strong_open", "blockquote_open", "hr", "em_open"})
_BLOCKS = ("tr", "td", "th", "table", "strong", "heading", "list", "bullet", "ordered", "fence", "html", "hr")
SITUATIONS = (slower, straggler, memory_only, trace)
IDS = [ascii(name)[:24] for name in NAMES]


@cache
def report_of(name: str, at: int = 0) -> Report:
    """Every name in it is that one."""
    found: Report = poisoned(SITUATIONS[at](), name)
    return found


@cache
def check_of(name: str) -> Check:
    found: Check = poisoned(CHECKS["failed"], name)
    return found


def steering(document: str) -> set[str]:
    return {sign for sign in document if sign != "\n" and unicodedata.category(sign) in _STEERS}


@pytest.mark.parametrize("at", range(len(SITUATIONS)), ids=[make.__name__ for make in SITUATIONS])
@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_markdown_of_a_report(name: str, at: int) -> None:
    document = by_name("md").render(report_of(name, at))
    assert not is_active(document, own=_OWN)
    assert not steering(document)
    assert len(document) < 65_000
    # the same tables, bold totals, quotes and rules as with harmless names
    if name.strip():
        assert shape(document) == harmless_shape(at)


@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_markdown_of_a_check(name: str) -> None:
    document = page_markdown(check_page(check_of(name), report_of(name)))
    assert not is_active(document, own=_OWN)
    assert not steering(document)
    assert len(document) < 65_000
    if name.strip():
        assert shape(document) == harmless_shape(None)


def shape(document: str) -> list[str]:
    """The blocks of a document, in their order: what a name that breaks out of its place would change."""
    return [token.type for token in tokens(document) if token.type.startswith(_BLOCKS)]


@cache
def harmless_shape(at: int | None) -> list[str]:
    """That of a situation's report, or of the check."""
    if at is None:
        return shape(page_markdown(check_page(check_of("name"), report_of("name"))))
    return shape(by_name("md").render(report_of("name", at)))


@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_junit(name: str) -> None:
    for at in range(len(SITUATIONS)):
        held(junit.render(report_of(name, at)), name)
    held(render_junit(check_of(name), report_of(name)), name)


def held(document: str, name: str) -> None:
    """The XML keeps its schema, and what is read from it is the name as a person sees it."""
    root = junit_schema.parsed(document)
    run = next(entry.attrib["value"] for entry in root.iter("property") if entry.attrib["name"] == "run")
    assert run == cut(printable(name), 4_000)
    assert not steering(document)
    assert {child.tag for child in root.iter()} <= set(junit_schema.RULES)
    again = ElementTree.fromstring(ElementTree.tostring(root))
    assert "".join(again.itertext()) == "".join(root.itertext())


def cut(text: str, most: int) -> str:
    """As ``shorten`` does, for those that are ASCII where they are long."""
    return text if display_width(text) <= most else f"{text[: most - 1]}…"


@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_sarif(name: str) -> None:
    documents = [sarif.render(report_of(name, at)) for at in range(len(SITUATIONS))]
    documents.append(render_sarif(check_of(name), report_of(name)))
    for document in documents:
        assert document.isascii()
        if not printable(name).strip():
            json.loads(document)
            continue
        run = sarif_schema.parsed(document)
        texts = [text for text in strings(run) if text != ""]
        assert not any(steering(text) for text in texts)
        messages = [result["message"]["text"] for result in run["results"]]
        messages += [note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]]
        assert not any("](" in text for text in messages), "a link"
        assert not any(re.search(r"\{\d+\}", text) for text in messages), "a placeholder"
        uris = [place["physicalLocation"]["artifactLocation"]["uri"] for result in run["results"]
                for place in result["locations"]]  # fmt: skip
        assert not any(":" in uri or "/" in uri or "\\" in uri for uri in uris), "an address"


def strings(tree: Any) -> list[str]:
    if isinstance(tree, dict):
        return [text for child in tree.values() for text in strings(child)]
    if isinstance(tree, list):
        return [text for child in tree for text in strings(child)]
    return [tree] if isinstance(tree, str) else []


@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_github_has_exactly_the_commands_that_were_meant(name: str) -> None:
    document = render_github(check_of(name), report_of(name))
    lines = document.removesuffix("\n").split("\n")
    loud = (Outcome.FAILED, Outcome.WARNED, Outcome.UNKNOWN)
    meant = sum(result.outcome in loud for result in CHECKS["failed"].results) + len(CHECKS["failed"].notices)
    assert [line for line in document.splitlines() if line.strip().startswith("::")] == lines
    assert len(lines) == meant
    assert not steering(document)
    gates = {f"zprof: {name} {state}" for state in ("failed", "not judged", "warned")}
    for line in lines:
        _, properties, _ = line.split("::", 2)
        kind, title = properties.split(" title=", 1)
        assert kind in ("error", "warning", "notice")
        assert "," not in title
        assert unescaped(title) in {cut(printable(gate), 200) for gate in gates} | {"zprof"}


def unescaped(value: str) -> str:
    """As GitHub's runner reads a property."""
    for written, sign in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        value = value.replace(written, sign)
    return value


@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_text_of_a_check_is_no_command_of_any_runner(name: str) -> None:
    document = page_text(check_page(check_of(name), report_of(name)))
    assert not commands(document)
    for line in document.removesuffix("\n").split("\n"):
        assert display_width(line) <= 80, line
        assert not steering(line)


def hostile_pages(name: str) -> list[Page]:
    """A page of each other kind, every name in it that one; units and leaves stay zprof's own."""
    kept = both_runs()
    found: SideBySide = poisoned(kept, name)
    sections = []
    for theirs, ours in zip(found.sections, kept.sections, strict=True):
        rows = zip(theirs.rows, ours.rows, strict=True)
        sections.append(replace(theirs, rows=tuple(replace(row, unit=was.unit) for row, was in rows)))
    run = poisoned(plans.whatif().run, name)
    return [
        diagnosis_page(report_of(name)),
        plan_page(poisoned(plans.full(), name), everything=True),
        whatif_page(replace(plans.whatif(), run=run), everything=True),
        side_by_side_page(replace(found, sections=tuple(sections))),
    ]


@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_other_pages(name: str) -> None:
    for page in hostile_pages(name):
        document = page_markdown(page)
        assert not is_active(document, own=_OWN)
        assert not steering(document)
        assert len(document) < 65_000
        assert not commands(page_text(page))
    for at in range(len(SITUATIONS)):
        assert not commands(by_name("text").render(report_of(name, at)))
    assert not commands(fenced([name, *name.split(" ")]))


def commands(document: str) -> list[str]:
    """The lines that GitHub, Azure or TeamCity would act on."""
    return [
        line for line in document.split("\n") if line.lstrip().startswith("::") or re.search(r"##\w*\[", line)
    ]


def test_a_line_of_a_log() -> None:
    assert log_line("  ::error::x") == "  : error::x"
    assert log_line("a ##[group]x ##vso[y]") == "a # [group]x # vso[y]"
    assert log_line("at::native::add") == "at::native::add"


def test_commands_are_escaped_as_github_documents() -> None:
    assert command("error", "a:b,c%", "1 %, two", "", "line\rtwo") == (
        "::error title=a%3Ab%2Cc%25::1 %25, two%0Aline\\x0dtwo"
    )


@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_a_name_is_shown_as_it_stands(name: str) -> None:
    said = " ".join(printable(name).split())
    shown = visible(f"before {prose(name, 20_000)} after").replace("\\x7c", "|")
    assert " ".join(shown.split()) == " ".join(f"before {said} after".split())
    if said:
        assert visible(f"x {code(name, 20_000)}").replace("\\x7c", "|") == f"x {said}"
    assert (
        visible(f"{fenced([name, 'end'])}\n\nafter") == f"{log_line(cut(printable(name), 400))}\nend\n\nafter"
    )


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("all_gathers of blocks.3.mlp, 5.6 MiB", "all_gathers of `blocks.3.mlp`, 5.6 MiB"),
        ("+4.2 % [+1, -2]", r"+4.2 % \[+1, -2\]"),
        ("- no list", r"\- no list"),
        ("1. no list", r"1\. no list"),
        ("3.5 ms", "3.5 ms"),
        ("(@team)", r"(`@team`)"),
        ("a|b", "a&#124;b"),
        ("/close it", r"\/close it"),
        ('~"a label"', '`~"a` label"'),
        ("see [epic:12].", "see `[epic:12]`."),
        ("read docs/a.md: it", "read `docs/a.md`: it"),
    ],
)
def test_prose_stays_readable(text: str, written: str) -> None:
    assert prose(text) == written


def test_the_check_sees_what_is_active() -> None:
    for text in (
        "<b>",
        "[a](b)",
        "![a](b)",
        "www.a.example",
        "*a*",
        "@team",
        "#12",
        ":tada:",
        "    code",
        "/close",
        '%"a b"',
        "[epic:1]",
    ):
        assert is_active(text), text
    assert shape("a | b") != shape("| a | b |\n| --- | --- |\n| c | d |")
