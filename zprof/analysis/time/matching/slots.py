"""Assign each row of a lane its slot: by the stated sequence, or by order and times.

Without a stated sequence, the rank with the most common order defines the slots. Ranks with the same
signatures in the same steps take the same slots, if at the resulting clocks each row also overlaps its
partner. Every other rank is registered by its times.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.clocks.bounds import Bools, Floats
from zprof.analysis.time.clocks.votes import weighted_medians
from zprof.analysis.time.matching.lanes import ALONE, NO_STEP, Lane, MatchRows, Placement, Rung
from zprof.analysis.time.matching.overlap import RankRows, overlaps_enough
from zprof.analysis.time.matching.registration import ClockDifference, ClockHint, register_rows

#: Returns what is known about the clock of one rank against another's.
Hints = Callable[[int, int], ClockHint]
#: Maximum number of ranks tried as the one that defines the slots.
_MAX_TRIES = 3
#: Share of the rows that may overlap their partner by less than a tenth of the shorter row (measured on two
#: processors running eight programs: up to a twentieth of the rows).
_MAX_LITTLE_SHARE, _LITTLE_OVERLAP = 0.08, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapLimits:
    """Limits on rows that overlap their partner only a little.

    ``little_together``: share of the rows that may overlap their partner by less than half of the shorter
    one. ``touching``: a row that overlaps by less than this is not matched, because it may overlap the
    neighbour of its partner as much.
    """

    little_together: float
    touching: float


#: Measured: up to a third of the rows, and 0.026.
VOTE_LIMITS = OverlapLimits(little_together=0.4, touching=0.02)
#: A shared host clock is not affected by wrong pairs; on two busy processors 0.57 of 790 short rows
#: overlapped little.
HOST_LIMITS = OverlapLimits(little_together=0.7, touching=0.01)
_STILL = ClockDifference(offset=0.0, drift=0.0, doubt_ns=0.0)


def place_by_order(lane: Lane, rows: MatchRows, hints: Hints) -> Placement:
    """Return the slot of each row of a lane, by order and times."""
    lines = split_by_rank(lane, rows)
    if len(lines) < 2:
        return Placement(lane=lane, slot=np.arange(len(lane.rows)), rung=Rung.ORDER)
    found: dict[int, Int64s] = {}
    for fixed in _choose_references(lines):
        tried = _place_on(fixed, lines, hints)
        found = max(found, tried, key=_count_placed)
        if len(found) > len(lines) / 2 and len(found) > 1:
            break
    return _make_placement(lane, rows, lines, found)


def _count_placed(found: Mapping[int, Int64s]) -> int:
    return sum(int((slots >= 0).sum()) for slots in found.values()) if len(found) > 1 else 0


def split_by_rank(lane: Lane, rows: MatchRows) -> dict[int, RankRows]:
    """Return each rank's rows of a lane, in its order."""
    rank = rows.rank[lane.rows]
    cuts = np.flatnonzero(np.diff(rank)) + 1
    return {
        int(rows.rank[mine[0]]): RankRows(
            signature=rows.signature[mine],
            start=rows.start[mine],
            end=rows.end[mine],
            step=rows.step[mine],
            sync=rows.sync[mine],
        )
        for mine in np.split(lane.rows, cuts)
        if len(mine)
    }


def _choose_references(lines: Mapping[int, RankRows]) -> list[int]:
    """Return ranks that may define the slots: those with the most common order first, then the longest."""
    key = {rank: (line.signature.tobytes(), line.step.tobytes()) for rank, line in lines.items()}
    count = Counter(key.values())
    by_worth = sorted(lines, key=lambda rank: (-count[key[rank]], -len(lines[rank]), rank))
    return by_worth[:_MAX_TRIES]


def _place_on(fixed: int, lines: Mapping[int, RankRows], hints: Hints) -> dict[int, Int64s]:
    """Return slots by rank, for the ranks that fit onto ``fixed``."""
    slots = np.arange(len(lines[fixed]), dtype=np.int64)
    found = {fixed: slots} | _place_alike(fixed, lines, hints)
    for rank, line in lines.items():
        if rank not in found:
            partner = register_rows(lines[fixed], line, hints(fixed, rank))
            if partner is not None:
                found[rank] = partner
    return found


def _place_alike(fixed: int, lines: Mapping[int, RankRows], hints: Hints) -> dict[int, Int64s]:
    """Return slots of the ranks with the same rows in the same steps, if their times agree too.

    Ranks on one host use its clock: pings delayed by busy processors differ by 0.7 ms there. Other ranks use
    the measured difference, or the votes of the rows.
    """
    first = lines[fixed]
    ranks = [rank for rank, line in lines.items() if rank != fixed and _are_equal(first, line)]
    anchored = bool((first.step != NO_STEP).any()) and len(np.unique(first.step)) > 1
    known = {rank: hints(fixed, rank) for rank in ranks}
    ranks = [rank for rank in ranks if anchored or known[rank].measured is not None]
    if not ranks or not first.sync.any():
        slots = np.arange(len(first), dtype=np.int64)
        return dict.fromkeys(ranks, slots) if anchored else {}
    still = {rank: _STILL for rank in ranks if known[rank].one_host}
    mates = _place_agreeing(first, lines, still, HOST_LIMITS)
    others = {rank: known[rank].measured for rank in ranks if rank not in mates}
    return mates | _place_agreeing(first, lines, others, VOTE_LIMITS)


def _place_agreeing(
    first: RankRows,
    lines: Mapping[int, RankRows],
    clocks: Mapping[int, ClockDifference | None],
    limits: OverlapLimits,
) -> dict[int, Int64s]:
    """Return slots of the ranks of ``clocks`` whose times agree; a None clock is estimated from the rows."""
    if not clocks:
        return {}
    moved = [lines[rank].moved(0.0, clock.drift if clock else 0.0) for rank, clock in clocks.items()]
    start, end = np.array([line.start for line in moved]), np.array([line.end for line in moved])
    shorter = np.minimum(end - start, first.end - first.start).clip(min=1.0)
    voted = weighted_medians(end - first.end, np.where(first.sync, 1.0 / shorter, 0.0))
    offset = np.array([c.offset if c else vote for c, vote in zip(clocks.values(), voted, strict=True)])
    uncertainty = np.array([clock.doubt_ns if clock else 0.0 for clock in clocks.values()])
    moved_start, moved_end = start - offset[:, None], end - offset[:, None]
    fits, refused = check_overlaps(first, moved_start, moved_end, uncertainty, limits)
    slots = np.where(refused, ALONE, np.arange(len(first), dtype=np.int64))
    return {rank: slots[row] for row, rank in enumerate(clocks) if fits[row]}


def _are_equal(one: RankRows, other: RankRows) -> bool:
    return (
        len(one) == len(other)
        and bool((one.signature == other.signature).all())
        and bool((one.step == other.step).all())
    )


def check_overlaps(
    first: RankRows, start: Floats, end: Floats, uncertainty: Floats, limits: OverlapLimits
) -> tuple[Bools, Bools]:
    """Return which ranks fit, one entry per rank, and which of their rows do not (ranks x rows).

    On overloaded processors, gloo's thread may leave a collective late on one rank, and enter the next one
    late. So some rows may share little, and few almost nothing. A row that shares no more than it would with
    the neighbour of its partner is not matched, and neither are adjacent rows that share little: if each rank
    lost another event, the rows between the two are paired with neighbours. It takes more than a few such
    rows to refuse the rank.
    """
    moved = RankRows(signature=first.signature, start=start, end=end, step=first.step, sync=first.sync)
    enough, little, more = (
        overlaps_enough(first, moved, uncertainty[:, None], share) | ~first.sync
        for share in (0.5, _LITTLE_OVERLAP, limits.touching)
    )
    some = (~enough).sum(axis=1) <= limits.little_together * first.sync.sum()
    few = (~little).sum(axis=1) <= _MAX_LITTLE_SHARE * first.sync.sum()
    refused = np.array([_find_stretches(*pair) for pair in zip(~enough, ~more, strict=True)], dtype=bool)
    return np.asarray(some & few, dtype=bool), refused


def _find_stretches(rows: Bools, around: Bools) -> Bools:
    """Return the unbroken stretches of ``rows`` that contain one of ``around`` (a subset of them)."""
    stretch = np.cumsum(np.diff(rows.astype(np.int8), prepend=0) == 1)
    found: Bools = rows & np.isin(stretch, stretch[around])
    return found


def _make_placement(
    lane: Lane, rows: MatchRows, lines: Mapping[int, RankRows], found: Mapping[int, Int64s]
) -> Placement:
    ranks = rows.rank[lane.rows]
    slot = np.full(len(lane.rows), ALONE, dtype=np.int64)
    for rank, mine in found.items():
        slot[ranks == rank] = mine
    shifts = {rank: find_largest_shift(_list_moves(mine)) for rank, mine in found.items()}
    plain = all(len(mine) == len(lines[r]) and not _is_moved(mine) for r, mine in found.items())
    whole = plain and len(found) == len(lines) and len({len(line) for line in lines.values()}) == 1
    rung = Rung.STREAM if lane.stream else Rung.ORDER if whole else Rung.SIGNATURE
    return Placement(
        lane=lane,
        slot=slot if len(found) > 1 else np.full(len(slot), ALONE, dtype=np.int64),
        rung=rung,
        shifts={rank: shift for rank, shift in sorted(shifts.items()) if shift},
        excluded=tuple(sorted(set(lines) - set(found))) if len(found) > 1 else (),
    )


def _is_moved(slots: Int64s) -> bool:
    return bool(_list_moves(slots).any())


def _list_moves(slots: Int64s) -> Int64s:
    return (slots - np.arange(len(slots)))[slots >= 0]


def find_largest_shift(moves: Int64s) -> int:
    """Return the move with the largest absolute value, with its sign; 0 if there are none."""
    return int(moves[np.abs(moves).argmax()]) if len(moves) else 0


#: A lane with a larger share of conflicting sequence numbers is not trusted at all.
MAX_CONFLICT_SHARE = 0.1


def place_by_sequence(lane: Lane, rows: MatchRows) -> tuple[Placement, Bools]:
    """Return the slot of each row, and the rows with a conflicting or repeated sequence number."""
    names, slot = np.unique(rows.sequence[lane.rows], return_inverse=True)
    bad = _find_conflicts(lane, rows, slot, len(names))
    if bad.mean() > MAX_CONFLICT_SHARE:
        bad = np.ones(len(names), dtype=bool)
    on_row: Bools = bad[slot]
    return Placement(lane=lane, slot=np.where(on_row, ALONE, slot), rung=Rung.SEQUENCE), on_row


def _find_conflicts(lane: Lane, rows: MatchRows, slot: Int64s, count: int) -> Bools:
    signature = rows.signature[lane.rows]
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, dtype=np.int64)
    np.minimum.at(low, slot, signature)
    np.maximum.at(high, slot, signature)
    twice = np.zeros(count, dtype=bool)
    rank = rows.rank[lane.rows]
    again = (rank[1:] == rank[:-1]) & (slot[1:] == slot[:-1])
    twice[slot[1:][again]] = True
    found: Bools = (low != high) | twice
    return found
