"""A row of measured, modelled and predicted numbers side by side."""

from dataclasses import dataclass

from zprof.model.planning.whatif import Predicted
from zprof.tui.figures import Figure, How, Unit
from zprof.tui.plan.foreseen import Foreseen
from zprof.tui.plan.planned import Planned, named
from zprof.tui.plan.said import range_words, said_of, why_not
from zprof.tui.tables import Cell, Mark, Word

#: Stands where a number is on its way.
PENDING = "..."
_CELLS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A term of the step, or a tenant: ``part`` and ``name`` say where it stands in a prediction."""

    part: str
    name: str
    title: str
    unit: Unit


def entry_of(planned: Planned, row: Row) -> Predicted | None:
    """What the prediction says of it."""
    found = planned.prediction
    entries: tuple[Predicted, ...] = getattr(found, row.part) if found else ()
    at = named(entries, row.name)
    return entries[at] if at >= 0 else None


def foreseen_cells(planned: Planned, row: Row) -> tuple[Cell, ...]:
    """Model of this run, its error, predicted, range, change: pending, unknown, or numbers."""
    if planned.answer is None:
        return (Word(PENDING, Mark.MUTED),) * _CELLS
    entry = entry_of(planned, row)
    if entry is None:
        return (_unknown(planned, row.unit),) * _CELLS
    return _known(planned, row, entry)


def _unknown(planned: Planned, unit: Unit) -> Foreseen:
    return Foreseen(
        value=None,
        unit=unit,
        leaves=("outlook.gaps",),
        words="",
        said=why_not(planned),
        assumption="",
        is_predicted=False,
    )


def _known(planned: Planned, row: Row, entry: Predicted) -> tuple[Cell, ...]:
    assert planned.prediction is not None
    at = named(getattr(planned.prediction, row.part), row.name)
    stem = f"outlook.predictions[{planned.place}].{row.part}[{at}]"

    def cell(
        value: float | None,
        words: str,
        *leaves: str,
        unit: Unit = row.unit,
        how: How = How.LEAF,
        is_predicted: bool = True,
    ) -> Foreseen:
        paths = tuple(f"{stem}.{leaf}" for leaf in leaves)
        return Foreseen(
            value=value,
            unit=unit,
            leaves=paths,
            how=how,
            words=words,
            said=said_of(planned, entry, row.unit, row.title, paths[0]),
            assumption=entry.assumption,
            is_predicted=is_predicted,
        )

    unit = row.unit
    change = None if entry.predicted is None or entry.measured is None else entry.predicted - entry.measured
    return (
        cell(entry.modelled, _in(entry.modelled, unit), "modelled", is_predicted=False),
        cell(
            entry.error_ratio,
            _in(entry.error_ratio, Unit.RATIO, signed=True),
            "error_ratio",
            unit=Unit.RATIO,
            is_predicted=False,
        ),
        cell(entry.predicted, _in(entry.predicted, unit), "predicted"),
        cell(_end(entry), range_words(entry.low, entry.high, unit), "high"),
        cell(change, _in(change, unit, signed=True), "predicted", "measured", how=How.DIFFERENCE),
    )


def _end(entry: Predicted) -> int | None:
    """Of a range of which both ends are known."""
    return None if entry.low is None else entry.high


def _in(value: float | None, unit: Unit, *, signed: bool = False) -> str:
    return Figure(value=value, unit=unit, leaves=(), signed=signed).text
