"""Rows of collectives that ran on a device.

A kernel's row has exactly the start, end and stream of its event.  A collective of several copies has one row
from the first start to the last end, on the stream of the first.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zprof.collectors.kineto.collectives.groups import GroupNames
from zprof.collectors.kineto.collectives.rows import CollectiveRow
from zprof.collectors.kineto.collectives.spans import RangeSpan
from zprof.collectors.kineto.columns import ABSENT, Group, Trace
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
    """All kernels and copies that are collectives, by start."""
    host = Host(trace)
    links = host.links(kernel_rows(trace))
    found = [*find_kernels(trace, links), *find_copies(trace, host, links)]
    found.sort(key=lambda collective: int(trace.start_ns[collective.rows[0]]))
    return DeviceCollectives(found=found, places=places_of(trace, found, spans))


def device_rows(
    trace: Trace, collectives: DeviceCollectives, groups: GroupNames
) -> tuple[list[CollectiveRow], list[Gap]]:
    """A row for each collective, by start, and what is not known of them."""
    ordinals: dict[tuple[str, object], int] = defaultdict(int)
    rows: list[CollectiveRow] = []
    for found, place in zip(collectives.found, collectives.places, strict=True):
        row = _row(trace, found, place, groups)
        key = row.group, (row.kind, row.peer_rank) if row.kind in _SIDED else None
        rows.append(_numbered(row, found, place, ordinals[key]))
        ordinals[key] += 1
    return rows, [*gaps_of(rows, BY_NAME), *without_device_work(trace, rows)]


def _numbered(row: CollectiveRow, found: Found, place: Place, ordinal: int) -> CollectiveRow:
    """With the sequence that is stated, else with the order within the group.

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
