"""What the diagnosis chooses to show: the terms by weight, findings by worth, what no finding claims."""

from collections.abc import Sequence
from dataclasses import dataclass

from zprof.model.findings import Confidence, Evidence, Finding
from zprof.model.report import Report
from zprof.reports.shown.presenter import LEDGER, LedgerRow, ledger

#: A term that is 0.0 in milliseconds with one decimal.
_NOTHING_NS = 50_000
#: Evidence of a finding: its first rows, which its rule chose as the decisive ones.
MOST_EVIDENCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Findings by how much is said of each: all, a line or two, or a note because they are a guess."""

    full: tuple[Finding, ...]
    short: tuple[Finding, ...]
    notes: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclaimed:
    """A term of what one rank loses and no finding explains; its share of that rank's step."""

    name: str
    left_ns: int
    share: float


def terms_by_weight(report: Report) -> tuple[LedgerRow, ...]:
    """Terms of the step, or of its change where there is a baseline: the largest first, none that is 0.0."""
    rows = [(abs(row.this_ns if row.change_ns is None else row.change_ns), row) for row in ledger(report)]
    return tuple(row for size, row in sorted(rows, key=lambda entry: -entry[0]) if size >= _NOTHING_NS)


def told(findings: Sequence[Finding], most: int) -> Told:
    """All of the first ``most`` that are more than a guess."""
    sure = [entry for entry in findings if entry.confidence is not Confidence.LOW]
    return Told(
        full=tuple(sure[:most]),
        short=tuple(sure[most:]),
        notes=tuple(entry for entry in findings if entry.confidence is Confidence.LOW),
    )


def decisive(finding: Finding) -> tuple[Evidence, ...]:
    """The rows that a reader needs first."""
    return finding.evidence[:MOST_EVIDENCE]


def unclaimed_terms(report: Report) -> tuple[Unclaimed, ...]:
    """What is lost and not claimed, the largest first."""
    names, whole = dict(LEDGER), max(1, unclaimed_step_ns(report))
    rows = [
        Unclaimed(name=names.get(term, term), left_ns=left, share=left / whole)
        for term, left in report.unclaimed.items()
        if left > 0
    ]
    return tuple(sorted(rows, key=lambda row: -row.left_ns))


def unclaimed_ns(report: Report) -> int:
    """All of it: the terms of one rank, so that they add up."""
    return sum(max(0, left) for left in report.unclaimed.values())


def unclaimed_step_ns(report: Report) -> int:
    """The mean step of the rank whose unexplained loss is shown; of the longest one where none is named."""
    ranks = report.time.per_rank
    named = (rank.wall_ns for rank in ranks if rank.rank == report.unclaimed_rank)
    return next(named, max((rank.wall_ns for rank in ranks), default=0))


def on_unclaimed_rank(report: Report) -> str:
    """`` on rank 2``; empty where no rank is named."""
    return "" if report.unclaimed_rank is None else f" on rank {report.unclaimed_rank}"
