"""A check as GitHub workflow commands: an annotation for each gate that is not fine, and for each notice.

GitHub shows the first ten errors, ten warnings and ten notices of a step: what failed comes first.
"""

from zprof.model.check import Check, GateResult, Outcome
from zprof.model.report import Report
from zprof.reports.escape_log import command
from zprof.reports.presenters.check_words import by_weight, details, is_noisy, outcome_sentence

#: What could not be judged ends the step with an error, so it is shown as one.
_KINDS = {
    Outcome.FAILED: "error",
    Outcome.UNKNOWN: "error",
    Outcome.WARNED: "warning",
    Outcome.WITHIN_NOISE: "warning",
}
_STATES = {
    Outcome.FAILED: "failed",
    Outcome.UNKNOWN: "not judged",
    Outcome.WARNED: "warned",
    Outcome.WITHIN_NOISE: "within noise",
    Outcome.PASSED: "passed, too noisy to fail",
}


def render(check: Check, report: Report) -> str:
    """A line a command; where all is fine, one notice that says so."""
    lines = [_gate(result) for result in by_weight(check) if result.outcome in _KINDS or is_noisy(result)]
    lines += [command("notice", "zprof", notice) for notice in check.notices]
    return "\n".join(lines or [command("notice", "zprof", outcome_sentence(check))]) + "\n"


def _gate(result: GateResult) -> str:
    title = f"zprof: {result.limit.gate} {_STATES[result.outcome]}"
    return command(_KINDS.get(result.outcome, "warning"), title, *details(result))
