"""Assign each row of a lane its slot, by the stated sequence or by order and time.

Without a stated sequence, the rank with the most common order defines the slots. Ranks with the same
signatures in the same steps get the same slots if each row also overlaps its partner on the resulting clocks;
calls with different signatures are left out. Every other rank is registered by its times. Rows that hardly
overlap are left out individually: a rank is refused only if most of its rows are left out.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field

from zprof.analysis.columns import Floats, Mask
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.clocks import weighted_medians
from zprof.analysis.time.matching.lanes import (
    ALONE,
    NO_STEP,
    ClockDifference,
    GroupLane,
    Hints,
    MatchRows,
    Placement,
    Rung,
)
from zprof.analysis.time.matching.registration import (
    LaneRows,
    overlaps_enough,
    register_rows,
)

#: Maximum number of ranks tried as the reference for the slots.
_MAX_TRIES = 3
#: Maximum share of rows that overlap their partner by less than a tenth of the shorter row (measured on two
#: processors running eight programs: up to a twentieth).
_MAX_LITTLE_SHARE, _LITTLE_OVERLAP = 0.08, 0.1
#: This many steps with the same collectives show what a step contains.
_MIN_USUAL_STEPS = 3
#: Limits on rows that overlap their partner only slightly: the maximum share of rows that overlap it by less
#: than half of the shorter row, and the overlap below which a row is not matched, because it may overlap its
#: partner's neighbour as much. Measured: up to a third of the rows, and 0.026.
_VOTE_LIMITS = (0.4, 0.02)
#: The maximum share with a shared host clock, which wrong pairs do not affect; on two busy processors, 0.57
#: of 790 short rows overlapped little.
_HOST_LIMITS = (0.7, 0.01)
_SAME_CLOCK = ClockDifference(offset=0.0, drift=0.0, uncertainty_ns=0.0)


def place_by_order(lane: GroupLane, rows: MatchRows, hints: Hints) -> Placement:
    """Return the slot of each row of a lane, by order and time."""
    rows_by_rank = split_by_rank(lane, rows)
    if len(rows_by_rank) < 2:
        return Placement(lane=lane, slot=np.arange(len(lane.rows)), rung=Rung.ORDER)
    # Candidates that may define the slots: ranks with the most common order first, then with the most rows.
    orders = {rank: (each.signature.tobytes(), each.step.tobytes()) for rank, each in rows_by_rank.items()}
    count = Counter(orders.values())
    by_priority = sorted(
        rows_by_rank, key=lambda rank: (-count[orders[rank]], -len(rows_by_rank[rank]), rank)
    )
    slots_by_rank: dict[int, Int64s] = {}
    most_placed = 0
    for fixed in by_priority[:_MAX_TRIES]:
        candidate = _place_on(fixed, rows_by_rank, hints)
        placed = sum(map(_count_placed_rows, candidate.values())) if len(candidate) > 1 else 0
        if placed > most_placed:
            slots_by_rank, most_placed = candidate, placed
        if len(slots_by_rank) > len(rows_by_rank) / 2 and len(slots_by_rank) > 1:
            break
    ranks = rows.rank[lane.rows]
    slot = np.full(len(lane.rows), ALONE, dtype=np.int64)
    for rank, slots in _add_lost_slots(slots_by_rank, rows_by_rank).items():
        slot[ranks == rank] = slots
    shifts = {
        rank: find_largest_shift((slots - np.arange(len(slots)))[slots >= 0])
        for rank, slots in slots_by_rank.items()
    }
    is_complete = (
        not any(shifts.values())
        and len(slots_by_rank) == len(rows_by_rank)
        and len({len(rank_rows) for rank_rows in rows_by_rank.values()}) == 1
    )
    rung = Rung.STREAM if lane.stream else Rung.ORDER if is_complete else Rung.SIGNATURE
    return Placement(
        lane=lane,
        slot=slot if len(slots_by_rank) > 1 else np.full(len(slot), ALONE, dtype=np.int64),
        rung=rung,
        shifts={rank: shift for rank, shift in sorted(shifts.items()) if shift},
        excluded=tuple(sorted(set(rows_by_rank) - set(slots_by_rank))) if len(slots_by_rank) > 1 else (),
    )


def split_by_rank(lane: GroupLane, rows: MatchRows) -> dict[int, LaneRows]:
    """Return each rank's rows in a lane, in order."""
    rank = rows.rank[lane.rows]
    cuts = np.flatnonzero(np.diff(rank)) + 1
    return {
        int(rows.rank[own_rows[0]]): LaneRows(
            signature=rows.signature[own_rows],
            start=rows.start[own_rows],
            end=rows.end[own_rows],
            step=rows.step[own_rows],
            sync=rows.sync[own_rows],
        )
        for own_rows in np.split(lane.rows, cuts)
        if len(own_rows)
    }


def _place_on(fixed: int, rows_by_rank: Mapping[int, LaneRows], hints: Hints) -> dict[int, Int64s]:
    """Return slots by rank, for the ranks that fit onto ``fixed``."""
    equal_ranks = _place_equal_ranks(fixed, rows_by_rank, hints)
    slots_by_rank: dict[int, Int64s] = {fixed: np.arange(len(rows_by_rank[fixed]), dtype=np.int64)}
    slots_by_rank.update(equal_ranks.sure)
    for rank, rank_rows in rows_by_rank.items():
        by_order = slots_by_rank.get(rank)
        if by_order is not None and (by_order >= 0).all():
            continue
        by_times = register_rows(rows_by_rank[fixed], rank_rows, hints(fixed, rank))
        known = [slots for slots in (by_order, by_times) if slots is not None]
        if known:
            slots_by_rank[rank] = max(known, key=_count_placed_rows)
        elif rank in equal_ranks.uncertain:
            slots_by_rank[rank] = equal_ranks.uncertain[rank]
    return slots_by_rank


def _count_placed_rows(slots: Int64s) -> int:
    return int((slots >= 0).sum())


class EqualRanks(Struct, frozen=True, kw_only=True):
    """Slots of ranks with equally many rows in the same steps, mostly with equal signatures.

    ``sure``: the times agree, too. ``uncertain``: many but not most rows hardly overlap and are left out.
    """

    sure: Mapping[int, Int64s] = field(default_factory=dict)
    uncertain: Mapping[int, Int64s] = field(default_factory=dict)


def _place_equal_ranks(fixed: int, rows_by_rank: Mapping[int, LaneRows], hints: Hints) -> EqualRanks:
    """Return the slots of ranks with equally many rows in the same steps, if their times agree.

    Ranks on one host use the host's clock, because pings delayed by busy processors may differ by 0.7 ms.
    Other ranks use the measured difference or the rows' votes.
    """
    first = rows_by_rank[fixed]
    ranks = [
        rank
        for rank, each in rows_by_rank.items()
        if rank != fixed
        and (
            len(first) == len(each)
            and bool((first.step == each.step).all())
            and 2 * int((first.signature == each.signature).sum()) > len(first)
        )
    ]
    anchored = bool((first.step != NO_STEP).any()) and len(np.unique(first.step)) > 1
    known = {rank: hints(fixed, rank) for rank in ranks}
    ranks = [rank for rank in ranks if anchored or known[rank].measured is not None]
    if not ranks or not first.sync.any():
        alike = [rank for rank in ranks if anchored]
        return EqualRanks(sure={rank: _place_same(first, rows_by_rank[rank]) for rank in alike})
    same_clock = {rank: _SAME_CLOCK for rank in ranks if known[rank].one_host}
    on_host = _place_agreeing(first, rows_by_rank, same_clock, _HOST_LIMITS)
    others = {rank: known[rank].measured for rank in ranks if rank not in on_host.sure}
    by_votes = _place_agreeing(first, rows_by_rank, others, _VOTE_LIMITS)
    return EqualRanks(
        sure={**on_host.sure, **by_votes.sure}, uncertain={**by_votes.uncertain, **on_host.uncertain}
    )


def _place_agreeing(
    first: LaneRows,
    rows_by_rank: Mapping[int, LaneRows],
    clocks: Mapping[int, ClockDifference | None],
    limits: tuple[float, float],
) -> EqualRanks:
    """Return the slots of ranks in ``clocks`` whose times agree; a None clock is estimated from the rows."""
    if not clocks:
        return EqualRanks()
    moved = [rows_by_rank[rank].moved(0.0, clock.drift if clock else 0.0) for rank, clock in clocks.items()]
    start, end = (
        np.array([rank_rows.start for rank_rows in moved]),
        np.array([rank_rows.end for rank_rows in moved]),
    )
    shorter = np.minimum(end - start, first.end - first.start).clip(min=1.0)
    voted = weighted_medians(end - first.end, np.where(first.sync, 1.0 / shorter, 0.0))
    offset = np.array([c.offset if c else vote for c, vote in zip(clocks.values(), voted, strict=True)])
    uncertainty = np.array([clock.uncertainty_ns if clock else 0.0 for clock in clocks.values()])
    moved_start, moved_end = start - offset[:, None], end - offset[:, None]
    agrees, agrees_mostly, refused = check_overlaps(first, moved_start, moved_end, uncertainty, limits)
    by_rank = {
        rank: np.where(refused[row], ALONE, _place_same(first, rows_by_rank[rank]))
        for row, rank in enumerate(clocks)
    }
    return EqualRanks(
        sure={rank: by_rank[rank] for row, rank in enumerate(clocks) if agrees[row]},
        uncertain={rank: by_rank[rank] for row, rank in enumerate(clocks) if agrees_mostly[row]},
    )


def _place_same(one: LaneRows, other: LaneRows) -> Int64s:
    """Return the slots of ``other`` by order, without rows whose signatures differ."""
    is_same = one.signature == other.signature
    return np.where(is_same, np.arange(len(one), dtype=np.int64), ALONE)


def check_overlaps(
    first: LaneRows, start: Floats, end: Floats, uncertainty: Floats, limits: tuple[float, float]
) -> tuple[Mask, Mask, Mask]:
    """Check which ranks (rows of ``start`` and ``end``) match, and which of their collectives do not match.

    Return the ranks that match without and with many rows left out, and the rows that do not match (ranks x
    rows).

    On overloaded processors, gloo's thread may leave one collective and enter the next late on one rank, so
    some rows overlap only slightly. A row that overlaps its partner no more than the partner's neighbour is
    not matched, and neither are adjacent rows with little overlap: if two ranks each lost a different event,
    the rows between the two events are paired with neighbours. With more than a few rows that overlap
    slightly, none of them is matched. In a step that lost nothing, rows are not paired with neighbours, so
    any overlap suffices.
    """
    max_partial_share, min_overlap = limits
    moved = LaneRows(signature=first.signature, start=start, end=end, step=first.step, sync=first.sync)
    any_overlap, enough, little, above_minimum = (
        overlaps_enough(first, moved, uncertainty[:, None], share) | ~first.sync
        for share in (0.0, 0.5, _LITTLE_OVERLAP, min_overlap)
    )
    is_safe = any_overlap & _find_whole_steps(first)
    little, above_minimum = little | is_safe, above_minimum | is_safe
    few_partial = (~enough).sum(axis=1) <= max_partial_share * first.sync.sum()
    few_slight = (~little).sum(axis=1) <= _MAX_LITTLE_SHARE * first.sync.sum()
    seeds = np.where(few_slight[:, None], ~above_minimum, ~little)
    # unbroken runs of rows without enough overlap that contain a seed
    refused = np.zeros(enough.shape, dtype=bool)
    for row in range(len(enough)):
        run = np.cumsum(np.diff((~enough[row]).astype(np.int8), prepend=0) == 1)
        refused[row] = ~enough[row] & np.isin(run, run[seeds[row]])
    is_majority = 2 * refused.sum(axis=1) < len(first)
    return few_partial & few_slight, few_partial & is_majority, refused


def _find_whole_steps(rows: LaneRows) -> Mask:
    """Mark the rows of marked steps with the most common signatures, which lost no event."""
    order = np.argsort(rows.step, kind="stable")
    steps, starts = np.unique(rows.step[order], return_index=True)
    parts = np.split(rows.signature[order], starts[1:])
    contents = {
        step: part.tobytes() for step, part in zip(steps.tolist(), parts, strict=True) if step != NO_STEP
    }
    usual, count = Counter(contents.values()).most_common(1)[0] if contents else (b"", 0)
    if count < _MIN_USUAL_STEPS or 2 * count <= len(contents):
        return np.zeros(len(rows), dtype=bool)
    return np.isin(rows.step, [step for step, content in contents.items() if content == usual])


def _add_lost_slots(
    slots_by_rank: Mapping[int, Int64s], rows_by_rank: Mapping[int, LaneRows]
) -> dict[int, Int64s]:
    """Add slots for collectives lost by the rank that defines the slots.

    Between two adjacent slots, this rank has no rows. Other ranks' rows there are paired by order if they are
    equally many with the same signatures.
    """
    between: dict[int, dict[int, list[int]]] = {}
    for rank, slots in slots_by_rank.items():
        placed = np.flatnonzero(slots >= 0)
        adjacent = np.diff(slots[placed]) == 1
        for left, right in zip(placed[:-1][adjacent].tolist(), placed[1:][adjacent].tolist(), strict=True):
            if right - left > 1:
                rows = list(range(left + 1, right))
                between.setdefault(int(slots[left]), {})[rank] = rows
    added = dict(slots_by_rank)
    next_slot = 1 + max((int(slots.max(initial=ALONE)) for slots in slots_by_rank.values()), default=ALONE)
    for rows_of_rank in between.values():
        signatures = {tuple(rows_by_rank[rank].signature[rows]) for rank, rows in rows_of_rank.items()}
        if len(rows_of_rank) < 2 or len(signatures) > 1:
            continue
        count = len(next(iter(signatures)))
        for rank, rows in rows_of_rank.items():
            added[rank] = added[rank].copy()
            added[rank][rows] = np.arange(next_slot, next_slot + count)
        next_slot += count
    return added


def find_largest_shift(moves: Int64s) -> int:
    """Return the shift with the largest absolute value, with its sign; 0 if there are none."""
    return int(moves[np.abs(moves).argmax()]) if len(moves) else 0
