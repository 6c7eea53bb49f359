"""Build the page of a check: one row per gate, the reason for each gate that did not pass, and the sections
of the report that explain it.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from zprof.model.check import Check, GateResult, Outcome
from zprof.model.quantities import Value
from zprof.model.report import Report
from zprof.reports.page import Facts, Item, ItemList, Page, Section, VerdictBlock, make_section
from zprof.reports.presenters.check_formatting import (
    MARKS,
    describe_baseline,
    explain_results,
    format_allowed,
    format_change,
    format_change_with_spread,
    format_interval,
    format_limit,
    format_outcome,
    has_checked_nothing,
    is_noisy,
    select_by_outcome,
    sort_by_severity,
)
from zprof.reports.presenters.comparison import build_difference_section
from zprof.reports.presenters.findings import build_finding_section, build_gap_section
from zprof.reports.presenters.head import build_modelled_notes, list_baseline_runs
from zprof.reports.presenters.ledger import build_ledger_section
from zprof.reports.table import Cell, Column, Kind, Table, make_number_columns, make_table, make_text_column

_OUTCOME_TITLES = (
    (Outcome.FAILED, "Failed"),
    (Outcome.UNKNOWN, "Not evaluated"),
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
    """Build the page of a check; ``report`` is the report that was checked."""
    nothing = has_checked_nothing(check)
    explanation_sections = (*build_difference_section(report), *build_ledger_section(report))
    explanation_sections += (
        *(build_finding_section(report) if report.findings else ()),
        *build_gap_section(report.gaps),
    )
    return Page(
        kind="zprof check",
        subject=check.run,
        head=(
            VerdictBlock(
                tone="inconclusive" if nothing else _TONES.get(check.outcome, "inconclusive"),
                mark=MARKS[Outcome.SKIPPED if nothing else check.outcome],
                text=format_outcome(check),
            ),
            Facts(rows=(("run", check.run), ("baseline", check.baseline or "none"))),
            *build_modelled_notes([report.run, *list_baseline_runs(report)]),
        ),
        sections=(
            *make_section("gates", "Gates", "Measured values and their limits.", _build_gate_table(check)),
            *_build_reason_sections(check),
            *make_section("notices", "Notices", "", _build_notice_list(check.notices)),
            *(replace(section, detail=True) for section in explanation_sections),
        ),
        made_by=f"zprof {check.zprof_version}, {check.schema}",
        data_command="zprof check RUN -f json",
        repeat_verdict=True,
    )


def _build_gate_table(check: Check) -> Table | None:
    return make_table(
        "Gates",
        (
            make_text_column("gate"),
            *make_number_columns("value", "baseline", "allowed", "change"),
            *make_number_columns("interval", wide=True),
            Column(title="limit", kind=Kind.TEXT, wide=True),
            Column(title="outcome", kind=Kind.TEXT, wide=True),
        ),
        [_make_gate_row(result) for result in sort_by_severity(check)],
        note=describe_baseline(check),
        max_text_rows=_MAX_GATES,
        noun="gates, failures first",
    )


def _make_gate_row(result: GateResult) -> tuple[Cell, ...]:
    unit = result.limit.unit
    return (
        f"{MARKS[result.outcome]} {result.limit.gate}",
        Value(number=result.value, unit=unit),
        Value(number=result.baseline, unit=unit),
        format_allowed(result),
        format_change_with_spread(result) if result.interval else format_change(result),
        format_interval(result),
        format_limit(result.limit),
        result.outcome.value.replace("_", " "),
    )


def _build_reason_sections(check: Check) -> Iterator[Section]:
    """Yield one section per outcome with the reasons."""
    for outcome, title in _OUTCOME_TITLES:
        yield from _build_reason_section(title, outcome.value, select_by_outcome(check, outcome))
    noisy = [result for result in check.results if is_noisy(result) and result.outcome is Outcome.PASSED]
    yield from _build_reason_section("Passed, too noisy to fail", "noisy", noisy)


def _build_reason_section(title: str, anchor: str, results: Sequence[GateResult]) -> tuple[Section, ...]:
    items = []
    for result, (first, *rest) in explain_results(results[:_MAX_GATES]):
        remedy = "".join(line.removeprefix("→ ") for line in rest if line.startswith("→ "))
        growth = [line for line in rest if not line.startswith("→ ")]
        limit = "" if result.outcome is Outcome.SKIPPED else format_limit(result.limit)
        items.append(
            Item(
                mark=MARKS[result.outcome],
                text="; ".join([first, *growth]),
                remedy=remedy,
                details=(("limit", limit),) if limit else (),
            )
        )
    item_list = ItemList(items=tuple(items), total=len(results), noun="gates") if items else None
    return make_section(anchor, f"{title} ({len(results)})", "", item_list)


def _build_notice_list(notices: Sequence[str]) -> ItemList | None:
    items = tuple(Item(text=notice) for notice in notices[:_MAX_GATES])
    return ItemList(items=items, total=len(notices), noun="notices") if items else None
