"""Find the critical path: what each step waited on, by rank.

The walk starts at the rank that ends last and goes backward in time. If a collective blocked the rank, the
path switches to the rank that arrived last, at its arrival; if a collective started when the previous one on
its stream ended, the path continues through that one; otherwise it is the rank's own work. The pieces are
contiguous, so they sum to the step.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from msgspec import Struct

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, covered, subtract
from zprof.analysis.time.blame.late_arrivals import group_by_rank
from zprof.analysis.time.blame.reasons import ReadCalls
from zprof.analysis.time.blocking import BEFORE_ALL_NS
from zprof.analysis.time.collective_rows import Instances, RowFinder
from zprof.analysis.time.host_calls import HostCalls
from zprof.analysis.time.rank import RankWork
from zprof.analysis.time.steps import StepWindows
from zprof.analysis.time.transfer.decomposition import UNKNOWN_RANK
from zprof.model.collectives import FULL_SYNC
from zprof.model.time import CriticalPath, PathKind, PathSegment, PathShare

#: A collective that starts at most this long after the previous one on its stream was waiting for it.
_RIGHT_AFTER_NS = 20_000
#: From the end of a collective to the rank's next activity: 30 to 200 µs measured on CPU ranks.
_MAX_WAKE_UP_NS = 300_000
#: Maximum number of a rank's collectives that have started but not ended: their launches are queued.
_MAX_CONCURRENT = 256
#: Maximum pieces of a path; a step has a few per collective.
_MAX_PIECES = 20_000
_MAX_SEGMENTS = 8


class SyncPoints(Struct, frozen=True, kw_only=True):
    """Columns of the collectives, and the rows of each rank sorted by start.

    ``last_arrival_row``: the row of the rank that the others waited for, or the row itself if unknown.
    ``previous_row``: the row of the previous collective on its stream if it waited for that, else -1.
    """

    rank: Int64s
    start: Int64s
    end: Int64s
    last_arrival_row: Int64s
    previous_row: Int64s
    rows_by_rank: dict[int, Int64s]

    def find_last_ended(self, rank: int, since_ns: int, until_ns: int) -> int:
        """Return the rank's row that ended last, shortly before the rank continued; -1 if there is none.

        The rank did not wait for a collective that ended long before that or was still running.
        """
        rows = self.rows_by_rank.get(rank)
        if rows is None:
            return -1
        stop = bisect_left(rows, until_ns, key=lambda row: int(self.start[row]))
        rows = rows[max(0, stop - _MAX_CONCURRENT) : stop]
        end = self.end[rows]
        candidates = np.flatnonzero(
            (end > since_ns) & (end >= until_ns - _MAX_WAKE_UP_NS) & (end <= until_ns + _RIGHT_AFTER_NS)
        )
        return int(rows[candidates[np.argmax(end[candidates])]]) if len(candidates) else -1


def index_sync_points(frame: pd.DataFrame) -> SyncPoints:
    """Return the sync points of a table of collectives with launch and arrival columns."""
    rank, start, end = (frame[name].to_numpy(np.int64) for name in ("rank", "start_ns", "end_ns"))
    return SyncPoints(
        rank=rank,
        start=start,
        end=end,
        last_arrival_row=_find_last_arrivals(frame, rank, start),
        previous_row=_find_previous_rows(frame, rank, start),
        rows_by_rank={
            number: rows[np.argsort(start[rows], kind="stable")] for number, rows in group_by_rank(rank)
        },
    )


def _find_last_arrivals(frame: pd.DataFrame, rank: Int64s, start: Int64s) -> Int64s:
    """Return the last row to start for full syncs; for other kinds the awaited row, if known."""
    instance, itself = frame["instance"].to_numpy(np.int64), np.arange(len(frame))
    instances = Instances(instance)
    latest = instances.broadcast(instances.find_largest_rows(start), itself)
    is_full_sync = frame["kind"].isin([str(kind) for kind in FULL_SYNC]).to_numpy(np.bool_)
    is_full_sync &= ~frame["bound"].to_numpy(np.bool_) & (instance >= 0)
    last_rank = frame["last_rank"].to_numpy(np.int64)
    awaited_row = RowFinder(instance, rank).find(np.where(last_rank == UNKNOWN_RANK, -1, instance), last_rank)
    return np.where(is_full_sync, latest, np.where(awaited_row >= 0, awaited_row, itself))


def _find_previous_rows(frame: pd.DataFrame, rank: Int64s, start: Int64s) -> Int64s:
    """Return the previous collective, if neither launch nor compute was ready later than its end; else -1."""
    previous_end = frame["previous_ns"].to_numpy(np.int64)
    ready = np.maximum(frame["launch_ns"].to_numpy(np.int64), frame["computed_ns"].to_numpy(np.int64))
    ready = np.where(frame["launch_start_ns"].notna(), ready, frame["computed_ns"].to_numpy(np.int64))
    has_waited = (previous_end >= ready) & (start - previous_end <= _RIGHT_AFTER_NS)
    finder = RowFinder(frame["instance"].to_numpy(np.int64), rank)
    previous = finder.find(np.where(has_waited, frame["previous_instance"].to_numpy(np.int64), -1), rank)
    return np.where(previous >= 0, previous, -1)


class PathPiece(Struct, frozen=True, kw_only=True):
    """Part of the path of one step: a rank's own work, or (``moving``) a transfer that it waited for."""

    rank: int
    begin_ns: int
    end_ns: int
    moving: bool


def walk_back(
    rank: int,
    begins: Mapping[int, int],
    end_ns: int,
    blocked: Mapping[int, Intervals],
    sync_points: SyncPoints,
) -> list[PathPiece]:
    """Return the path of one step, last piece first.

    Args:
        rank: The rank that ends last.
        begins: Start of the step on each rank.
        end_ns: End of the step on ``rank``.
        blocked: Intervals in which collectives blocked each rank.
        sync_points: The collectives.
    """
    pieces: list[PathPiece] = []
    now = end_ns
    while now > begins[rank] and len(pieces) < _MAX_PIECES:
        blocked_from, blocked_until = _find_last_blocked(blocked[rank], now)
        row = (
            sync_points.find_last_ended(rank, blocked_from, blocked_until)
            if blocked_until > begins[rank]
            else -1
        )
        work_limit = int(sync_points.end[row]) if row >= 0 else blocked_from
        work_start = max(begins[rank], min(work_limit, now))
        if work_start < now:
            pieces.append(PathPiece(rank=rank, begin_ns=work_start, end_ns=now, moving=False))
        now = work_start
        if row >= 0:
            rank, now = _walk_through_collective(sync_points, row, now, begins, pieces)
    return pieces


def _find_last_blocked(blocked: Intervals, now: int) -> tuple[int, int]:
    """Return the last blocked interval up to ``now``, or an empty one in the far past."""
    position = int(np.searchsorted(blocked[:, 0], now, side="left")) - 1
    if position < 0:
        return BEFORE_ALL_NS, BEFORE_ALL_NS
    return int(blocked[position, 0]), min(int(blocked[position, 1]), now)


def _walk_through_collective(
    sync_points: SyncPoints, row: int, now: int, begins: Mapping[int, int], pieces: list[PathPiece]
) -> tuple[int, int]:
    """Follow a collective and those queued before it; return the last rank to arrive and its arrival."""
    while True:
        last_arrival_row = int(sync_points.last_arrival_row[row])
        rank = int(sync_points.rank[row])
        arrived = max(begins[rank], min(int(sync_points.start[last_arrival_row]), now - 1))
        pieces.append(PathPiece(rank=rank, begin_ns=arrived, end_ns=now, moving=True))
        rank, now = int(sync_points.rank[last_arrival_row]), arrived
        row = int(sync_points.previous_row[last_arrival_row])
        if row < 0 or now <= begins[rank] or len(pieces) >= _MAX_PIECES:
            return rank, now


def find_critical_path(
    frame: pd.DataFrame, work: Mapping[int, RankWork], steps: Mapping[int, StepWindows], calls: ReadCalls
) -> CriticalPath | None:
    """Return the path through all steps that every rank has; None if there is no such step.

    Args:
        frame: Collectives of all ranks with their launches, on the common clock.
        work: Work of each rank.
        steps: Steps of each rank.
        calls: Returns the host calls of a rank; called only for ranks on the path.
    """
    windows = _find_common_steps(steps)
    if not windows:
        return None
    sync_points = index_sync_points(frame)
    blocked = {rank: rank_work.blocked for rank, rank_work in work.items()}
    pieces_by_step: list[tuple[int, list[PathPiece]]] = []
    for step, spans in windows.items():
        last_rank = max(spans, key=lambda rank: spans[rank][1])
        begins = {rank: begin for rank, (begin, _) in spans.items()}
        pieces = walk_back(last_rank, begins, spans[last_rank][1], blocked, sync_points)
        pieces_by_step.append((step, pieces))
    parts = _split_pieces([piece for _, pieces in pieces_by_step for piece in pieces], work, calls)
    return _make_critical_path(pieces_by_step, parts)


def _find_common_steps(steps: Mapping[int, StepWindows]) -> dict[int, dict[int, tuple[int, int]]]:
    """Return the start and end on each rank, by step, for steps that all ranks have."""
    spans_by_step: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    for rank, windows in steps.items():
        for number, begin, end in zip(
            windows.number.tolist(), windows.begin_ns.tolist(), windows.end_ns.tolist(), strict=True
        ):
            spans_by_step[number][rank] = (begin, end)
    return {number: spans for number, spans in sorted(spans_by_step.items()) if len(spans) == len(steps)}


PathParts = dict[PathKind, int]


def _split_pieces(
    pieces: Sequence[PathPiece], work: Mapping[int, RankWork], calls: ReadCalls
) -> list[PathParts]:
    """Return the time of each piece by kind, which sums to the piece; the remainder of own work is host time.

    All pieces of a rank are measured at once: a recording may have hundreds of thousands of steps.
    """
    parts = [{PathKind.TRANSFER: piece.end_ns - piece.begin_ns} for piece in pieces]
    own_by_rank: dict[int, list[int]] = defaultdict(list)
    for index, piece in enumerate(pieces):
        if not piece.moving:
            own_by_rank[piece.rank].append(index)
    for rank, own in own_by_rank.items():
        spans = [(pieces[index].begin_ns, pieces[index].end_ns) for index in own]
        begins, ends = np.array(spans, dtype=np.int64).T
        sets = _make_disjoint_sets(work[rank], calls(rank))
        times = {kind: covered(covering, begins, ends) for kind, covering in sets}
        times[PathKind.HOST] = ends - begins - sum(times.values())
        kinds = tuple(times)
        for index, row in zip(own, np.column_stack(tuple(times.values())).tolist(), strict=True):
            parts[index] = dict(zip(kinds, row, strict=True))
    return parts


def _make_disjoint_sets(rank_work: RankWork, host: HostCalls) -> Sequence[tuple[PathKind, Intervals]]:
    sets, taken = [], EMPTY
    for kind, spans in (
        (PathKind.COMPUTE, rank_work.compute),
        (PathKind.COPIES, rank_work.copies),
        (PathKind.DATA, host.loader),
        (PathKind.ALLOCATOR, host.allocator),
        (PathKind.SYNC, host.sync),
    ):
        free = subtract(spans, taken)
        sets.append((kind, free))
        taken = np.concatenate((taken, free))
    return sets


def _make_critical_path(
    pieces_by_step: Sequence[tuple[int, Sequence[PathPiece]]], parts: Iterable[PathParts]
) -> CriticalPath:
    sums: dict[tuple[int, PathKind], int] = defaultdict(int)
    segments: list[PathSegment] = []
    remaining = iter(parts)
    for step, pieces in pieces_by_step:
        for piece in pieces:
            by_kind = next(remaining)
            for kind, length in by_kind.items():
                sums[piece.rank, kind] += length
            segments.append(
                PathSegment(
                    step=step,
                    rank=piece.rank,
                    what=max(by_kind, key=by_kind.__getitem__),
                    begin_ns=piece.begin_ns - pieces[-1].begin_ns,
                    ns=piece.end_ns - piece.begin_ns,
                )
            )
    steps = len(pieces_by_step)
    shares = [PathShare(rank=rank, what=kind, ns=length // steps) for (rank, kind), length in sums.items()]
    by_length = sorted(segments, key=lambda segment: (-segment.ns, segment.step, segment.begin_ns))
    return CriticalPath(
        steps=steps,
        wall_ns=sum(segment.ns for segment in segments) // steps,
        shares=tuple(sorted((share for share in shares if share.ns > 0), key=_sort_key)),
        longest=tuple(by_length[:_MAX_SEGMENTS]),
    )


def _sort_key(share: PathShare) -> tuple[int, int, str]:
    return (-share.ns, share.rank, share.what)
