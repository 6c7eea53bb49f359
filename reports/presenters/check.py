"""A check as a page: a row per gate, why each that is not fine is not, and what of the report explains it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from zprof.model.check import Check, GateResult, Outcome
from zprof.model.report import Report
from zprof.reports.page import (
    Column,
    Facts,
    Item,
    ItemList,
    Kind,
    Page,
    Section,
    Table,
    Verdict,
    make_number_columns,
    make_section,
    make_table,
    make_text_column,
)
from zprof.reports.presenters.check_words import (
    MARKS,
    against,
    allowed,
    change,
    ended,
    explained,
    figure,
    format_change_with_spread,
    format_limit,
    format_outcome,
    interval,
    is_noisy,
    sort_by_severity,
)
from zprof.reports.presenters.comparison import build_difference_section
from zprof.reports.presenters.findings import build_finding_section, build_gap_section
from zprof.reports.presenters.head import build_modelled_notes, list_baseline_runs
from zprof.reports.presenters.ledger import build_ledger_section

_PARTS = (
    (Outcome.FAILED, "Failed"),
    (Outcome.UNKNOWN, "Not judged"),
    (Outcome.WARNED, "Warned"),
    (Outcome.WITHIN_NOISE, "Within noise"),
    (Outcome.SKIPPED, "Skipped"),
)
_TONES = {
    Outcome.FAILED: "slower",
    Outcome.UNKNOWN: "inconclusive",
    Outcome.WARNED: "risk",
    Outcome.PASSED: "ok",
}
_MAX_GATES = 60


def build_check_page(check: Check, report: Report) -> Page:
    """Return a check as a page; ``report`` is the one that was checked."""
    explaining = (*build_difference_section(report), *build_ledger_section(report))
    explaining += (
        *(build_finding_section(report) if report.findings else ()),
        *build_gap_section(report.gaps),
    )
    return Page(
        kind="zprof check",
        subject=check.run,
        head=(
            Verdict(
                tone=_TONES.get(check.outcome, "inconclusive"),
                mark=MARKS[check.outcome],
                text=format_outcome(check),
            ),
            Facts(rows=(("run", check.run), ("baseline", check.baseline or "none"))),
            *build_modelled_notes([report.run, *list_baseline_runs(report)]),
        ),
        sections=(
            *make_section("gates", "Gates", "What was allowed, and what was measured.", _gate_table(check)),
            *_reason_sections(check),
            *make_section("notices", "Notices", "", _notice_list(check.notices)),
            *(replace(section, detail=True) for section in explaining),
        ),
        made_by=f"zprof {check.zprof_version}, {check.schema}",
        data_command="zprof check RUN -f json",
        repeat_verdict=True,
    )


def _gate_table(check: Check) -> Table | None:
    return make_table(
        "Gates",
        (
            make_text_column("gate"),
            *make_number_columns("value", "baseline", "allowed", "change"),
            *make_number_columns("interval", wide=True),
            Column(title="limit", kind=Kind.TEXT, wide=True),
            Column(title="outcome", kind=Kind.TEXT, wide=True),
        ),
        [_gate_row(result) for result in sort_by_severity(check)],
        note=against(check),
        max_text_rows=_MAX_GATES,
        what="gates, those that failed first",
    )


def _gate_row(result: GateResult) -> tuple[str, ...]:
    unit = result.limit.unit
    return (
        f"{MARKS[result.outcome]} {result.limit.gate}",
        figure(result.value, unit),
        figure(result.baseline, unit),
        allowed(result),
        format_change_with_spread(result) if result.interval else change(result),
        interval(result),
        format_limit(result.limit),
        result.outcome.value.replace("_", " "),
    )


def _reason_sections(check: Check) -> Iterator[Section]:
    """Yield why each gate ended as it did, by outcome."""
    for outcome, title in _PARTS:
        yield from _reason_section(title, outcome.value, ended(check, outcome))
    noisy = [result for result in check.results if is_noisy(result) and result.outcome is Outcome.PASSED]
    yield from _reason_section("Passed, too noisy to fail", "noisy", noisy)


def _reason_section(title: str, anchor: str, results: Sequence[GateResult]) -> tuple[Section, ...]:
    items = []
    for result, (first, *rest) in explained(results[:_MAX_GATES]):
        remedy = "".join(line.removeprefix("→ ") for line in rest if line.startswith("→ "))
        grown = [line for line in rest if not line.startswith("→ ")]
        limit = "" if result.outcome is Outcome.SKIPPED else format_limit(result.limit)
        items.append(
            Item(
                mark=MARKS[result.outcome],
                text="; ".join([first, *grown]),
                remedy=remedy,
                details=(("limit", limit),) if limit else (),
            )
        )
    found = ItemList(items=tuple(items), total=len(results), what="gates") if items else None
    return make_section(anchor, f"{title} ({len(results)})", "", found)


def _notice_list(notices: Sequence[str]) -> ItemList | None:
    items = tuple(Item(text=notice) for notice in notices[:_MAX_GATES])
    return ItemList(items=items, total=len(notices), what="notices") if items else None
