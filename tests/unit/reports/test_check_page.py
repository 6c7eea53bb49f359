"""The formats of a check by name and by file, and that they agree on what failed."""

import json
import re
from dataclasses import replace
from pathlib import PurePath

import pytest

from tests.support import junit_schema, sarif_schema
from tests.support.checks_by_hand import CHECKS, EXACT, FAILED, MIB, SKIPPED, TENANT, UNKNOWN, WARNED, check
from tests.support.markdown_reading import visible
from tests.support.reports import memory_only, slower, trace
from zprof.model.check import Check, GateResult, Outcome
from zprof.model.errors import BadInput
from zprof.model.formatting import display_width
from zprof.model.report import Report
from zprof.reports.check_ci import render_github, render_junit, render_sarif
from zprof.reports.formats import CHECKS as FORMATS
from zprof.reports.formats import by_name, by_path, format_names, page_markdown, page_text
from zprof.reports.presenters.check import check_page
from zprof.reports.presenters.check_words import MARKS, allowed, change, figure, interval, outcome_sentence


def text(found: Check, report: Report) -> str:
    return page_text(check_page(found, report))


def markdown(found: Check, report: Report) -> str:
    return page_markdown(check_page(found, report))


def names_in(document: str) -> list[str]:
    return [line for line in document.splitlines() if line.startswith("::")]


def test_formats_by_name_and_by_file() -> None:
    assert format_names(FORMATS) == ("text", "json", "md", "html", "junit", "sarif", "github")
    for suffix, name in (
        (".txt", "text"),
        (".json", "json"),
        (".md", "md"),
        (".xml", "junit"),
        (".sarif", "sarif"),
    ):
        assert by_path(PurePath(f"out/check{suffix.upper()}"), FORMATS).name == name
        assert by_name(name, FORMATS).name == name
    for wrong in (lambda: by_name("yaml", FORMATS), lambda: by_path(PurePath("a.yaml"), FORMATS)):
        with pytest.raises(BadInput, match="yaml"):
            wrong()


@pytest.mark.parametrize("name", CHECKS)
def test_text_fits_80_columns_and_ends_with_the_outcome(name: str) -> None:
    found = CHECKS[name]
    lines = text(found, slower()).splitlines()
    assert all(display_width(line) <= 80 for line in lines)
    last = lines[max(at for at, line in enumerate(lines) if not line) + 1 :]
    assert " ".join(" ".join(last).split())[2:] == outcome_sentence(found)
    assert last[0].startswith(("✗ FAILED", "? UNKNOWN", "! WARNED", "~ WITHIN NOISE", "✓ PASSED"))


def test_text_has_a_line_a_gate_and_failures_come_first() -> None:
    page = text(CHECKS["failed"], slower())
    lines = page[page.index("GATES") : page.index("FAILED (2)")].splitlines()
    rows = [line for line in lines if line and line.split()[0] in MARKS.values()]
    assert [line.split()[0] for line in rows] == ["✗", "✗", "?", "!", "-", "✓", "✓", "✓"]
    assert rows[0].split()[1:] == [
        "peak_memory",
        "21.4",
        "MiB",
        "20.5",
        "MiB",
        "≤",
        "20.9",
        "MiB",
        "+4.4",
        "%",
    ]
    assert page.index("FAILED (2)") < page.index("NOT JUDGED (1)") < page.index("WARNED (1)")
    assert "activations grew most, +819.2 KiB" in " ".join(page.split())
    assert "→ record the time window" in page
    assert page.count("activations grew most") == 1, "what the sentence says is not said again"


def test_a_long_name_of_a_gate_has_a_line_of_its_own() -> None:
    wide = replace(TENANT, value=1023.9 * 2**30, baseline=1.5 * MIB, allowed=1023.8 * 2**30)
    lines = text(check(wide, outcome=Outcome.FAILED), slower()).splitlines()
    at = lines.index("  ✗ peak_memory.communication_buffers")
    assert lines[at + 1].split()[:2] == ["1023.9", "GiB"]


def test_markdown_has_the_outcome_the_table_and_the_report_folded() -> None:
    document = markdown(CHECKS["failed"], slower())
    lines = document.splitlines()
    assert lines[0] == "## ✗ zprof check: `zero3`"
    assert lines[2].startswith("**FAILED: 2 of 8 gates failed")
    row = next(line for line in lines if line.startswith("| ✗ peak\\_memory |") or "✗ peak_memory |" in line)
    for cell in ("21.4 MiB", "20.5 MiB", "≤ 20.9 MiB", "+4.4 %", "failed", "+2%"):
        assert cell in row
    order = ("FAILED", "MODELLED", "### Gates", "Where the time goes", "Findings", "Not measured")
    places = [document.index(what) for what in order]
    assert places == sorted(places)
    assert document.count("<details>") == document.count("</details>") == 3
    assert "Where the time goes" not in markdown(CHECKS["failed"], memory_only())


def test_a_remedy_of_several_gates_is_said_once() -> None:
    wait = replace(
        SKIPPED, limit=replace(SKIPPED.limit, gate="exposed_wait"), sentence="exposed_wait: not judged"
    )
    found = check(SKIPPED, wait, outcome=Outcome.PASSED)
    for document in (text(found, slower()), visible(markdown(found, slower()))):
        assert document.count("zprof baseline save") == 1
        assert document.index("exposed_wait: not judged") < document.index("zprof baseline save")
    both = replace(found, results=(UNKNOWN, replace(UNKNOWN, remedy="another")))
    assert "→ record the time window" in text(both, slower())
    assert "→ another" in text(both, slower())


def test_markdown_is_cut_and_says_so() -> None:
    report = slower()
    finding = replace(report.findings[0], fix="\n".join(["x" * 399] * 60))
    document = markdown(CHECKS["failed"], replace(report, findings=(finding,) * 12))
    assert 40_000 < len(document) < 65_000
    assert re.search(r"Left out, for a comment holds no more: Findings \(\d+ of \d+ pieces\)", document)
    assert document.count("<details>") == document.count("</details>")
    assert "Not measured" in document, "what is short and comes later has room"


def test_thousands_of_gates_and_notices_fit() -> None:
    found = check(*[FAILED] * 5_000, outcome=Outcome.FAILED, notices=("n" * 1_000,) * 5_000)
    document = markdown(found, slower())
    assert len(document) < 65_000
    assert "120 of 5,000 gates" in document
    assert "60 of 5,000 gates" in text(found, slower())
    assert "FAILED" in document


def test_github_has_a_command_for_each_gate_that_is_not_fine() -> None:
    lines = names_in(render_github(CHECKS["failed"], slower()))
    kinds = [line.split(" ", 1)[0] for line in lines]
    assert kinds == ["::error", "::error", "::error", "::warning", "::notice"]
    assert lines[0].startswith(
        "::error title=zprof%3A peak_memory failed::peak_memory: 21.4 MiB on rank 1 is 4.4 %25"
    )
    assert lines[2].endswith("no step was timed%0A→ record the time window on all ranks (--time-steps 8)")
    assert names_in(render_github(CHECKS["passed"], slower())) == [
        "::notice title=zprof::PASSED: all 3 gates passed"
    ]


def test_junit_has_a_case_a_gate_and_its_numbers() -> None:
    document = render_junit(CHECKS["failed"], slower())
    assert junit_schema.states(document) == {
        "collective_count": "passed",
        "step_time": "passed",
        "peak_memory": "failure",
        "exposed_wait": "passed",
        "peak_memory.communication_buffers": "failure",
        "overlap_ratio": "error",
        "collective_bytes_law": "passed",
        "collective_bytes": "skipped",
    }
    numbers = junit_schema.properties(document)
    assert numbers["peak_memory.value"] == "21.4 MiB"
    assert float(numbers["peak_memory.value_bytes"]) == FAILED.value
    assert numbers["step_time.interval"] == "[-3.1 ms, +12.4 ms] at 95 %"
    assert "overlap_ratio.value" not in numbers, "unknown is no number"


def test_sarif_has_a_result_a_gate_that_is_not_fine_and_findings_as_notes() -> None:
    run = sarif_schema.parsed(render_sarif(CHECKS["failed"], slower()))
    levels = [(result["ruleId"], result["level"]) for result in run["results"]]
    assert levels == [
        ("check/peak_memory", "error"),
        ("check/peak_memory.communication_buffers", "error"),
        ("check/overlap_ratio", "error"),
        ("check/exposed_wait", "warning"),
        ("ZP401", "note"),
    ]
    first = run["results"][0]
    place = first["locations"][0]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "pyproject.toml"
    assert place["logicalLocations"][0]["name"] == "rank 1"
    assert first["message"]["text"].startswith("peak_memory: 21.4 MiB on rank 1")
    assert first["properties"]["value"] == FAILED.value
    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    assert rules["ZP401"]["help"]["markdown"].startswith("# ZP401 no_prefetch")
    assert "Limit: +2% (pyproject.toml)" in rules["check/peak_memory"]["help"]["text"]
    assert run["invocations"][0]["exitCode"] == 1


@pytest.mark.parametrize(
    ("origin", "uri"),
    [
        ("ci/a b/zprof.toml", "ci/a%20b/zprof.toml"),
        ("../zprof.toml", "zero3"),
        ("/etc/zprof.toml", "zero3"),
        ("https://a.example/x.toml", "zero3"),
        ("--peak-memory", "zero3"),
    ],
)
def test_a_limit_is_placed_in_its_file_below_the_folder_of_the_job(origin: str, uri: str) -> None:
    found = check(replace(FAILED, limit=replace(FAILED.limit, origin=origin)), outcome=Outcome.FAILED)
    places = sarif_schema.parsed(render_sarif(found, trace()))["results"][0]["locations"]
    assert [place["physicalLocation"]["artifactLocation"]["uri"] for place in places] == [uri]
    named = replace(found, run="..", results=(replace(FAILED, limit=replace(FAILED.limit, origin="")),))
    (place,) = sarif_schema.parsed(render_sarif(named, trace()))["results"][0]["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "run"


@pytest.mark.parametrize("outcome", Outcome)
def test_all_faces_agree_on_how_a_gate_ended(outcome: Outcome) -> None:
    result = replace(FAILED, outcome=outcome)
    found = check(result, outcome=outcome)
    state = junit_schema.states(render_junit(found, slower()))["peak_memory"]
    rows = sarif_schema.parsed(render_sarif(found, trace()))["results"]
    level = next((row["level"] for row in rows if row["ruleId"] == "check/peak_memory"), None)
    command = render_github(found, slower()).split(" ", 1)[0]
    expected = {
        Outcome.FAILED: ("failure", "error", "::error"),
        Outcome.UNKNOWN: ("error", "error", "::error"),
        Outcome.WARNED: ("passed", "warning", "::warning"),
        Outcome.WITHIN_NOISE: ("passed", "note", "::warning"),
        Outcome.SKIPPED: ("skipped", None, "::notice"),
        Outcome.PASSED: ("passed", None, "::notice"),
    }
    assert (state, level, command) == expected[outcome]
    assert outcome.value.replace("_", " ") in markdown(found, slower())


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (FAILED, "+4.4 %"),
        (TENANT, "+512 B"),
        (EXACT, "0"),
        (UNKNOWN, "-"),
        (replace(WARNED, value=1.0 * 10**6), "-69.7 %"),
        (replace(UNKNOWN, value=0.789), "-3.1 pt"),
        (replace(EXACT, baseline=0.0), "+27"),
    ],
)
def test_changes(result: GateResult, said: str) -> None:
    assert change(result) == said


def test_figures_are_those_of_the_units() -> None:
    assert [figure(1.5 * MIB, "bytes"), figure(2.5e6, "ns"), figure(0.384, "ratio")] == [
        "1.5 MiB",
        "2.5 ms",
        "38.4 %",
    ]
    assert [figure(1234567, "count"), figure(2.9951, "psi"), figure(None, "ns")] == ["1234567", "2.995Ψ", "-"]
    assert allowed(replace(UNKNOWN, allowed=0.7)) == "≥ 70.0 %"
    assert interval(FAILED) == ""


def test_the_same_figures_stand_in_every_face() -> None:
    found: Check = CHECKS["failed"]
    page, comment = text(found, slower()), visible(markdown(found, slower()))
    numbers = junit_schema.properties(render_junit(found, slower()))
    tree = json.loads(by_name("json", FORMATS).render((found, slower())))
    for result, entry in zip(found.results, tree["results"], strict=True):
        for name in ("value", "baseline", "allowed"):
            shown = figure(entry[name], result.limit.unit)
            assert shown in page
            assert shown in comment
            assert entry[name] is None or numbers[f"{result.limit.gate}.{name}"] == shown
