"""Pages of single commands and of findings: figures in their units, found by any spelling, plain text."""

import json
import unicodedata

import pytest

from tests.support.reports import SITUATIONS, slower, straggler
from zprof.base.errors import BadInput
from zprof.base.formatting import display_width
from zprof.model.comparison import ComparedRow
from zprof.model.findings import read_index
from zprof.reports.finding_pages import find_cause, read_page
from zprof.reports.formats import by_name, render_page_text
from zprof.reports.layout import render_markdown_text
from zprof.reports.page import Page
from zprof.reports.pages.small_pages import (
    build_baseline_page,
    build_changes_page,
)

#: Causes that have a page of their own.


def words(page: Page) -> list[list[str]]:
    return [line.split() for line in render_page_text(page).splitlines()]


def test_changes_are_in_percent_or_points() -> None:
    rows = [
        ComparedRow(name="peak_memory", unit="bytes", a=1000, b=1100),
        ComparedRow(name="exposed_ratio", unit="ratio", a=0.2, b=0.15),
        ComparedRow(name="peak_memory.untagged", unit="bytes", a=0, b=5),
        ComparedRow(name="exposed_wait", unit="ns", a=None, b=7),
        ComparedRow(name="torch", unit="text", a="2.8.0", b="2.9.0"),
    ]
    assert words(build_changes_page(rows))[2:] == [
        ["peak_memory", "1000", "B", "1.1", "KiB", "+10.0", "%"],
        ["exposed_ratio", "20.0", "%", "15.0", "%", "-5.0", "pt"],
        ["peak_memory.untagged", "0", "B", "5", "B", "-"],
        ["exposed_wait", "-", "7", "ns", "-"],
        ["torch", "2.8.0", "->", "2.9.0"],
    ]
    shown = {line[0]: line[1:] for line in words(build_baseline_page("zero3", rows)) if line}
    assert shown["peak_memory"] == ["1.1", "KiB"]
    assert shown["torch"] == ["2.9.0"]


@pytest.mark.parametrize("name", ["ZP301", "zp301", "straggler_rank", "Straggler-Rank", " straggler rank "])
def test_a_finding_is_found_by_id_and_name(name: str) -> None:
    assert find_cause(name).name == "straggler_rank"


def test_an_unknown_finding_is_refused_with_the_nearest() -> None:
    for name, near in (("stragler", "straggler_rank"), ("ZP3O1", "ZP301"), ("prefetch", "no_prefetch")):
        with pytest.raises(BadInput) as refused:
            find_cause(name)
        assert near in refused.value.hint
    with pytest.raises(BadInput) as refused:
        find_cause("x" * 10_000)
    assert len(refused.value.message) < 100


@pytest.mark.parametrize("width", [60, 120])
def test_pages_of_findings_are_text_without_marks(width: int) -> None:
    for entry in read_index():
        text = render_markdown_text(read_page(entry.id), width)
        assert text.startswith(f"{entry.id} {entry.name}\n")
        assert not {"**", "```"} & set(text.split())
        for line in text.split("\n"):
            assert display_width(line) <= width, line
            assert not [sign for sign in line if unicodedata.category(sign) in {"Cc", "Cf"}], line
    assert "\x1b[" in render_markdown_text(read_page("ZP301"), colour=True)
    assert "\x1b" not in render_markdown_text("# a\n\x1b[2J\n```\n\x1b]0;x\x07\n```\n")


def test_json_says_null_for_unknown_and_is_ascii() -> None:
    tree = json.loads(by_name("json").render(SITUATIONS["nothing_timed"]()))
    assert tree["comparison"] is tree["time"]["alignment"] is None
    assert json.loads(by_name("json").render(slower()))["memory"]["per_rank"][0]["non_pytorch_bytes"] is None
    name = "\x1b[2J\u202e\ud7ff"
    document = by_name("json").render(straggler(name=name))
    assert document.isascii()
    assert not [sign for sign in document if ord(sign) < 32 and sign != "\n"]
    assert json.loads(document)["run"]["name"] == name
