"""Render a check for CI systems: as GitHub annotations, JUnit XML and SARIF.

GitHub shows the first ten errors, ten warnings and ten notices of a step, so failures come first.  In JUnit,
the property ``peak_memory.value`` has the formatted figure and ``peak_memory.value_bytes`` the number.  In
SARIF, a limit from a file has its location in that file, where the user would change it; findings are notes
and never fail the check.
"""

from collections.abc import Iterator

from zprof.model.comparison import Check, GateResult, Outcome
from zprof.model.json_format import to_tree
from zprof.model.quantities import format_number
from zprof.model.report import Report
from zprof.reports.junit import Case, State, Suite
from zprof.reports.junit import document as junit_document
from zprof.reports.layout import format_command
from zprof.reports.pages.check import (
    describe_gate,
    describe_result,
    format_change,
    format_interval,
    format_limit,
    format_outcome,
    is_noisy,
    sort_by_severity,
)
from zprof.reports.sarif import (
    Log,
    Result,
    SarifRule,
    list_gap_notes,
    make_finding_result,
    make_finding_rules,
)
from zprof.reports.sarif import document as sarif_document
from zprof.reports.table import UNKNOWN

#: A gate that could not be evaluated fails the step, so it is shown as an error.
_COMMANDS = {
    Outcome.FAILED: "error",
    Outcome.UNKNOWN: "error",
    Outcome.WARNED: "warning",
    Outcome.WITHIN_NOISE: "warning",
}
_ENDINGS = {
    Outcome.FAILED: "failed",
    Outcome.UNKNOWN: "not evaluated",
    Outcome.WARNED: "warned",
    Outcome.WITHIN_NOISE: "within noise",
    Outcome.PASSED: "passed, too noisy to fail",
}


def render_github(check: Check, report: Report) -> str:
    """Return one workflow command per line, or a single notice if nothing failed."""
    lines = [
        format_command(
            _COMMANDS.get(result.outcome, "warning"),
            f"zprof: {result.limit.gate} {_ENDINGS[result.outcome]}",
            *describe_result(result),
        )
        for result in sort_by_severity(check)
        if result.outcome in _COMMANDS or is_noisy(result)
    ]
    lines += [format_command("notice", "zprof", notice) for notice in check.notices]
    return "\n".join(lines or [format_command("notice", "zprof", format_outcome(check))]) + "\n"


_CASE_STATES = {
    Outcome.PASSED: State.PASSED,
    Outcome.WARNED: State.PASSED,
    Outcome.WITHIN_NOISE: State.PASSED,
    Outcome.FAILED: State.FAILED,
    Outcome.SKIPPED: State.SKIPPED,
    Outcome.UNKNOWN: State.ERROR,
}
_SUITE_PROPERTIES = ("zprof_version", "run", "baseline", "outcome")


def render_junit(check: Check, report: Report) -> str:
    """Return JUnit XML; a warning is a passed case with the reason in its output."""
    properties = {
        name: str(value) for name in _SUITE_PROPERTIES if (value := getattr(check, name)) is not None
    }
    for result in check.results:
        properties |= {f"{result.limit.gate}.{name}": value for name, value in _list_properties(result)}
    cases = [
        Case(
            group="zprof.check",
            name=result.limit.gate,
            state=_CASE_STATES[result.outcome],
            message=result.sentence,
            kind=f"zprof.{result.limit.gate}",
            text="\n".join([*describe_result(result), f"limit: {format_limit(result.limit)}"]),
        )
        for result in check.results
    ]
    messages = [format_outcome(check), *check.notices]
    return junit_document(
        Suite(
            name=f"zprof check {check.run}",
            cases=cases,
            properties=properties,
            text="\n".join(" ".join(line.split()) for line in messages),
        )
    )


def _list_properties(result: GateResult) -> Iterator[tuple[str, str]]:
    unit = result.limit.unit
    for name in ("value", "baseline", "allowed"):
        number = getattr(result, name)
        if number is not None:
            yield name, format_number(number, unit)
            yield f"{name}_{unit}", f"{number:.15g}"
    if (changed := format_change(result)) != UNKNOWN:
        yield "change", changed
    if interval_text := format_interval(result):
        yield "interval", interval_text
    yield "limit", format_limit(result.limit)


_LEVELS = {
    Outcome.FAILED: "error",
    Outcome.UNKNOWN: "error",
    Outcome.WARNED: "warning",
    Outcome.WITHIN_NOISE: "note",
}
_PROPERTIES = ("outcome", "value", "baseline", "allowed", "interval", "leaf", "subject")


def render_sarif(check: Check, report: Report) -> str:
    """Return the check and the findings of the report as a SARIF log."""
    results, rules = [], []
    for result in check.results:
        gate, help_text = result.limit.gate, describe_gate(result.limit.gate)
        rules.append(
            SarifRule(
                id=f"check/{gate}",
                name=gate,
                short=help_text,
                help_text=f"{help_text}\nLimit: {format_limit(result.limit)}",
                level="warning" if result.limit.warns else "error",
            )
        )
    for result in (found for found in sort_by_severity(check) if found.outcome in _LEVELS):
        limit = result.limit
        properties = {name: to_tree(getattr(result, name)) for name in _PROPERTIES}
        results.append(
            Result(
                rule=f"check/{limit.gate}",
                level=_LEVELS[result.outcome],
                lines=[*describe_result(result), f"limit: {format_limit(limit)}"],
                places=[(result.subject or "all ranks", "module")],
                file=limit.origin if limit.origin.endswith(".toml") else "",
                key=f"check/{limit.gate}",
                properties=properties | {"unit": limit.unit},
            )
        )
    notes = [("note", format_outcome(check)), *(("note", notice) for notice in check.notices)]
    return sarif_document(
        Log(
            version=check.zprof_version,
            run=check.run,
            rules=[*rules, *make_finding_rules(report.findings)],
            results=[*results, *(make_finding_result(finding, "note") for finding in report.findings)],
            notes=[*notes, *list_gap_notes(report)],
            exit_code=check.exit_code,
        )
    )
