"""What Markdown leaves out it says, and what is short and comes later has room."""

from dataclasses import replace

import pytest

from tests.support.checks_by_hand import CHECKS, FAILED, check
from tests.support.markdown_reading import visible
from tests.support.reports import memory_only, slower
from zprof.model.check import Outcome
from zprof.model.findings import Evidence
from zprof.model.report import Difference, Report
from zprof.reports.check import markdown as check_markdown
from zprof.reports.markdown import report as markdown
from zprof.reports.markdown.document import Part, joined
from zprof.reports.svg_memory import render as svg


def test_lists_of_memory_that_are_cut_say_so() -> None:
    report = memory_only()
    memory = report.memory
    (rank, *_), (entry, *_), (device, *_) = memory.per_rank, memory.top, memory.devices
    rank = replace(rank, parts=rank.parts[:1] * 40)
    phase = replace(memory.phases[0], rank=rank.rank)
    many = replace(memory, per_rank=(rank,), top=(entry,) * 30, devices=(device,) * 20, phases=(phase,) * 11)
    document = visible(markdown.render(replace(report, memory=many)))
    for said in ("8 of 30 allocations", "12 of 40 kinds", "8 of 11 phases", "4 of 20 moments"):
        assert said in document


def test_facts_reasons_and_notices_that_are_cut_say_so() -> None:
    report = slower()
    fact = Evidence(what="a fact", value=1.0, unit="count")
    finding = replace(report.findings[0], evidence=(fact,) * 30)
    assert "16 of 30 facts" in visible(markdown.render(replace(report, findings=(finding,))))
    short = replace(FAILED, sentence="s", grew="")
    document = visible(
        check_markdown.render(check(*[short] * 70, outcome=Outcome.FAILED, notices=("n",) * 80), report)
    )
    assert "60 of 70 reasons" in document
    assert "60 of 80 notices" in document


def differing() -> Report:
    report = slower()
    assert report.comparison is not None
    found = tuple(Difference(what=f"setting {at}", a="old|value", b="new") for at in range(30))
    return replace(report, comparison=replace(report.comparison, differences=found))


@pytest.mark.parametrize("face", ["report", "check"])
def test_what_else_differs_is_said(face: str) -> None:
    report = differing()
    document = visible(
        markdown.render(report) if face == "report" else check_markdown.render(CHECKS["failed"], report)
    )
    for said in ("setting 23", "old|value", "24 of 30 differences"):
        assert said in document


def test_what_is_modelled_stands_before_the_reasons() -> None:
    found = check(*[replace(FAILED, sentence="s" * 1190)] * 60, outcome=Outcome.FAILED, notices=("A NOTICE",))
    document = check_markdown.render(found, slower())
    assert "**MODELLED**" in document
    assert "A NOTICE" in document, "a block that has no room takes none from those after it"


def test_a_block_without_room_does_not_end_its_part() -> None:
    document = joined([Part(blocks=("before", "x" * 70_000, "after"))], "foot")
    assert "before\n\nafter" in document
    assert "the head (1 of 3 pieces)" in document


def test_a_timeline_without_tenants_is_none_that_could_be_drawn() -> None:
    report = memory_only()
    (timeline, *more) = report.memory.timelines
    bare = replace(timeline, rank=9, tenants={})
    found = replace(report, memory=replace(report.memory, timelines=(bare, timeline, *more)))
    assert svg(found) == svg(report)
