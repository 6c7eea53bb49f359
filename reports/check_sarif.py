"""A check as SARIF 2.1.0: a result for each gate that failed, warned or could not be judged.

The findings of the run are beside them as notes: they say why, and fail nothing.  A limit from a file is
placed in that file, for there it is changed.
"""

from zprof.model.check import Check, GateResult, Outcome
from zprof.model.json_tree import to_tree
from zprof.model.report import Report
from zprof.reports.presenters.check_words import (
    by_weight,
    details,
    gate_help,
    limit_text,
    outcome_sentence,
)
from zprof.reports.sarif import finding_result, finding_rules, gap_notes
from zprof.reports.sarif_log import Log, Result, Rule, document

_LEVELS = {
    Outcome.FAILED: "error",
    Outcome.UNKNOWN: "error",
    Outcome.WARNED: "warning",
    Outcome.WITHIN_NOISE: "note",
}
_NUMBERS = ("outcome", "value", "baseline", "allowed", "interval", "leaf", "subject")


def render(check: Check, report: Report) -> str:
    """The document."""
    gates = [_gate(result) for result in by_weight(check) if result.outcome in _LEVELS]
    notes = [("note", outcome_sentence(check)), *(("note", notice) for notice in check.notices)]
    return document(
        Log(
            version=check.zprof_version,
            run=check.run,
            rules=[*(_rule(result) for result in check.results), *finding_rules(report.findings)],
            results=[*gates, *(finding_result(finding, "note") for finding in report.findings)],
            notes=[*notes, *gap_notes(report)],
            exit_code=check.exit_code,
        )
    )


def _rule(result: GateResult) -> Rule:
    gate = result.limit.gate
    said = gate_help(gate)
    return Rule(
        id=_id(gate),
        name=gate,
        short=said,
        help_text=f"{said}\nLimit: {limit_text(result.limit)}",
        level="warning" if result.limit.warns else "error",
    )


def _gate(result: GateResult) -> Result:
    limit = result.limit
    return Result(
        rule=_id(limit.gate),
        level=_LEVELS[result.outcome],
        lines=[*details(result), f"limit: {limit_text(limit)}"],
        places=[(result.subject or "all ranks", "module")],
        file=limit.origin if limit.origin.endswith(".toml") else "",
        key=_id(limit.gate),
        properties={**{name: to_tree(getattr(result, name)) for name in _NUMBERS}, "unit": limit.unit},
    )


def _id(gate: str) -> str:
    return f"check/{gate}"
