"""Build the page of predictions: the effect of single changes on a measured run."""

from collections.abc import Iterator, Sequence

from zprof.model.quantities import Unit, Value
from zprof.model.report import Report, VerdictStatus, WhatIf
from zprof.model.whatif import Outlook, Prediction
from zprof.reports.page import (
    Block,
    Facts,
    Item,
    ItemList,
    KeyFigures,
    Page,
    Section,
    VerdictBlock,
    make_section,
)
from zprof.reports.pages.assumptions import build_outlook_assumptions, build_whatif_assumptions
from zprof.reports.presenters.findings import build_gap_list, build_gap_section
from zprof.reports.presenters.head import build_modelled_notes
from zprof.reports.presenters.predictions import (
    PEAK,
    STEP,
    build_calibration_tables,
    build_summary_table,
    build_term_tables,
    find_figure,
    format_figure,
    format_range_suffix,
    format_term_name,
)
from zprof.reports.presenters.run_formatting import describe_run, format_steps

#: Maximum number of key figures; the table has the others.
_MAX_FIGURES = 12
#: Changes that the terminal shows term by term.
_MAX_DETAILED = 2


def build_whatif_page(found: WhatIf, *, everything: bool = False) -> Page:
    """Build the page; with ``everything`` the terminal shows each assumption in full."""
    outlook, run = found.outlook, found.run
    first, *more = describe_outlook(outlook)
    head: list[Block] = [
        VerdictBlock(
            tone=VerdictStatus.INCONCLUSIVE.value, mark="~" if outlook.predictions else "?", text=first
        ),
        ItemList(items=tuple(Item(text=line) for line in more)),
        KeyFigures(figures=tuple(_list_key_figures(outlook)), repeated=True),
        Facts(rows=(("run", describe_run(run, format_steps(run.steps))),)),
        *build_modelled_notes([run]),
    ]
    lead = "One change at a time, everything else as measured; ~: predicted."
    return Page(
        kind="zprof whatif: ~ marks predictions",
        subject=run.name,
        head=tuple(head),
        sections=(
            *make_section("changes", "What if", lead, *build_summary_table(outlook)),
            *_build_term_section(outlook),
            *make_section(
                "calibration",
                "Model calibration",
                "Fitted to the measured run; its error on that run is shown with each prediction.",
                *build_calibration_tables(outlook.calibration),
            ),
            *build_whatif_assumptions(outlook, brief=not everything),
            *build_gap_section(outlook.gaps, "Unknown"),
        ),
        made_by=f"zprof {found.zprof_version}, {found.schema}",
        data_command="zprof whatif RUN -f json",
    )


def build_outlook_sections(report: Report) -> tuple[Section, ...]:
    """Build the predictions of a report: all changes in one table, then each term by term."""
    outlook = report.outlook
    if outlook is None:
        return ()
    answers = ItemList(items=tuple(Item(text=line) for line in describe_outlook(outlook)))
    lead = "Effect of single changes on this run; ~: predicted."
    terms = [table for found in outlook.predictions for table in build_term_tables(found, outlook.period)]
    return (
        *make_section(
            "outlook",
            "What if",
            lead,
            answers,
            *build_summary_table(outlook),
            build_gap_list(outlook.gaps),
            note="term by term: zprof whatif RUN",
        ),
        *make_section(
            "outlook-detail",
            "What if, term by term",
            "Measured, modelled for the unchanged run, and predicted for the changed run.",
            *terms,
            *build_calibration_tables(outlook.calibration),
            build_outlook_assumptions(outlook),
            detail=True,
        ),
    )


def _build_term_section(outlook: Outlook) -> tuple[Section, ...]:
    """Build each change term by term; as a detail if there are more than two."""
    tables = [table for found in outlook.predictions for table in build_term_tables(found, outlook.period)]
    lead = "Measured, modelled for the unchanged run, and predicted for the changed run."
    is_detail = len(outlook.predictions) > _MAX_DETAILED
    return make_section("terms", "Term by term", lead, *tables, detail=is_detail)


def describe_outlook(outlook: Outlook) -> tuple[str, ...]:
    """Describe the change with the shortest step, or else the lowest peak, or that there is no prediction."""
    timed = [found for found in outlook.predictions if find_figure(found.step, STEP)]
    if timed:
        certain = [found for found in timed if _is_shorter(found)]
        best = min(certain or timed, key=_get_step_ns)
        return (_describe_step(best, timed, outlook.period), *_describe_peak(best))
    with_peak = [
        (entry, found) for found in outlook.predictions if (entry := find_figure(found.memory, PEAK))
    ]
    if with_peak:
        _, found = min(with_peak, key=lambda pair: pair[0].predicted or 0)
        return tuple(_describe_peak(found))
    return ("Nothing could be predicted for this run; see Unknown for the reasons.",)


def _get_step_ns(found: Prediction) -> int:
    entry = find_figure(found.step, STEP)
    return (entry.predicted or 0) if entry else 0


def _is_shorter(found: Prediction) -> bool:
    """Return True if the entire range saves time."""
    return found.saving_ns is not None and found.saving_ns[0] > 0


def _list_key_figures(outlook: Outlook) -> Iterator[tuple[str, str, str]]:
    """Yield the predicted step of the first changes, or the peak if no step is predicted."""
    for found in outlook.predictions[:_MAX_FIGURES]:
        entry = find_figure(found.step, STEP) or find_figure(found.memory, PEAK)
        if entry is not None:
            note = (
                f"{format_term_name(entry.name, outlook.period)}; measured {format_figure(entry, 'measured')}"
            )
            yield found.words, format_figure(entry), note


def _describe_step(best: Prediction, timed: Sequence[Prediction], period: str) -> str:
    entry = find_figure(best.step, STEP)
    if entry is None:
        return ""
    error = (
        f" The model of the unchanged run differs from the measurement by "
        f"{Value(entry.error_ratio, Unit.RATIO, signed=True).text}."
        if entry.error_ratio is not None
        else ""
    )
    measured = f", measured {format_figure(entry, 'measured')}" if entry.measured is not None else ""
    predicted = f"{format_figure(entry)}{format_range_suffix(entry)}"
    text = f"a {period} of {predicted}{measured}{_describe_higher_peak(best)}"
    certainty, others = _describe_certainty(best, timed, period), _describe_alternatives(best, timed)
    return f"{certainty}{best.words}: {text}.{others}{error}"


def _describe_certainty(best: Prediction, timed: Sequence[Prediction], period: str) -> str:
    """Describe the certainty that the step gets shorter, and the number of changes."""
    changes = len(timed)
    if best.saving_ns is None:
        return ""
    if _is_shorter(best):
        text = f"the shortest {period} among those that save time over their entire range"
        return f"Of {changes} changes, {text}: " if changes > 1 else ""
    if changes > 1:
        return (
            f"None of {changes} changes is certain to make the {period} shorter; the shortest predicted is: "
        )
    return "Not certain to be shorter: " if best.saving_ns[1] > 0 else "Longer over its entire range: "


def _describe_higher_peak(best: Prediction) -> str:
    """Describe the peak if it grows."""
    peak = find_figure(best.memory, PEAK)
    if peak is None or peak.predicted is None or peak.measured is None or peak.predicted <= peak.measured:
        return ""
    return f", with a higher peak: {format_figure(peak)}, measured {format_figure(peak, 'measured')}"


def _describe_alternatives(best: Prediction, timed: Sequence[Prediction]) -> str:
    """Describe how many other predictions are within the range of the best."""
    entry = find_figure(best.step, STEP)
    high = None if entry is None else entry.high
    count = 0 if high is None else sum(other is not best and _get_step_ns(other) <= high for other in timed)
    if not count:
        return ""
    text = f" {count} other changes are within that range or below."
    return text if count > 1 else " One other change is within that range or below."


def _describe_peak(found: Prediction) -> Iterator[str]:
    entry = find_figure(found.memory, PEAK)
    if entry is not None:
        measured = f", measured {format_figure(entry, 'measured')}" if entry.measured is not None else ""
        peak = f"{format_figure(entry)} on the largest rank{format_range_suffix(entry)}"
        yield f"{found.words}: peak memory of {peak}{measured}."
