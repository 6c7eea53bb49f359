"""The communicators of a job whose collectives were recorded without its steps (NCCL's Inspector)."""

from collections.abc import Iterator
from datetime import UTC, datetime

from msgspec import UNSET

from zprof.base.formatting import format_bytes, format_ns, format_percent, format_rate, printable
from zprof.model.communicators import (
    Communicators,
    LateRanks,
    MessageClass,
    SlowCommunicator,
    SlowPeriod,
    name_communicator,
    name_places,
)
from zprof.model.time import Time
from zprof.reports.page import Note, Section, make_section
from zprof.reports.table import (
    UNKNOWN,
    Cell,
    Table,
    make_name_column,
    make_number_columns,
    make_table,
    make_text_column,
)

_MAX_TEXT_ROWS, _MAX_TEXT_CLASSES = 6, 12


def build_communicator_sections(time: Time) -> tuple[Section, ...]:
    """Build the sections; empty without a recording of NCCL's Inspector."""
    found = time.communicators
    if found is UNSET:
        return ()
    return (
        *make_section(
            "late-ranks",
            "Who arrives last",
            "Inferred from durations: the last rank of an operation has its shortest kernel.",
            _build_late_table(found),
            *_list_late_notes(found),
        ),
        *make_section(
            "slow-communicators",
            "Slow communicators",
            "Transfers beside those of the same kind, size, ranks and nodes, and beside their own before and "
            "after.",
            _build_slow_table(found),
            _build_period_table(found),
        ),
        *make_section(
            "communicators",
            "Communicators",
            "Operations by communicator, kind and size, longest total time first.",
            _build_class_table(found),
            Note(
                text="kernel: median of all ranks, waits included; shortest, algbw, busbw: of the last rank "
                "to arrive; slow: 5th percentile; size: of the full tensor"
            ),
            note=f"{found.records:,} records of {found.processes} processes on "
            f"{found.hosts} host{'s' if found.hosts != 1 else ''}",
        ),
    )


def _build_late_table(found: Communicators) -> Table | None:
    return make_table(
        "Late in their communicator",
        (
            make_name_column("who"),
            make_name_column("communicator"),
            *make_number_columns("ranks", "operations", "waited"),
            *make_number_columns("last", unit="%"),
            *make_number_columns("ahead of it", "others wait"),
            *make_number_columns("by clock", unit="%"),
        ),
        [_make_late_row(entry) for entry in found.late],
        max_text_rows=_MAX_TEXT_ROWS,
        noun="late ranks, largest cost first",
    )


def _make_late_row(entry: LateRanks) -> tuple[Cell, ...]:
    confirmed = UNKNOWN if entry.confirmed_ratio is None else format_percent(entry.confirmed_ratio)
    return (
        name_places(entry.places),
        name_communicator(entry.name, entry.communicator),
        str(entry.ranks),
        str(entry.operations),
        str(entry.waited),
        format_percent(entry.last_ratio),
        format_ns(entry.lead_ns),
        format_ns(entry.wait_ns),
        confirmed,
    )


def _list_late_notes(found: Communicators) -> Iterator[Note]:
    """Yield the meaning of the columns, ranks that wait elsewhere for a late rank, and what to do."""
    if not found.late:
        return
    yield Note(
        text="waited: operations with a wait; last: share of them; ahead of it: by how much the others came "
        "earlier, at least; others wait: mean, at most; by clock: share in which it starts last, if one "
        "host has all ranks and the files are verbose"
    )
    followers = [entry for entry in found.late if entry.waits_for]
    if followers:
        first = followers[0]
        more = f" and {len(followers) - 1} more" if len(followers) > 1 else ""
        text = (
            f"{name_places(first.places)}{more} may be late because they wait for others in "
            f"{printable(first.waits_for)}"
        )
        yield Note(label="Wait for others", text=text)
    yield Note(
        label="Next",
        text="compare the device of a late rank with another one (nvidia-smi -q -d "
        "CLOCK,TEMPERATURE,PERFORMANCE,ECC), and record traces of all ranks (zprof record, torch.profiler): "
        "they tell whether its compute, its host or its data is late",
    )


def _build_slow_table(found: Communicators) -> Table | None:
    return make_table(
        "Slower than their peers",
        (
            make_name_column("communicator"),
            make_name_column("ranks"),
            make_text_column("kind"),
            *make_number_columns(
                "size", "n", "bus bandwidth", "peers", "n of peers", "their median", "ratio"
            ),
        ),
        [_make_slow_row(entry) for entry in found.slow],
        max_text_rows=_MAX_TEXT_ROWS,
        noun="slow communicators, largest cost first",
    )


def _make_slow_row(entry: SlowCommunicator) -> tuple[Cell, ...]:
    return (
        name_communicator(entry.name, entry.communicator),
        name_places(entry.places),
        entry.kind,
        format_bytes(entry.bytes),
        str(entry.operations),
        format_rate(entry.busbw_bytes_per_s),
        str(entry.peers),
        str(entry.peer_operations),
        format_rate(entry.peer_busbw_bytes_per_s),
        f"{entry.ratio:.2f}",
    )


def _build_period_table(found: Communicators) -> Table | None:
    return make_table(
        "Slower for a while",
        (
            make_name_column("communicator"),
            make_text_column("kind"),
            *make_number_columns("size", "from operation", "to", "of"),
            make_text_column("written from"),
            *make_number_columns("otherwise", "then", "ratio"),
        ),
        [_make_period_row(entry) for entry in found.periods],
        note="medians of the shortest kernel of each operation; where ranks are missing, it may contain a "
        "wait",
        max_text_rows=_MAX_TEXT_ROWS,
        noun="slow periods, largest cost first",
    )


def _make_period_row(entry: SlowPeriod) -> tuple[Cell, ...]:
    start = UNKNOWN
    if entry.from_ns is not None:
        start = (
            datetime.fromtimestamp(entry.from_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
        )
    return (
        name_communicator(entry.name, entry.communicator),
        entry.kind,
        format_bytes(entry.bytes),
        str(entry.first + 1),
        "the end" if entry.last is None else str(entry.last + 1),
        str(entry.operations),
        start,
        format_ns(entry.usual_transfer_ns),
        format_ns(entry.transfer_ns),
        f"{entry.ratio:.2f}",
    )


def _build_class_table(found: Communicators) -> Table | None:
    return make_table(
        "By message class",
        (
            make_name_column("communicator"),
            make_text_column("kind"),
            *make_number_columns("size", "ranks", "nodes", "operations", "kernel", "shortest", "wait"),
            *make_number_columns("algbw", wide=True),
            *make_number_columns("busbw", "slow busbw"),
        ),
        [_make_class_row(entry) for entry in found.classes],
        max_text_rows=_MAX_TEXT_CLASSES,
        noun="message classes, longest total time first",
    )


def _make_class_row(entry: MessageClass) -> tuple[Cell, ...]:
    rates = (entry.algbw_bytes_per_s, entry.busbw_bytes_per_s, entry.slow_busbw_bytes_per_s)
    return (
        name_communicator(entry.name, entry.communicator),
        entry.kind,
        format_bytes(entry.bytes),
        str(entry.ranks),
        str(entry.nodes),
        str(entry.operations),
        format_ns(entry.duration_ns),
        format_ns(entry.transfer_ns),
        UNKNOWN if entry.wait_ns is None else format_ns(entry.wait_ns),
        *(UNKNOWN if rate is None else format_rate(rate) for rate in rates),
    )
