"""Predictions: the effect of single changes on a measured run, as a page, sections and tables.

Every predicted figure has the prefix ``~``.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from zprof.model.cursor import Cursor, every, get, get_path, read
from zprof.model.plan import Outlook, PredictedFigure, Prediction
from zprof.model.quantities import Aggregation, Path, Unit, Value, find_unit
from zprof.model.report import Report, VerdictStatus, WhatIf
from zprof.model.tenants import DISPLAY_ORDER
from zprof.model.time import IN_WINDOW, LEDGER_NAMES, PER_STEP
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
from zprof.reports.pages.findings import build_gap_list, build_gap_section
from zprof.reports.pages.head import build_modelled_notes
from zprof.reports.pages.names import describe_run, format_steps
from zprof.reports.pages.plan import (
    STEP,
    build_outlook_assumptions,
    build_whatif_assumptions,
    format_term_name,
)
from zprof.reports.pages.plan_tables import SHORT, make_plan_table
from zprof.reports.pages.tenants import UNTAGGED, largest_rank
from zprof.reports.table import Column, Kind, Mark, Row, Table, format_cell, make_text_column

PEAK = "peak_bytes"
#: Name of the unchanged run.
_UNCHANGED = "as measured"
#: Maximum number of key figures; the rest are in the table.
_MAX_FIGURES = 12
#: Maximum changes that the terminal shows term by term.
_MAX_DETAILED = 2
_TERM_LEAD = "Measured, modelled for the unchanged run, and predicted for the changed run."
#: Smaller savings round to 0.0 ms.
_MIN_SAVING_NS = 50_000
#: Parts of a prediction, and the subject of their figures.
_PARTS = {"step": "{period}, mean of the ranks", "memory": "memory, largest rank"}
_PREDICTED = Column(title="predicted", help="for the changed run; ~: not measured")
MEASURED = Column(title="measured", help="this run")
_MODELLED = Column(title="modelled", help="the model's value for the unchanged run", from_width=90)
_ERROR = Column(
    title="error",
    unit="%",
    help="modelled / measured - 1, on the run that the model was fitted to",
    from_width=90,
)
_RANGE = Column(title="range", help="lower and upper bound of the prediction", from_width=70)
_CHANGE = Column(title="change")
_BASELINE = Column(title="baseline", help="mean of its ranks, measured", from_width=104)
_VALUE = Column(title="value")
_LATENCY = Column(title="latency", help="of one message, from a linear fit of the run's own messages")
_BUS_BANDWIDTH = Column(title="busbw", help="from the same fit")
_DESCRIPTION = Column(title="description", kind=Kind.TEXT, takes_rest=True)
#: Fitted parameters of the model: name, field, description.
_FITTED = (
    ("steps fitted", "steps", ""),
    ("units", "units", "gathered and reduced one after another"),
    ("micro-batches", "micro_batches", "as the messages show them"),
    ("passes", "passes", "forward and backward"),
    ("forward", "forward_ns", "compute per pass"),
    ("backward", "backward_ns", "compute per pass, including recomputation"),
    ("optimizer", "optimizer_ns", "compute after the last pass"),
    ("slowest rank", "slowest_rank", ""),
    ("its compute above the median", "skew_ns", ""),
    ("units gathered ahead", "prefetch", ""),
)


def build_whatif_page(found: WhatIf, *, everything: bool = False) -> Page:
    """Build the page; with ``everything``, the terminal shows each assumption in full."""
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
            *make_section("changes", "What if", lead, *build_summary_table(found)),
            *make_section(
                "terms",
                "Term by term",
                _TERM_LEAD,
                *_build_term_tables(found),
                detail=len(outlook.predictions) > _MAX_DETAILED,
            ),
            *make_section(
                "calibration",
                "Model calibration",
                "Fitted to the measured run; its error on that run is shown with each prediction.",
                *build_calibration_tables(found),
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
    return (
        *make_section(
            "outlook",
            "What if",
            lead,
            answers,
            *build_summary_table(report),
            build_gap_list(outlook.gaps),
            note="term by term: zprof whatif RUN",
        ),
        *make_section(
            "outlook-detail",
            "What if, term by term",
            _TERM_LEAD,
            *_build_term_tables(report),
            *build_calibration_tables(report),
            build_outlook_assumptions(outlook),
            detail=True,
        ),
    )


def build_summary_table(document: WhatIf | Report) -> tuple[Table, ...]:
    """Build one row per change: predicted step, its range, the saving, the peak."""
    outlook = document.outlook
    if outlook is None or not outlook.predictions:
        return ()
    rows = []
    for place in Cursor(document).outlook.predictions:
        found: Prediction = get(place)
        step, peak = _find_place(place.step, STEP), _find_place(place.memory, PEAK)
        ends = (place.saving_ns[0], place.saving_ns[1]) if found.saving_ns else (place.saving_ns,)
        saving = replace(make_saving(found.saving_ns), leaves=tuple(map(get_path, ends)))
        rows.append(
            Row(cells=(found.words, _read_figure(step), _read_range(step), saving, _read_figure(peak)))
        )
    return (
        make_plan_table(
            title="Predicted",
            unit="ms",
            note=f"{outlook.period}: mean of the ranks; peak: largest rank",
            head="what if",
            columns=(
                Column(title=outlook.period, unit="ms"),
                replace(_RANGE, unit="ms"),
                Column(title="saves", unit="ms"),
                Column(title="peak", unit="bytes"),
            ),
            rows=(*_build_measured_row(document), *rows),
            notes=(
                "~: predicted, not measured; a negative saving is time that the change costs.",
                "Ranges include this run's noise and the model's uncertainty, not noise between recordings.",
                *_describe_errors(outlook),
            ),
        ),
    )


def _build_measured_row(document: WhatIf | Report) -> Iterator[Row]:
    """Yield a row with the measured figures, for comparison."""
    cells: list[Value] = []
    for part, name in (("step", STEP), ("memory", PEAK)):
        places = [_find_place(found[part], name) for found in Cursor(document).outlook.predictions]
        known = (place for place in places if place is not None and get(place).measured is not None)
        cells.append(_read_figure(next(known, None), "measured"))
    if any(cell.number is not None for cell in cells):
        yield Row(cells=(_UNCHANGED, cells[0], "", "", cells[1]))


def _build_term_tables(document: WhatIf | Report) -> Iterator[Table]:
    """Yield step and memory of each change, term by term."""
    outlook = document.outlook
    for place in Cursor(document).outlook.predictions if outlook is not None else ():
        for part in _PARTS:
            if len(place[part]):
                yield build_term_table(place, part, get(place).words, outlook.period if outlook else "")


def build_term_table(
    found: Cursor | None,
    part: str,
    words: str,
    period: str,
    measured: Mapping[str, Value] | None = None,
    baseline: Mapping[str, Value] | None = None,
) -> Table:
    """Build the step or memory of a change, term by term: measured, modelled, predicted.

    Args:
        found: The cursor to a prediction; None without a prediction.
        part: ``step`` or ``memory``.
        words: The changes as text.
        period: The period of the times: a step, or the window.
        measured: Figures by term from another part of the report. The table has these terms and their
            changes.
        baseline: Baseline figures by term, if the run is compared.
    """
    unit = "ms" if part == "step" else ""
    places = {get(place).name: place for place in found[part]} if found is not None else {}
    names = sorted(places if measured is None else measured, key=lambda name: name in (STEP, PEAK))
    shown = FIGURES[:-1] if measured is None else FIGURES
    columns = [replace(column, unit=column.unit or unit) for column in shown]
    columns += [replace(_BASELINE, unit=unit)] if baseline else []

    def make_row(name: str) -> Row:
        place = places.get(name)
        figures = list(read_figures(place, name))
        cells = [*figures[:-1]] if measured is None else [measured[name], *figures[1:]]
        cells += [baseline[name]] if baseline else []
        is_total = name in (STEP, PEAK)
        return Row(
            key=name,
            cells=(format_term_name(name, period), *cells),
            short=SHORT.get(name, ""),
            total=is_total,
            mark=Mark.TITLE if is_total else Mark.PLAIN,
        )

    return replace(
        make_plan_table(
            title=words or _UNCHANGED,
            unit=unit,
            note=_PARTS[part].format(period=period),
            head="term",
            columns=columns,
            rows=[make_row(name) for name in names],
        ),
        name=f"predicted {part}",
        help="As measured, as the model of this run gives it, and as predicted for the change, which is the "
        "predicted minus the measured. Terms of a "
        "step are means over the ranks; memory is that of the rank with the largest peak.",
    )


FIGURES = (MEASURED, _MODELLED, _ERROR, _PREDICTED, _RANGE, _CHANGE)


def read_figures(place: Cursor | None, name: str) -> tuple[Value, ...]:
    """Return the figures of a term in column order: measured to range, and the change."""
    unit = find_unit(name)
    if place is None:
        unknown = Value(None, unit, leaves=(Path(("outlook", "gaps")),))
        return (unknown,) * (len(FIGURES))
    change = read(place.predicted, place.measured, how=Aggregation.DIFFERENCE, signed=True)
    if None in (get(place).predicted, get(place).measured):
        change = replace(change, number=None)
    return (
        _read_figure(place, "measured"),
        _read_figure(place, "modelled"),
        replace(read(place.error_ratio), signed=True),
        _read_figure(place),
        _read_range(place),
        replace(change, unit=unit, in_ms=unit is Unit.NS, is_estimate=True),
    )


def read_measured_step(ranks: Cursor) -> dict[str, Value]:
    """Return the ledger terms and their sum, the step, as means over ranks, by term."""
    names = (*LEDGER_NAMES, STEP) if len(ranks) else ()
    return {name: read(every(ranks)[name], how=Aggregation.MEAN, in_ms=True) for name in names}


def read_measured_memory(report: Report) -> dict[str, Value]:
    """Return the tenants and the peak of the rank with the largest peak, by term."""
    largest = largest_rank(report.memory.per_rank)
    if largest is None:
        return {}
    rank = Cursor(report).memory.per_rank[report.memory.per_rank.index(largest)]
    tenants = {tenant.value: read(rank.tenants[tenant.value]) for tenant in DISPLAY_ORDER}
    return tenants | {UNTAGGED: read(rank.untagged_bytes), PEAK: read(rank.peak_bytes)}


def build_calibration_tables(document: WhatIf | Report) -> tuple[Table, ...]:
    """Build the tables of fitted parameters and of the link per message kind."""
    outlook = document.outlook
    if outlook is None or outlook.calibration is None:
        return ()
    found = Cursor(document).outlook.calibration
    run = make_plan_table(
        title="Fitted parameters",
        head="parameter",
        columns=(_VALUE,),
        rows=[Row(cells=(name, read(found[field]))) for name, field, _ in _FITTED],
    )
    links = make_plan_table(
        title="Links of the model",
        note="latency + bytes / bandwidth",
        head="collective",
        columns=(
            _LATENCY,
            _BUS_BANDWIDTH,
            Column(title="messages"),
            Column(title="residual", unit="%"),
            make_text_column("method"),
        ),
        rows=[
            Row(cells=(_name_link(link), *(read(link[field]) for field in _LINK_FIELDS), get(link).how))
            for link in found.links
        ],
    )
    return (run, links) if links.rows else (run,)


_LINK_FIELDS = ("latency_ns", "busbw_bytes_per_s", "messages", "residual_ratio")


def build_model_table(document: WhatIf | Report) -> Table:
    """Build the table of the model behind predictions: fitted parameters, and one row per link."""
    rows: list[tuple[str, Value, str]] = []
    if document.outlook is not None and document.outlook.calibration is not None:
        found = Cursor(document).outlook.calibration
        rows += [(name, read(found[field]), description) for name, field, description in _FITTED]
        for link in found.links:
            fit = f"{get(link).messages} messages, residual {read(link.residual_ratio).text}: {get(link).how}"
            for column, field in zip((_LATENCY, _BUS_BANDWIDTH), _LINK_FIELDS, strict=False):
                rows.append((f"{_name_link(link)}, {column.title}", read(link[field]), fit))
    return replace(
        make_plan_table(
            title="Inputs of the model, from this run",
            head="parameter",
            columns=(_VALUE, _DESCRIPTION),
            rows=[Row(key=str(cells[1].leaves[0]), cells=cells) for cells in rows],
        ),
        name="model",
        help="Every prediction is based on these. Latency and bandwidth come from a linear fit of the run's "
        "own message times.",
    )


def _name_link(link: Cursor) -> str:
    kind, group = get(link).kind, get(link).group
    return f"{kind}, {group}" if group else kind


def _find_place(entries: Cursor, name: str) -> Cursor | None:
    """Return the cursor to the predicted figure with this name, or None."""
    known = (place for place in entries if get(place).name == name and get(place).predicted is not None)
    return next(known, None)


def _read_figure(place: Cursor | None, field: str = "predicted") -> Value:
    """Return a field of a figure as a cell: times in ms, an estimate unless measured or modelled."""
    if place is None:
        return Value(None, Unit.COUNT)
    unit, is_estimate = find_unit(get(place).name), field not in ("measured", "modelled")
    return replace(read(place[field]), unit=unit, in_ms=unit is Unit.NS, is_estimate=is_estimate)


def _read_range(place: Cursor | None) -> Value:
    """Return the range of a prediction as a cell."""
    if place is None or get(place).low is None:
        return Value(None, Unit.COUNT, leaves=() if place is None else (get_path(place.high),))
    leaves = (get_path(place.low), get_path(place.high))
    return replace(_read_figure(place, "high"), low=get(place).low, leaves=leaves)


def make_saving(saving_ns: tuple[int, int] | None) -> Value:
    """Return the lowest and highest saving as a cell."""
    low, high = saving_ns or (None, None)
    return Value(high, Unit.NS, low=low, in_ms=True, is_estimate=True)


def describe_outlook(outlook: Outlook) -> tuple[str, ...]:
    """Describe the change with the shortest step, or else the lowest peak, or the lack of a prediction."""
    timed = [found for found in outlook.predictions if _find_figure(found.step, STEP)]
    if timed:
        certain = [found for found in timed if _is_shorter(found)]
        best = min(certain or timed, key=_get_step_ns)
        return (_describe_step(best, timed, outlook.period), *_describe_peak(best))
    with_peak = [
        (entry, found) for found in outlook.predictions if (entry := _find_figure(found.memory, PEAK))
    ]
    if with_peak:
        _, found = min(with_peak, key=lambda pair: pair[0].predicted or 0)
        return tuple(_describe_peak(found))
    return ("Nothing could be predicted for this run; see Unknown for the reasons.",)


def _get_step_ns(found: Prediction) -> int:
    entry = _find_figure(found.step, STEP)
    return (entry.predicted or 0) if entry else 0


def _is_shorter(found: Prediction) -> bool:
    """Return True if the entire range saves time."""
    return found.saving_ns is not None and found.saving_ns[0] > 0


def _list_key_figures(outlook: Outlook) -> Iterator[tuple[str, str, str]]:
    """Yield the predicted step of the first changes, or the peak if no step is predicted."""
    for found in outlook.predictions[:_MAX_FIGURES]:
        entry = _find_figure(found.step, STEP) or _find_figure(found.memory, PEAK)
        if entry is not None:
            name = format_term_name(entry.name, outlook.period)
            yield found.words, _format_figure(entry), f"{name}; measured {_format_figure(entry, 'measured')}"


def _describe_step(best: Prediction, timed: Sequence[Prediction], period: str) -> str:
    entry = _find_figure(best.step, STEP)
    if entry is None:
        return ""
    error = "" if entry.error_ratio is None else f" {_describe_error('the measurement', entry.error_ratio)}"
    measured = f", measured {_format_figure(entry, 'measured')}" if entry.measured is not None else ""
    predicted = f"{_format_figure(entry)}{_format_range_suffix(entry)}"
    text = f"a {period} of {predicted}{measured}{_describe_higher_peak(best)}"
    certainty, others = _describe_certainty(best, timed, period), _describe_alternatives(best, timed)
    return f"{certainty}{best.words}: {text}.{others}{error}"


def _describe_certainty(best: Prediction, timed: Sequence[Prediction], period: str) -> str:
    """Describe how certain a shorter step is, and the number of changes."""
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
    peak = _find_figure(best.memory, PEAK)
    if peak is None or peak.predicted is None or peak.measured is None or peak.predicted <= peak.measured:
        return ""
    return f", with a higher peak: {_format_figure(peak)}, measured {_format_figure(peak, 'measured')}"


def _describe_alternatives(best: Prediction, timed: Sequence[Prediction]) -> str:
    """Describe how many other predictions are within the range of the best."""
    entry = _find_figure(best.step, STEP)
    high = None if entry is None else entry.high
    count = 0 if high is None else sum(other is not best and _get_step_ns(other) <= high for other in timed)
    if not count:
        return ""
    text = f" {count} other changes are within that range or below."
    return text if count > 1 else " One other change is within that range or below."


def _describe_peak(found: Prediction) -> Iterator[str]:
    entry = _find_figure(found.memory, PEAK)
    if entry is not None:
        measured = f", measured {_format_figure(entry, 'measured')}" if entry.measured is not None else ""
        peak = f"{_format_figure(entry)} on the largest rank{_format_range_suffix(entry)}"
        yield f"{found.words}: peak memory of {peak}{measured}."


def _find_figure(entries: Sequence[PredictedFigure], name: str) -> PredictedFigure | None:
    """Return the predicted figure with this name, or None."""
    return next((entry for entry in entries if entry.name == name and entry.predicted is not None), None)


def _format_figure(entry: PredictedFigure, field: str = "predicted") -> str:
    """Format a field of a figure with its unit, for sentences."""
    is_estimate = field not in ("measured", "modelled")
    return format_cell(Value(getattr(entry, field), find_unit(entry.name), is_estimate=is_estimate))


def _format_range_suffix(entry: PredictedFigure) -> str:
    """Format the range in parentheses, for sentences; empty without a range."""
    if entry.low is None or entry.high is None:
        return ""
    return f" ({_format_figure(entry, 'low')} to {_format_figure(entry, 'high')})"


def _describe_errors(outlook: Outlook) -> Iterator[str]:
    """Yield the model error, which is the same for every change."""
    for field, name in ((STEP, outlook.period), (PEAK, "peak")):
        entries = [
            _find_figure(found.step if field == STEP else found.memory, field)
            for found in outlook.predictions
        ]
        errors = {entry.error_ratio for entry in entries if entry and entry.error_ratio is not None}
        if errors:
            yield _describe_error(f"its measured {name}", *sorted(errors)[:3])


def _describe_error(what: str, *errors: float) -> str:
    text = " or ".join(Value(error, Unit.RATIO, signed=True).text for error in errors)
    return f"The model of the unchanged run differs from {what} by {text}."


def describe_model(found: Prediction | None) -> str:
    """Describe how well the model reproduces the step of the unchanged run."""
    entry = _find_figure(found.step, STEP) if found is not None else None
    if entry is None or entry.error_ratio is None:
        return "The step of this run could not be modelled."
    return _describe_error("the measurement", entry.error_ratio)


def describe_effect(found: Prediction, *, is_window: bool) -> str:
    """Describe what one change saves or costs in time and memory, with ranges."""
    step, peak = _find_figure(found.step, STEP), _find_figure(found.memory, PEAK)
    parts = [_describe_saving(found, step, is_window=is_window) if step else ""]
    parts += [_describe_freed(peak) if peak else ""]
    return "; ".join(filter(None, parts)) or "neither step time nor peak memory could be predicted"


def _describe_saving(found: Prediction, entry: PredictedFigure, *, is_window: bool) -> str:
    if entry.predicted is None or entry.measured is None:
        return ""
    saved_ns = entry.measured - entry.predicted
    measured = _format(entry.measured, Unit.NS)
    if found.saving_ns is None:
        spread = ", range unknown"
    else:
        low, high = sorted(found.saving_ns)
        if low < 0 < high:
            spread = f", from {_format(-low, Unit.NS)} longer to {_format(high, Unit.NS)} shorter"
        else:
            low, high = (-high, -low) if high <= 0 else (low, high)
            spread = f", between {_format_ends(low, high, Unit.NS)}"
    if abs(saved_ns) < _MIN_SAVING_NS:
        return f"step time stays {measured}{spread}"
    share = f", {_format(abs(saved_ns) / entry.measured, Unit.RATIO)}" if entry.measured else ""
    verb, relation = ("saves", "of") if saved_ns > 0 else ("costs", "more than")
    basis = IN_WINDOW if is_window else PER_STEP
    return f"{verb} {_format(abs(saved_ns), Unit.NS)} {relation} {measured} {basis}{share}{spread}"


def _describe_freed(entry: PredictedFigure) -> str:
    if entry.predicted is None or entry.measured is None:
        return ""
    freed, measured = entry.measured - entry.predicted, _format(entry.measured, Unit.BYTES)
    if freed == 0:
        return f"peak memory stays {measured}"
    is_known = entry.low is not None and entry.high is not None
    spread = f", peak between {_format_ends(entry.low, entry.high, Unit.BYTES)}" if is_known else ""
    verb, relation = ("frees", "of") if freed > 0 else ("uses", "more than")
    return f"{verb} {_format(abs(freed), Unit.BYTES)} {relation} {measured} of memory{spread}"


def _format(number: float, unit: Unit) -> str:
    return Value(number, unit).text


def _format_ends(low: int | None, high: int | None, unit: Unit) -> str:
    return Value(high, unit, low=low).text.replace("..", " and ")
