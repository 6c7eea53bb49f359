"""Format a planned change and its prediction as table cells and as the explanation shown by ``enter``."""

from msgspec import Struct

from zprof.model.errors import ZprofError
from zprof.model.gaps import Gap, GapKind
from zprof.model.paths import Path
from zprof.model.quantities import UNKNOWN, Aggregation, Unit, Value
from zprof.model.whatif import Calibration, Change, Outlook, PredictedFigure, Prediction
from zprof.reports.table import Cell, Mark, Marked
from zprof.tui.background import Answer
from zprof.tui.model_value import PREDICTED_SIGN, ModelValue


class PlannedChange(Struct, frozen=True, kw_only=True):
    """A change, its knobs as text, and the model's answer; ``answer`` is None while pending.

    ``words`` is empty if nothing is changed.
    """

    change: Change
    words: str
    answer: Answer | None = None

    @property
    def outlook(self) -> Outlook | None:
        """Return the outlook; None while pending or if the prediction failed."""
        return self.answer if isinstance(self.answer, Outlook) else None

    @property
    def place(self) -> int:
        """Return the index of the prediction in the outlook, which covers only this change; -1 if none."""
        return 0 if self.outlook and self.outlook.predictions else -1

    @property
    def prediction(self) -> Prediction | None:
        """Return the prediction for this change, or None."""
        return self.outlook.predictions[self.place] if self.outlook and self.place >= 0 else None

    @property
    def calibration(self) -> Calibration | None:
        """Return the model fitted to the run, or None."""
        return self.outlook.calibration if self.outlook else None

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Return what could not be predicted, and why."""
        if isinstance(self.answer, ZprofError):
            return (
                Gap(
                    kind=GapKind.PREDICTION,
                    what="prediction",
                    reason=str(self.answer),
                    remedy=self.answer.hint,
                ),
            )
        return self.outlook.gaps if self.outlook else ()

    @property
    def is_whole(self) -> bool:
        """Return True if both step and peak are predicted; gaps then only widen the ranges."""
        return self.prediction is not None and bool(self.prediction.step and self.prediction.memory)

    @property
    def description(self) -> str:
        """Return the model's description of the change, else the knobs as text."""
        return (self.prediction.words if self.prediction else "") or self.words


def find_entry_place(entries: tuple[PredictedFigure, ...], name: str) -> int:
    """Return the index of a term or tenant, or -1; tenants may have the suffix ``_bytes``."""
    names = [entry.name for entry in entries]
    return next((names.index(alias) for alias in (name, f"{name}_bytes") if alias in names), -1)


def format_gap(gap: Gap) -> str:
    """Format the gap with its remedy as one line."""
    remedy = f"; remedy: {gap.remedy}" if gap.remedy else ""
    return f"{gap.what}: {gap.reason}{remedy}"


#: Shown while a number is being predicted.
PENDING = "..."
_CELL_COUNT = 5


class PredictionRow(Struct, frozen=True, kw_only=True):
    """A ledger term or a tenant; ``part`` and ``name`` locate it in a prediction."""

    part: str
    name: str
    title: str
    unit: Unit


def find_entry(planned: PlannedChange, row: PredictionRow) -> PredictedFigure | None:
    """Return the row's entry in the prediction, or None."""
    prediction = planned.prediction
    entries: tuple[PredictedFigure, ...] = getattr(prediction, row.part) if prediction else ()
    index = find_entry_place(entries, row.name)
    return entries[index] if index >= 0 else None


def build_prediction_cells(planned: PlannedChange, row: PredictionRow) -> tuple[Cell, ...]:
    """Build the cells model, error, predicted, range and change: pending, unknown, or numbers."""
    if planned.answer is None:
        return (Marked(PENDING, Mark.MUTED),) * _CELL_COUNT
    entry = find_entry(planned, row)
    if entry is None:
        return (_make_unknown_figure(planned, row.unit),) * _CELL_COUNT
    return _build_known_cells(planned, row, entry)


def _make_unknown_figure(planned: PlannedChange, unit: Unit) -> ModelValue:
    return ModelValue(
        number=None,
        unit=unit,
        leaves=(Path(("outlook", "gaps")),),
        words="",
        explanation=explain_unknown(planned),
        assumption="",
        is_predicted=False,
    )


def _build_known_cells(
    planned: PlannedChange, row: PredictionRow, entry: PredictedFigure
) -> tuple[Cell, ...]:
    assert planned.prediction is not None
    index = find_entry_place(getattr(planned.prediction, row.part), row.name)
    stem = ("outlook", "predictions", planned.place, row.part, index)

    def make_cell(
        value: float | None,
        words: str,
        *leaves: str,
        unit: Unit = row.unit,
        how: Aggregation = Aggregation.LEAF,
        is_predicted: bool = True,
    ) -> ModelValue:
        paths = tuple(Path((*stem, leaf)) for leaf in leaves)
        return ModelValue(
            number=value,
            unit=unit,
            leaves=paths,
            how=how,
            words=words,
            explanation=explain_prediction(planned, entry, row.unit, row.title, str(paths[0])),
            assumption=entry.assumption,
            is_predicted=is_predicted,
        )

    def format_time(value: float | None, *, signed: bool = False) -> str:
        return Value(number=value, unit=row.unit, signed=signed, in_ms=row.unit is Unit.NS).text

    spread = format_range(entry.low, entry.high, row.unit, in_ms=row.unit is Unit.NS)
    change = None if entry.predicted is None or entry.measured is None else entry.predicted - entry.measured
    return (
        make_cell(entry.modelled, format_time(entry.modelled), "modelled", is_predicted=False),
        make_cell(
            entry.error_ratio,
            format_value(entry.error_ratio, Unit.RATIO, signed=True),
            "error_ratio",
            unit=Unit.RATIO,
            is_predicted=False,
        ),
        make_cell(entry.predicted, format_time(entry.predicted), "predicted"),
        make_cell(_get_upper_end(entry), spread, "high"),
        make_cell(
            change,
            format_time(change, signed=True),
            "predicted",
            "measured",
            how=Aggregation.DIFFERENCE,
        ),
    )


def _get_upper_end(entry: PredictedFigure) -> int | None:
    """Return the upper end of a range, or None if either end is unknown."""
    return None if entry.low is None else entry.high


_WHERE_IN_JSON = "in zprof whatif RUN -f json, and in the report written by e:"
_NO_ERROR = "unknown: no measured value to compare with"


def format_value(value: float | None, unit: Unit, *, signed: bool = False) -> str:
    """Format a value with its unit, or as unknown."""
    return Value(number=value, unit=unit, signed=signed).text


def format_range(low: int | None, high: int | None, unit: Unit, *, in_ms: bool = False) -> str:
    """Format a range as ``180.1..220.4 MiB``, or as unknown."""
    return Value(number=None if low is None else high, low=low, unit=unit, in_ms=in_ms).text


def format_model_error(entry: PredictedFigure) -> str:
    """Format the model's error on the run that it was fitted to."""
    if entry.error_ratio is None:
        return _NO_ERROR
    return f"{format_value(entry.error_ratio, Unit.RATIO, signed=True)} (model / measured - 1)"


def explain_prediction(
    planned: PlannedChange, entry: PredictedFigure, unit: Unit, title: str, leaf: str
) -> str:
    """Explain the prediction of a term or tenant: values, range, assumption, and model error."""
    outlook = planned.outlook
    assert outlook is not None
    change = None if None in (entry.predicted, entry.measured) else entry.predicted - entry.measured  # type: ignore[operator]
    spread = format_range(entry.low, entry.high, unit)
    lines = [
        f"{title}: PREDICTED, not measured, for: {planned.description or 'the unchanged run'}",
        "",
        f"  measured            {format_value(entry.measured, unit)}",
        f"  model of this run   {format_value(entry.modelled, unit)}",
        f"  predicted           {_mark_predicted(format_value(entry.predicted, unit))}, range "
        f"{_mark_predicted(spread)}",
        f"  change              {_mark_predicted(format_value(change, unit, signed=True))}",
        "",
        *format_assumption(outlook, entry),
        *_format_fit(outlook.calibration),
        "",
        _WHERE_IN_JSON,
        f"  {leaf}",
    ]
    return "\n".join(lines)


def _mark_predicted(words: str) -> str:
    return words if words == UNKNOWN else f"{PREDICTED_SIGN}{words}"


def format_assumption(outlook: Outlook, entry: PredictedFigure) -> list[str]:
    """Format formula, source, deviation, and the model error on this run as lines."""
    assumption = outlook.assumptions.get(entry.assumption)
    error = f"error on this run  {format_model_error(entry)}"
    if assumption is None:
        return [f"assumption  {entry.assumption or 'none'}: not stated", error]
    parts = {
        "formula": assumption.formula,
        "source": assumption.source,
        "deviation": assumption.deviation or "none",
    }
    return [
        f"assumption  {entry.assumption}",
        *(f"  {name:<9}  {text}" for name, text in parts.items()),
        error,
    ]


def _format_fit(calibration: Calibration | None) -> list[str]:
    if calibration is None:
        return []
    return [f"fitted to {calibration.steps} steps of this run; press m for the model's inputs"]


def explain_unknown(planned: PlannedChange) -> str:
    """Explain why there is no number."""
    if planned.is_whole or not planned.gaps:
        return "not predicted: the model does not cover this value"
    return "\n\n".join(f"not predicted: {format_gap(gap)}" for gap in planned.gaps)
