"""Reports and comparisons as pages: order, bounds, unknowns, and what is cut is counted."""

import re

import pytest
from msgspec.structs import replace

from tests.support.markdown_reading import visible
from tests.support.memories import memory_of
from tests.support.report_pages import shown
from tests.support.reports import memory_only, slower, snapshot
from tests.support.unsplit_ranks import make_unsplit
from zprof.base.formatting import format_bytes
from zprof.model.findings import Evidence
from zprof.model.report import Difference, Report
from zprof.model.tenants import Tenant
from zprof.reports.formats import render_page_markdown, render_page_text
from zprof.reports.page import Page, Paragraph
from zprof.reports.page import Section as PageSection
from zprof.reports.pages.report import build_report_page

each_output = pytest.mark.parametrize("output", ["txt", "md", "html"])


def text(report: Report) -> str:
    return render_page_text(build_report_page(report))


def markdown(report: Report) -> str:
    return render_page_markdown(build_report_page(report))


def line_of(page: str, begin: str) -> str:
    return next(line for line in page.splitlines() if line.strip().startswith(begin))


@each_output
def test_a_peak_that_is_a_bound_is_marked_on_both_sides(output: str) -> None:
    report = slower()
    assert report.comparison is not None
    now = tuple(replace(rank, lower_bound=True) for rank in report.memory.per_rank)
    before = tuple(replace(rank, upper_bound=True) for rank in report.comparison.baseline_memory)
    comparison = replace(report.comparison, baseline_memory=before)
    report = replace(report, memory=replace(report.memory, per_rank=now), comparison=comparison)
    said = shown(output, build_report_page(report))
    assert f"≥ {format_bytes(max(rank.peak_bytes for rank in now))}" in said
    assert f"≤ {format_bytes(max(rank.peak_bytes for rank in before))}" in said


def test_a_tenant_that_rules_did_not_find_is_unknown_and_not_zero() -> None:
    report = snapshot()
    rank = report.memory.per_rank[1]
    without = replace(rank, tenants={**rank.tenants, Tenant.GRADIENTS: 0}, parts=())
    for found, size in ((replace(without, unknown=(Tenant.GRADIENTS,)), ["-"]), (without, ["0", "B"])):
        said = text(replace(report, memory=replace(report.memory, per_rank=(found,))))
        assert line_of(said, "gradients").split() == ["gradients", *size]


def test_each_side_of_a_comparison_has_its_own_bounds_of_transfer() -> None:
    report = slower()
    assert report.comparison is not None

    def transfer(report: Report) -> list[str]:
        return line_of(text(report), "exposed transfer").split()

    before = replace(report.comparison, baseline_time=make_unsplit(report.comparison.baseline_time))
    assert transfer(replace(report, comparison=before))[2] == "≤"
    after = replace(report, time=replace(report.time, per_rank=make_unsplit(report.time.per_rank)))
    assert transfer(after)[3] == "≤"
    assert "≤" not in transfer(report)


def test_many_ranks_stay_readable_and_are_counted() -> None:
    report = replace(slower(), comparison=None)
    ranks = tuple(replace(report.time.per_rank[0], rank=at) for at in range(1024))
    large = replace(report, memory=memory_of(3, ranks=1024), time=replace(report.time, per_rank=ranks))
    said = text(large)
    assert len(said.splitlines()) < 110
    assert ("4 of 1,024" in said, "8 of 1,024" in said) == (True, True)
    document = markdown(large)
    assert len(document) < 20_000
    assert ("16 of 1,024" in document, "8 of 1,024" in document) == (True, True)


def test_what_a_comment_cannot_hold_is_counted_and_what_comes_later_has_room() -> None:
    report = slower()
    many = markdown(replace(report, findings=report.findings * 500))
    assert "100 of 500" in visible(many)
    long = replace(report.findings[0], fix="\n".join(["x" * 399] * 60))
    cut = markdown(replace(report, findings=(long,) * 12))
    assert 40_000 < len(cut) < 65_000
    assert re.search(r"Findings \(\d+ of \d+", cut)
    assert "### Not measured" in cut
    blocks = tuple(Paragraph(text=each) for each in ("before", *["long " * 230] * 300, "after"))
    section = PageSection(anchor="a", title="A", blocks=blocks)
    page = Page(kind="k", subject="s", head=(), sections=(section,), made_by="z", data_command="")
    document = render_page_markdown(page)
    assert len(document) < 65_000
    assert ("after" in document, "of 302" in document) == (True, True)


def test_lists_that_are_cut_are_counted() -> None:
    report = memory_only()
    (rank, *_), (entry, *_) = report.memory.per_rank, report.memory.top
    kinds = tuple(replace(rank.parts[0], sub=f"kind {number}") for number in range(40))
    many = replace(report.memory, per_rank=(replace(rank, parts=kinds),), top=(entry,) * 30)
    document = visible(markdown(replace(report, memory=many)))
    assert ("24 of 40" in document, "16 of 30" in document) == (True, True)
    compared = slower()
    assert compared.comparison is not None
    differences = tuple(
        Difference(key="some_key", what=f"setting {at}", a="old|value", b="new") for at in range(30)
    )
    finding = replace(
        compared.findings[0], evidence=(Evidence(key="a_fact", what="a fact", value=1.0, unit="count"),) * 30
    )
    comparison = replace(compared.comparison, differences=differences)
    document = visible(markdown(replace(compared, comparison=comparison, findings=(finding,))))
    assert all(each in document for each in ("setting 23", "old|value", "24 of 30", "16 of 30"))
