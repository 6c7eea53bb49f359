"""What single changes would make of a measured run: the answer, and the tables that it rests on."""

from collections.abc import Iterator, Sequence

from zprof.model.report import Report, VerdictStatus, WhatIf
from zprof.model.whatif import Outlook, Prediction
from zprof.reports.page import Block, Facts, Item, ItemList, KeyFigures, Page, Section, Verdict, make_section
from zprof.reports.presenters.assumptions import build_outlook_assumptions, build_whatif_assumptions
from zprof.reports.presenters.findings import build_gap_list, build_gap_section
from zprof.reports.presenters.head import build_modelled_notes
from zprof.reports.presenters.plan_words import format_signed_percent
from zprof.reports.presenters.predictions import (
    PEAK,
    STEP,
    build_calibration_tables,
    build_summary_table,
    build_term_tables,
    find_figure,
    format_figure,
    format_marked,
    format_range_suffix,
    format_term_name,
)
from zprof.reports.presenters.run_words import describe_run, format_steps

#: Cards of a page; the table has the others.
_MAX_FIGURES = 12
#: Changes that the terminal shows term by term.
_MAX_DETAILED = 2


def build_whatif_page(found: WhatIf, *, everything: bool = False) -> Page:
    """Return a prediction as a page; with ``everything`` the terminal has each assumption in full."""
    outlook, run = found.outlook, found.run
    first, *more = describe_outlook(outlook)
    head: list[Block] = [
        Verdict(tone=VerdictStatus.INCONCLUSIVE.value, mark="~" if outlook.predictions else "?", text=first),
        ItemList(items=tuple(Item(text=line) for line in more)),
        KeyFigures(figures=tuple(_key_figures(outlook)), repeated=True),
        Facts(rows=(("run", describe_run(run, format_steps(run.steps))),)),
        *build_modelled_notes([run]),
    ]
    lead = "One change each, everything else as measured; ~ is predicted."
    return Page(
        kind="zprof whatif: ~ is predicted",
        subject=run.name,
        head=tuple(head),
        sections=(
            *make_section("changes", "What if", lead, *build_summary_table(outlook)),
            *_term_section(outlook),
            *make_section(
                "calibration",
                "What the model took from the run",
                "Fitted to the measured run; its error on that run stands beside each prediction.",
                *build_calibration_tables(outlook.calibration),
            ),
            *build_whatif_assumptions(outlook, brief=not everything),
            *build_gap_section(outlook.gaps, "Not known"),
        ),
        made_by=f"zprof {found.zprof_version}, {found.schema}",
        data_command="zprof whatif RUN -f json",
    )


def build_outlook_sections(report: Report) -> tuple[Section, ...]:
    """Return the predictions of a report: all side by side, then each term by term."""
    outlook = report.outlook
    if outlook is None:
        return ()
    answers = ItemList(items=tuple(Item(text=line) for line in describe_outlook(outlook)))
    lead = "What single changes would make of this run; ~ is predicted."
    terms = [table for found in outlook.predictions for table in build_term_tables(found)]
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
            "Measured in the run, by the model of the same run, and predicted for the changed one.",
            *terms,
            *build_calibration_tables(outlook.calibration),
            build_outlook_assumptions(outlook),
            detail=True,
        ),
    )


def _term_section(outlook: Outlook) -> tuple[Section, ...]:
    """Return each change term by term; more than two would bury the table that has them all."""
    tables = [table for found in outlook.predictions for table in build_term_tables(found)]
    lead = "Measured in the run, by the model of the same run, and predicted for the changed one."
    is_detail = len(outlook.predictions) > _MAX_DETAILED
    return make_section("terms", "Term by term", lead, *tables, detail=is_detail)


def describe_outlook(outlook: Outlook) -> tuple[str, ...]:
    """Return the change with the shortest step, else that with the lowest peak, else that there is none."""
    timed = [found for found in outlook.predictions if find_figure(found.step, STEP)]
    if timed:
        sure = [found for found in timed if _is_shorter(found)]
        best = min(sure or timed, key=_step_of)
        return (_step_words(best, timed), *_peak_answers(best))
    held = [(entry, found) for found in outlook.predictions if (entry := find_figure(found.memory, PEAK))]
    if held:
        _, found = min(held, key=lambda pair: pair[0].predicted or 0)
        return tuple(_peak_answers(found))
    return ("Nothing could be predicted for this run; see Not known for the reasons.",)


def _step_of(found: Prediction) -> int:
    entry = find_figure(found.step, STEP)
    return (entry.predicted or 0) if entry else 0


def _is_shorter(found: Prediction) -> bool:
    """Return if the whole range saves time."""
    return found.saving_ns is not None and found.saving_ns[0] > 0


def _key_figures(outlook: Outlook) -> Iterator[tuple[str, str, str]]:
    """Yield the first changes' steps, or peaks if no step is predicted."""
    for found in outlook.predictions[:_MAX_FIGURES]:
        entry = find_figure(found.step, STEP) or find_figure(found.memory, PEAK)
        if entry is not None:
            note = f"{format_term_name(entry.name)}; measured {format_figure(entry.name, entry.measured)}"
            yield found.words, format_marked(entry), note


def _step_words(best: Prediction, timed: Sequence[Prediction]) -> str:
    entry = find_figure(best.step, STEP)
    if entry is None:
        return ""
    error = (
        f" The model of the run itself is off by {format_signed_percent(entry.error_ratio)}."
        if entry.error_ratio is not None
        else ""
    )
    was = f", measured {format_figure(entry.name, entry.measured)}" if entry.measured is not None else ""
    said = f"a step of {format_marked(entry)}{format_range_suffix(entry)}{was}{_peak_beside(best)}"
    return f"{_lead(best, timed)}{best.words}: {said}.{_rivals(best, timed)}{error}"


def _lead(best: Prediction, timed: Sequence[Prediction]) -> str:
    """Return how sure it is that the step gets shorter, and among how many changes."""
    changes = len(timed)
    if best.saving_ns is None:
        return ""
    if _is_shorter(best):
        whole = "the shortest step of those that save time over their whole range"
        return f"Of {changes} changes, {whole}: " if changes > 1 else ""
    if changes > 1:
        return f"None of {changes} changes is certain to make the step shorter; the shortest predicted is: "
    return "Not certain to be shorter: " if best.saving_ns[1] > 0 else "Longer over its whole range: "


def _peak_beside(best: Prediction) -> str:
    """Return the peak if it grows: it is part of the answer."""
    peak = find_figure(best.memory, PEAK)
    if peak is None or peak.predicted is None or peak.measured is None or peak.predicted <= peak.measured:
        return ""
    return f", with a higher peak: {format_marked(peak)}, measured {format_figure(peak.name, peak.measured)}"


def _rivals(best: Prediction, timed: Sequence[Prediction]) -> str:
    """Return how many other predictions lie in the range of the best."""
    entry = find_figure(best.step, STEP)
    high = None if entry is None else entry.high
    count = 0 if high is None else sum(other is not best and _step_of(other) <= high for other in timed)
    if not count:
        return ""
    many = f" {count} of the others lie in that range or below."
    return many if count > 1 else " One of the others lies in that range or below."


def _peak_answers(found: Prediction) -> Iterator[str]:
    entry = find_figure(found.memory, PEAK)
    if entry is not None:
        was = f", measured {format_figure(entry.name, entry.measured)}" if entry.measured is not None else ""
        peak = f"{format_marked(entry)} on the largest rank{format_range_suffix(entry)}"
        yield f"{found.words}: peak memory of {peak}{was}."
