"""Rows of collectives that ran on a device.

A kernel's row has exactly the start, end and stream of its event.  A collective of several copies has one row
from the first start to the last end, on the stream of the first.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zprof.collectors.kineto.collectives.groups import GroupNames
from zprof.collectors.kineto.collectives.rows import CollectiveRow
from zprof.collectors.kineto.collectives.spans import RangeSpan
from zprof.collectors.kineto.columns import ABSENT, Group, Int64s, Trace
from zprof.collectors.kineto.device.copies import find_copies
from zprof.collectors.kineto.device.gaps import gaps_of, without_device_work
from zprof.collectors.kineto.device.kernels import BY_NAME, Found, find_kernels, kernel_rows
from zprof.collectors.kineto.device.links import Host
from zprof.collectors.kineto.device.places import Place, places_of
from zprof.model.collectives import CollectiveKind
from zprof.model.gaps import Gap

_SIDED = (CollectiveKind.SEND, CollectiveKind.RECV)
#: A sequence that the engine's own launch range states.
BY_RANGE = "nccl_range"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCollectives:
    """The collectives of a device, before groups have names."""

    found: Sequence[Found]
    places: Sequence[Place]

    def groups(self) -> list[Group]:
        """Groups whose ranks the collectives themselves say, each once."""
        described = (collective.described for collective in self.found)
        groups = dict.fromkeys((d.group or "", d.description, d.ranks) for d in described if d.ranks)
        return [
            Group(name=name, description=description, ranks=tuple(sorted(ranks)))
            for name, description, ranks in groups
        ]


def find_device_collectives(trace: Trace, spans: Sequence[RangeSpan]) -> DeviceCollectives:
    """Find all kernels and copies that are collectives, in the order in which the host launched them."""
    host = Host(trace)
    links = host.links(kernel_rows(trace))
    found = [*find_kernels(trace, links), *find_copies(trace, host, links)]
    found = _by_launch(trace, found)
    return DeviceCollectives(found=found, places=places_of(trace, found, spans))


def _by_launch(trace: Trace, found: Sequence[Found]) -> list[Found]:
    """Sort by launch: all ranks of a group launch its collectives in one order, whatever streams they run on.

    Kernels of different streams may start in another order on each rank.  A stream runs its work in the order
    of the launches, so a collective whose launch is not in the trace goes right before the next one of its
    stream whose launch is known, else right behind the last such one.  Streams without any known launch were
    filled before the window: they come first, one after the other.
    """
    start = np.array([trace.start_ns[each.rows[0]] for each in found], dtype=np.int64)
    stream = np.array([_stream(trace, each.rows[0]) for each in found], dtype=np.int64)
    launch = np.array(
        [min((int(trace.start_ns[call]) for call in each.calls), default=ABSENT) for each in found],
        dtype=np.int64,
    )
    order = np.lexsort((start, stream))
    neighbour, side = _neighbouring_launches(launch[order], stream[order])
    placed = np.lexsort((start[order], stream[order], side, neighbour))
    return [found[row] for row in order[placed].tolist()]


def _neighbouring_launches(launch: Int64s, stream: Int64s) -> tuple[Int64s, Int64s]:
    """Return the launch to sort each piece of work by, given by stream and start, and on which side of it."""
    rows = np.arange(len(launch))
    known = launch != ABSENT
    following = np.minimum.accumulate(np.where(known, rows, len(rows))[::-1])[::-1]
    before = np.maximum.accumulate(np.where(known, rows, -1))
    has_following = (following < len(rows)) & (stream[np.minimum(following, len(rows) - 1)] == stream)
    has_before = (before >= 0) & (stream[before] == stream)
    near = np.where(has_following, following, np.where(has_before, before, rows))
    side = np.where(known, 0, np.where(has_following, -1, 1))
    return launch[near], side.astype(np.int64)


def device_rows(
    trace: Trace, collectives: DeviceCollectives, groups: GroupNames
) -> tuple[list[CollectiveRow], list[Gap]]:
    """Make a row for each collective, by launch, and gaps for what is not known of them."""
    ordinals: dict[tuple[str, object], int] = defaultdict(int)
    rows: list[CollectiveRow] = []
    for found, place in zip(collectives.found, collectives.places, strict=True):
        row = _row(trace, found, place, groups)
        key = row.group, (row.kind, row.peer_rank) if row.kind in _SIDED else None
        rows.append(_numbered(row, found, place, ordinals[key]))
        ordinals[key] += 1
    return rows, [*gaps_of(rows, BY_NAME), *without_device_work(trace, rows)]


def _numbered(row: CollectiveRow, found: Found, place: Place, ordinal: int) -> CollectiveRow:
    """Add the sequence that is stated, else the order within the group.

    Sends and receives are numbered per peer: torch counts them per process, so that the two sides differ.
    """
    sided = row.kind in _SIDED
    if found.described.sequence is not None and not sided:
        return replace(row, sequence=found.described.sequence)
    if place.sequence is not None and not sided:
        return replace(row, sequence=place.sequence, method=BY_RANGE)
    return replace(row, sequence=ordinal, method=f"{found.rung}_order")


def _row(trace: Trace, found: Found, place: Place, groups: GroupNames) -> CollectiveRow:
    described = found.described
    group, size = _group(trace, found, place, groups)
    full = (described.elements or 0) * (described.element_bytes or 0)
    stream = _stream(trace, found.rows[0])
    return CollectiveRow(
        kind=str(described.kind or CollectiveKind.OTHER),
        group=group,
        group_size=size,
        sequence=0,
        dtype=described.dtype or "unknown",
        bytes=max(0, full),
        start_ns=int(trace.start_ns[found.rows[0]]),
        end_ns=max(_end(trace, row) for row in found.rows),
        launch_start_ns=min((int(trace.start_ns[call]) for call in found.calls), default=None),
        launch_end_ns=max((_end(trace, call) for call in found.calls), default=None),
        unit=place.unit,
        stream=None if stream == ABSENT else stream,
        peer_rank=described.peer,
        method=found.rung,
    )


def _group(trace: Trace, found: Found, place: Place, groups: GroupNames) -> tuple[str, int]:
    """Name and size: from the ranks, from the name, from there being one group only."""
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
    return only or (f"stream:{_shown_stream(trace, found.rows[0])}", 0)


def _shown_stream(trace: Trace, row: int) -> str:
    stream = _stream(trace, row)
    return "unknown" if stream == ABSENT else str(stream)


def _stream(trace: Trace, row: int) -> int:
    return int(trace.stream[row])


def _end(trace: Trace, row: int) -> int:
    return int(trace.start_ns[row] + trace.duration_ns[row])
