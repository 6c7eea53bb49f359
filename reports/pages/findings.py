"""Build findings as cards with evidence, fix and disproof, and gaps grouped by subject."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.formatting import format_bytes, format_ns, printable, shorten
from zprof.model.cursor import Cursor, read, read_range
from zprof.model.findings import Confidence, Evidence, Finding, Severity, SourceLocation
from zprof.model.gaps import Gap
from zprof.model.quantities import Unit, format_number
from zprof.model.report import Report
from zprof.model.time import Time
from zprof.reports.page import (
    GAPS,
    Card,
    Code,
    Explanation,
    Facts,
    Item,
    ItemList,
    Note,
    Paragraph,
    Section,
    make_section,
)
from zprof.reports.pages.names import format_ranks
from zprof.reports.table import Column, Kind, Mark, Opens, Row, Table

_MAX_FINDINGS = 100
_MAX_EVIDENCE = 100
_MAX_FILE, _MAX_FUNCTION = 60, 60
#: Note in an empty findings table, indexed by whether there are gaps.
_NO_FINDING = ("all causes were tested", "see below for what was not tested, and why")
#: Separator after a part's name, indexed by whether the text has several lines.


class GapGroup(Struct, frozen=True, kw_only=True):
    """The same gap on several ranks; ``ranks``: empty for the entire run."""

    what: str
    reason: str
    remedy: str
    ranks: tuple[int, ...]
    causes: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """Return the untested causes, or else the missing measurement."""
        return ", ".join(self.causes) or self.what

    @property
    def where(self) -> str:
        """Return `` (rank 3)`` or `` (ranks 0, 1 and 9 more)``; empty for the entire run."""
        several = "s" if len(self.ranks) > 1 else ""
        return f" (rank{several} {format_ranks(self.ranks)})" if self.ranks else ""


def format_evidence_value(fact: Evidence) -> str:
    """Format the value in its unit; append an unknown unit unchanged."""
    is_known = fact.unit in set(Unit)
    return format_number(fact.value, Unit(fact.unit)) if is_known else f"{fact.value:g} {fact.unit}"


def format_evidence_name(fact: Evidence) -> str:
    """Format the name of the measurement and its rank."""
    return fact.what if fact.rank is None else f"{fact.what} (rank {fact.rank})"


def worth(finding: Finding) -> str:
    """Format the saving of a finding in time and bytes, and its confidence."""
    low, high = finding.saving_ns
    saves = f"saves {format_ns(low)} to {format_ns(high)}, " if high > 0 else ""
    frees = ""
    if finding.saving_bytes is not None and finding.saving_bytes[1] > 0:
        least, most = (format_bytes(size) for size in finding.saving_bytes)
        frees = f"frees {most}, " if least == most else f"frees {least} to {most}, "
    return f"{saves}{frees}{finding.confidence.value} confidence"


def format_location(location: SourceLocation) -> str:
    """Format a program line like ``train.py:31, main``; long names keep their end."""
    file = printable(location.file)
    file = file if len(file) <= _MAX_FILE else f"…{file[1 - _MAX_FILE :]}"
    return f"{file}:{location.line}, {shorten(printable(location.function), _MAX_FUNCTION)}"


def build_change_parts(finding: Finding) -> tuple[tuple[str, Paragraph], ...]:
    """Build the card part on the time that the finding adds to the step over a baseline, if any."""
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
    """Build the card part with the program line, if known."""
    return (("in", Paragraph(text=format_location(finding.location))),) if finding.location else ()


def is_significant(finding: Finding) -> bool:
    """Return True if a finding fails a CI job, because neither its severity nor its confidence is low."""
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
    """Return the first finding above low confidence."""
    return next((entry for entry in findings if entry.confidence is not Confidence.LOW), None)


def describe_savings(findings: Sequence[Finding], time: Time) -> str:
    """Describe the basis of the savings of these findings."""
    if any(entry.saving_ns[1] > 0 for entry in findings):
        return f"savings {time.basis}, each fix on its own"
    is_about_memory = any(entry.saving_bytes is not None for entry in findings)
    is_hang = any(entry.is_hang for entry in findings)
    return "" if is_hang and not is_about_memory else "bytes freed on the largest rank"


def has_tested_causes(report: Report) -> bool:
    """Return False if no cause was tested: a job that may not hang, or collectives or operations alone."""
    is_untested = report.time.is_without_ledger or (report.hang is not None and not report.time.per_rank)
    return bool(report.findings) or not is_untested


def build_finding_section(report: Report) -> tuple[Section, ...]:
    """Build the findings section, largest saving first; without findings, it reports that."""
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
    parts: tuple[tuple[str, Paragraph | Facts | Code | Explanation], ...] = (
        ("evidence", Facts(rows=evidence[:_MAX_EVIDENCE], values_first=True)),
        *build_change_parts(finding),
        *build_location_parts(finding),
        ("fix", Code(lines=tuple(finding.fix.split("\n")))),
        ("disprove", Paragraph(text=finding.disprove)),
        ("read", Explanation(finding=finding.id)),
    )
    return Card(
        title=f"{number} {finding.id} {finding.cause}",
        note=worth(finding),
        tone=finding.severity.value,
        text=finding.sentence,
        parts=parts if evidence else parts[1:],
    )


def merge_gaps(gaps: Sequence[Gap]) -> tuple[GapGroup, ...]:
    """Merge gaps that differ only in their rank, in order of first appearance."""
    groups: dict[tuple[str, str, str, tuple[str, ...]], list[int | None]] = {}
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
    """Build the gap list: what is unknown, why, and the remedy."""
    groups = merge_gaps(gaps)
    if not groups:
        return None
    items = [
        Item(label=f"{group.what}{group.where}", text=group.reason, remedy=group.remedy) for group in groups
    ]
    return ItemList(items=tuple(items[:200]), total=len(items), noun="gaps")


def build_gap_section(gaps: Sequence[Gap], title: str = "Not measured") -> tuple[Section, ...]:
    """Build the gaps section."""
    count = len(merge_gaps(gaps))
    lead = "Missing figures are unknown, not zero: what is missing, why, and how to measure it."
    return make_section(GAPS, f"{title} ({count})", lead, build_gap_list(gaps))


def build_findings_table(report: Report) -> Table:
    """Build the findings table in report order: by predicted saving."""
    basis = report.time.basis
    columns = (
        Column(title="finding", kind=Kind.TEXT),
        Column(
            title="saves",
            help=f"predicted saving {basis}, or memory freed on the largest rank",
        ),
        Column(title="confidence", kind=Kind.TEXT, help="confidence of the rule in the finding"),
        Column(title="frees", from_width=110, help="memory freed on the largest rank"),
        Column(title="description", kind=Kind.TEXT, takes_rest=True),
    )
    findings = report.findings
    title = "Nothing to change: none of the tested causes was found"
    if findings:
        title = "Why, and what to change"
    elif not report.time.per_rank:
        title = "No step was timed: causes that cost time were not tested"
    return Table(
        name="findings",
        title=title,
        columns=columns,
        rows=tuple(_make_finding_line(report, index, finding) for index, finding in enumerate(findings)),
        help=f"Sorted by the predicted saving {basis}, or by the memory freed. Findings of low confidence "
        "are hints only.",
        note="enter: evidence, fix, how to disprove it" if findings else _NO_FINDING[bool(report.gaps)],
    )


def _make_finding_line(report: Report, index: int, finding: Finding) -> Row:
    freed = read_range(Cursor(report).findings[index]["saving_bytes"]) if finding.saving_bytes else None
    saved = read_range(Cursor(report).findings[index]["saving_ns"]) if finding.saving_ns[1] else None
    return Row(
        key=str(index),
        cells=(
            finding.id,
            saved or freed or "",
            finding.confidence.value,
            freed or "",
            finding.sentence,
        ),
        opens=Opens.FINDING,
        target=index,
        mark=Mark.MUTED if finding.confidence is Confidence.LOW else Mark.PLAIN,
    )


def describe_finding(report: Report, index: int, *, whole: bool = False) -> str:
    """Return the finding's sentence, unless the verdict already contains it, and the first line of its fix.

    ``whole``: return sentence, fix and how to disprove it in full.
    """
    if not 0 <= index < len(report.findings):
        return ""
    finding = report.findings[index]
    if whole:
        parts = {finding.id: finding.sentence}
        if finding.location is not None:
            parts["in"] = format_location(finding.location)
        parts |= {"fix": finding.fix.strip(), "to disprove it": finding.disprove}
        lines = []
        for name, text in parts.items():
            lines.append(f"{name}:" + ("\n" if "\n" in text else " ") + text)
        return "\n".join(lines)
    first, *more = finding.fix.strip().split("\n")
    fix = f"{first} {more[0].strip()}" if first.endswith(":") and more else first
    sentence = "" if finding.sentence in report.verdict.sentence else f"{finding.id} {finding.sentence}. "
    place = f"in {format_location(finding.location)}; " if finding.location is not None else ""
    return f"{sentence}{place}fix: {fix}{' …' if len(more) > 1 else ''}"


def list_untested(report: Report) -> str:
    """List what could not be tested or measured and why, for a report without findings."""
    reasons = [f"{gap.subject}: {gap.reason}" for gap in merge_gaps(report.gaps)]
    return "\n".join(["not tested:", *reasons]) if reasons else ""


def build_evidence_table(report: Report, index: int) -> Table:
    """Build the evidence table for the finding at an index."""
    findings = report.findings
    facts = findings[index].evidence if 0 <= index < len(findings) else ()
    places = Cursor(report).findings[index].evidence
    return Table(
        name="evidence",
        title=f"Evidence of {findings[index].id}" if facts else "Evidence",
        columns=(Column(title="fact", kind=Kind.TEXT, takes_rest=True), Column(title="value")),
        rows=tuple(
            Row(key=str(at), cells=(fact.what, replace(read(places[at].value), unit=Unit(fact.unit))))
            for at, fact in enumerate(facts)
        ),
        help="Measured facts that support the finding. They exclude the first collective of each group in "
        "the window.",
    )
