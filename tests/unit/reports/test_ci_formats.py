"""Checks and reports for CI: JUnit, SARIF and GitHub agree on what failed, and on the figures."""

import json
from pathlib import PurePath
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from tests.support import junit_schema, sarif_schema
from tests.support.diagnosis_reports import against_baseline, alone
from tests.support.judged_checks import CHECKS, FAILED, check
from tests.support.markdown_reading import visible
from tests.support.reports import SITUATIONS, slower, trace
from zprof.base.errors import BadInput
from zprof.model.comparison import Outcome
from zprof.model.findings import Confidence, Severity, SourceLocation
from zprof.model.quantities import Value, format_value
from zprof.model.report import VerdictStatus
from zprof.reports import junit, sarif
from zprof.reports.check_ci import render_github, render_junit, render_sarif
from zprof.reports.formats import CHECKS as CHECK_FORMATS
from zprof.reports.formats import (
    COMPARISONS,
    FORMATS,
    Checked,
    by_name,
    by_path,
    format_names,
    render_page_markdown,
    render_page_text,
)
from zprof.reports.pages.check import build_check_page


@pytest.mark.parametrize("formats", [FORMATS, CHECK_FORMATS, COMPARISONS])
def test_formats_are_found_by_name_and_by_suffix(formats: tuple) -> None:
    suffixes = [suffix for entry in formats for suffix in entry.suffixes]
    assert len(suffixes) == len(set(suffixes))
    for entry in formats:
        assert by_name(entry.name, formats) is entry
        assert all(by_path(PurePath(f"out/a{suffix.upper()}"), formats) is entry for suffix in entry.suffixes)
    for wrong in (lambda: by_name("yaml", formats), lambda: by_path(PurePath("a.yaml"), formats)):
        with pytest.raises(BadInput) as refused:
            wrong()
        assert all(name in refused.value.hint for name in format_names(formats))


@pytest.mark.parametrize("name", SITUATIONS)
def test_reports_of_every_situation_keep_the_schemas(name: str) -> None:
    report = SITUATIONS[name]()
    junit_schema.parsed(junit.render(report))
    run = sarif_schema.parsed(sarif.render(report))
    notes = [note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]]
    assert all(any(gap.what in note and gap.reason in note for note in notes) for gap in report.gaps)


@pytest.mark.parametrize("severity", Severity)
@pytest.mark.parametrize("confidence", Confidence)
def test_severity_and_confidence_decide_what_fails(severity: Severity, confidence: Confidence) -> None:
    report = against_baseline()
    one = replace(report, findings=(replace(report.findings[0], severity=severity, confidence=confidence),))
    fails = severity is not Severity.LOW and confidence is not Confidence.LOW
    states = junit_schema.states(junit.render(one))
    assert states["ZP401 no_prefetch"] == ("failure" if fails else "passed")
    assert states["ZP402 low_bus_bandwidth"] == states["reserved memory (ranks 0, 1)"] == "skipped"
    result, *_ = sarif_schema.parsed(sarif.render(one))["results"]
    level = {Severity.HIGH: "error", Severity.MEDIUM: "warning", Severity.LOW: "note"}[severity]
    assert result["level"] == ("note" if confidence is Confidence.LOW else level)


@pytest.mark.parametrize(
    ("status", "state", "levels"),
    [
        (VerdictStatus.OK, "passed", []),
        (VerdictStatus.SLOWER, "failure", ["error"]),
        (VerdictStatus.RISK, "failure", ["warning"]),
        (VerdictStatus.INCONCLUSIVE, "error", []),
    ],
)
def test_a_verdict_that_is_not_ok_is_never_green(
    status: VerdictStatus, state: str, levels: list[str]
) -> None:
    report = replace(alone(), findings=(), gaps=())
    judged = replace(report, verdict=replace(report.verdict, status=status))
    assert junit_schema.states(junit.render(judged)) == {"verdict": state}
    results = sarif_schema.parsed(sarif.render(judged))["results"]
    assert [(result["ruleId"], result["level"]) for result in results] == [
        ("verdict", each) for each in levels
    ]


def test_thousands_of_gates_and_notices_fit() -> None:
    found = check(*[FAILED] * 5_000, outcome=Outcome.FAILED, notices=("n" * 1_000,) * 5_000)
    document = render_page_markdown(build_check_page(found, slower()))
    assert len(document) < 65_000
    assert "120 of 5,000" in document
    assert document.count("<details>") == document.count("</details>")


@pytest.mark.parametrize(
    ("outcome", "state", "level", "kind"),
    [
        (Outcome.FAILED, "failure", "error", "::error"),
        (Outcome.UNKNOWN, "error", "error", "::error"),
        (Outcome.WARNED, "passed", "warning", "::warning"),
        (Outcome.WITHIN_NOISE, "passed", "note", "::warning"),
        (Outcome.SKIPPED, "skipped", None, "::notice"),
        (Outcome.PASSED, "passed", None, "::notice"),
    ],
)
def test_all_outputs_agree_on_how_a_gate_ended(
    outcome: Outcome, state: str, level: str | None, kind: str
) -> None:
    found = check(replace(FAILED, outcome=outcome), outcome=outcome)
    assert junit_schema.states(render_junit(found, slower()))["peak_memory"] == state
    rows = sarif_schema.parsed(render_sarif(found, trace()))["results"]
    assert next((row["level"] for row in rows if row["ruleId"] == "check/peak_memory"), None) == level
    assert render_github(found, slower()).split(" ", 1)[0] == kind
    assert outcome.value.replace("_", " ") in render_page_markdown(build_check_page(found, slower()))


def test_the_same_figures_stand_in_every_output() -> None:
    found = CHECKS["failed"]
    page, comment = (
        render_page_text(build_check_page(found, slower())),
        visible(render_page_markdown(build_check_page(found, slower()))),
    )
    numbers = junit_schema.properties(render_junit(found, slower()))
    tree = json.loads(by_name("json", CHECK_FORMATS).render(Checked(check=found, report=slower())))
    for result, entry in zip(found.results, tree["results"], strict=True):
        for name in ("value", "baseline", "allowed"):
            shown = format_value(Value(number=entry[name], unit=result.limit.unit), "-")
            assert shown in page
            assert shown in comment
            assert numbers.get(f"{result.limit.gate}.{name}") == (None if entry[name] is None else shown)


@pytest.mark.parametrize(
    ("file", "uri", "line"),
    [
        ("src/train.py", "src/train.py", 31),
        ("my job/été.py", "my%20job/%C3%A9t%C3%A9.py", 31),
        ("/home/u/train.py", "run", 1),
        ("C:/job/train.py", "run", 1),
        ("../train.py", "run", 1),
        ("a\x1b[2J.py", None, 31),
    ],
)
def test_sarif_points_to_the_line_of_the_program(file: str, uri: str | None, line: int) -> None:
    report = against_baseline()
    place = SourceLocation(file=file, line=31, function="main")
    one = replace(report, findings=(replace(report.findings[0], location=place),))
    physical = sarif_schema.parsed(sarif.render(one))["results"][0]["locations"][0]["physicalLocation"]
    assert physical["region"]["startLine"] == line
    found = physical["artifactLocation"]["uri"]
    assert found == (uri if uri != "run" else quote(report.run.name, safe="")) if uri else "\x1b" not in found


@pytest.mark.parametrize("name", ["a.py\n::error::x", "\x1b]0;x\x07.py", "<script>x</script>.py", "é" * 99])
def test_a_hostile_file_name_is_shown_and_does_nothing(name: str) -> None:
    report = against_baseline()
    place = SourceLocation(file=name, line=31, function=name)
    one = replace(report, findings=(replace(report.findings[0], location=place), *report.findings[1:]))
    for entry in FORMATS:
        text = entry.render(one) if entry.name != "svg" else ""  # a picture of memory alone
        assert not set("\x1b\x07") & set(text)
        assert "\n::error::" not in text
        assert "<script>x" not in text or entry.name not in ("html", "markdown")
