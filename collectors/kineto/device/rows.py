"""Make rows for the collectives that ran on a device, with launch, unit, group and sequence.

A kernel's row has the exact start, end and stream of its event. A collective of several copies has one row
from the first start to the last end, on the stream of the first copy.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.collectors.kineto.annotations import IntervalIndex, RangeSpan, find_units, get_collective_key
from zprof.collectors.kineto.collective_gaps import list_device_gaps, list_missing_device_work
from zprof.collectors.kineto.collectives import CollectiveRow
from zprof.collectors.kineto.device.kernels import (
    BY_NAME,
    DeviceCollective,
    HostLaunches,
    find_copy_collectives,
    find_kernel_collectives,
    find_kernel_rows,
)
from zprof.collectors.kineto.process_groups import GroupResolver
from zprof.collectors.kineto.trace import ABSENT, Int64s, Trace, TraceProcessGroup
from zprof.model.collectives import CollectiveKind
from zprof.model.gaps import Gap
from zprof.run.ranges import RangeVerb

_POINT_TO_POINT = (CollectiveKind.SEND, CollectiveKind.RECV)
#: Method of rows whose sequence comes from the engine's own launch range.
BY_RANGE = "nccl_range"


class LaunchContext(Struct, frozen=True, kw_only=True):
    """Annotations around a launch.

    ``group`` and ``sequence`` come from a launch range that encloses only this collective.
    """

    unit: str | None = None
    group: str | None = None
    sequence: int | None = None


def find_launch_contexts(
    trace: Trace, collectives: Sequence[DeviceCollective], spans: Sequence[RangeSpan]
) -> list[LaunchContext]:
    """Return the annotations around each collective's launch."""
    calls = np.array(
        [collective.calls[0] if collective.calls else -1 for collective in collectives], np.int64
    )
    threads = np.where(calls >= 0, trace.thread[calls], ABSENT) if len(calls) else calls
    times = np.where(calls >= 0, trace.start_ns[calls], ABSENT) if len(calls) else calls
    units = find_units(trace, threads, times)
    launches = {
        span.row: span
        for span in spans
        if span.range.verb is RangeVerb.LAUNCH and get_collective_key(span.range) is not None
    }
    rows = IntervalIndex(trace, np.array(sorted(launches), dtype=np.int64)).find_innermost(threads, times)
    launch_ranges = [launches.get(row) for row in rows.tolist()]
    counts = Counter(id(span) for span in launch_ranges if span is not None)
    return [
        _make_context(unit, span if span is not None and counts[id(span)] == 1 else None)
        for unit, span in zip(units, launch_ranges, strict=True)
    ]


def _make_context(unit: str | None, span: RangeSpan | None) -> LaunchContext:
    if span is None:
        return LaunchContext(unit=unit)
    return LaunchContext(unit=span.range.unit or unit, group=span.range.group, sequence=span.range.sequence)


class DeviceCollectives(Struct, frozen=True, kw_only=True):
    """The collectives of a device, before groups are named."""

    collectives: Sequence[DeviceCollective]
    contexts: Sequence[LaunchContext]

    def groups(self) -> list[TraceProcessGroup]:
        """Return the distinct groups whose ranks are given by the collectives."""
        description = (collective.description for collective in self.collectives)
        groups = dict.fromkeys((d.group or "", d.description, d.ranks) for d in description if d.ranks)
        return [
            TraceProcessGroup(name=name, description=description, ranks=tuple(sorted(ranks)))
            for name, description, ranks in groups
        ]


def find_device_collectives(trace: Trace, spans: Sequence[RangeSpan]) -> DeviceCollectives:
    """Find all kernels and copies that are collectives, in the host's launch order."""
    host = HostLaunches(trace)
    links = host.find_links(find_kernel_rows(trace))
    collectives = [*find_kernel_collectives(trace, links), *find_copy_collectives(trace, host, links)]
    collectives = _sort_by_launch(trace, collectives)
    return DeviceCollectives(
        collectives=collectives, contexts=find_launch_contexts(trace, collectives, spans)
    )


def _sort_by_launch(trace: Trace, collectives: Sequence[DeviceCollective]) -> list[DeviceCollective]:
    """Sort by launch: all ranks of a group launch its collectives in the same order, on whatever streams.

    Kernels of different streams may start in a different order on each rank. A stream runs its work in launch
    order, so a collective without a launch in the trace is placed directly before the next collective on its
    stream with a known launch, else directly after the last one. Streams without any known launch were filled
    before the window: they come first, one after the other.
    """
    start = np.array([trace.start_ns[collective.rows[0]] for collective in collectives], dtype=np.int64)
    stream = np.array([_get_stream(trace, collective.rows[0]) for collective in collectives], dtype=np.int64)
    launch = np.array(
        [
            min((int(trace.start_ns[call]) for call in collective.calls), default=ABSENT)
            for collective in collectives
        ],
        dtype=np.int64,
    )
    order = np.lexsort((start, stream))
    nearest_launch, side = _find_neighbouring_launches(launch[order], stream[order])
    sorted_rows = np.lexsort((start[order], stream[order], side, nearest_launch))
    return [collectives[row] for row in order[sorted_rows].tolist()]


def _find_neighbouring_launches(launch: Int64s, stream: Int64s) -> tuple[Int64s, Int64s]:
    """Return the launch by which to sort each row (rows ordered by stream and start), and the side of it."""
    rows = np.arange(len(launch))
    known = launch != ABSENT
    following = np.minimum.accumulate(np.where(known, rows, len(rows))[::-1])[::-1]
    previous = np.maximum.accumulate(np.where(known, rows, -1))
    has_following = (following < len(rows)) & (stream[np.minimum(following, len(rows) - 1)] == stream)
    has_previous = (previous >= 0) & (stream[previous] == stream)
    nearest = np.where(has_following, following, np.where(has_previous, previous, rows))
    side = np.where(known, 0, np.where(has_following, -1, 1))
    return launch[nearest], side.astype(np.int64)


def make_device_rows(
    trace: Trace, collectives: DeviceCollectives, groups: GroupResolver
) -> tuple[list[CollectiveRow], list[Gap]]:
    """Make a row for each collective, by launch, and gaps for unknown facts."""
    ordinals: dict[tuple[str, object], int] = defaultdict(int)
    rows: list[CollectiveRow] = []
    for collective, context in zip(collectives.collectives, collectives.contexts, strict=True):
        description = collective.description
        group, size = _find_group(trace, collective, context, groups)
        full_bytes = (description.elements or 0) * (description.element_bytes or 0)
        stream = _get_stream(trace, collective.rows[0])
        row = CollectiveRow(
            kind=str(description.kind or CollectiveKind.OTHER),
            group=group,
            group_size=size,
            sequence=0,
            dtype=description.dtype or "unknown",
            bytes=max(0, full_bytes),
            start_ns=int(trace.start_ns[collective.rows[0]]),
            end_ns=max(_get_end_ns(trace, row) for row in collective.rows),
            launch_start_ns=min((int(trace.start_ns[call]) for call in collective.calls), default=None),
            launch_end_ns=max((_get_end_ns(trace, call) for call in collective.calls), default=None),
            unit=context.unit,
            stream=None if stream == ABSENT else stream,
            peer_rank=description.peer,
            method=collective.method,
        )
        key = row.group, (row.kind, row.peer_rank) if row.kind in _POINT_TO_POINT else None
        rows.append(_add_sequence(row, collective, context, ordinals[key]))
        ordinals[key] += 1
    return rows, [*list_device_gaps(rows, BY_NAME), *list_missing_device_work(trace, rows)]


def _add_sequence(
    row: CollectiveRow, collective: DeviceCollective, context: LaunchContext, ordinal: int
) -> CollectiveRow:
    """Return the row with the recorded sequence, else with the order within the group.

    Sends and receives are numbered per peer: torch counts them per process, so the two sides would differ.
    """
    is_point_to_point = row.kind in _POINT_TO_POINT
    if collective.description.sequence is not None and not is_point_to_point:
        return replace(row, sequence=collective.description.sequence)
    if context.sequence is not None and not is_point_to_point:
        return replace(row, sequence=context.sequence, method=BY_RANGE)
    return replace(row, sequence=ordinal, method=f"{collective.method}_order")


def _find_group(
    trace: Trace, collective: DeviceCollective, context: LaunchContext, groups: GroupResolver
) -> tuple[str, int]:
    """Return the group's name and size: from its ranks, its name, the launch range, or as the only group."""
    description = collective.description
    name = description.group
    ranks = description.ranks or (groups.get_ranks(name) if name is not None else ())
    if ranks:
        return groups.get_display_name(name or "", ranks), len(ranks)
    if name is not None:
        return f"pg:{name}", description.group_size or 0
    if context.group is not None:
        return groups.resolve(context.group)
    single_group = groups.get_single_group() if collective.method != BY_NAME else None
    return single_group or (f"stream:{_format_stream(trace, collective.rows[0])}", 0)


def _format_stream(trace: Trace, row: int) -> str:
    stream = _get_stream(trace, row)
    return "unknown" if stream == ABSENT else str(stream)


def _get_stream(trace: Trace, row: int) -> int:
    return int(trace.stream[row])


def _get_end_ns(trace: Trace, row: int) -> int:
    return int(trace.start_ns[row] + trace.duration_ns[row])
