"""The diagnosis as a page of one or two screens: the answer, where the time went, what to change."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from zprof.model.findings import Confidence, Finding
from zprof.model.report import WORK_SIZES, Comparison, Report
from zprof.reports.page import (
    Block,
    Card,
    Code,
    Facts,
    Item,
    ItemList,
    Note,
    Page,
    Paragraph,
    Section,
    make_section,
)
from zprof.reports.presenters.comparison import build_equal_work_table
from zprof.reports.presenters.findings import (
    describe_savings,
    format_evidence_name,
    format_evidence_value,
    grouped_gaps,
    worth,
)
from zprof.reports.presenters.head import build_head_blocks
from zprof.reports.presenters.ledger import (
    build_exposure_blocks,
    build_ledger_table,
    build_unexplained_section,
)
from zprof.reports.presenters.memory import build_memory_section
from zprof.reports.presenters.ranks import build_critical_path_blocks
from zprof.reports.presenters.time_figures import LedgerRow, ledger

#: Findings told in full and in short, and guesses.
_MAX_FULL, _MAX_SHORT = 3, 6
#: Lines of a fix: of the first finding, which is the one to try, and of the others.
_MAX_FIX_LINES = (14, 6)
#: Evidence of a finding: its first rows, which its rule chose as the decisive ones.
MAX_EVIDENCE = 4
_MAX_GAPS = 8
_MAX_GAP_CHARACTERS = 150
_MAX_DIFFERENCES = 6
#: A term that is 0.0 in milliseconds with one decimal.
_MIN_TERM_NS = 50_000
#: Differences that the table of equal work has.


def build_diagnosis_page(report: Report) -> Page:
    """Return the answer; what it leaves out is in ``zprof report`` and in the JSON."""
    comparison = report.comparison
    head: list[Block | None] = [*build_head_blocks(report, with_fix=False)]
    if comparison is not None:
        head += [*_job_notes(comparison), build_equal_work_table(report, comparison)]
    return Page(
        kind="zprof diagnose",
        subject=report.run.name,
        head=tuple(block for block in head if block is not None),
        sections=(
            *(_ledger_section(report) if report.time.per_rank else build_memory_section(report, short=True)),
            *make_section("path", "Critical path", "", *build_critical_path_blocks(report)),
            *_change_section(report),
            *build_unexplained_section(report),
            *_gap_section(report),
        ),
        made_by=f"zprof {report.zprof_version}, {report.schema}",
        data_command="zprof diagnose RUN -f json",
    )


def _ledger_section(report: Report) -> tuple[Section, ...]:
    title = "Where the time goes"
    table = build_ledger_table(report, title, sort_terms(report))
    return make_section("ledger", title, "", table, *build_exposure_blocks(report)[:2])


def sort_terms(report: Report) -> tuple[LedgerRow, ...]:
    """Return the terms of the step, or of its change, the largest first and none that is 0.0 throughout."""

    def weight(row: LedgerRow) -> int:
        return abs(row.this_ns if row.change_ns is None else row.change_ns)

    kept = (
        row for row in ledger(report) if max(weight(row), row.this_ns, row.baseline_ns or 0) >= _MIN_TERM_NS
    )
    return tuple(sorted(kept, key=weight, reverse=True))


def _job_notes(comparison: Comparison) -> Iterator[Block]:
    """Yield a warning if the two are different jobs."""
    shown = [
        entry
        for entry in comparison.differences
        if comparison.equal_work is None or entry.key not in WORK_SIZES
    ]
    if shown:
        said = "; ".join(f"{entry.what} {entry.b}, was {entry.a}" for entry in shown[:_MAX_DIFFERENCES])
        left = len(shown) - _MAX_DIFFERENCES
        more = f"; and {left} more: zprof compare" if left > 0 else ""
        yield Note(label="NOT THE SAME JOB", text=f"{said}{more}.")


def _change_section(report: Report) -> tuple[Section, ...]:
    """Return the findings by saving; guesses come last."""
    title, lead = "What to change", "By what each fix saves."
    sure = [entry for entry in report.findings if entry.confidence is not Confidence.LOW]
    guesses = [entry for entry in report.findings if entry.confidence is Confidence.LOW]
    if not report.findings:
        said = "Nothing: none of the causes that were tested was found."
        return make_section("changes", title, lead, Paragraph(text=said))
    blocks: list[Block] = [] if sure else [Paragraph(text="Nothing is sure enough.")]
    for number, entry in enumerate(sure[:_MAX_FULL], start=1):
        blocks.append(_full_card(number, entry, verdict=report.verdict.sentence))
    blocks += [*_short_cards("also", sure[_MAX_FULL:]), *_short_cards("perhaps", guesses)]
    return make_section("changes", title, lead, *blocks, note=describe_savings(report.findings))


def _full_card(number: int, finding: Finding, *, verdict: str) -> Card:
    """Return a finding with its decisive evidence; without its sentence if the verdict is that."""
    evidence = tuple(
        (format_evidence_value(fact), format_evidence_name(fact)) for fact in finding.evidence[:MAX_EVIDENCE]
    )
    lines, most = finding.fix.split("\n"), _MAX_FIX_LINES[number > 1]
    if len(lines) > most:
        lines = [*lines[: most - 1], "…"]
    parts = (
        ("evidence", Facts(rows=evidence, values_first=True)),
        ("fix", Code(lines=tuple(lines))),
        ("more", Paragraph(text=f"zprof explain {finding.id}")),
    )
    card = _short_card(str(number), finding)
    text = "" if finding.sentence in verdict else finding.sentence
    return replace(card, text=text, parts=parts if evidence else parts[1:])


def _short_card(label: str, finding: Finding) -> Card:
    return Card(
        title=f"{label} {finding.id} {finding.cause.value}",
        note=worth(finding),
        tone=finding.severity.value,
        text=finding.sentence,
    )


def _short_cards(label: str, findings: Sequence[Finding]) -> Iterator[Card | Note]:
    yield from (_short_card(label, entry) for entry in findings[:_MAX_SHORT])
    if len(findings) > _MAX_SHORT:
        yield Note(text=f"And {len(findings) - _MAX_SHORT} more: zprof report.")


def _gap_section(report: Report) -> tuple[Section, ...]:
    """Return the gaps in short; what would close them is in the report."""
    groups = grouped_gaps(report.gaps)
    items = []
    for group in groups[:_MAX_GAPS]:
        what = ", ".join(group.causes) or group.what
        reason = group.reason
        if len(what) + len(reason) > _MAX_GAP_CHARACTERS:
            reason = f"{reason[: max(20, _MAX_GAP_CHARACTERS - len(what))].rpartition(' ')[0]} …"
        items.append(Item(label=f"{what}{group.where}", text=reason))
    found = ItemList(items=tuple(items), total=len(groups), what="gaps") if items else None
    title = f"Not tested, not measured ({len(groups)})"
    return make_section("gaps", title, "", found, note="what would show it: zprof report")
