"""Render a report as JUnit XML: the verdict and each finding as a case; gaps are skipped cases.

A finding fails if its severity is high or medium and its confidence is not low; else it passes with the
evidence in its output.  The verdict fails a run that is slower or at risk, so that a regression without a
finding does not pass.
"""

from collections.abc import Iterator

from zprof.model.findings import read_index
from zprof.model.formatting import format_ns, format_percent
from zprof.model.quantities import BOUND_WORDS
from zprof.model.report import Report, VerdictStatus
from zprof.reports.junit_suite import Case, State, Suite, document
from zprof.reports.pages.findings import (
    GapGroup,
    is_significant,
    list_finding_lines,
    merge_gaps,
)
from zprof.reports.pages.ledger import Exposure, exposure, step_ns
from zprof.reports.pages.tenants import format_largest_peak

_VERDICTS = {
    VerdictStatus.OK: State.PASSED,
    VerdictStatus.SLOWER: State.FAILED,
    VerdictStatus.RISK: State.FAILED,
    VerdictStatus.INCONCLUSIVE: State.ERROR,
}


def render(report: Report) -> str:
    """Return the JUnit XML."""
    message, status = report.verdict.sentence, report.verdict.status
    cases = [
        Case(
            group="zprof.report",
            name="verdict",
            state=_VERDICTS[status],
            message=message,
            kind=status.value,
            text=message,
        ),
        *(
            Case(
                group="zprof.findings",
                name=f"{finding.id} {finding.cause}",
                state=State.FAILED if is_significant(finding) else State.PASSED,
                message=finding.sentence,
                kind=f"{finding.severity.value} severity, {finding.confidence.value} confidence",
                text="\n".join(list_finding_lines(finding)),
            )
            for finding in report.findings
        ),
    ]
    cases += [case for group in merge_gaps(report.gaps) for case in _make_gap_cases(group)]
    return document(
        Suite(
            name=f"zprof report {report.run.name}",
            cases=cases,
            properties=dict(_list_properties(report)),
            text=report.verdict.sentence,
        )
    )


def _make_gap_cases(group: GapGroup) -> list[Case]:
    message = f"{group.reason} → {group.remedy}" if group.remedy else group.reason
    ids = {entry.name: f"{entry.id} " for entry in read_index()}
    names = [f"{ids.get(cause, '')}{cause}" for cause in group.causes]
    if names:
        return [_make_skipped_case("zprof.findings", name, message) for name in names]
    return [_make_skipped_case("zprof.measured", f"{group.what}{group.where}", message)]


def _make_skipped_case(group: str, name: str, message: str) -> Case:
    return Case(group=group, name=name.strip(), state=State.SKIPPED, message=message)


def _list_properties(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the headline figures of the report as properties."""
    yield "zprof_version", report.zprof_version
    yield "run", report.run.name
    yield "verdict", report.verdict.status.value
    yield "modelled", "; ".join(report.run.modelled) or "nothing"
    if report.time.per_rank:
        yield "step_time", format_ns(step_ns(report.time.per_rank))
        yield "exposed_share_of_collectives", _format_exposed_share(exposure(report.time.per_rank))
    if report.memory.per_rank:
        yield "peak_memory", format_largest_peak(report.memory.per_rank)
    if report.comparison is not None:
        yield "baseline", report.comparison.baseline


def _format_exposed_share(exposed: Exposure) -> str:
    """Format the exposed share of collective time; the gate ``exposed_ratio`` is a share of the step."""
    if exposed.ratio is None:
        return "no collective ran"
    return f"{BOUND_WORDS[exposed.bound]}{format_percent(exposed.ratio)}"
