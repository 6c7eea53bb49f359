"""Build the time detail: time per step, unit and message size; link fit; clocks of the ranks."""

from zprof.model.leaves import take_value
from zprof.model.quantities import Bounds
from zprof.model.report import Report
from zprof.model.time import LEDGER_NAMES, Alignment, LinkFit, MessageSizes, StepTime, Time, UnitTime
from zprof.reports.page import Section, make_section
from zprof.reports.presenters.run_formatting import group_name
from zprof.reports.presenters.time_figures import (
    order_steps_by_length,
    select_most_exposed_messages,
    select_most_exposed_units,
    select_sized_messages,
    sort_fits_by_messages,
)
from zprof.reports.presenters.time_formatting import (
    make_ledger_cells,
    take_message_bytes,
)
from zprof.reports.table import (
    MAX_ROWS,
    UNKNOWN,
    Cell,
    Table,
    make_name_column,
    make_number_columns,
    make_table,
    make_text_column,
)

_MAX_TEXT_ROWS, _MAX_TEXT_FITS = 12, 8
_FIT_FIELDS = (
    "messages",
    "latency_ns",
    "algbw_bytes_per_s",
    "busbw_bytes_per_s",
    "latency_share_ratio",
    "residual_ratio",
)
_UNIT_TERMS = ("exposed_transfer_ns", "exposed_wait_ns")
_US = 1_000


def build_time_detail_section(report: Report, *, detail: bool) -> tuple[Section, ...]:
    """Build the section on time beyond the ledger and the collectives."""
    time = report.time
    lead = "Time by step, unit and message size; link fit; clock offsets."
    tables = (
        _build_step_table(time),
        _build_unit_table(time),
        _build_message_table(time),
        _build_fit_table(time),
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


def _build_unit_table(time: Time) -> Table | None:
    return make_table(
        "By unit",
        (
            make_name_column("unit"),
            make_name_column("kind"),
            *make_number_columns("count", unit=time.basis),
            *make_number_columns("size", unit="bytes"),
            *make_number_columns(*(LEDGER_NAMES[field] for field in _UNIT_TERMS), unit="ms"),
        ),
        [_make_unit_row(unit) for unit in select_most_exposed_units(time, MAX_ROWS)],
        unit="ms",
        note=f"{time.basis}, mean of the ranks of the group",
        max_text_rows=_MAX_TEXT_ROWS,
        total=len(time.units),
        noun="units, most exposed time first",
    )


def _make_unit_row(unit: UnitTime) -> tuple[Cell, ...]:
    return (
        unit.unit,
        unit.kind,
        take_value(unit, "count"),
        take_message_bytes(unit),
        *(take_value(unit, field, in_ms=True) for field in _UNIT_TERMS),
    )


def _build_message_table(time: Time) -> Table | None:
    messages = select_sized_messages(time)
    shown = select_most_exposed_messages(messages, MAX_ROWS)
    return make_table(
        "By message size",
        (
            make_name_column("kind"),
            make_name_column("group"),
            *make_number_columns("from", "below", unit="bytes"),
            *make_number_columns("count", unit=time.basis),
            *make_number_columns("exposed", unit="ms"),
            *make_number_columns("bus bandwidth", unit="bytes/s"),
        ),
        [_make_message_row(bucket) for bucket in shown],
        unit="ms",
        note=time.basis,
        max_text_rows=_MAX_TEXT_ROWS,
        order=sorted(range(len(shown)), key=lambda at: (-shown[at].exposed_ns, -shown[at].count)),
        total=len(messages),
        noun="rows, most exposed time first",
    )


def _make_message_row(bucket: MessageSizes) -> tuple[Cell, ...]:
    return (
        bucket.kind,
        group_name(bucket.group),
        take_value(bucket, "at_least_bytes"),
        take_value(bucket, "below_bytes"),
        take_value(bucket, "count"),
        take_value(bucket, "exposed_ns", in_ms=True),
        take_value(bucket, "busbw_bytes_per_s"),
    )


def _build_fit_table(time: Time) -> Table | None:
    fits = sort_fits_by_messages(time, len(time.fits))
    return make_table(
        "Link fit",
        (
            make_name_column("kind"),
            make_name_column("group"),
            *make_number_columns("messages", unit="count"),
            *make_number_columns("latency", unit="time"),
            *make_number_columns("bandwidth", "bus bandwidth", unit="bytes/s"),
            *make_number_columns("latency share", "residual", unit="%"),
        ),
        [_make_fit_row(fit) for fit in fits],
        note="fitted: time = latency + bytes / bandwidth",
        max_text_rows=_MAX_TEXT_FITS,
        noun="fits, most messages first",
    )


def _make_fit_row(fit: LinkFit) -> tuple[Cell, ...]:
    return (fit.kind, group_name(fit.group), *(take_value(fit, field) for field in _FIT_FIELDS))


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
