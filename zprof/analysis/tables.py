"""Make the tables of a measured run: steps, single collectives, and memory.

The report's leaves are sums of these rows; nothing is measured here. Times are integer nanoseconds, sizes
integer bytes; unknown values are missing, never 0.
"""

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups, Mask, OptionalInts, Texts, make_column
from zprof.analysis.time.ledger import STEP_COLUMNS
from zprof.analysis.time.steps import UNKNOWN_PHASE
from zprof.model.collectives import is_unknown_size
from zprof.model.memory import Memory
from zprof.model.tenants import DISPLAY_ORDER, UNTAGGED_NAME
from zprof.model.time import CollectiveTime, LateReason

STEP_TABLE_COLUMNS = (*STEP_COLUMNS[:2], "start_ns", *STEP_COLUMNS[2:], "upper_bound")
COLLECTIVE_TABLE_COLUMNS = (
    "rank", "step", "kind", "group", "group_size", "unit", "phase", "micro_batch", "dtype", "bytes",
    "start_ns", "start_in_step_ns", "duration_ns", "exposed_ns", "hidden_ns", "wait_ns", "transfer_ns",
    "exposed_wait_ns", "exposed_transfer_ns", "launch_delay_ns", "last_rank", "origin_rank", "late_reason",
    "bound", "upper_bound", "matched", "first_of_window",
)  # fmt: skip
MEMORY_TABLE_COLUMNS = ("rank", "device", "step", "phase", "tenant", "bytes")
_TENANTS = (*(tenant.value for tenant in DISPLAY_ORDER), UNTAGGED_NAME)
_GROUP_SIZES = ("blocks", "bytes", "smallest_bytes", "largest_bytes")
MEMORY_GROUP_COLUMNS = (
    "rank", "tenant", "sub", "where", "operator", "before", *_GROUP_SIZES, "basis", "confidence", "reason",
    "groups",
)  # fmt: skip
MEMORY_TIMELINE_COLUMNS = ("rank", "device", "time_ns", *(f"{name}_bytes" for name in _TENANTS))


def make_step_table(analysis: RunAnalysis) -> Columns:
    """Return one row per rank and step; columns are ``STEP_TABLE_COLUMNS``.

    wall = compute + exposed_wait + exposed_transfer + exposed_memcpy + idle + unexplained. A term's mean over
    a rank's rows is the rank's term in the report, which is rounded to nanoseconds.
    """
    rows = analysis.steps
    return rows.with_columns(
        start_ns=_find_step_starts(analysis, rows), upper_bound=_mark_upper_bounds(analysis, rows)
    ).pick(STEP_TABLE_COLUMNS)


def make_collective_table(analysis: RunAnalysis, rows: Columns | None = None) -> Columns:
    """Return one row per rank, step and collective; columns are ``COLLECTIVE_TABLE_COLUMNS``.

    ``start_ns`` is on the common clock, ``start_in_step_ns`` counts from the start of the rank's step.
    ``bytes`` is the size of the full tensor.

    Args:
        analysis: The measured run.
        rows: A subset of its ``collectives``; default: all.
    """
    rows = analysis.collectives if rows is None else rows
    start, size, kind = rows.ints("start_ns"), rows.ints("bytes"), rows.texts("kind")
    step_start = _find_step_starts(analysis, rows)
    is_unknown = kind.match(lambda word: is_unknown_size(word, 0)) & (size == 0)
    reason = rows.texts("late_reason")
    phase, micro_batch = _find_passes(analysis, rows)
    return rows.with_columns(
        duration_ns=rows.ints("end_ns") - start,
        exposed_ns=rows.ints("exposed_wait_ns") + rows.ints("exposed_transfer_ns"),
        start_in_step_ns=OptionalInts(start - step_start.values, step_start.known),
        launch_delay_ns=OptionalInts(start - rows.ints("launch_start_ns"), rows.known("launch_start_ns")),
        bytes=OptionalInts(size, ~is_unknown),
        phase=phase,
        micro_batch=micro_batch,
        **{
            name: OptionalInts(rows.ints(name), rows.ints(name) >= 0) for name in ("last_rank", "origin_rank")
        },
        late_reason=reason.with_text(reason.equals("", LateReason.UNKNOWN), None),
        upper_bound=_mark_upper_bounds(analysis, rows),
    ).pick(COLLECTIVE_TABLE_COLUMNS)


def select_rows(analysis: RunAnalysis, entry: CollectiveTime) -> Columns:
    """Return all rows of ``analysis.collectives`` with this kind, group and element type."""
    rows = analysis.collectives
    same = (rows.texts(name).equals(getattr(entry, name)) for name in ("kind", "group", "dtype"))
    return rows.at(np.logical_and.reduce(list(same)))


def pick_most_exposed(rows: Columns, max_rows: int) -> Columns:
    """Return the rows of ``analysis.collectives`` with the most exposed time; ties are sorted by duration."""
    exposed = rows.ints("exposed_wait_ns") + rows.ints("exposed_transfer_ns")
    duration = rows.ints("end_ns") - rows.ints("start_ns")
    return rows.at(np.lexsort((-duration, -exposed))[:max_rows])


def make_memory_table(memory: Memory) -> Columns:
    """Return one row per rank and tenant, at the rank's peak; columns are ``MEMORY_TABLE_COLUMNS``.

    A rank's bytes, including tenant ``untagged``, add up to the report's peak; a snapshot's tenants without
    attributed bytes are missing. ``step`` and ``phase`` are those at the peak.
    """
    rows = [
        (rank.rank, rank.device, rank.peak_step, rank.peak_phase, name, size)
        for rank in memory.per_rank
        for name, size in (
            *(
                (tenant.value, None if rank.is_unknown(tenant) else rank.tenants.get(tenant, 0))
                for tenant in DISPLAY_ORDER
            ),
            (UNTAGGED_NAME, rank.untagged_bytes),
        )
    ]
    values = zip(*rows, strict=True) if rows else [()] * len(MEMORY_TABLE_COLUMNS)
    table = Columns(
        {name: make_column(each) for name, each in zip(MEMORY_TABLE_COLUMNS, values, strict=True)}
    )
    phase = table.texts("phase")
    return table.with_columns(
        step=OptionalInts.of(row[2] if row[2] >= 0 else None for row in rows),
        phase=phase.with_text(phase.equals(""), None),
    )


def make_memory_group_table(memory: Memory) -> Columns:
    """Return one row per owner and allocation site; columns are ``MEMORY_GROUP_COLUMNS``.

    A snapshot rank's rows add up to its peak; rows with ``groups`` > 1 are the smallest groups, merged per
    tenant. For a recording, the rows are the largest single allocations.
    """
    rows = [
        {
            **{name: getattr(entry, name) for name in MEMORY_GROUP_COLUMNS if name not in _GROUP_SIZES},
            "blocks": entry.count,
            "bytes": entry.held_bytes,
            "smallest_bytes": entry.bytes if entry.smallest_bytes is None else entry.smallest_bytes,
            "largest_bytes": entry.bytes,
        }
        for entry in memory.top
    ]
    return Columns.from_rows(rows, MEMORY_GROUP_COLUMNS)


def make_memory_timeline_table(memory: Memory) -> Columns:
    """Return one row per rank and instant, one column per tenant; columns are ``MEMORY_TIMELINE_COLUMNS``.

    ``time_ns`` counts from the start of the rank's window. A row is valid until the next one; of many
    changes, each interval's highest is kept. In a job with many ranks, only the ranks with the largest peaks
    and the smallest peak are included.
    """
    parts = [
        Columns(
            {
                "rank": np.full(len(timeline.time_ns), timeline.rank, dtype=np.int64),
                "device": Texts((timeline.device,), np.zeros(len(timeline.time_ns), dtype=np.int64)),
                "time_ns": np.array(timeline.time_ns, dtype=np.int64),
                **{f"{name}_bytes": np.array(timeline.tenants[name], dtype=np.int64) for name in _TENANTS},
            }
        )
        for timeline in memory.timelines
    ]
    return Columns.concat(parts) if parts else Columns.from_rows((), MEMORY_TIMELINE_COLUMNS)


def _find_step_starts(analysis: RunAnalysis, rows: Columns) -> OptionalInts:
    """Return the start of each row's step, on the common clock; unknown without a timed step."""
    windows = [(track.rank, track.steps) for track in analysis.tracks]
    none = np.empty(0, dtype=np.int64)
    starts = np.concatenate([none, *(steps.begin_ns for _, steps in windows)])
    ranks = np.concatenate([none, *(np.full(len(steps), rank) for rank, steps in windows), rows.ints("rank")])
    numbers = np.concatenate([none, *(steps.number for _, steps in windows), rows.ints("step")])
    steps = Groups(ranks, numbers)
    start, known = np.zeros(len(steps), dtype=np.int64), np.zeros(len(steps), dtype=np.bool_)
    timed, wanted = np.split(steps.codes, [len(starts)])
    start[timed], known[timed] = starts, True
    return OptionalInts(start[wanted], known[wanted])


def _mark_upper_bounds(analysis: RunAnalysis, rows: Columns) -> Mask:
    """Mark the rows of ranks whose exposed times are upper bounds, because not every wait was recorded."""
    return np.isin(rows.ints("rank"), [rank.rank for rank in analysis.time.per_rank if rank.upper_bound])


def _find_passes(analysis: RunAnalysis, rows: Columns) -> tuple[Texts, OptionalInts]:
    """Return phase and micro-batch of collective rows; unknown for rows that belong to no pass."""
    passes = analysis.passes
    if not len(passes):
        return Texts.of([None] * len(rows)), OptionalInts.of([None] * len(rows))
    first = Groups(passes.ints("row")).first
    place = np.full(len(analysis.collectives), -1, dtype=np.int64)
    place[passes.ints("row")[first]] = first
    place = place[rows.row]
    phase = passes.texts("phase")
    phase = phase.with_text(phase.equals(UNKNOWN_PHASE), None).at(place).with_text(place < 0, None)
    micro_batch, known = passes.ints("micro_batch"), passes.known("micro_batch")
    return phase, OptionalInts(micro_batch[place], known[place] & (place >= 0))
