"""Measure how far a recording can be trusted: lost events, and ranks that started at different times."""

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats, Groups
from zprof.analysis.intervals import Int64s

#: Below this share of matched collectives, what is said about ranks that wait for each other is unreliable.
_MIN_MATCHED_RATIO = 0.50
#: Maximum share of collectives without a launch because the window cut it off.
_MAX_UNLAUNCHED_RATIO = 0.01
#: Student's t for a one-sided bound of 99 %, by degrees of freedom from 1; the last one is used beyond.
_T_99 = (31.82, 6.96, 4.54, 3.75, 3.36, 3.14, 3.00, 2.90, 2.82, 2.76, 2.72, 2.68, 2.65, 2.62, 2.60)


def measure_matched_ratio(analysis: RunAnalysis) -> float | None:
    """Return the share of collectives matched across ranks, None if there are none or ranks are missing.

    A rank without a complete step is missing, too: its collectives are not in the window.
    """
    rows = analysis.collectives
    if not len(rows):  # what a hang leaves has no columns either
        return None
    rows = rows.at(rows.ints("group_size") != 1)
    ranks = min(len(analysis.run.ranks_loaded), len(np.unique(analysis.steps.ints("rank"))))
    if not len(rows) or ranks < analysis.run.world_size:
        return None
    return float(rows.bools("matched").mean())


def do_recordings_match(analysis: RunAnalysis) -> bool:
    """Return True if at least half of the collectives were matched; True if that is unknown."""
    matched = measure_matched_ratio(analysis)
    return matched is None or matched >= _MIN_MATCHED_RATIO


def has_lost_events(analysis: RunAnalysis) -> bool:
    """Return True if recordings do not match because events, including collective launches, were lost."""
    if not len(analysis.collectives) or do_recordings_match(analysis):
        return False
    return float((~analysis.collectives.known("launch_start_ns")).mean()) > _MAX_UNLAUNCHED_RATIO


def measure_start_costs_ns(analysis: RunAnalysis) -> Floats:
    """Measure each rank's exposed wait for the other ranks' profilers to start, at most what pings allow.

    Only collectives that are the first on all of their ranks count. If a rank lost an event, its first
    recorded collective is a later one, and waiting there is not start-up.
    """
    rows = analysis.collectives
    ranks, instances = np.unique(rows.ints("rank")), rows.group_by("instance")
    is_first = instances.min(rows.bools("first_of_window"))[instances.codes] & rows.bools("matched")
    is_first_step = np.isin(rows.ints("step"), rows.ints("step")[is_first])
    groups = rows.group_by("rank", "group", "step")
    first_of_step = np.zeros(len(rows), dtype=np.bool_)
    first_of_step[np.lexsort((rows.ints("start_ns"), groups.codes))[groups.starts]] = True
    first_rows, later_rows = rows.at(is_first), rows.at(~is_first_step)
    later_first_rows = rows.at(first_of_step & ~is_first_step)
    immediate = _sum_beyond_usual(ranks, first_rows, later_first_rows, "exposed_wait_ns")
    # How far apart the profilers can have started; infinite if not all ranks have pings.
    opened = [tracks.opened_ns for tracks in analysis.tracks if tracks.opened_ns is not None]
    is_known = len(opened) == len(analysis.tracks) > 0
    max_skew_ns = float(max(opened) - min(opened)) if is_known else float("inf")
    if not len(later_first_rows):
        return np.minimum(immediate, max_skew_ns)
    waited_ns = _sum_beyond_usual(ranks, first_rows, later_first_rows, "wait_ns")
    exposed_ns = _sum_beyond_usual(ranks, rows.at(is_first_step), later_rows, "exposed_wait_ns")
    return np.minimum(np.maximum(immediate, np.minimum(waited_ns, exposed_ns)), max_skew_ns)


def _sum_beyond_usual(ranks: Int64s, rows: Columns, later_rows: Columns, column: str) -> Floats:
    """Return each rank's sum in excess of the usual sum: the largest of any rank in later steps (median).

    The reference is the largest rank because a different rank may wait in each step, if ranks take turns
    being late. The excess is zero if a further step like the later ones reaches the sum by chance.
    """
    rank = np.searchsorted(ranks, rows.ints("rank"))
    sums = np.zeros(len(ranks))
    np.add.at(sums, rank, rows.floats(column))
    steps = np.bincount(rank[Groups(rank, rows.ints("step")).first], minlength=len(ranks))
    if not len(later_rows):
        return sums
    each = later_rows.group_by("step", "rank")
    later = Groups(later_rows.ints("step")[each.first]).max(each.sum(later_rows.floats(column)))
    # What one more step reaches in at most 1 % of cases. Waits have heavier tails than Student's t allows
    # for, so it is no less than the largest of these steps plus their range.
    likely = later.max() + np.ptp(later)
    if len(later) > 1:
        t = _T_99[min(len(later) - 1, len(_T_99)) - 1]
        likely = max(likely, later.mean() + t * later.std(ddof=1) * np.sqrt(1 + 1 / len(later)))
    excess = np.where(sums > steps * likely, sums - float(np.median(later)) * steps, 0.0)
    return np.maximum(0.0, excess)


def measure_wait_before_steps_ns(analysis: RunAnalysis) -> tuple[float, float]:
    """Measure a rank's longest wait for others to start, and the recorded time, before the first step."""
    by_rank = analysis.steps.group_by("rank")
    ranks = analysis.steps.ints("rank")[by_rank.first].tolist()
    walls_ns = dict(zip(ranks, by_rank.median(analysis.steps.ints("wall_ns")).tolist(), strict=True))
    recorded_ns = {
        tracks.rank: float(tracks.steps.begin_ns[0] - tracks.coverage[0, 0])
        if len(tracks.coverage) and len(tracks.steps)
        else 0.0
        for tracks in analysis.tracks
    }
    lost_ns = max(
        min(tracks.wait_before_ns, recorded_ns[tracks.rank] - walls_ns.get(tracks.rank, 0.0))
        for tracks in analysis.tracks
    )
    return lost_ns, max(recorded_ns.values())
