"""Reports as Markdown, JUnit and SARIF, as a person has read them, and what must hold in each."""

import json
from dataclasses import replace
from pathlib import Path, PurePath

import pytest

from tests.support import junit_schema, sarif_schema
from tests.support.diagnosis_reports import against_baseline, alone
from tests.support.golden import hold, without_pages
from tests.support.memories import memory_of
from tests.support.reports import SITUATIONS, rank_missing, slower, straggler
from zprof.cli import main
from zprof.model.findings import Confidence, Severity
from zprof.model.report import Report, VerdictStatus
from zprof.reports import junit, sarif
from zprof.reports.markdown import report as markdown
from zprof.reports.registry import FORMATS, by_name, by_path, format_names

READ = ("slower", "straggler", "rank_missing", "memory_only", "trace", "nothing_timed")
RUN = str(Path(__file__).parents[2] / "data" / "tui" / "zero3")
SHORT = ("slower", "rank_missing")


def read(name: str) -> Report:
    """A report whose version does not change."""
    return replace(SITUATIONS[name](), zprof_version="0.0.0")


@pytest.mark.parametrize("name", READ)
def test_golden_markdown(name: str) -> None:
    hold(f"formats/{name}.md", markdown.render(read(name)))


@pytest.mark.parametrize("name", SHORT)
def test_golden_junit(name: str) -> None:
    hold(f"formats/{name}.xml", junit.render(read(name)))


@pytest.mark.parametrize("name", SHORT)
def test_golden_sarif(name: str) -> None:
    hold(f"formats/{name}.sarif", without_pages(sarif.render(read(name))))


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_situation_in_every_format(name: str) -> None:
    report = SITUATIONS[name]()
    junit_schema.parsed(junit.render(report))
    sarif_schema.parsed(sarif.render(report))
    assert len(markdown.render(report)) < 65_000


def test_formats_by_name_and_by_file() -> None:
    assert {"text", "json", "svg", "md", "junit", "sarif"} <= set(format_names())
    for suffix, name in ((".md", "md"), (".markdown", "md"), (".xml", "junit"), (".SARIF", "sarif")):
        assert by_path(PurePath(f"report{suffix}")) is by_name(name)
    suffixes = [suffix for entry in FORMATS for suffix in entry.suffixes]
    assert len(suffixes) == len(set(suffixes))


def test_markdown_says_the_verdict_first_and_the_run_last() -> None:
    document = markdown.render(slower())
    assert document.startswith("## ✗ SLOWER: `zero3`\n\n431.4 ms vs 243.9 ms a step, +77 %")
    assert document.endswith("run `zero3`\n")
    order = ["**MODELLED**", "### Where the time goes", "### Memory", "### Findings", "### Not measured"]
    places = [document.index(what) for what in order]
    assert places == sorted(places)


def test_markdown_of_a_large_job_fits_and_says_how_many_ranks_it_shows() -> None:
    report = straggler()
    rank = report.time.per_rank[0]
    time = replace(report.time, per_rank=tuple(replace(rank, rank=at) for at in range(1024)))
    document = markdown.render(replace(report, time=time, memory=memory_of(3, ranks=1024)))
    assert "16 of 1024 ranks" in document
    assert "8 of 1024 ranks, the largest peaks" in document
    assert len(document) < 20_000


def test_markdown_of_very_many_findings_is_cut_and_says_so() -> None:
    report = slower()
    document = markdown.render(replace(report, findings=report.findings * 500))
    assert 60_000 < len(document) < 65_000
    assert "*Left out, for a comment holds no more: Findings (" in document
    assert document.endswith("run `zero3`\n")


def test_junit_fails_what_costs_and_is_more_than_a_guess() -> None:
    states = junit_schema.states(junit.render(against_baseline()))
    assert states["verdict"] == "failure"
    assert states["ZP401 no_prefetch"] == "failure"
    assert states["ZP301 straggler_rank"] == "passed", "a guess is a note"
    assert states["ZP402 low_bus_bandwidth"] == states["ZP408 sharding_spans_nodes"] == "skipped"
    assert states["reserved memory (ranks 0, 1)"] == "skipped"


@pytest.mark.parametrize("severity", Severity)
@pytest.mark.parametrize("confidence", Confidence)
def test_severity_and_confidence_decide(severity: Severity, confidence: Confidence) -> None:
    report = against_baseline()
    finding = replace(report.findings[0], severity=severity, confidence=confidence)
    one = replace(report, findings=(finding,))
    fails = severity is not Severity.LOW and confidence is not Confidence.LOW
    assert junit_schema.states(junit.render(one))["ZP401 no_prefetch"] == ("failure" if fails else "passed")
    result, *_ = sarif_schema.parsed(sarif.render(one))["results"]
    level = {Severity.HIGH: "error", Severity.MEDIUM: "warning", Severity.LOW: "note"}[severity]
    assert result["level"] == ("note" if confidence is Confidence.LOW else level)


@pytest.mark.parametrize("status", VerdictStatus)
def test_a_verdict_that_is_not_ok_is_never_green(status: VerdictStatus) -> None:
    report = alone()
    judged = replace(report, verdict=replace(report.verdict, status=status), findings=(), gaps=())
    expected = {"ok": "passed", "slower": "failure", "risk": "failure", "inconclusive": "error"}
    assert junit_schema.states(junit.render(judged)) == {"verdict": expected[status.value]}
    results = sarif_schema.parsed(sarif.render(judged))["results"]
    level = {"slower": ["error"], "risk": ["warning"]}.get(status.value, [])
    assert [(result["ruleId"], result["level"]) for result in results] == [
        ("verdict", said) for said in level
    ]


def test_sarif_has_the_page_the_numbers_and_the_ranks() -> None:
    report: Report = straggler()
    run = sarif_schema.parsed(sarif.render(report))
    found = report.findings[0]
    first = run["results"][0]
    assert first["ruleId"] == found.id
    assert first["properties"]["saving_ns"] == list(found.saving_ns)
    assert first["message"]["text"].startswith(found.sentence)
    names = [place["name"] for place in first["locations"][0]["logicalLocations"]]
    assert names == [
        f"rank {rank}" for rank in dict.fromkeys(f.rank for f in found.evidence if f.rank is not None)
    ]
    rule = run["tool"]["driver"]["rules"][0]
    assert rule["help"]["markdown"].startswith(f"# {found.id} ")
    assert not rule["help"]["text"].startswith("#")


def test_a_gap_is_a_note_with_its_remedy() -> None:
    report = rank_missing()
    run = sarif_schema.parsed(sarif.render(report))
    notes = [note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]]
    assert all(any(gap.what in note and gap.reason in note for note in notes) for gap in report.gaps)


def test_report_writes_each_and_refuses_to_overwrite(tmp_path: Path) -> None:
    for suffix, begin in ((".md", "## "), (".xml", "<?xml"), (".sarif", "{")):
        target = tmp_path / f"report{suffix}"
        assert main(["report", RUN, "-o", str(target)]) == 0
        assert target.read_text(encoding="utf-8").startswith(begin)
        before = target.stat().st_mtime_ns
        assert main(["report", RUN, "-o", str(target)]) == 2
        assert target.stat().st_mtime_ns == before
    assert json.loads((tmp_path / "report.sarif").read_text())["version"] == "2.1.0"
    assert main(["report", RUN, "-f", "md", "-o", str(tmp_path / "report.xml"), "--force"]) == 0
    assert (tmp_path / "report.xml").read_text(encoding="utf-8").startswith("## ")
