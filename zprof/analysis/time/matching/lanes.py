"""Split rows of collectives into lanes for matching, and place a lane's rows in instances.

A lane is a group in one way of counting (a stated sequence, or only an order); for point-to-point messages it
is one direction between two ranks. A group "0,1,5" or "0,1#name" has known ranks; groups with any other name
do not.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np
import pandas as pd
from msgspec import Struct, field

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.clocks.bounds import NO_ROW, Bools, ClockTable, Floats
from zprof.analysis.time.steps import WHOLE_TRACE
from zprof.analysis.time.timeline import RankWindow
from zprof.model.collectives import FULL_SYNC, CollectiveKind

#: For these kinds each rank records its own bytes, which may differ, or no tensor at all.
_OWN_BYTES = [str(k) for k in (CollectiveKind.ALL_TO_ALL, CollectiveKind.GATHER, CollectiveKind.SCATTER)]
_MESSAGES = [str(CollectiveKind.SEND), str(CollectiveKind.RECV)]
#: A clock that differs more than this from the first rank's has another origin.
_MAX_SAME_ORIGIN_NS = 10**12
NO_STEP = -1
_STREAM = "stream:"
#: Name of a lane whose ranks are unknown.
UNKNOWN_RANKS = "of unknown ranks"
_SEND, _RECV = str(CollectiveKind.SEND), str(CollectiveKind.RECV)


class Rung(StrEnum):
    """Method by which rows were matched, best first."""

    SEQUENCE = "sequence"
    ORDER = "order"
    SIGNATURE = "signature"
    STREAM = "stream"
    ALONE = "alone"


class MatchRows(Struct, frozen=True, kw_only=True):
    """Columns of all rows.

    ``signature`` is equal for rows with equal kind, dtype, bytes and group size. ``step``: the marked step
    that launched the row, -1 outside steps and if its launch is unknown. ``source``: the rank that all others
    wait for (root of a broadcast, sender); ``sink``: the rank that waits for all others; else -1. ``peer``:
    the other side or root, -1 if unknown. ``group`` is a code per group, ``counting`` per group and
    sequence method.
    """

    rank: Int64s
    sequence: Int64s
    signature: Int64s
    start: Floats
    end: Floats
    step: Int64s
    sync: Bools
    peer: Int64s
    source: Int64s
    sink: Int64s
    group: Int64s
    counting: Int64s


def is_full_sync(frame: pd.DataFrame) -> pd.Series:
    """Mark the rows of kinds that no rank can leave before all have entered."""
    return frame["kind"].isin([str(kind) for kind in FULL_SYNC])


def choose_bases(frame: pd.DataFrame, timelines: Sequence[RankWindow]) -> dict[int, int]:
    """Return the reference time of each rank: the same instant for all clocks of one origin."""
    first = {int(str(rank)): int(time) for rank, time in frame.groupby("rank")["start_ns"].min().items()}
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
    frame: pd.DataFrame, timelines: Sequence[RankWindow], base: Mapping[int, int]
) -> MatchRows:
    """Return the rows of a frame as columns for matching."""
    rank = frame["rank"].to_numpy(dtype=np.int64)
    moved = frame["rank"].map(base).to_numpy(dtype=np.int64)
    peer = _read_peers(frame)
    kind = frame["kind"].to_numpy()
    send, recv = kind == str(CollectiveKind.SEND), kind == str(CollectiveKind.RECV)
    source = np.where(send, rank, np.where(recv | (kind == str(CollectiveKind.BROADCAST)), peer, NO_ROW))
    group = number_values(frame["group"])
    method = number_values(frame["method"])
    return MatchRows(
        rank=rank,
        sequence=frame["sequence"].to_numpy(dtype=np.int64),
        signature=_encode_signatures(frame),
        start=(frame["start_ns"].to_numpy(dtype=np.int64) - moved).astype(np.float64),
        end=(frame["end_ns"].to_numpy(dtype=np.int64) - moved).astype(np.float64),
        step=_find_steps(frame, timelines),
        sync=is_full_sync(frame).to_numpy(dtype=bool),
        peer=peer,
        source=source.astype(np.int64),
        sink=np.where(kind == str(CollectiveKind.REDUCE), peer, NO_ROW).astype(np.int64),
        group=group,
        counting=number_values(pd.Series(group * (int(method.max(initial=0)) + 1) + method)),
    )


def number_values(values: pd.Series) -> Int64s:
    """Return an integer code per value, in order of first appearance.

    A group name with a thousand ranks is long: pandas would hash the text of each row, a dict hashes each
    string object only once.
    """
    code_by_value: dict[object, int] = {}
    return np.array(
        [code_by_value.setdefault(value, len(code_by_value)) for value in values.tolist()], dtype=np.int64
    )


def _read_peers(frame: pd.DataFrame) -> Int64s:
    if "peer_rank" not in frame:
        return np.full(len(frame), NO_ROW, dtype=np.int64)
    known: Int64s = frame["peer_rank"].fillna(NO_ROW).to_numpy(dtype=np.int64)
    return known


def _encode_signatures(frame: pd.DataFrame) -> Int64s:
    """Return a code per signature; send and recv share one, as the two sides of a message."""
    kind = frame["kind"].where(~frame["kind"].isin(_MESSAGES), "message")
    size = frame["bytes"].where(~frame["kind"].isin(_OWN_BYTES), 0)
    dtype = frame["dtype"].where(~frame["kind"].isin(_OWN_BYTES), "")
    columns = {"kind": kind, "dtype": dtype, "bytes": size, "group_size": frame["group_size"]}
    codes = [pd.factorize(column)[0].astype(np.int64) for column in columns.values()]
    combined = codes[0]
    for code in codes[1:]:
        combined = pd.factorize(combined * (int(code.max(initial=0)) + 1) + code)[0].astype(np.int64)
    return combined


def _find_steps(frame: pd.DataFrame, timelines: Sequence[RankWindow]) -> Int64s:
    step = np.full(len(frame), NO_STEP, dtype=np.int64)
    launch = frame["launch_start_ns"]
    known = launch.notna().to_numpy()
    times = launch.fillna(0).to_numpy(dtype=np.int64)
    rank = frame["rank"].to_numpy()
    for timeline in timelines:
        if timeline.source != WHOLE_TRACE:  # a single step does not help to order rows
            rows = np.flatnonzero(known & (rank == timeline.rank))
            step[rows] = timeline.host_steps.step_at(times[rows])
    return step


class GroupLane(Struct, frozen=True, kw_only=True):
    """Rows (positions in the frame, by rank and sequence) of a group.

    ``members`` are the loaded ranks, ``size`` is the number of ranks of the group, 0 if unknown. ``stated``:
    the program stated the sequence numbers; otherwise rows are only ordered.
    """

    group: str
    members: tuple[int, ...]
    size: int
    stated: bool
    rows: Int64s
    stream: bool = False


def split_lanes(
    frame: pd.DataFrame, rows: MatchRows, ranks: Sequence[int], world_size: int | None
) -> list[GroupLane]:
    """Return all lanes of groups whose ranks are known, and of the streams that all ranks have."""
    message = frame["kind"].isin([_SEND, _RECV]).to_numpy()
    rows_in_groups = np.flatnonzero(~message)
    sizes = frame["group_size"].to_numpy(dtype=np.int64)
    lanes = []
    for lane_rows in _split_by_code(rows_in_groups, rows.counting[rows_in_groups]):
        group, method = str(frame["group"].iat[lane_rows[0]]), str(frame["method"].iat[lane_rows[0]])
        members = list_members(group, ranks)
        if members:
            lane = GroupLane(
                group=group,
                members=members,
                size=int(sizes[lane_rows[0]]),
                stated=not method.endswith("_order"),
                rows=_sort_rows(lane_rows, rows),
            )
            lanes.append(lane)
    lanes = lanes
    lanes += _make_message_lanes(frame, rows, np.flatnonzero(message), ranks)
    return lanes + _make_stream_lanes(frame, rows, ranks, world_size)


def list_members(group: str, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the loaded ranks of a group "0,1" (or "0,1#name"); empty if its ranks are unknown."""
    words = group.split("#", 1)[0].split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        return ()
    return tuple(sorted({int(word) for word in words} & set(ranks)))


def _make_message_lanes(
    frame: pd.DataFrame, rows: MatchRows, message_rows: Int64s, ranks: Sequence[int]
) -> list[GroupLane]:
    """Return one lane per group, sender and receiver; rows with an unknown peer are left out."""
    message_rows = message_rows[rows.peer[message_rows] >= 0]
    if not len(message_rows):
        return []
    sends = (frame["kind"].iloc[message_rows] == _SEND).to_numpy()
    ends = pd.DataFrame(
        {
            "group": rows.group[message_rows],
            "sender": np.where(sends, rows.rank[message_rows], rows.peer[message_rows]),
            "receiver": np.where(sends, rows.peer[message_rows], rows.rank[message_rows]),
        }
    )
    lanes = []
    for lane_rows in _split_by_code(
        np.arange(len(message_rows)),
        ends.groupby(list(ends), sort=False).ngroup().to_numpy().astype(np.int64),
    ):
        _, sender, receiver = ends.iloc[lane_rows[0]]
        group = str(frame["group"].iat[int(message_rows[lane_rows[0]])])
        members = tuple(sorted({int(sender), int(receiver)} & set(ranks)))
        if sender != receiver:
            lane_rows = _sort_rows(message_rows[lane_rows], rows)
            lanes.append(GroupLane(group=group, members=members, size=2, stated=False, rows=lane_rows))
    return lanes


def _make_stream_lanes(
    frame: pd.DataFrame, rows: MatchRows, ranks: Sequence[int], world_size: int | None
) -> list[GroupLane]:
    """Return a lane for each stream of collectives without a group, if all ranks have the same streams.

    If each rank has one such stream, all form one lane; else streams of equal name do. Several streams mean
    several groups, whose ranks are known only if all ranks are loaded: two ranks of many may share no group.
    """
    first = np.unique(rows.group, return_index=True)[1]
    streams = [int(rows.group[row]) for row in first if str(frame["group"].iat[row]).startswith(_STREAM)]
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
            group=UNKNOWN_RANKS
            if len(parts) == 1
            else f"{UNKNOWN_RANKS} ({frame['group'].iat[lane_rows[0]]})",
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
    """A lane with the slot of each of its rows (-1: unmatched).

    ``shifts``: by how much a rank's own order was moved. ``excluded``: ranks that could not be matched.
    """

    lane: GroupLane
    slot: Int64s
    rung: Rung
    shifts: Mapping[int, int] = field(default_factory=dict)
    excluded: tuple[int, ...] = ()
    repaired: tuple[int, ...] = ()


def make_clock_table(placement: Placement, rows: MatchRows) -> ClockTable:
    """Return start and end of the placed rows, ranks x slots; empty slots are left out."""
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
    # Mark the first instance that each rank entered: it includes the start of that rank's profiler.
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


def list_slots(placement: Placement) -> Int64s:
    """Return the slot of each column of the placement's table."""
    return np.unique(placement.slot[placement.slot >= 0])


def _find_root_rows(roots: Int64s, lane_rows: Int64s, column: Int64s, count: int, lane: GroupLane) -> Int64s:
    """Return the row of each instance's root; NO_ROW if it is unknown, not loaded, or the ranks disagree."""
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, NO_ROW, dtype=np.int64)
    np.minimum.at(low, column, roots[lane_rows])
    np.maximum.at(high, column, roots[lane_rows])
    members = np.array(lane.members)
    position = np.minimum(np.searchsorted(members, high), len(members) - 1)
    return np.where((low == high) & (members[position] == high), position, NO_ROW).astype(np.int64)
