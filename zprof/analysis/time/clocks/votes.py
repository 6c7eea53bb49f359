"""Offsets within one group: all ranks leave a short collective at nearly the same instant.

For each rank the weighted median over collectives of ``e_i - median_j e_j``, with weight 1 / the shortest
duration.  Ends of a long collective lie apart (334 µs at the median in a 1.6 GB all-gather on MI300X, 3.6 µs
in one of 1 element), so long ones have no vote where there are short ones.
"""

from dataclasses import dataclass

import numpy as np

from zprof.analysis.time.clocks.bounds import judged
from zprof.analysis.time.clocks.table import Bools, Floats, Table

LEAST_UNCERTAINTY_NS = 1_000
#: The ends of a collective coincide to about this share of its duration.
END_SPREAD_SHARE = 0.05
#: A collective votes where it is at most this many times longer than the third shortest.
_VOTING_RATIO = 8.0
_THIRD = 3
_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Clocks of a group's ranks relative to each other; NaN where a rank shares nothing."""

    ranks: tuple[int, ...]
    offset: Floats
    uncertainty: Floats
    votes: int


def voting(table: Table) -> tuple[Table, Floats]:
    """The part of a table that votes on clocks, and the weights, 0 where a rank has no vote."""
    table = judged(table)
    table = table.of_instances(table.sync & (table.present.sum(axis=0) > 1))
    if not table.start.shape[1]:
        return table, np.zeros(table.start.shape)
    weights = _weights(table)
    used = np.asarray((weights > 0).any(axis=0), dtype=bool)
    return table.of_instances(used), weights[:, used]


def estimate(table: Table) -> Estimate:
    """Offsets and uncertainties of the ranks of a table, whose drift is taken out."""
    table, weights = voting(table)
    if not table.start.shape[1]:
        nothing = np.full(len(table.ranks), np.nan)
        return Estimate(ranks=table.ranks, offset=nothing, uncertainty=nothing, votes=0)
    offset = _offsets(table, weights)
    moved = table.moved(offset, np.zeros(len(offset)))
    return Estimate(
        ranks=table.ranks,
        offset=offset,
        uncertainty=_uncertainty(moved, weights),
        votes=table.start.shape[1],
    )


def _weights(table: Table) -> Floats:
    """1 / shortest duration where a rank may vote, else 0."""
    present = table.present
    duration = np.where(present, table.end - table.start, np.inf).min(axis=0).clip(min=1.0)
    mine = np.where(present, duration, np.inf)
    third = np.partition(mine, min(_THIRD, mine.shape[1]) - 1, axis=1)[:, min(_THIRD, mine.shape[1]) - 1]
    shortest = mine.min(axis=1)
    limit = _VOTING_RATIO * np.where(np.isinf(third), shortest, third)
    return np.where(present & (mine <= limit[:, None]), 1.0 / duration, 0.0)


def _offsets(table: Table, weights: Floats) -> Floats:
    """Relative to the rank with most votes; then each against the middle of all."""
    votes = (weights > 0).sum(axis=1)
    centre = int(votes.argmax())
    offset = weighted_medians(table.end - table.end[centre], weights)
    for _ in range(_ROUNDS - 1):
        ends = table.end - offset[:, None]
        offset = offset + weighted_medians(ends - medians(ends), weights)
        offset = offset - offset[centre]
    return offset


def _uncertainty(moved: Table, weights: Floats) -> Floats:
    """The spread of the votes, and the share of the shortest transfer by which ends may lie apart."""
    residual = np.where(weights > 0, np.abs(moved.end - medians(moved.end)), np.nan)
    spread = medians(residual.T)
    first_end = np.where(moved.present, moved.end, np.inf).min(axis=0)
    last_start = np.where(moved.present, moved.start, -np.inf).max(axis=0)
    intrinsic = np.where(weights > 0, (first_end - last_start).clip(min=0.0), np.inf).min(axis=1)
    floor = np.where(np.isinf(intrinsic), 0.0, END_SPREAD_SHARE * intrinsic)
    return np.where(np.isnan(spread), np.nan, np.maximum(np.maximum(spread, LEAST_UNCERTAINTY_NS), floor))


def medians(values: Floats) -> Floats:
    """The median of each column without its NaNs; NaN for a column of NaNs."""
    ordered = np.sort(values, axis=0)
    known = (~np.isnan(values)).sum(axis=0)
    columns = np.arange(values.shape[1])
    low = ordered[np.maximum(known - 1, 0) // 2, columns]
    high = ordered[np.minimum(known // 2, len(values) - 1), columns]
    return np.where(known > 0, (low + high) / 2, np.nan)


def weighted_medians(values: Floats, weights: Floats) -> Floats:
    """The middle of the weight in each row; between two values where it falls exactly there."""
    known: Bools = ~np.isnan(values) & (weights > 0)
    filled = np.where(known, values, np.inf)
    order = np.argsort(filled, axis=1, kind="stable")
    filled = np.take_along_axis(filled, order, axis=1)
    total = np.cumsum(np.take_along_axis(np.where(known, weights, 0.0), order, axis=1), axis=1)
    half = total[:, -1:] / 2
    rows = np.arange(len(values))
    last = np.maximum(known.sum(axis=1) - 1, 0)
    low = filled[rows, np.minimum((total < half * (1 - 1e-9)).sum(axis=1), last)]
    high = filled[rows, np.minimum((total <= half * (1 + 1e-9)).sum(axis=1), last)]
    return np.where(known.any(axis=1), (low + high) / 2, np.nan)
