"""Pages as HTML: structure, a script where it is needed, nothing loaded, colours that can be read."""

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from itertools import pairwise

import pytest
from msgspec.structs import replace

from tests.support.html_pages import Parsed
from tests.support.report_pages import PAGES
from tests.support.reports import SITUATIONS, slower
from zprof.model.findings import read_index
from zprof.reports.finding_pages import read_page
from zprof.reports.formats import render_page_html
from zprof.reports.html import render_explanation
from zprof.reports.pages.report import build_report_page

WITH_TIMELINE = frozenset({"memory_only", "snapshot", "snapshot_report", "report_memory"})
UNITLESS = frozenset({"rank", "waiting ranks", "step", "stream"})
MARKDOWN_TAGS = {"h4", "p", "strong", "em", "code", "pre", "ul", "ol", "li", "a", "div",
                 "table", "caption", "thead", "tbody", "tr", "th", "td"}  # fmt: skip
EVERY_PAGE = {
    **PAGES,
    **{name: lambda make=make: build_report_page(make()) for name, make in SITUATIONS.items()},
}
each_page = pytest.mark.parametrize("name", EVERY_PAGE)


@cache
def page(name: str) -> str:
    return render_page_html(EVERY_PAGE[name]())


@cache
def parsed(name: str) -> Parsed:
    return Parsed(page(name))


@each_page
def test_a_page_has_a_structure_that_can_be_followed(name: str) -> None:
    seen = parsed(name)
    assert (seen.problems, seen.comments) == ([], [])
    ids = [element.attributes["id"] for element in seen.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    targets = [e.attributes["aria-labelledby"] for e in seen.elements if "aria-labelledby" in e.attributes]
    hrefs = [link.attributes["href"] for link in seen.all("a")]
    targets += [href.removeprefix("#") for href in hrefs if href.startswith("#")]
    assert set(targets) <= set(ids)
    levels = [int(element.tag[1]) for element in seen.elements if re.fullmatch("h[1-6]", element.tag)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    for landmark in ("header", "nav", "main", "footer"):
        assert len(seen.all(landmark)) == 1
    links = [link for link in seen.all("a") if "nav" in link.path]
    assert [link.text for link in links] == [title.text for title in seen.all("h2")]
    anchors = [f"#{section.attributes['id']}" for section in seen.all("section")]
    assert [link.attributes["href"] for link in links] == anchors
    assert seen.all("a")[0].attributes["href"] == "#main"


@each_page
def test_nothing_is_loaded_and_only_named_scripts_run(name: str) -> None:
    seen = parsed(name)
    for element in seen.elements:
        assert element.tag not in {"link", "iframe", "object", "embed", "img", "base", "form", "video"}
        assert not {"src", "action", "style", "srcset", "data"} & set(element.attributes)
        assert not [attribute for attribute in element.attributes if attribute.startswith("on")]
        is_explained = "details" in element.path and element.attributes.get("rel") == "noreferrer"
        assert element.attributes.get("href", "#").startswith(("#", "https://") if is_explained else "#")
    scripts = ["".join(e.texts) for e in seen.all("script") if "type" not in e.attributes]
    styles = ["".join(e.texts) for e in seen.all("style")]
    assert len(scripts) == (2 if name in WITH_TIMELINE else 1)
    assert len(page(name).encode()) < 300_000
    (policy,) = [meta.attributes["content"] for meta in seen.all("meta") if "http-equiv" in meta.attributes]
    for kind, texts in {"script": scripts, "style": styles}.items():
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
        assert f"{kind}-src {allowed};" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy


@each_page
def test_tables_have_captions_scopes_and_units(name: str) -> None:
    seen = parsed(name)
    assert all(head.attributes.get("scope") in {"row", "col"} for head in seen.all("th"))
    assert len(seen.all("caption")) == len(seen.all("table"))
    assert all(caption.text for caption in seen.all("caption"))
    if name in SITUATIONS:
        for head, inside in pairwise([*seen.elements, seen.elements[0]]):
            if head.tag == "th" and head.attributes.get("class") == "number" and head.text not in UNITLESS:
                assert (inside.tag, inside.attributes.get("class")) == ("span", "unit"), head.text


@pytest.mark.parametrize("finding", [entry.id for entry in read_index()])
def test_every_finding_is_explained_without_the_command(finding: str) -> None:
    seen = Parsed(render_explanation(finding))
    source = read_page(finding)
    assert seen.problems == []
    assert [head.text for head in seen.all("h4")] == re.findall(r"^## (.*)$", source, re.MULTILINE)
    assert len(seen.all("pre")) >= source.count("\n```") / 2
    assert len(seen.all("table")) == len(seen.all("caption")) == source.count("|---|\n")
    assert {head.attributes["scope"] for head in seen.all("th")} <= {"col"}
    hrefs = [link.attributes["href"] for link in seen.all("a")]
    assert hrefs == re.findall(r"\]\((https://[^)]*)\)", source)
    assert {element.tag for element in seen.elements} <= MARKDOWN_TAGS


def test_a_page_explains_a_finding_once_and_an_unknown_one_never() -> None:
    report = slower()
    first, *_ = report.findings
    twice = replace(report, findings=(first, first, replace(first, id="../ZP301"), replace(first, id="")))
    seen = Parsed(render_page_html(build_report_page(twice)))
    assert len([e for e in seen.all("details") if e.attributes.get("class") == "explanation"]) == 1
    assert [e.text for e in seen.all("a") if "article" in e.path] == [f"{first.id} explained"]
    assert seen.text.count("zprof explain") == 2


CSS = (resources.files("zprof.reports") / "templates/style.css").read_text(encoding="utf-8")
TENANTS = ("parameters", "gradients", "optimizer-state", "activations", "temporary-buffers",
           "communication-buffers", "untagged")  # fmt: skip
SERIES = ("series-a", "series-b", "series-c", "series-d")
TEXT_ON = [
    *(
        (text, ground)
        for text in ("ink", "soft", "link", "good", "bad", "doubt")
        for ground in ("paper", "raised")
    ),
    *((f"on-{colour}", colour) for colour in (*TENANTS, *SERIES)),
]
DRAWN = (
    *SERIES,
    "compute",
    "exposed-transfer",
    "exposed-wait",
    "exposed-memcpy",
    "idle",
    "unexplained",
    "ink",
)


def colours(theme: int) -> dict[str, str]:
    """The variables of the light (0) or the dark (1) theme."""
    found = {}
    for name, value in re.findall(r"--([a-z-]+): ([^;]+);", CSS):
        pair = re.fullmatch(r"light-dark\((#\w{6}), (#\w{6})\)", value)
        found[name] = pair[1 + theme] if pair else value
    return found


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_and_bars_can_be_seen(theme: int) -> None:
    known = colours(theme)
    assert not [pair for pair in TEXT_ON if contrast(known[pair[0]], known[pair[1]]) < 4.5]
    assert not [kind for kind in DRAWN if contrast(known[kind], known["paper"]) < 3.0]
    steps = re.findall(r"\.heat-(\d) \{ background: (#\w{6}); color: (#\w{6}); \}", CSS)
    assert [int(level) for level, _, _ in steps] == list(range(10))
    assert all(contrast(ground, text) >= 4.5 for _, ground, text in steps)
    grounds = [luminance(ground) for _, ground, _ in steps]
    assert grounds == sorted(grounds)


def test_every_class_of_a_drawing_has_a_colour() -> None:
    drawn = {
        name
        for page_name in EVERY_PAGE
        for element in parsed(page_name).elements
        if element.tag in {"rect", "path", "line", "circle", "polygon"}
        for name in element.attributes.get("class", "").split()
    }
    assert len(drawn) > 15
    assert not [name for name in drawn if not re.search(rf"\.{name}\b", CSS)]
