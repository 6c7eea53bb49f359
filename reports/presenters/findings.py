"""Build findings as cards with evidence, fix and disproof, and gaps grouped by what is unknown."""

from collections.abc import Sequence

from msgspec import Struct

from zprof.model.findings import Cause, Confidence, Evidence, Finding, Severity, SourceLocation
from zprof.model.formatting import format_bytes, format_ns, printable, shorten
from zprof.model.gaps import Gap
from zprof.model.quantities import Unit, format_number
from zprof.model.report import Report
from zprof.model.time import Time
from zprof.reports.page import GAPS, Card, Code, Facts, Item, ItemList, Note, Paragraph, Section, make_section
from zprof.reports.presenters.run_formatting import format_ranks

_MAX_FINDINGS = 100
_MAX_EVIDENCE = 100
_MAX_FILE, _MAX_FUNCTION = 60, 60


class GapGroup(Struct, frozen=True, kw_only=True):
    """The same gap on several ranks; ``ranks`` is empty if it applies to the entire run."""

    what: str
    reason: str
    remedy: str
    ranks: tuple[int, ...]
    causes: tuple[Cause, ...] = ()

    @property
    def subject(self) -> str:
        """Return the causes that were not tested, or else what was not measured."""
        return ", ".join(self.causes) or self.what

    @property
    def where(self) -> str:
        """Return `` (rank 3)`` or `` (ranks 0, 1 and 9 more)``; empty for the entire run."""
        several = "s" if len(self.ranks) > 1 else ""
        return f" (rank{several} {format_ranks(self.ranks)})" if self.ranks else ""


def format_evidence_value(fact: Evidence) -> str:
    """Format the value in its unit; an unknown unit is appended unchanged."""
    is_known = fact.unit in set(Unit)
    return format_number(fact.value, Unit(fact.unit)) if is_known else f"{fact.value:g} {fact.unit}"


def format_evidence_name(fact: Evidence) -> str:
    """Format what was measured, and on which rank."""
    return fact.what if fact.rank is None else f"{fact.what} (rank {fact.rank})"


def worth(finding: Finding) -> str:
    """Format the saving of a finding in time and bytes, and its confidence."""
    low, high = finding.saving_ns
    saves = f"saves {format_ns(low)} to {format_ns(high)}, " if high > 0 else ""
    return f"{saves}{_format_freed_bytes(finding.saving_bytes)}{finding.confidence.value} confidence"


def format_location(location: SourceLocation) -> str:
    """Format a line of the program like ``train.py:31, main``; long names keep their end."""
    file = printable(location.file)
    file = file if len(file) <= _MAX_FILE else f"…{file[1 - _MAX_FILE :]}"
    return f"{file}:{location.line}, {shorten(printable(location.function), _MAX_FUNCTION)}"


def build_change_parts(finding: Finding) -> tuple[tuple[str, Paragraph], ...]:
    """Build the part of a card that says what the finding adds to the step, if there is a baseline."""
    if finding.change_ns is None:
        return ()
    low, high = finding.change_ns
    if low > 0:
        text = f"{format_ns(low)} to {format_ns(high)} of the difference"
    elif high > 0:
        text = f"at most {format_ns(high)} of the difference"
    else:
        text = "nothing: it was as bad before"
    return (("adds", Paragraph(text=text)),)


def build_location_parts(finding: Finding) -> tuple[tuple[str, Paragraph], ...]:
    """Build the part of a card that names the line of the program, if it is known."""
    return (("in", Paragraph(text=format_location(finding.location))),) if finding.location else ()


def _format_freed_bytes(saving_bytes: tuple[int, int] | None) -> str:
    """Format the freed bytes of the largest rank, as a range if its ends print differently."""
    if saving_bytes is None or saving_bytes[1] <= 0:
        return ""
    low, high = (format_bytes(size) for size in saving_bytes)
    return f"frees {high}, " if low == high else f"frees {low} to {high}, "


def is_significant(finding: Finding) -> bool:
    """Return True if a finding fails a CI job: neither its severity nor its confidence is low."""
    return finding.severity is not Severity.LOW and finding.confidence is not Confidence.LOW


def list_finding_lines(finding: Finding) -> tuple[str, ...]:
    """Return the complete finding as plain lines, for JUnit and SARIF."""
    return (
        finding.sentence,
        worth(finding),
        *([f"in: {format_location(finding.location)}"] if finding.location else []),
        *(f"  {format_evidence_value(fact)}  {format_evidence_name(fact)}" for fact in finding.evidence),
        f"fix: {finding.fix}",
        f"disprove: {finding.disprove}",
        f"read: {finding.doc}",
    )


def find_first_confident(findings: Sequence[Finding]) -> Finding | None:
    """Return the first finding with more than low confidence."""
    return next((entry for entry in findings if entry.confidence is not Confidence.LOW), None)


def describe_savings(findings: Sequence[Finding], time: Time) -> str:
    """Describe the basis of the savings of these findings."""
    if any(entry.saving_ns[1] > 0 for entry in findings):
        return f"savings {time.basis}, each fix on its own"
    is_about_memory = any(entry.saving_bytes is not None for entry in findings)
    is_hang = any(entry.is_hang for entry in findings)
    return "" if is_hang and not is_about_memory else "bytes freed on the largest rank"


def build_finding_section(report: Report) -> tuple[Section, ...]:
    """Build the section of findings, largest saving first; it states if there are none."""
    lead = "What costs time or memory, the evidence, and what to change."
    if not report.findings:
        return make_section("findings", "Findings", lead, Paragraph(text="No findings."))
    shown, total = report.findings[:_MAX_FINDINGS], len(report.findings)
    cards = [build_finding_card(number, entry) for number, entry in enumerate(shown, start=1)]
    omission = Note(text=f"{len(shown)} of {total:,} findings.") if total > len(shown) else None
    return make_section(
        "findings", "Findings", lead, *cards, omission, note=describe_savings(report.findings, report.time)
    )


def build_finding_card(number: int, finding: Finding) -> Card:
    """Build the card of a finding with all its parts."""
    evidence = tuple((format_evidence_value(fact), format_evidence_name(fact)) for fact in finding.evidence)
    parts: tuple[tuple[str, Paragraph | Facts | Code], ...] = (
        ("evidence", Facts(rows=evidence[:_MAX_EVIDENCE], values_first=True)),
        *build_change_parts(finding),
        *build_location_parts(finding),
        ("fix", Code(lines=tuple(finding.fix.split("\n")))),
        ("disprove", Paragraph(text=finding.disprove)),
        ("read", Paragraph(text=f"zprof explain {finding.id}")),
    )
    return Card(
        title=f"{number} {finding.id} {finding.cause.value}",
        note=worth(finding),
        tone=finding.severity.value,
        text=finding.sentence,
        parts=parts if evidence else parts[1:],
    )


def merge_gaps(gaps: Sequence[Gap]) -> tuple[GapGroup, ...]:
    """Merge gaps that differ only in their rank, in order of first appearance."""
    groups: dict[tuple[str, str, str, tuple[Cause, ...]], list[int | None]] = {}
    for gap in gaps:
        groups.setdefault((gap.what, gap.reason, gap.remedy, gap.causes), []).append(gap.rank)
    return tuple(
        GapGroup(
            what=what,
            reason=reason,
            remedy=remedy,
            causes=causes,
            ranks=tuple(sorted(rank for rank in ranks if rank is not None)),
        )
        for (what, reason, remedy, causes), ranks in groups.items()
    )


def build_gap_list(gaps: Sequence[Gap]) -> ItemList | None:
    """Build the list of gaps: what is unknown, why, and the remedy."""
    groups = merge_gaps(gaps)
    if not groups:
        return None
    items = [
        Item(label=f"{group.what}{group.where}", text=group.reason, remedy=group.remedy) for group in groups
    ]
    return ItemList(items=tuple(items[:200]), total=len(items), noun="gaps")


def build_gap_section(gaps: Sequence[Gap], title: str = "Not measured") -> tuple[Section, ...]:
    """Build the section of gaps."""
    count = len(merge_gaps(gaps))
    lead = "Missing figures are unknown, not zero: what is missing, why, and how to measure it."
    return make_section(GAPS, f"{title} ({count})", lead, build_gap_list(gaps))
