"""Build the time detail: time per step, unit and message size; link fit; clocks of the ranks."""

from zprof.model.quantities import Bounds
from zprof.model.report import Report
from zprof.model.time import LEDGER_NAMES, Alignment, StepTime, Time
from zprof.reports.page import Section, make_section
from zprof.reports.pages.collectives import build_fit_table, build_message_table, build_unit_table
from zprof.reports.presenters.time_figures import (
    order_steps_by_length,
)
from zprof.reports.presenters.time_formatting import (
    make_ledger_cells,
)
from zprof.reports.table import (
    MAX_ROWS,
    UNKNOWN,
    Cell,
    Table,
    make_number_columns,
    make_table,
    make_text_column,
)

_MAX_TEXT_ROWS, _MAX_TEXT_FITS = 12, 8
_US = 1_000


def build_time_detail_section(report: Report, *, detail: bool) -> tuple[Section, ...]:
    """Build the section on time beyond the ledger and the collectives."""
    time = report.time
    lead = "Time by step, unit and message size; link fit; clock offsets."
    tables = (
        _build_step_table(time),
        build_unit_table(report),
        build_message_table(report),
        build_fit_table(report),
    )
    clocks = _build_clock_table(time.alignment)
    return make_section("time-detail", "Time in detail", lead, *tables, clocks, detail=detail, fold_rows=8)


def _build_step_table(time: Time) -> Table | None:
    indices = sorted(
        order_steps_by_length(time)[:MAX_ROWS],
        key=lambda index: (time.steps[index].step, time.steps[index].rank),
    )
    position_by_index = {index: position for position, index in enumerate(order_steps_by_length(time))}
    bounds = time.bounds_by_rank
    return make_table(
        "By step",
        (
            make_text_column("step"),
            *make_number_columns("rank"),
            *make_number_columns("wall", *LEDGER_NAMES.values(), unit="ms"),
        ),
        [_make_step_row(time.steps[index], bounds.get(time.steps[index].rank, {})) for index in indices],
        unit="ms",
        max_text_rows=_MAX_TEXT_ROWS,
        order=sorted(range(len(indices)), key=lambda row: position_by_index[indices[row]]),
        total=len(time.steps),
        noun="steps of all ranks, longest first",
    )


def _make_step_row(step: StepTime, bounds: Bounds) -> tuple[Cell, ...]:
    return (str(step.step), str(step.rank), *make_ledger_cells(step, bounds))


def _build_clock_table(alignment: Alignment | None) -> Table | None:
    if alignment is None or len(alignment.offsets_ns) < 2:
        return None
    ranks = sorted(alignment.offsets_ns)
    return make_table(
        "Clocks",
        (
            make_text_column("rank"),
            *make_number_columns("offset", "±", "possible range", unit="µs"),
            *make_number_columns("drift", unit="ppm"),
        ),
        [_format_clock_row(alignment, rank) for rank in ranks],
        unit="µs",
        note=f"relative to rank {ranks[0]}",
        max_text_rows=_MAX_TEXT_FITS,
        noun="ranks",
    )


def _format_clock_row(alignment: Alignment, rank: int) -> tuple[str, ...]:
    interval, drift = alignment.interval_ns.get(rank), alignment.drift_ppb.get(rank)
    return (
        str(rank),
        f"{alignment.offsets_ns[rank] / _US:+.1f}",
        f"{alignment.rank_uncertainty_ns.get(rank, alignment.uncertainty_ns) / _US:.1f}",
        UNKNOWN if interval is None else f"{interval[0] / _US:+.1f} to {interval[1] / _US:+.1f}",
        UNKNOWN if drift is None else f"{drift / 1000:+.2f}",
    )
