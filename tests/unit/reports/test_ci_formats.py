"""Reports as JUnit and SARIF: what fails, what is skipped, numbers, places; formats by name and file."""

import json
from dataclasses import replace
from pathlib import Path, PurePath

import pytest

from tests.support import junit_schema, sarif_schema
from tests.support.diagnosis_reports import against_baseline, alone
from tests.support.reports import SITUATIONS, rank_missing, slower, straggler
from zprof.cli import main
from zprof.model.findings import Confidence, Severity
from zprof.model.report import VerdictStatus
from zprof.reports import junit, sarif
from zprof.reports.formats import (
    COMPARISONS,
    DIAGNOSES,
    FORMATS,
    PLANS,
    WHATIFS,
    by_name,
    by_path,
    format_names,
)

RUN = str(Path(__file__).parents[2] / "data" / "tui" / "zero3")


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_situation_in_every_format(name: str) -> None:
    report = SITUATIONS[name]()
    junit_schema.parsed(junit.render(report))
    sarif_schema.parsed(sarif.render(report))
    assert len(by_name("md").render(report)) < 65_000


def test_formats_by_name_and_by_file() -> None:
    assert {"text", "json", "svg", "md", "html", "junit", "sarif"} == set(format_names())
    for formats in (DIAGNOSES, PLANS, WHATIFS, COMPARISONS):
        assert format_names(formats) == ("text", "json", "md", "html")
    for suffix, name in ((".md", "md"), (".markdown", "md"), (".xml", "junit"), (".SARIF", "sarif")):
        assert by_path(PurePath(f"report{suffix}")) is by_name(name)
    suffixes = [suffix for entry in FORMATS for suffix in entry.suffixes]
    assert len(suffixes) == len(set(suffixes))


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
    one = replace(report, findings=(replace(report.findings[0], severity=severity, confidence=confidence),))
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
        ("verdict", each) for each in level
    ]


def test_sarif_has_the_page_the_numbers_and_the_ranks() -> None:
    report = straggler()
    run = sarif_schema.parsed(sarif.render(report))
    found, first = report.findings[0], run["results"][0]
    assert first["ruleId"] == found.id
    assert first["properties"]["saving_ns"] == list(found.saving_ns)
    assert first["message"]["text"].startswith(found.sentence)
    names = [place["name"] for place in first["locations"][0]["logicalLocations"]]
    ranks = dict.fromkeys(fact.rank for fact in found.evidence if fact.rank is not None)
    assert names == [f"rank {rank}" for rank in ranks]
    rule = run["tool"]["driver"]["rules"][0]
    assert rule["help"]["markdown"].startswith(f"# {found.id} ")
    assert not rule["help"]["text"].startswith("#")


def test_a_gap_is_a_note_with_its_remedy() -> None:
    report = rank_missing()
    run = sarif_schema.parsed(sarif.render(report))
    notes = [note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]]
    assert all(any(gap.what in note and gap.reason in note for note in notes) for gap in report.gaps)


def test_junit_marks_bounds_and_names_what_its_share_is_of() -> None:
    report = slower()
    time = tuple(replace(rank, upper_bound=True) for rank in report.time.per_rank)
    memory = tuple(replace(rank, lower_bound=True) for rank in report.memory.per_rank)
    bound = replace(
        report, time=replace(report.time, per_rank=time), memory=replace(report.memory, per_rank=memory)
    )
    facts = junit_schema.properties(junit.render(bound))
    assert facts["peak_memory"].startswith("≥ ")
    assert facts["exposed_share_of_collectives"].startswith("at most ")
    assert "exposed_ratio" not in facts, "the gate of this name is a share of the step"


def test_report_writes_each_and_refuses_to_overwrite(tmp_path: Path) -> None:
    for suffix, begin in ((".md", "## "), (".xml", "<?xml"), (".sarif", "{")):
        target = tmp_path / f"report{suffix}"
        assert main(["report", RUN, "-o", str(target)]) == 0
        assert target.read_text(encoding="utf-8").startswith(begin)
        assert main(["report", RUN, "-o", str(target)]) == 2
    assert json.loads((tmp_path / "report.sarif").read_text())["version"] == "2.1.0"
    assert main(["report", RUN, "-f", "md", "-o", str(tmp_path / "report.xml"), "--force"]) == 0
    assert (tmp_path / "report.xml").read_text(encoding="utf-8").startswith("## ")
