"""What every face must say alike: which ranks, which bounds, which states are off, what was measured."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support import junit_schema, sarif_schema
from tests.support.markdown_reading import visible
from tests.support.reports import memory_only, slower, snapshot, straggler, trace
from zprof.model.gaps import Gap
from zprof.model.memory import LawCheck, RankMemory
from zprof.model.report import Report
from zprof.model.units import format_bytes
from zprof.reports.html.report import render as html
from zprof.reports.junit import render as junit
from zprof.reports.markdown.report import render as markdown
from zprof.reports.sarif import render as sarif
from zprof.reports.shown.run_words import describe_run, reported_steps
from zprof.reports.text.report import render as text


def said_by(name: str, document: str) -> str:
    """The text of a face, without its line breaks."""
    if name == "sarif":
        run = sarif_schema.parsed(document)
        notes = run["invocations"][0]["toolExecutionNotifications"]
        return "\n".join(note["message"]["text"] for note in notes)
    if name == "junit":
        cases = junit_schema.parsed(document).iter("testcase")
        return "\n".join(f"{case.attrib['name']} {case[0].attrib['message']}" for case in cases if len(case))
    return " ".join((visible(document) if name == "md" else document).split())


FACES = {"text": text, "md": markdown, "html": html, "junit": junit, "sarif": sarif}
PAGES = ("text", "md", "html")
each_page = pytest.mark.parametrize("name", PAGES)
each_face = pytest.mark.parametrize("name", FACES)


@each_face
def test_a_gap_of_many_ranks_names_eight_and_keeps_its_reason_and_its_remedy(name: str) -> None:
    gaps = tuple(Gap(what="a size", rank=at, reason="no counter", remedy="record it") for at in range(1024))
    said = said_by(name, FACES[name](replace(slower(), gaps=gaps)))
    for what in ("0, 1, 2, 3, 4, 5, 6, 7 and 1016 more", "no counter", "record it"):
        assert what in said


def shown(name: str, report: Report) -> str:
    return said_by(name, FACES[name](report))


@each_page
def test_a_peak_that_is_a_bound_says_so_wherever_it_stands_and_so_does_its_baseline(name: str) -> None:
    report = slower()
    assert report.comparison is not None
    before = tuple(replace(rank, upper_bound=True) for rank in report.comparison.baseline_memory)
    report = replace(
        report,
        memory=replace(report.memory, per_rank=bounded(report)),
        comparison=replace(report.comparison, baseline_memory=before),
    )
    now, was = (format_bytes(max(rank.peak_bytes for rank in ranks)) for ranks in (bounded(report), before))
    head = re.sub(r"<[^>]+>", " ", re.split("MODELLED|<main", shown(name, report))[0])
    assert re.search(rf"peak memory\s+≥ {now}", head)
    assert f"≤ {was}" in head


def bounded(report: Report) -> tuple[RankMemory, ...]:
    return tuple(replace(rank, lower_bound=True) for rank in report.memory.per_rank)


def test_junit_marks_bounds_and_names_what_its_share_is_of() -> None:
    report = slower()
    time = replace(report.time, per_rank=tuple(replace(r, upper_bound=True) for r in report.time.per_rank))
    bound = replace(report, time=time, memory=replace(report.memory, per_rank=bounded(report)))
    facts = junit_schema.properties(junit(bound))
    assert facts["peak_memory"].startswith("≥ ")
    assert re.fullmatch(r"at most [\d.]+ %", facts["exposed_share_of_collectives"])
    assert "exposed_ratio" not in facts, "the gate of this name is a share of the step"


def with_laws(report: Report, *laws: LawCheck) -> Report:
    return replace(report, memory=replace(report.memory, laws=laws))


@each_page
def test_the_rank_that_is_off_its_law_is_shown_however_many_ranks_there_are(name: str) -> None:
    states = [law for law in slower().memory.laws if law.rank == 0]
    laws = [replace(law, rank=at) for at in range(32) for law in states]
    laws = [replace(law, unexplained_bytes=1 << 20, cause="") if law.rank == 30 else law for law in laws]
    said = shown(name, with_laws(slower(), *laws))
    assert "tates of rank 30: " in said
    assert "not explained +3.0 MiB" in said
    assert "of 32 ranks, the furthest off" in said


@each_page
def test_states_that_are_off_both_ways_are_off(name: str) -> None:
    first, second, *more = (law for law in slower().memory.laws if law.rank == 0)
    apart = (replace(first, unexplained_bytes=1 << 20, cause=""), replace(second, unexplained_bytes=-1 << 20))
    said = shown(name, with_laws(slower(), *(replace(law, cause="") for law in apart), *more))
    assert "not explained 2.0 MiB: of one state too much, of another too little" in said


def test_what_a_rule_says_is_marked_in_every_table_and_bar() -> None:
    report = snapshot()
    ruled = next(part for part in report.memory.per_rank[0].parts if part.basis == "rule")
    entry = next(entry for entry in report.memory.top if entry.basis == "rule")
    document = shown("md", report)
    assert f"{ruled.sub} ~{format_bytes(ruled.bytes)}" in document
    assert f"{entry.rank} ~{format_bytes(entry.bytes)}" in document
    tenant = ruled.tenant.replace("_", " ")
    assert re.search(rf"{tenant} ~[\d.]+ [KMG]iB", html(report)), "a piece of a bar"


@each_page
def test_what_was_measured_is_said_alike(name: str) -> None:
    report = trace()
    window = report.time.window
    assert window is not None
    whole = replace(report, time=replace(report.time, window=replace(window, source="whole trace")))
    assert "easured: the whole trace as one step, since it marks none; " in shown(name, whole)
    named = replace(report, time=replace(report.time, window=replace(window, source="ProfilerStep")))
    assert "easured: steps by ProfilerStep; " in shown(name, named).replace("`", "")


@each_page
@pytest.mark.parametrize("make", [slower, straggler, memory_only, snapshot, trace])
def test_a_run_is_described_alike(name: str, make: Callable[[], Report]) -> None:
    report = make()
    assert describe_run(report.run, reported_steps(report, report.run)) in shown(name, report)
