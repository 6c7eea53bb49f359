"""A check for CI systems: annotations for GitHub, a JUnit suite, a SARIF log.

GitHub shows the first ten errors, ten warnings and ten notices of a step, so what failed comes first.  In
JUnit a property ``peak_memory.value`` is the figure as every output shows it, ``peak_memory.value_bytes``
the number.  In SARIF a limit from a file is placed in that file, for there it is changed; findings are
notes, which fail nothing.
"""

from collections.abc import Iterator

from zprof.model.check import Check, GateResult, Outcome
from zprof.model.json_format import to_tree
from zprof.model.report import Report
from zprof.reports.escape import format_command
from zprof.reports.junit_suite import Case, State, Suite
from zprof.reports.junit_suite import document as junit_document
from zprof.reports.page import UNKNOWN
from zprof.reports.presenters.check_words import (
    change,
    describe_gate,
    details,
    figure,
    format_limit,
    format_outcome,
    interval,
    is_noisy,
    sort_by_severity,
)
from zprof.reports.sarif import list_gap_notes, make_finding_result, make_finding_rules
from zprof.reports.sarif_log import Log, Result, Rule
from zprof.reports.sarif_log import document as sarif_document

#: What could not be judged ends the step with an error, so it is shown as one.
_COMMANDS = {
    Outcome.FAILED: "error",
    Outcome.UNKNOWN: "error",
    Outcome.WARNED: "warning",
    Outcome.WITHIN_NOISE: "warning",
}
_ENDINGS = {
    Outcome.FAILED: "failed",
    Outcome.UNKNOWN: "not judged",
    Outcome.WARNED: "warned",
    Outcome.WITHIN_NOISE: "within noise",
    Outcome.PASSED: "passed, too noisy to fail",
}


def render_github(check: Check, report: Report) -> str:
    """Return a command per line; one notice if everything is fine."""
    lines = [
        _command(result)
        for result in sort_by_severity(check)
        if result.outcome in _COMMANDS or is_noisy(result)
    ]
    lines += [format_command("notice", "zprof", notice) for notice in check.notices]
    return "\n".join(lines or [format_command("notice", "zprof", format_outcome(check))]) + "\n"


def _command(result: GateResult) -> str:
    title = f"zprof: {result.limit.gate} {_ENDINGS[result.outcome]}"
    return format_command(_COMMANDS.get(result.outcome, "warning"), title, *details(result))


_CASE_STATES = {
    Outcome.PASSED: State.PASSED,
    Outcome.WARNED: State.PASSED,
    Outcome.WITHIN_NOISE: State.PASSED,
    Outcome.FAILED: State.FAILED,
    Outcome.SKIPPED: State.SKIPPED,
    Outcome.UNKNOWN: State.ERROR,
}
_FACTS = ("zprof_version", "run", "baseline", "outcome")


def render_junit(check: Check, report: Report) -> str:
    """Return JUnit XML; a warning is a case that passed and says why it warned."""
    properties = {name: str(value) for name in _FACTS if (value := getattr(check, name)) is not None}
    for result in check.results:
        properties |= _numbers(result)
    said = [format_outcome(check), *check.notices]
    return junit_document(
        Suite(
            name=f"zprof check {check.run}",
            cases=[_case(result) for result in check.results],
            properties=properties,
            text="\n".join(" ".join(line.split()) for line in said),
        )
    )


def _case(result: GateResult) -> Case:
    text = "\n".join(details(result))
    return Case(
        group="zprof.check",
        name=result.limit.gate,
        state=_CASE_STATES[result.outcome],
        message=result.sentence,
        kind=f"zprof.{result.limit.gate}",
        text="\n".join([text, f"limit: {format_limit(result.limit)}"]),
    )


def _numbers(result: GateResult) -> dict[str, str]:
    return {f"{result.limit.gate}.{name}": value for name, value in _named(result)}


def _named(result: GateResult) -> Iterator[tuple[str, str]]:
    unit = result.limit.unit
    for name in ("value", "baseline", "allowed"):
        number = getattr(result, name)
        if number is not None:
            yield name, figure(number, unit)
            yield f"{name}_{unit}", f"{number:.15g}"
    if (changed := change(result)) != UNKNOWN:
        yield "change", changed
    if said := interval(result):
        yield "interval", said
    yield "limit", format_limit(result.limit)


_LEVELS = {
    Outcome.FAILED: "error",
    Outcome.UNKNOWN: "error",
    Outcome.WARNED: "warning",
    Outcome.WITHIN_NOISE: "note",
}
_PROPERTIES = ("outcome", "value", "baseline", "allowed", "interval", "leaf", "subject")


def render_sarif(check: Check, report: Report) -> str:
    """Return SARIF."""
    gates = [_result(result) for result in sort_by_severity(check) if result.outcome in _LEVELS]
    notes = [("note", format_outcome(check)), *(("note", notice) for notice in check.notices)]
    return sarif_document(
        Log(
            version=check.zprof_version,
            run=check.run,
            rules=[*(_rule(result) for result in check.results), *make_finding_rules(report.findings)],
            results=[*gates, *(make_finding_result(finding, "note") for finding in report.findings)],
            notes=[*notes, *list_gap_notes(report)],
            exit_code=check.exit_code,
        )
    )


def _rule(result: GateResult) -> Rule:
    gate = result.limit.gate
    said = describe_gate(gate)
    return Rule(
        id=_rule_id(gate),
        name=gate,
        short=said,
        help_text=f"{said}\nLimit: {format_limit(result.limit)}",
        level="warning" if result.limit.warns else "error",
    )


def _result(result: GateResult) -> Result:
    limit = result.limit
    return Result(
        rule=_rule_id(limit.gate),
        level=_LEVELS[result.outcome],
        lines=[*details(result), f"limit: {format_limit(limit)}"],
        places=[(result.subject or "all ranks", "module")],
        file=limit.origin if limit.origin.endswith(".toml") else "",
        key=_rule_id(limit.gate),
        properties={**{name: to_tree(getattr(result, name)) for name in _PROPERTIES}, "unit": limit.unit},
    )


def _rule_id(gate: str) -> str:
    return f"check/{gate}"
