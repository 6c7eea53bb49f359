"""Build the diagnosis page, a screen of about 40 lines: the verdict, where the time goes, what to change.

Findings below 1 % of the step are folded; ``zprof report`` shows them.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from zprof.model.cursor import Cursor
from zprof.model.findings import Confidence, Finding
from zprof.model.hang import is_stuck
from zprof.model.report import WORK_SIZES, Comparison, Report
from zprof.reports.layout import is_code
from zprof.reports.page import (
    GAPS,
    Block,
    Card,
    Code,
    Explanation,
    Facts,
    Item,
    ItemList,
    Note,
    Page,
    Paragraph,
    Section,
    make_section,
)
from zprof.reports.pages.communicators import build_communicator_sections
from zprof.reports.pages.compare import build_equal_work_table
from zprof.reports.pages.findings import (
    build_change_parts,
    build_location_parts,
    describe_savings,
    format_evidence_name,
    format_evidence_value,
    has_tested_causes,
    merge_gaps,
    worth,
)
from zprof.reports.pages.hang import build_ending_section, build_hang_section
from zprof.reports.pages.head import build_head_blocks
from zprof.reports.pages.ledger import (
    build_ledger_table,
    build_unexplained_section,
    describe_partial_group,
    step_ns,
)
from zprof.reports.pages.memory import build_history_sections, build_memory_section, find_history_rank
from zprof.reports.pages.memory_allocations import build_stack_section
from zprof.reports.pages.memory_changes import build_group_change_section, build_rank_spread_section
from zprof.reports.pages.memory_timeline import build_timeline_section
from zprof.reports.pages.ranks import describe_critical_path
from zprof.reports.pages.slowdown import build_slowdown_section

#: Maximum findings shown in short after the first, and maximum of low confidence.
_MAX_SHORT, _MAX_GUESSES = 3, 1
#: Share of the step below which a finding about time is folded.
_MIN_STEP_RATIO = 0.01
#: Maximum lines of the fix.
_MAX_FIX_LINES = 4
#: Maximum evidence rows of the first finding; its rule lists decisive evidence first.
_MAX_EVIDENCE = 3
_MAX_GAPS = 3
_MAX_GAP_CHARACTERS = 150
_MIN_REASON_CHARACTERS = 20
_MAX_DIFFERENCES = 6


def build_diagnosis_page(report: Report) -> Page:
    """Build the page; ``zprof report`` and the JSON have the omitted details."""
    comparison = report.comparison
    head: list[Block | None] = [*build_head_blocks(report, with_fix=False)]
    if comparison is not None:
        head += [*_list_job_notes(comparison), build_equal_work_table(report, comparison)]
    return Page(
        kind="zprof diagnose",
        subject=report.run.name,
        head=tuple(block for block in head if block is not None),
        sections=(
            *build_ending_section(report),
            *_build_main_sections(report),
            *_build_change_section(report),
            *build_unexplained_section(report),
            *_build_short_gap_section(report),
        ),
        made_by=f"zprof {report.zprof_version}, {report.schema}",
        data_command="zprof diagnose RUN -f json",
    )


def _build_main_sections(report: Report) -> tuple[Section, ...]:
    """Build the main sections: what a stuck job waits for, where time goes, or what holds the memory."""
    if is_stuck(report.hang):
        return build_hang_section(report)
    if report.time.is_without_ledger:
        return (*build_slowdown_section(report.time), *build_communicator_sections(report.time))
    if report.time.per_rank:
        title = "Where the time goes"
        table = build_ledger_table(report)
        asked = describe_partial_group(report)
        note = Note(text=asked) if asked else None
        return make_section("ledger", title, "", table, describe_critical_path(report), note)
    if find_history_rank(report.memory) is None:
        return build_memory_section(report, short=True)
    tables = (
        build_memory_section(report, short=True)
        if len(report.memory.per_rank) > 1 or report.comparison is not None
        else ()
    )
    return (
        *build_group_change_section(Cursor(report).comparison, short=True),
        *tables,
        *build_rank_spread_section(report, short=True),
        *build_history_sections(report, short=True),
        *build_timeline_section(report),
        *build_stack_section(report, in_text=False),
    )


def _list_job_notes(comparison: Comparison) -> Iterator[Block]:
    """Yield a warning if the jobs differ in settings that change the work."""
    shown = [
        entry
        for entry in comparison.differences
        if comparison.equal_work is None or entry.key not in WORK_SIZES
    ]
    if shown:
        text = "; ".join(f"{entry.what} {entry.b}, was {entry.a}" for entry in shown[:_MAX_DIFFERENCES])
        omitted = len(shown) - _MAX_DIFFERENCES
        more = f"; and {omitted} more: zprof compare" if omitted > 0 else ""
        yield Note(label="NOT THE SAME JOB", text=f"{text}{more}.")


def _build_change_section(report: Report) -> tuple[Section, ...]:
    """Build the section of findings, largest saving first, low confidence last."""
    title, lead = "What to change", "Fixes, largest saving first."
    if not has_tested_causes(report) or (not report.findings and report.endings):
        return ()  # the verdict, or what ended the job, is the answer
    if not report.findings:
        text = "Nothing: none of the tested causes was found."
        return make_section("changes", title, lead, Paragraph(text=text))
    # Omit findings that cost little time, except the first.
    min_ns = _MIN_STEP_RATIO * (step_ns(report.time.per_rank) if report.time.per_rank else 0)
    kept = [
        entry
        for number, entry in enumerate(report.findings)
        if number == 0 or entry.saving_bytes is not None or entry.saving_ns[1] >= min_ns
    ]
    confident = [entry for entry in kept if entry.confidence is not Confidence.LOW][: 1 + _MAX_SHORT]
    guesses = [entry for entry in kept if entry.confidence is Confidence.LOW][:_MAX_GUESSES]
    shown = [*confident, *guesses]
    blocks: list[Block | None] = [
        _build_full_card(confident[0], verdict=report.verdict.sentence)
        if confident
        else Paragraph(text="No finding has more than low confidence."),
        *(_build_short_card("also", entry) for entry in confident[1:]),
        *(
            Note(text=f"perhaps {entry.id} {entry.cause}: {worth(entry)}")
            if confident
            else _build_short_card("perhaps", entry)
            for entry in guesses
        ),
    ]
    omitted = len(report.findings) - len(shown)
    if omitted:
        several = "s" if omitted > 1 else ""
        blocks.append(Note(text=f"{omitted} more finding{several}, smaller or less sure: zprof report."))
    return make_section("changes", title, lead, *blocks, note=describe_savings(shown, report.time))


def _build_full_card(finding: Finding, *, verdict: str) -> Card:
    """Build a card with the decisive evidence, without the sentence if the verdict already contains it."""
    evidence = tuple(
        (format_evidence_value(fact), format_evidence_name(fact)) for fact in finding.evidence[:_MAX_EVIDENCE]
    )
    lines = _shorten_fix(finding, _MAX_FIX_LINES)
    parts: tuple[tuple[str, Paragraph | Facts | Code | Explanation], ...] = (
        ("evidence", Facts(rows=evidence, values_first=True)),
        *build_change_parts(finding),
        *build_location_parts(finding),
        ("fix", Code(lines=tuple(lines))),
        ("more", Explanation(finding=finding.id)),
    )
    card = _build_short_card("1", finding)
    text = "" if finding.sentence in verdict else finding.sentence
    return replace(card, text=text, parts=parts if evidence else parts[1:])


def _shorten_fix(finding: Finding, max_lines: int) -> list[str]:
    """Return the lines of the fix; if there are too many, only the first parts, each with its title.

    Parts are never cut: half a statement is useless.
    """
    lines = finding.fix.split("\n")
    starts = [
        at
        for at, line in enumerate(lines)
        if at > 0 and line.endswith(":") and not line.startswith(" ") and not is_code(line)
    ]
    ends = [at for at in starts if at < max_lines] or starts[:1]
    if len(lines) <= max_lines or not ends:
        return lines
    return [*lines[: ends[-1]], f"{len(lines) - ends[-1]} more lines: zprof report"]


def _build_short_card(label: str, finding: Finding) -> Card:
    return Card(
        title=f"{label} {finding.id} {finding.cause}",
        note=worth(finding),
        tone=finding.severity.value,
        text=finding.sentence,
    )


def _build_short_gap_section(report: Report) -> tuple[Section, ...]:
    """Build the short gaps section; the report has the remedies."""
    groups = merge_gaps(report.gaps)
    items = []
    for group in groups[:_MAX_GAPS]:
        subject = ", ".join(group.causes) or group.what
        text = _cut_reason(group.reason, max(_MIN_REASON_CHARACTERS, _MAX_GAP_CHARACTERS - len(subject)))
        items.append(Item(label=f"{subject}{group.where}", text=text))
    item_list = ItemList(items=tuple(items), total=len(groups), noun="gaps") if items else None
    title = f"Not tested, not measured ({len(groups)})"
    return make_section(GAPS, title, "", item_list, note="remedies: zprof report")


def _cut_reason(reason: str, max_characters: int) -> str:
    """Return a reason without its last clauses, or without its last words if a single clause is too long."""
    if len(reason) <= max_characters:
        return reason
    clauses = reason[:max_characters].rpartition("; ")[0]
    if len(clauses) >= _MIN_REASON_CHARACTERS:
        return clauses
    return f"{reason[:max_characters].rpartition(' ')[0]} …"
