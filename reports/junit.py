"""A report as JUnit XML: the verdict and each finding as a case; what was not tested is skipped.

A finding fails where it costs something (severity high or medium) and is more than a guess; else it passes
and says what it saw.  The verdict fails a run that is slower or at risk: without it a run whose causes nobody
found would be green.
"""

from collections.abc import Iterator

from zprof.model.findings import FINDING_IDS, Finding
from zprof.model.formatting import format_ns, format_percent
from zprof.model.report import Report, VerdictStatus
from zprof.reports.junit_suite import Case, State, Suite, document
from zprof.reports.presenters.findings import (
    GapGroup,
    grouped_gaps,
    is_significant,
    list_finding_lines,
)
from zprof.reports.presenters.memory_figures import format_largest_peak
from zprof.reports.presenters.time_figures import Exposure, exposure, step_ns

_VERDICTS = {
    VerdictStatus.OK: State.PASSED,
    VerdictStatus.SLOWER: State.FAILED,
    VerdictStatus.RISK: State.FAILED,
    VerdictStatus.INCONCLUSIVE: State.ERROR,
}


def render(report: Report) -> str:
    """Return the XML."""
    cases = [_verdict(report), *(_finding(finding) for finding in report.findings)]
    cases += [case for group in grouped_gaps(report.gaps) for case in _gap(group)]
    return document(
        Suite(
            name=f"zprof report {report.run.name}",
            cases=cases,
            properties=dict(_facts(report)),
            text=report.verdict.sentence,
        )
    )


def _verdict(report: Report) -> Case:
    said, status = report.verdict.sentence, report.verdict.status
    return Case(
        group="zprof.report",
        name="verdict",
        state=_VERDICTS[status],
        message=said,
        kind=status.value,
        text=said,
    )


def _finding(finding: Finding) -> Case:
    return Case(
        group="zprof.findings",
        name=f"{finding.id} {finding.cause.value}",
        state=State.FAILED if is_significant(finding) else State.PASSED,
        message=finding.sentence,
        kind=f"{finding.severity.value} severity, {finding.confidence.value} confidence",
        text="\n".join(list_finding_lines(finding)),
    )


def _gap(group: GapGroup) -> list[Case]:
    said = f"{group.reason} → {group.remedy}" if group.remedy else group.reason
    names = [f"{FINDING_IDS[cause]} {cause.value}" for cause in group.causes]
    if names:
        return [_skipped("zprof.findings", name, said) for name in names]
    return [_skipped("zprof.measured", f"{group.what}{group.where}", said)]


def _skipped(group: str, name: str, message: str) -> Case:
    return Case(group=group, name=name.strip(), state=State.SKIPPED, message=message)


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    """Yield what the judgements rest on, as every output shows it."""
    yield "zprof_version", report.zprof_version
    yield "run", report.run.name
    yield "verdict", report.verdict.status.value
    yield "modelled", "; ".join(report.run.modelled) or "nothing"
    if report.time.per_rank:
        yield "step_time", format_ns(step_ns(report.time.per_rank))
        yield "exposed_share_of_collectives", _exposed(exposure(report.time.per_rank))
    if report.memory.per_rank:
        yield "peak_memory", format_largest_peak(report.memory.per_rank)
    if report.comparison is not None:
        yield "baseline", report.comparison.baseline


def _exposed(seen: Exposure) -> str:
    """Return the share of the collectives, which is not the gate ``exposed_ratio``, a share of the step."""
    if seen.ratio is None:
        return "no collective ran"
    return f"{'at most ' if seen.at_most else ''}{format_percent(seen.ratio)}"
