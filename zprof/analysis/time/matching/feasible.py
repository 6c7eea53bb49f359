"""Checks that a match can be, whatever the clocks, and repairs or leaves out what makes it impossible."""

from dataclasses import replace

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.clocks.bounds import bad_pairs, judged, tolerance_ns, worst_ranks
from zprof.analysis.time.clocks.drift import drifts
from zprof.analysis.time.clocks.table import Bools, Table
from zprof.analysis.time.clocks.votes import estimate
from zprof.analysis.time.matching.ordered import Hints, lines_of, shift_of
from zprof.analysis.time.matching.placement import ALONE, Placement, slots_of, table_of
from zprof.analysis.time.matching.registration import register
from zprof.analysis.time.matching.rows import Rows, Rung
from zprof.analysis.time.matching.stated import TOLERATED_SHARE


def checked(placement: Placement, rows: Rows, hints: Hints) -> Placement:
    """The placement without what cannot be: bad stamps, a rank that was shifted, a rank that fits nowhere."""
    worst = _worst(placement, rows)
    if not worst.any():
        return placement
    fewer = _without_bad_stamps(placement, rows, worst)
    if fewer is not None:
        return fewer
    if placement.lane.stated:
        repaired = _repaired(placement, rows, worst, hints)
        if repaired is not None:
            return repaired
    out = tuple(rank for rank, bad in zip(placement.lane.members, worst, strict=True) if bad)
    return _excluding(placement, rows, out)


def _worst(placement: Placement, rows: Rows) -> Bools:
    """Members without whom no two ranks contradict each other."""
    table = table_of(placement, rows)
    if len(table.ranks) < 2 or not table.start.shape[1]:
        return np.zeros(len(table.ranks), dtype=bool)
    return worst_ranks(bad_pairs(judged(_steady(table)), tolerance_ns(table)))


def _steady(table: Table) -> Table:
    """Without drift."""
    return table.moved(np.zeros(len(table.ranks)), np.nan_to_num(drifts(table)))


def _without_bad_stamps(placement: Placement, rows: Rows, worst: Bools) -> Placement | None:
    """Leave single instances out, where that is enough."""
    table = table_of(placement, rows)
    bad = contradicting(_steady(table), tolerance_ns(table))
    if not bad.any() or bad.sum() > TOLERATED_SHARE * len(bad):
        return None
    slots = slots_of(placement)[bad]
    fewer = replace(placement, slot=np.where(np.isin(placement.slot, slots), ALONE, placement.slot))
    return None if _worst(fewer, rows).any() else fewer


def contradicting(table: Table, slack_ns: float) -> Bools:
    """Instances that a rank leaves before another enters, by clocks that most of them agree on."""
    offset = np.nan_to_num(estimate(table).offset)
    moved = table.moved(offset, np.zeros(len(offset)))
    first_end = np.where(moved.present, moved.end, np.inf).min(axis=0)
    last_start = np.where(moved.present, moved.start, -np.inf).max(axis=0)
    found: Bools = table.sync & (first_end < last_start - slack_ns)
    return found


def _repaired(placement: Placement, rows: Rows, worst: Bools, hints: Hints) -> Placement | None:
    """Lay each bad rank anew on a good one (of two that contradict each other on the first)."""
    lines, ranks = lines_of(placement.lane, rows), rows.rank[placement.lane.rows]
    members = [rank for rank in placement.lane.members if rank in lines]
    bad = {rank for rank, is_bad in zip(placement.lane.members, worst, strict=True) if is_bad}
    fixed = next((rank for rank in members if rank not in bad), members[0])
    slot, shifts = placement.slot.copy(), dict(placement.shifts)
    for rank in sorted(bad - {fixed}):
        partner = register(lines[fixed], lines[rank], hints(fixed, rank))
        if partner is None:
            return None
        given = placement.slot[ranks == fixed]
        new = np.where(partner >= 0, given[partner], ALONE)
        shift = shift_of(_moves(placement.slot[ranks == rank], new))
        slot[ranks == rank] = new
        shifts |= {rank: shift} if shift else {}
    found = replace(placement, slot=slot, rung=Rung.SIGNATURE, shifts=shifts)
    return None if _worst(found, rows).any() else found


def _moves(old: Int64s, new: Int64s) -> Int64s:
    return (new - old)[(old >= 0) & (new >= 0)]


def _excluding(placement: Placement, rows: Rows, out: tuple[int, ...]) -> Placement:
    gone = np.isin(rows.rank[placement.lane.rows], out)
    return replace(
        placement,
        slot=np.where(gone, ALONE, placement.slot),
        shifts={rank: shift for rank, shift in placement.shifts.items() if rank not in out},
        excluded=tuple(sorted({*placement.excluded, *out})),
    )
