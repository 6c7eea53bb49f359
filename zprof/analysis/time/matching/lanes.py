"""Split collective rows into lanes for matching, and place a lane's rows in instances.

A lane is a group with one way of counting (a stated sequence, or only an order); for point-to-point messages,
it is one direction between two ranks. The ranks of a group "0,1,5" or "0,1#name" are known; those of groups
with other names are not.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import numpy as np
from msgspec import Struct, field

from zprof.analysis.columns import Columns, Floats, Groups, Mask, Texts
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.clocks import NO_ROW, ClockTable
from zprof.analysis.time.decomposition import mark_full_syncs, parse_group_ranks
from zprof.analysis.time.steps import WHOLE_TRACE
from zprof.analysis.time.timeline import RankWindow
from zprof.model.collectives import CollectiveKind

#: For these kinds, each rank records its own bytes, which may differ, or no tensor at all.
_OWN_BYTES = (CollectiveKind.ALL_TO_ALL, CollectiveKind.GATHER, CollectiveKind.SCATTER)
_MESSAGES = (CollectiveKind.SEND, CollectiveKind.RECV)
#: A clock that differs from the first rank's by more than this has a different origin.
_MAX_SAME_ORIGIN_NS = 10**12
NO_STEP = -1
_STREAM = "stream:"
#: Maximum share of conflicting sequence numbers in a lane; above this, no row is matched by sequence.
MAX_CONFLICT_SHARE = 0.1
#: Name of a lane whose ranks are unknown.
UNKNOWN_RANKS = "of unknown ranks"


class Rung(StrEnum):
    """Matching methods, best first."""

    SEQUENCE = "sequence"
    ORDER = "order"
    SIGNATURE = "signature"
    STREAM = "stream"
    ALONE = "alone"


class ClockDifference(Struct, frozen=True, kw_only=True):
    """Difference between two clocks: offset, drift, and uncertainty."""

    offset: float
    drift: float
    uncertainty_ns: float


class ClockHint(Struct, frozen=True, kw_only=True):
    """Prior knowledge of the difference between two clocks.

    ``one_host``: the difference is 0 in practice. ``one_origin``: both clocks count from the same moment, so
    a small difference is more likely than a large one.
    """

    measured: ClockDifference | None = None
    one_host: bool = False
    one_origin: bool = True


#: Returns one rank's clock hint relative to another rank.
Hints = Callable[[int, int], ClockHint]


class MatchRows(Struct, frozen=True, kw_only=True):
    """Columns of all rows.

    ``signature``: equal for rows with equal kind, dtype, bytes and group size. ``step``: the marked step that
    launched the row, -1 outside steps and if the launch is unknown. ``source``: the rank that all others wait
    for (a broadcast's root, a sender); ``sink``: the rank that waits for all others; else -1. ``peer``: the
    other side or root, -1 if unknown. ``group``: a code per group; ``counting``: a code per group and
    sequence method.
    """

    rank: Int64s
    sequence: Int64s
    signature: Int64s
    start: Floats
    end: Floats
    step: Int64s
    sync: Mask
    peer: Int64s
    source: Int64s
    sink: Int64s
    group: Int64s
    counting: Int64s


def choose_bases(collectives: Columns, timelines: Sequence[RankWindow]) -> dict[int, int]:
    """Return each rank's reference time: the same moment for all clocks with one origin."""
    by_rank = Groups(collectives.ints("rank"))
    ranks_with_rows = collectives.ints("rank")[by_rank.first].tolist()
    first = dict(zip(ranks_with_rows, by_rank.min(collectives.ints("start_ns")).tolist(), strict=True))
    for timeline in timelines:
        times = (begin for begin, _ in timeline.pings.values())
        known = [*times, *([first[timeline.rank]] if timeline.rank in first else [])]
        if known:
            first[timeline.rank] = min(known)
    ranks = sorted(timeline.rank for timeline in timelines)
    common = first.get(ranks[0], next(iter(first.values()), 0))
    own = {rank: first.get(rank, common) for rank in ranks}
    return {rank: common if abs(time - common) < _MAX_SAME_ORIGIN_NS else time for rank, time in own.items()}


def make_match_rows(
    collectives: Columns, timelines: Sequence[RankWindow], base: Mapping[int, int]
) -> MatchRows:
    """Return a collective table's rows as columns for matching."""
    rank, kind = collectives.ints("rank"), collectives.texts("kind")
    ranks, place = np.unique(rank, return_inverse=True)
    moved = np.array([base[each] for each in ranks.tolist()], dtype=np.int64)[place]
    peer = collectives.ints("peer_rank", NO_ROW)
    takes_from_peer = kind.equals(CollectiveKind.RECV, CollectiveKind.BROADCAST)
    group = number_values(collectives.texts("group").codes)
    method = number_values(collectives.texts("method").codes)
    step = np.full(len(collectives), NO_STEP, dtype=np.int64)
    launched, launched_ns = collectives.known("launch_start_ns"), collectives.ints("launch_start_ns")
    for timeline in timelines:
        if timeline.source != WHOLE_TRACE:  # a single step does not help to order rows
            own = np.flatnonzero(launched & (rank == timeline.rank))
            step[own] = timeline.host_steps.step_at(launched_ns[own])
    return MatchRows(
        rank=rank,
        sequence=collectives.ints("sequence"),
        signature=_encode_signatures(collectives),
        start=(collectives.ints("start_ns") - moved).astype(np.float64),
        end=(collectives.ints("end_ns") - moved).astype(np.float64),
        step=step,
        sync=mark_full_syncs(collectives),
        peer=peer,
        source=np.where(kind.equals(CollectiveKind.SEND), rank, np.where(takes_from_peer, peer, NO_ROW)),
        sink=np.where(kind.equals(CollectiveKind.REDUCE), peer, NO_ROW),
        group=group,
        counting=number_values(group * (int(method.max(initial=0)) + 1) + method),
    )


def number_values(values: Int64s) -> Int64s:
    """Return an integer code per value, in order of first appearance."""
    _, first, place = np.unique(values, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[place]


def _encode_signatures(collectives: Columns) -> Int64s:
    """Return a code per signature; send and recv share a code, as the two sides of a message."""
    kind = collectives.texts("kind")
    has_own_bytes = kind.equals(*_OWN_BYTES)
    columns = (
        np.where(kind.equals(*_MESSAGES), len(kind.words), kind.codes),
        np.where(has_own_bytes, -1, collectives.texts("dtype").codes),
        np.where(has_own_bytes, 0, collectives.ints("bytes")),
        collectives.ints("group_size"),
    )
    combined = number_values(columns[0])
    for column in columns[1:]:
        code = number_values(column)
        combined = number_values(combined * (int(code.max(initial=0)) + 1) + code)
    return combined


class GroupLane(Struct, frozen=True, kw_only=True):
    """A group's rows (table positions, by rank and sequence).

    ``members``: the loaded ranks; ``size``: the group's number of ranks, 0 if unknown. ``stated``: the
    program stated the sequence numbers; otherwise rows are only ordered.
    """

    group: str
    members: tuple[int, ...]
    size: int
    stated: bool
    rows: Int64s
    stream: bool = False


def split_lanes(
    collectives: Columns, rows: MatchRows, ranks: Sequence[int], world_size: int | None
) -> list[GroupLane]:
    """Return all lanes of groups with known ranks, and of the streams that all ranks have."""
    message = collectives.texts("kind").equals(*_MESSAGES)
    rows_in_groups = np.flatnonzero(~message)
    groups, methods = collectives.texts("group"), collectives.texts("method")
    sizes = collectives.ints("group_size")
    lanes = []
    for lane_rows in _split_by_code(rows_in_groups, rows.counting[rows_in_groups]):
        group, method = groups[lane_rows[0]], methods[lane_rows[0]]
        members = tuple(sorted(parse_group_ranks(group) & set(ranks)))
        if members:
            lane = GroupLane(
                group=group,
                members=members,
                size=int(sizes[lane_rows[0]]),
                stated=not method.endswith("_order"),
                rows=_sort_rows(lane_rows, rows),
            )
            lanes.append(lane)
    lanes += _make_message_lanes(collectives, rows, np.flatnonzero(message), ranks)
    return lanes + _make_stream_lanes(groups, rows, ranks, world_size)


def _make_message_lanes(
    collectives: Columns, rows: MatchRows, message_rows: Int64s, ranks: Sequence[int]
) -> list[GroupLane]:
    """Return one lane per group, sender and receiver; rows with an unknown peer are left out."""
    message_rows = message_rows[rows.peer[message_rows] >= 0]
    sends = collectives.texts("kind").equals(CollectiveKind.SEND)[message_rows]
    own, peer = rows.rank[message_rows], rows.peer[message_rows]
    sender, receiver = np.where(sends, own, peer), np.where(sends, peer, own)
    lanes = []
    code = number_values(Groups(rows.group[message_rows], sender, receiver).codes)
    for places in _split_by_code(np.arange(len(message_rows)), code):
        ends = {int(sender[places[0]]), int(receiver[places[0]])}
        if len(ends) > 1:
            lane_rows = _sort_rows(message_rows[places], rows)
            group = collectives.texts("group")[message_rows[places[0]]]
            members = tuple(sorted(ends & set(ranks)))
            lanes.append(GroupLane(group=group, members=members, size=2, stated=False, rows=lane_rows))
    return lanes


def _make_stream_lanes(
    names: Texts, rows: MatchRows, ranks: Sequence[int], world_size: int | None
) -> list[GroupLane]:
    """Return a lane for each stream of groupless collectives, if all ranks have the same streams.

    If each rank has one such stream, they form one lane; else streams with equal names do. Several streams
    mean several groups, whose ranks are known only if all ranks are loaded: two ranks of many may share no
    group.
    """
    first = np.unique(rows.group, return_index=True)[1]
    streams = [int(rows.group[row]) for row in first if names[row].startswith(_STREAM)]
    stream_rows = np.flatnonzero(np.isin(rows.group, streams))
    if not len(stream_rows) or len(ranks) < 2:
        return []
    groups_by_rank = {
        rank: set(rows.group[stream_rows[rows.rank[stream_rows] == rank]].tolist()) for rank in ranks
    }
    if all(len(groups) == 1 for groups in groups_by_rank.values()):
        parts = [stream_rows]
    elif len(ranks) == world_size and all(groups == set(streams) for groups in groups_by_rank.values()):
        parts = _split_by_code(stream_rows, rows.group[stream_rows])
    else:
        return []
    return [
        GroupLane(
            group=UNKNOWN_RANKS if len(parts) == 1 else f"{UNKNOWN_RANKS} ({names[lane_rows[0]]})",
            members=tuple(sorted(ranks)),
            size=world_size if world_size == len(ranks) else 0,
            stated=False,
            rows=_sort_rows(lane_rows, rows),
            stream=True,
        )
        for lane_rows in parts
    ]


def _sort_rows(lane_rows: Int64s, rows: MatchRows) -> Int64s:
    order = np.lexsort((rows.start[lane_rows], rows.sequence[lane_rows], rows.rank[lane_rows]))
    return lane_rows[order]


def _split_by_code(positions: Int64s, code: Int64s) -> list[Int64s]:
    if not len(positions):
        return []
    order = np.argsort(code, kind="stable")
    return np.split(positions[order], np.flatnonzero(np.diff(code[order])) + 1)


ALONE = -1


class Placement(Struct, frozen=True, kw_only=True):
    """A lane with each row's slot (-1: unmatched).

    ``shifts``: the number of slots by which a rank's order was moved. ``excluded``: unmatched ranks.
    """

    lane: GroupLane
    slot: Int64s
    rung: Rung
    shifts: Mapping[int, int] = field(default_factory=dict)
    excluded: tuple[int, ...] = ()
    repaired: tuple[int, ...] = ()


def make_clock_table(placement: Placement, rows: MatchRows) -> ClockTable:
    """Return start and end of the placed rows, with shape ranks x slots; empty slots are left out."""
    lane = placement.lane
    placed = placement.slot >= 0
    lane_rows = lane.rows[placed]
    slots, column = np.unique(placement.slot[placed], return_inverse=True)
    row = np.searchsorted(np.array(lane.members), rows.rank[lane_rows])
    shape = len(lane.members), len(slots)
    start, end = np.full(shape, np.nan), np.full(shape, np.nan)
    start[row, column], end[row, column] = rows.start[lane_rows], rows.end[lane_rows]
    row_of_slot = np.zeros(len(slots), dtype=np.int64)
    row_of_slot[column] = lane_rows
    # Mark each rank's first instance, which includes its profiler start-up.
    is_first = np.zeros(start.shape[1], dtype=bool)
    if start.shape[1]:
        known = ~np.isnan(start)
        is_first[np.where(known, start, np.inf).argmin(axis=1)[known.any(axis=1)]] = True
    return ClockTable(
        ranks=lane.members,
        start=start,
        end=end,
        sync=rows.sync[row_of_slot] if len(slots) else np.zeros(0, dtype=bool),
        first=is_first,
        source=_find_root_rows(rows.source, lane_rows, column, len(slots), lane),
        sink=_find_root_rows(rows.sink, lane_rows, column, len(slots), lane),
    )


def _find_root_rows(roots: Int64s, lane_rows: Int64s, column: Int64s, count: int, lane: GroupLane) -> Int64s:
    """Return each instance's root row; NO_ROW if the root is unknown or not loaded, or if ranks disagree."""
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, NO_ROW, dtype=np.int64)
    np.minimum.at(low, column, roots[lane_rows])
    np.maximum.at(high, column, roots[lane_rows])
    members = np.array(lane.members)
    position = np.minimum(np.searchsorted(members, high), len(members) - 1)
    return np.where((low == high) & (members[position] == high), position, NO_ROW).astype(np.int64)


def place_by_sequence(lane: GroupLane, rows: MatchRows) -> tuple[Placement, Mask]:
    """Return each row's slot, and the rows with a conflicting or repeated sequence number."""
    names, slot = np.unique(rows.sequence[lane.rows], return_inverse=True)
    count = len(names)
    signature = rows.signature[lane.rows]
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, dtype=np.int64)
    np.minimum.at(low, slot, signature)
    np.maximum.at(high, slot, signature)
    twice = np.zeros(count, dtype=bool)
    rank = rows.rank[lane.rows]
    is_repeated = (rank[1:] == rank[:-1]) & (slot[1:] == slot[:-1])
    twice[slot[1:][is_repeated]] = True
    is_conflict: Mask = (low != high) | twice
    bad = is_conflict
    if bad.mean() > MAX_CONFLICT_SHARE:
        bad = np.ones(len(names), dtype=bool)
    on_row: Mask = bad[slot]
    return Placement(lane=lane, slot=np.where(on_row, ALONE, slot), rung=Rung.SEQUENCE), on_row
