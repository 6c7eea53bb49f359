"""Gate of exposed wait: how long a rank stands still in a step because another one is late.

Waiting is what a busy machine does to ranks, so it only warns, unless the same rank is late in nearly all
steps: that is no accident.  Who is late, and whether that is chance, the rule straggler_rank has judged.
"""

from fractions import Fraction

from zprof.checks.gates.figure import Figure
from zprof.checks.gates.reading import Asked, Reading
from zprof.checks.gates.steps import RECORD, STEPS, sides_that_met
from zprof.model.baseline import TimeBaseline
from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Finding
from zprof.model.report import Report
from zprof.model.units import format_ns

#: Of the steps, in how many the rank must be the latest.
_NEARLY_ALL_RATIO = 0.8
_LATEST = "steps in which it is the latest"


def exposed_wait(asked: Asked) -> Reading:
    """Exposed wait of a step, the mean over steps and ranks."""
    (now, before), missing = sides_that_met(asked)
    late = late_rank(asked.report)
    return Reading(
        now=_wait(now),
        before=_wait(before),
        missing=missing,
        remedy=RECORD,
        shown=format_ns,
        leaf=STEPS,
        subject="" if late is None else f"rank {late}",
        where=" a step",
        grew="" if late is None else f"rank {late} is late in nearly all steps",
        only_warns="no rank is late in nearly all steps, so that it only warns" if late is None else "",
    )


def late_rank(report: Report) -> int | None:
    """The rank that the rules found late, and that is so in nearly all steps."""
    for finding in report.findings:
        if finding.cause is Cause.STRAGGLER_RANK and finding.confidence is not Confidence.LOW:
            return _in_nearly_all(finding)
    return None


def _in_nearly_all(finding: Finding) -> int | None:
    share = next((row.value for row in finding.evidence if row.what == _LATEST), 0.0)
    rank = next((row.rank for row in finding.evidence if row.rank is not None), None)
    return rank if share >= _NEARLY_ALL_RATIO else None


def _wait(side: TimeBaseline | None) -> Figure | None:
    if side is None or side.exposed_wait_ns is None:
        return None
    return Figure(
        value=Fraction(side.exposed_wait_ns),
        can_be_lower=side.upper_bound,
        can_be_higher=side.wait_lower_bound,
    )
