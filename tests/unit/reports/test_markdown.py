"""Pages as Markdown: the answer first, details folded, under 65,000 characters, and what is cut is said."""

import re
from dataclasses import replace

import pytest

from tests.support.markdown_reading import visible
from tests.support.memories import memory_of
from tests.support.report_pages import PAGES, shown
from tests.support.reports import memory_only, slower, straggler, trace
from zprof.model.findings import Evidence
from zprof.model.formatting import format_bytes
from zprof.model.gaps import Gap
from zprof.model.report import Difference
from zprof.reports.formats import by_name, page_markdown
from zprof.reports.page import Page, Paragraph, Section
from zprof.reports.presenters.report import report_page
from zprof.reports.presenters.run_words import describe_run, reported_steps

render = by_name("md").render


def test_the_verdict_comes_first_and_the_run_last() -> None:
    document = render(slower())
    assert document.startswith("## ✗ zprof report: `zero3`\n\n**SLOWER 431.4 ms vs 243.9 ms a step, +77 %")
    assert document.endswith(", `zero3`\n")
    order = ("**MODELLED**", "### Findings", "### Where the time goes", "### Memory", "### Not measured")
    places = [document.index(what) for what in order]
    assert places == sorted(places)
    assert document.count("<details>") == document.count("</details>") > 0


def test_a_large_job_says_how_many_ranks_it_shows() -> None:
    report = straggler()
    time = replace(
        report.time, per_rank=tuple(replace(report.time.per_rank[0], rank=at) for at in range(1024))
    )
    document = render(replace(report, time=time, memory=memory_of(3, ranks=1024)))
    assert "16 of 1,024 ranks" in document
    assert "8 of 1,024 ranks, those with the largest peaks" in document
    assert len(document) < 20_000


def test_very_many_findings_are_cut_and_what_is_short_and_later_has_room() -> None:
    report = slower()
    document = render(replace(report, findings=report.findings * 500))
    assert "100 of 500 findings" in visible(document)
    long = replace(report.findings[0], fix="\n".join(["x" * 399] * 60))
    cut = render(replace(report, findings=(long,) * 12))
    assert 40_000 < len(cut) < 65_000
    assert "*Left out, for a comment holds no more: Findings (" in cut
    assert "### Not measured" in cut


def test_a_piece_without_room_does_not_end_its_section() -> None:
    blocks = tuple(Paragraph(text=text) for text in ("before", *["long " * 230] * 300, "after"))
    section = Section(anchor="a", title="A", blocks=blocks)
    page = Page(kind="k", subject="s", head=(), sections=(section,), made_by="z", data_command="")
    document = page_markdown(page)
    assert len(document) < 65_000
    assert "after" in document
    assert "of 302 pieces)" in document


def test_lists_that_are_cut_say_so() -> None:
    report = memory_only()
    (rank, *_), (entry, *_) = report.memory.per_rank, report.memory.top
    many = replace(report.memory, per_rank=(replace(rank, parts=rank.parts[:1] * 40),), top=(entry,) * 30)
    document = visible(render(replace(report, memory=many)))
    assert "24 of 40 kinds" in document
    assert "16 of 30 allocations" in document
    compared = slower()
    assert compared.comparison is not None
    differences = tuple(Difference(what=f"setting {at}", a="old|value", b="new") for at in range(30))
    fact = Evidence(what="a fact", value=1.0, unit="count")
    compared = replace(
        compared,
        comparison=replace(compared.comparison, differences=differences),
        findings=(replace(compared.findings[0], evidence=(fact,) * 30),),
    )
    document = visible(render(compared))
    for said in ("setting 23", "old|value", "24 of 30 differences", "16 of 30 facts"):
        assert said in document


each_output = pytest.mark.parametrize("output", ["txt", "md", "html"])


@each_output
def test_a_run_is_described_alike(output: str) -> None:
    for make in (slower, straggler, memory_only, trace):
        report = make()
        assert describe_run(report.run, reported_steps(report, report.run)) in shown(
            output, report_page(report)
        )


@each_output
def test_a_gap_of_very_many_ranks_names_some(output: str) -> None:
    gaps = tuple(Gap(what="w", reason="no counter", remedy="record it", rank=rank) for rank in range(1024))
    said = shown(output, report_page(replace(slower(), gaps=gaps)))
    for what in ("0, 1, 2, 3, 4, 5, 6, 7 and 1016 more", "no counter", "record it"):
        assert what in said


@each_output
def test_a_peak_that_is_a_bound_says_so_and_so_does_its_baseline(output: str) -> None:
    report = slower()
    assert report.comparison is not None
    now = tuple(replace(rank, lower_bound=True) for rank in report.memory.per_rank)
    before = tuple(replace(rank, upper_bound=True) for rank in report.comparison.baseline_memory)
    report = replace(
        report,
        memory=replace(report.memory, per_rank=now),
        comparison=replace(report.comparison, baseline_memory=before),
    )
    said = shown(output, report_page(report))
    assert f"≥ {format_bytes(max(rank.peak_bytes for rank in now))}" in said
    assert f"≤ {format_bytes(max(rank.peak_bytes for rank in before))}" in said


@each_output
@pytest.mark.parametrize("name", PAGES)
def test_no_page_says_none_or_shows_a_block(output: str, name: str) -> None:
    said = shown(output, PAGES[name]())
    assert not re.findall(r"\bnan\b|\bNone,|\b(?:Row|Column|Item)\(|\{\{", said)
