"""What single changes would make of a measured run: the answer, and the tables that it rests on."""

from collections.abc import Iterator, Sequence

from zprof.model.report import Report, VerdictStatus, WhatIf
from zprof.model.whatif import Outlook, Prediction
from zprof.reports.page import Block, Facts, Item, ItemList, KeyFigures, Page, Section, Verdict, make_section
from zprof.reports.presenters.assumptions import outlook_assumptions, whatif_assumptions
from zprof.reports.presenters.findings import gap_items, gap_section
from zprof.reports.presenters.head import modelled_notes
from zprof.reports.presenters.plan_words import signed_percent
from zprof.reports.presenters.predictions import (
    PEAK,
    STEP,
    calibration_tables,
    figure_of,
    plain_words,
    said_words,
    span_words,
    summary_table,
    term_name,
    term_tables,
)
from zprof.reports.presenters.run_words import describe_run, steps_text

#: Cards of a page; the table has the others.
_MAX_FIGURES = 12
#: Changes that the terminal shows term by term.
_MAX_DETAILED = 2


def whatif_page(found: WhatIf, *, everything: bool = False) -> Page:
    """Return a prediction as a page; with ``everything`` the terminal has each assumption in full."""
    outlook, run = found.outlook, found.run
    first, *more = outlook_answers(outlook)
    head: list[Block] = [
        Verdict(tone=VerdictStatus.INCONCLUSIVE.value, mark="~" if outlook.predictions else "?", text=first),
        ItemList(items=tuple(Item(text=line) for line in more)),
        KeyFigures(figures=tuple(_key_figures(outlook)), repeated=True),
        Facts(rows=(("run", describe_run(run, steps_text(run.steps))),)),
        *modelled_notes([run]),
    ]
    lead = "One change each, everything else as measured; ~ is predicted."
    return Page(
        kind="zprof whatif: ~ is predicted",
        subject=run.name,
        head=tuple(head),
        sections=(
            *make_section("changes", "What if", lead, *summary_table(outlook)),
            *_term_section(outlook),
            *make_section(
                "calibration",
                "What the model took from the run",
                "Fitted to the measured run; its error on that run stands beside each prediction.",
                *calibration_tables(outlook.calibration),
            ),
            *whatif_assumptions(outlook, brief=not everything),
            *gap_section(outlook.gaps, "Not known"),
        ),
        made_by=f"zprof {found.zprof_version}, {found.schema}",
        data_command="zprof whatif RUN -f json",
    )


def outlook_sections(report: Report) -> tuple[Section, ...]:
    """Return the predictions of a report: all side by side, then each term by term."""
    outlook = report.outlook
    if outlook is None:
        return ()
    answers = ItemList(items=tuple(Item(text=line) for line in outlook_answers(outlook)))
    lead = "What single changes would make of this run; ~ is predicted."
    terms = [table for found in outlook.predictions for table in term_tables(found)]
    return (
        *make_section(
            "outlook",
            "What if",
            lead,
            answers,
            *summary_table(outlook),
            gap_items(outlook.gaps),
            note="term by term: zprof whatif RUN",
        ),
        *make_section(
            "outlook-detail",
            "What if, term by term",
            "Measured in the run, by the model of the same run, and predicted for the changed one.",
            *terms,
            *calibration_tables(outlook.calibration),
            outlook_assumptions(outlook),
            detail=True,
        ),
    )


def _term_section(outlook: Outlook) -> tuple[Section, ...]:
    """Return each change term by term; more than two would bury the table that has them all."""
    tables = [table for found in outlook.predictions for table in term_tables(found)]
    lead = "Measured in the run, by the model of the same run, and predicted for the changed one."
    is_detail = len(outlook.predictions) > _MAX_DETAILED
    return make_section("terms", "Term by term", lead, *tables, detail=is_detail)


def outlook_answers(outlook: Outlook) -> tuple[str, ...]:
    """Return the change with the shortest step, else that with the lowest peak, else that there is none."""
    timed = [found for found in outlook.predictions if figure_of(found.step, STEP)]
    if timed:
        sure = [found for found in timed if _is_shorter(found)]
        best = min(sure or timed, key=_step_of)
        return (_step_words(best, timed), *_peak_answers(best))
    held = [(entry, found) for found in outlook.predictions if (entry := figure_of(found.memory, PEAK))]
    if held:
        _, found = min(held, key=lambda pair: pair[0].predicted or 0)
        return tuple(_peak_answers(found))
    return ("Nothing could be predicted for this run; see Not known for the reasons.",)


def _step_of(found: Prediction) -> int:
    entry = figure_of(found.step, STEP)
    return (entry.predicted or 0) if entry else 0


def _is_shorter(found: Prediction) -> bool:
    """Return if the whole range saves time."""
    return found.saving_ns is not None and found.saving_ns[0] > 0


def _key_figures(outlook: Outlook) -> Iterator[tuple[str, str, str]]:
    """Yield the first changes' steps, or peaks if no step is predicted."""
    for found in outlook.predictions[:_MAX_FIGURES]:
        entry = figure_of(found.step, STEP) or figure_of(found.memory, PEAK)
        if entry is not None:
            note = f"{term_name(entry.name)}; measured {plain_words(entry.name, entry.measured)}"
            yield found.words, said_words(entry), note


def _step_words(best: Prediction, timed: Sequence[Prediction]) -> str:
    entry = figure_of(best.step, STEP)
    if entry is None:
        return ""
    error = (
        f" The model of the run itself is off by {signed_percent(entry.error_ratio)}."
        if entry.error_ratio is not None
        else ""
    )
    was = f", measured {plain_words(entry.name, entry.measured)}" if entry.measured is not None else ""
    said = f"a step of {said_words(entry)}{span_words(entry)}{was}{_peak_beside(best)}"
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
    peak = figure_of(best.memory, PEAK)
    if peak is None or peak.predicted is None or peak.measured is None or peak.predicted <= peak.measured:
        return ""
    return f", with a higher peak: {said_words(peak)}, measured {plain_words(peak.name, peak.measured)}"


def _rivals(best: Prediction, timed: Sequence[Prediction]) -> str:
    """Return how many other predictions lie in the range of the best."""
    entry = figure_of(best.step, STEP)
    high = None if entry is None else entry.high
    count = 0 if high is None else sum(other is not best and _step_of(other) <= high for other in timed)
    if not count:
        return ""
    many = f" {count} of the others lie in that range or below."
    return many if count > 1 else " One of the others lies in that range or below."


def _peak_answers(found: Prediction) -> Iterator[str]:
    entry = figure_of(found.memory, PEAK)
    if entry is not None:
        was = f", measured {plain_words(entry.name, entry.measured)}" if entry.measured is not None else ""
        peak = f"{said_words(entry)} on the largest rank{span_words(entry)}"
        yield f"{found.words}: peak memory of {peak}{was}."
