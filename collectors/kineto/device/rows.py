"""Make rows for the collectives that ran on a device, with their launch, unit, group and sequence.

A kernel's row has exactly the start, end and stream of its event. A collective of several copies has one row
from the first start to the last end, on the stream of the first.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

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
from zprof.collectors.kineto.process_groups import GroupNames
from zprof.collectors.kineto.trace import ABSENT, Group, Int64s, Trace
from zprof.model.collectives import CollectiveKind
from zprof.model.gaps import Gap
from zprof.run.ranges import RangeVerb


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlace:
    """Annotations around a launch.

    ``group`` and ``sequence`` are those of a launch range that encloses this collective only.
    """

    unit: str | None = None
    group: str | None = None
    sequence: int | None = None


def find_places(
    trace: Trace, found: Sequence[DeviceCollective], spans: Sequence[RangeSpan]
) -> list[LaunchPlace]:
    """Return the annotations around each collective's launch."""
    calls = np.array([collective.calls[0] if collective.calls else -1 for collective in found], np.int64)
    threads = np.where(calls >= 0, trace.thread[calls], ABSENT) if len(calls) else calls
    times = np.where(calls >= 0, trace.start_ns[calls], ABSENT) if len(calls) else calls
    units = find_units(trace, threads, times)
    stated = _find_launch_ranges(trace, spans, threads, times)
    counts = Counter(id(span) for span in stated if span is not None)
    return [
        _make_place(unit, span if span is not None and counts[id(span)] == 1 else None)
        for unit, span in zip(units, stated, strict=True)
    ]


def _make_place(unit: str | None, span: RangeSpan | None) -> LaunchPlace:
    if span is None:
        return LaunchPlace(unit=unit)
    return LaunchPlace(unit=span.range.unit or unit, group=span.range.group, sequence=span.range.sequence)


def _find_launch_ranges(
    trace: Trace, spans: Sequence[RangeSpan], threads: Int64s, times_ns: Int64s
) -> list[RangeSpan | None]:
    launches = {
        span.row: span
        for span in spans
        if span.range.verb is RangeVerb.LAUNCH and get_collective_key(span.range) is not None
    }
    rows = IntervalIndex(trace, np.array(sorted(launches), dtype=np.int64)).find_innermost(threads, times_ns)
    return [launches.get(row) for row in rows.tolist()]


_POINT_TO_POINT = (CollectiveKind.SEND, CollectiveKind.RECV)
#: Method of rows whose sequence is stated by the engine's own launch range.
BY_RANGE = "nccl_range"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCollectives:
    """The collectives of a device, before groups have names."""

    found: Sequence[DeviceCollective]
    places: Sequence[LaunchPlace]

    def groups(self) -> list[Group]:
        """Return the distinct groups whose ranks the collectives themselves state."""
        described = (collective.described for collective in self.found)
        groups = dict.fromkeys((d.group or "", d.description, d.ranks) for d in described if d.ranks)
        return [
            Group(name=name, description=description, ranks=tuple(sorted(ranks)))
            for name, description, ranks in groups
        ]


def find_device_collectives(trace: Trace, spans: Sequence[RangeSpan]) -> DeviceCollectives:
    """Find all kernels and copies that are collectives, in the order in which the host launched them."""
    host = HostLaunches(trace)
    links = host.links(find_kernel_rows(trace))
    found = [*find_kernel_collectives(trace, links), *find_copy_collectives(trace, host, links)]
    found = _sort_by_launch(trace, found)
    return DeviceCollectives(found=found, places=find_places(trace, found, spans))


def _sort_by_launch(trace: Trace, found: Sequence[DeviceCollective]) -> list[DeviceCollective]:
    """Sort by launch: all ranks of a group launch its collectives in one order, whatever streams they run on.

    Kernels of different streams may start in a different order on each rank. A stream runs its work in launch
    order, so a collective whose launch is not in the trace goes right before the next one of its stream whose
    launch is known, else right after the last such one. Streams without any known launch were filled before
    the window: they come first, one after the other.
    """
    start = np.array([trace.start_ns[each.rows[0]] for each in found], dtype=np.int64)
    stream = np.array([_get_stream(trace, each.rows[0]) for each in found], dtype=np.int64)
    launch = np.array(
        [min((int(trace.start_ns[call]) for call in each.calls), default=ABSENT) for each in found],
        dtype=np.int64,
    )
    order = np.lexsort((start, stream))
    neighbour, side = _find_neighbouring_launches(launch[order], stream[order])
    placed = np.lexsort((start[order], stream[order], side, neighbour))
    return [found[row] for row in order[placed].tolist()]


def _find_neighbouring_launches(launch: Int64s, stream: Int64s) -> tuple[Int64s, Int64s]:
    """Return the launch to sort each row by (rows ordered by stream and start), and the side of it."""
    rows = np.arange(len(launch))
    known = launch != ABSENT
    following = np.minimum.accumulate(np.where(known, rows, len(rows))[::-1])[::-1]
    before = np.maximum.accumulate(np.where(known, rows, -1))
    has_following = (following < len(rows)) & (stream[np.minimum(following, len(rows) - 1)] == stream)
    has_before = (before >= 0) & (stream[before] == stream)
    near = np.where(has_following, following, np.where(has_before, before, rows))
    side = np.where(known, 0, np.where(has_following, -1, 1))
    return launch[near], side.astype(np.int64)


def make_device_rows(
    trace: Trace, collectives: DeviceCollectives, groups: GroupNames
) -> tuple[list[CollectiveRow], list[Gap]]:
    """Make a row for each collective, by launch, and gaps for what is unknown about them."""
    ordinals: dict[tuple[str, object], int] = defaultdict(int)
    rows: list[CollectiveRow] = []
    for found, place in zip(collectives.found, collectives.places, strict=True):
        row = _make_row(trace, found, place, groups)
        key = row.group, (row.kind, row.peer_rank) if row.kind in _POINT_TO_POINT else None
        rows.append(_add_sequence(row, found, place, ordinals[key]))
        ordinals[key] += 1
    return rows, [*list_device_gaps(rows, BY_NAME), *list_missing_device_work(trace, rows)]


def _add_sequence(
    row: CollectiveRow, found: DeviceCollective, place: LaunchPlace, ordinal: int
) -> CollectiveRow:
    """Return the row with the stated sequence, else the order within the group.

    Sends and receives are numbered per peer: torch counts them per process, so that the two sides differ.
    """
    sided = row.kind in _POINT_TO_POINT
    if found.described.sequence is not None and not sided:
        return replace(row, sequence=found.described.sequence)
    if place.sequence is not None and not sided:
        return replace(row, sequence=place.sequence, method=BY_RANGE)
    return replace(row, sequence=ordinal, method=f"{found.rung}_order")


def _make_row(trace: Trace, found: DeviceCollective, place: LaunchPlace, groups: GroupNames) -> CollectiveRow:
    described = found.described
    group, size = _find_group(trace, found, place, groups)
    full = (described.elements or 0) * (described.element_bytes or 0)
    stream = _get_stream(trace, found.rows[0])
    return CollectiveRow(
        kind=str(described.kind or CollectiveKind.OTHER),
        group=group,
        group_size=size,
        sequence=0,
        dtype=described.dtype or "unknown",
        bytes=max(0, full),
        start_ns=int(trace.start_ns[found.rows[0]]),
        end_ns=max(_get_end_ns(trace, row) for row in found.rows),
        launch_start_ns=min((int(trace.start_ns[call]) for call in found.calls), default=None),
        launch_end_ns=max((_get_end_ns(trace, call) for call in found.calls), default=None),
        unit=place.unit,
        stream=None if stream == ABSENT else stream,
        peer_rank=described.peer,
        method=found.rung,
    )


def _find_group(
    trace: Trace, found: DeviceCollective, place: LaunchPlace, groups: GroupNames
) -> tuple[str, int]:
    """Return the group's name and size: by its ranks, its name, the launch range, or as the only group."""
    described = found.described
    name = described.group
    ranks = described.ranks or (groups.ranks_of(name) if name is not None else ())
    if ranks:
        return groups.shown(name or "", ranks), len(ranks)
    if name is not None:
        return f"pg:{name}", described.group_size or 0
    if place.group is not None:
        return groups.resolve(place.group)
    only = groups.listed() if found.rung != BY_NAME else None
    return only or (f"stream:{_format_stream(trace, found.rows[0])}", 0)


def _format_stream(trace: Trace, row: int) -> str:
    stream = _get_stream(trace, row)
    return "unknown" if stream == ABSENT else str(stream)


def _get_stream(trace: Trace, row: int) -> int:
    return int(trace.stream[row])


def _get_end_ns(trace: Trace, row: int) -> int:
    return int(trace.start_ns[row] + trace.duration_ns[row])
