"""What a number of the Plan screen rests on, in lines: what ``enter`` shows."""

from zprof.model.planning.whatif import Calibration, Outlook, Predicted
from zprof.tui.figures import UNKNOWN, Figure, Unit, ranged
from zprof.tui.plan.foreseen import SIGN
from zprof.tui.plan.planned import Planned, gap_said

_WHERE = "zprof whatif RUN -f json, and the report that e writes here, have it as"
_NO_ERROR = "none: nothing to hold it against was measured"


def shown_unit(unit: Unit) -> Unit:
    """Alone, a time has its unit beside it."""
    return Unit.NS if unit is Unit.MS else unit


def plain(value: float | None, unit: Unit, *, signed: bool = False) -> str:
    """A value with its unit; unknown where it is."""
    return Figure(value=value, unit=shown_unit(unit), leaves=(), signed=signed).text


def range_words(low: int | None, high: int | None, unit: Unit) -> str:
    """``180.1..220.4``; unknown where it is."""
    ends = [Figure(value=end, unit=unit, leaves=()) for end in (low, high)]
    return ranged(*ends).text


def error_words(entry: Predicted) -> str:
    """Of the model on the run that it was fitted to."""
    if entry.error_ratio is None:
        return _NO_ERROR
    return f"{plain(entry.error_ratio, Unit.RATIO, signed=True)} (model / measured - 1)"


def said_of(planned: Planned, entry: Predicted, unit: Unit, title: str, leaf: str) -> str:
    """All that is known of a term or tenant."""
    outlook = planned.outlook
    assert outlook is not None
    change = None if None in (entry.predicted, entry.measured) else entry.predicted - entry.measured  # type: ignore[operator]
    spread = range_words(entry.low, entry.high, shown_unit(unit))
    lines = [
        f"{title}: PREDICTED, not measured, for: {planned.said or 'the run as it is'}",
        "",
        f"  measured            {plain(entry.measured, unit)}",
        f"  model of this run   {plain(entry.modelled, unit)}",
        f"  predicted           {_marked(plain(entry.predicted, unit))}, range {_marked(spread)}",
        f"  change              {_marked(plain(change, unit, signed=True))}",
        "",
        *assumption_lines(outlook, entry),
        *_fitted(outlook.calibration),
        "",
        _WHERE,
        f"  {leaf}",
    ]
    return "\n".join(lines)


def _marked(words: str) -> str:
    return words if words == UNKNOWN else f"{SIGN}{words}"


def assumption_lines(outlook: Outlook, entry: Predicted) -> list[str]:
    """Formula, source, deviation, and the error on the run."""
    found = outlook.assumptions.get(entry.assumption)
    error = f"error on this run  {error_words(entry)}"
    if found is None:
        return [f"assumption  {entry.assumption or 'none'}: not stated", error]
    parts = {"formula": found.formula, "source": found.source, "deviation": found.deviation or "none"}
    return [
        f"assumption  {entry.assumption}",
        *(f"  {name:<9}  {text}" for name, text in parts.items()),
        error,
    ]


def _fitted(calibration: Calibration | None) -> list[str]:
    if calibration is None:
        return []
    return [f"fitted to {calibration.steps} steps of this run: m shows what the model took from it"]


def why_not(planned: Planned) -> str:
    """Why there is no number."""
    if planned.is_whole or not planned.gaps:
        return "not predicted: the model of a run has no figure for it"
    return "\n\n".join(f"not predicted: {gap_said(gap)}" for gap in planned.gaps)
