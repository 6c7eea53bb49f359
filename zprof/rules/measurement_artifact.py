"""ZP101 measurement_artifact: the recording itself changed the times that it contains.

There are five signs. A sign that invalidates the times has high severity.

- Waiting for other ranks' profilers to start is more than a fifth of all exposed waiting: profilers start up
  to several milliseconds apart. A rank waits for that in the first collective of the window, in addition to
  its usual wait in the first collective of a step. If compute hides the wait, the rank gets ahead and waits
  in a later collective of the same step. The cost is then the exposed waiting of that step in excess of other
  steps, limited by the wait in the first collective. Any step may be slow by chance: the excess must exceed
  what the spread of the others makes likely. If the recorder's pings opened the window, no profiler started
  later than its rank left the last of them, and the cost is at most that difference.
- The same skew occurred before the first step, in the part that the means exclude.
- The clock uncertainty exceeds the measured waits.
- The ranks' windows contain different steps.
- All ranks were recorded, but fewer than half of their collectives could be matched.
"""

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats, Groups
from zprof.analysis.intervals import Int64s
from zprof.analysis.per_step import (
    count_steps,
    get_clock_uncertainty_ns,
    max_noise_floor_ns,
    mean_per_step,
    mean_wall_ns,
)
from zprof.analysis.time.ledger import RankTracks
from zprof.model.findings import Cause, Confidence, Finding, Severity
from zprof.model.formatting import format_ns, format_percent
from zprof.model.gaps import Gap
from zprof.rules.evidence import START_COST_PER_STEP, Fact, make_fact
from zprof.rules.rule import MIN_GAIN_RATIO, make_finding, untested_gap

_MIN_FIRST_WAIT_RATIO = 0.20
#: Below this share of matched collectives, rules about ranks that wait for each other are unreliable.
_MIN_MATCHED_RATIO = 0.50
#: Maximum share of collectives without a launch because the window cut it off.
_MAX_UNLAUNCHED_RATIO = 0.01
#: Start-up skew above this share of the step changes the ledger significantly.
_SIGNIFICANT_SKEW_RATIO = 0.05
#: Above this share it is listed before all causes: it distorts the means more than most causes cost.
_DOMINANT_SKEW_RATIO = 0.10
#: Student's t for a one-sided bound of 99 %, by degrees of freedom from 1; the last one is used beyond.
_T_99 = (31.82, 6.96, 4.54, 3.75, 3.36, 3.14, 3.00, 2.90, 2.82, 2.76, 2.72, 2.68, 2.65, 2.62, 2.60)
#: A straggler costs a twentieth of a step and must be ten times the clock uncertainty.
_MAX_CLOCK_UNCERTAINTY_RATIO = 0.05 / 10


class _Sign(Struct, frozen=True, kw_only=True):
    sentence: str
    evidence: tuple[Fact, ...]
    severity: Severity
    confidence: Confidence
    fix: str


def measurement_artifact(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a note, or a warning with high severity that the times cannot be trusted."""
    if not len(analysis.steps):
        if analysis.run.source == "snapshot":
            return None  # a snapshot never has steps
        return untested_gap(Cause.MEASUREMENT_ARTIFACT, "no step was timed", "record with the time window on")
    signs = [sign for find_sign in _SIGNS if (sign := find_sign(analysis))]
    if not signs:
        return None
    order = list(Severity)
    worst = min(signs, key=lambda sign: order.index(sign.severity))
    return make_finding(
        analysis,
        Cause.MEASUREMENT_ARTIFACT,
        sentence=worst.sentence,
        evidence=[fact for sign in signs for fact in sign.evidence],
        saving_ns=(0, 0),
        severity=worst.severity,
        confidence=worst.confidence,
        fix=worst.fix,
        disprove="record again: an artifact differs between recordings, a real cause does not",
    )


def _find_window_mismatch(analysis: RunAnalysis) -> _Sign | None:
    by_rank, step = analysis.steps.group_by("rank"), analysis.steps.ints("step")
    steps = [frozenset(step[rows].tolist()) for rows in by_rank.split()]
    common_steps = frozenset.intersection(*steps)
    all_steps = frozenset().union(*steps)
    if common_steps == all_steps:
        return None
    return _Sign(
        sentence=f"the ranks' windows differ: {len(common_steps)} of {len(all_steps)} steps were timed on "
        "all ranks",
        evidence=(
            make_fact("steps_on_all_ranks", len(common_steps)),
            make_fact("steps_on_any_rank", len(all_steps)),
        ),
        severity=Severity.LOW if common_steps else Severity.HIGH,
        confidence=Confidence.LOW,
        fix="use the same zprof.steps(...) on every rank, and call .step() once per step",
    )


def _find_clock_uncertainty(analysis: RunAnalysis) -> _Sign | None:
    if not len(analysis.collectives) or analysis.time.alignment is None:
        return None
    uncertainty = get_clock_uncertainty_ns(analysis)
    wait = mean_per_step(analysis, analysis.collectives.ints("wait_ns").sum())
    wall = mean_wall_ns(analysis)
    if uncertainty <= wait or uncertainty <= _MAX_CLOCK_UNCERTAINTY_RATIO * wall:
        return None
    return _Sign(
        sentence=f"the clock uncertainty between ranks is {format_ns(uncertainty)}, more than all waiting "
        f"in a step ({format_ns(wait)}): wait and transfer cannot be separated",
        evidence=(
            make_fact("clock_uncertainty", uncertainty),
            make_fact("wait_per_step", wait),
        ),
        severity=Severity.HIGH if uncertainty > _SIGNIFICANT_SKEW_RATIO * wall else Severity.LOW,
        confidence=Confidence.HIGH if uncertainty > _SIGNIFICANT_SKEW_RATIO * wall else Confidence.LOW,
        fix="record with zprof.record, which pings the ranks at both ends of the window",
    )


def _find_start_up_skew(analysis: RunAnalysis) -> _Sign | None:
    basis = analysis.time.basis
    rows = analysis.collectives
    if not len(rows):
        return None
    total = float(rows.ints("exposed_wait_ns").sum())
    costs = np.minimum(_start_costs_ns(rows), _max_start_skew_ns(analysis))
    first_ns = float(costs.sum())
    if first_ns <= _MIN_FIRST_WAIT_RATIO * total or first_ns <= max_noise_floor_ns(analysis):
        return None
    steps = count_steps(analysis)
    per_step_ns = float(costs.max()) / max(1, steps)
    wall = mean_wall_ns(analysis)
    confidence = Confidence.MEDIUM if per_step_ns > MIN_GAIN_RATIO * wall else Confidence.LOW
    if per_step_ns > _DOMINANT_SKEW_RATIO * wall:
        confidence = Confidence.HIGH
    if steps <= 2:  # the spread of a single other step is unknown
        confidence = Confidence.LOW
    return _Sign(
        sentence=f"{format_percent(first_ns / total)} of all exposed waiting starts in the window's first "
        f"collective: the ranks' profilers started at different times (the rank that waits longest loses "
        f"{format_ns(per_step_ns)} {basis})",
        evidence=(
            make_fact("first_wait_summed", first_ns),
            make_fact("exposed_wait_summed", total),
            make_fact(START_COST_PER_STEP, per_step_ns),
        ),
        severity=Severity.MEDIUM if per_step_ns > _SIGNIFICANT_SKEW_RATIO * wall else Severity.LOW,
        confidence=confidence,
        fix="skip more steps before the window: zprof.steps(skip=3), or record more steps",
    )


def _max_start_skew_ns(analysis: RunAnalysis) -> float:
    """Return how far apart the profilers can have started; infinite if not all ranks have pings."""
    opened = [tracks.opened_ns for tracks in analysis.tracks if tracks.opened_ns is not None]
    if not opened or len(opened) < len(analysis.tracks):
        return float("inf")
    return float(max(opened) - min(opened))


def _start_costs_ns(rows: Columns) -> Floats:
    """Measure each rank's exposed wait for the other ranks' profilers to start.

    Only collectives that are the first on all of their ranks count. If a rank lost an event, its first
    recorded collective is a later one, and waiting there is not start-up.
    """
    ranks, instances = np.unique(rows.ints("rank")), rows.group_by("instance")
    is_first = instances.min(rows.bools("first_of_window"))[instances.codes] & rows.bools("matched")
    is_first_step = np.isin(rows.ints("step"), rows.ints("step")[is_first])
    groups = rows.group_by("rank", "group", "step")
    first_of_step = np.zeros(len(rows), dtype=np.bool_)
    first_of_step[np.lexsort((rows.ints("start_ns"), groups.codes))[groups.starts]] = True
    first_rows, later_rows = rows.at(is_first), rows.at(~is_first_step)
    later_first_rows = rows.at(first_of_step & ~is_first_step)
    immediate = _sum_beyond_usual(ranks, first_rows, later_first_rows, "exposed_wait_ns")
    if not len(later_first_rows):
        return immediate
    waited_ns = _sum_beyond_usual(ranks, first_rows, later_first_rows, "wait_ns")
    exposed_ns = _sum_beyond_usual(ranks, rows.at(is_first_step), later_rows, "exposed_wait_ns")
    return np.maximum(immediate, np.minimum(waited_ns, exposed_ns))


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
    excess = np.where(sums > steps * _max_likely_sum(later), sums - float(np.median(later)) * steps, 0.0)
    return np.maximum(0.0, excess)


def _max_likely_sum(later: Floats) -> float:
    """Return what one more step reaches in at most 1 % of cases.

    Waits have heavier tails than Student's t allows for, so it is no less than the largest of these steps
    plus their range.
    """
    largest = later.max() + np.ptp(later)
    if len(later) < 2:
        return float(largest)
    t = _T_99[min(len(later) - 1, len(_T_99)) - 1]
    return float(max(largest, later.mean() + t * later.std(ddof=1) * np.sqrt(1 + 1 / len(later))))


def _find_skew_before_first_step(analysis: RunAnalysis) -> _Sign | None:
    """Detect start-up skew before the first step, which the means exclude."""
    if not len(analysis.steps) or not analysis.tracks:
        return None
    by_rank = analysis.steps.group_by("rank")
    wall_ns = by_rank.median(analysis.steps.ints("wall_ns")).tolist()
    walls = dict(zip(analysis.steps.ints("rank")[by_rank.first].tolist(), wall_ns, strict=True))
    time_before = {tracks.rank: _recorded_before_first_step_ns(tracks) for tracks in analysis.tracks}
    lost = max(
        min(tracks.wait_before_ns, time_before[tracks.rank] - walls.get(tracks.rank, 0.0))
        for tracks in analysis.tracks
    )
    recorded = count_steps(analysis) + 1
    if lost <= max_noise_floor_ns(analysis) or lost <= MIN_GAIN_RATIO * recorded * mean_wall_ns(analysis):
        return None
    return _Sign(
        sentence="the ranks started at different times: before the first step a rank waits "
        f"{format_ns(lost)} for the others; the figures here exclude it, means over the entire recording "
        "do not",
        evidence=(
            make_fact("wait_before_first_step", lost),
            make_fact("recorded_before_first_step", max(time_before.values())),
        ),
        severity=Severity.LOW,
        confidence=Confidence.MEDIUM,
        fix="call prof.step() at the end of each step, and compare only complete steps",
    )


def _recorded_before_first_step_ns(tracks: RankTracks) -> float:
    """Return the recorded time before a rank's first step."""
    if not len(tracks.coverage) or not len(tracks.steps):
        return 0.0
    return float(tracks.steps.begin_ns[0] - tracks.coverage[0, 0])


def matched_ratio(analysis: RunAnalysis) -> float | None:
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
    matched = matched_ratio(analysis)
    return matched is None or matched >= _MIN_MATCHED_RATIO


def has_lost_events(analysis: RunAnalysis) -> bool:
    """Return True if recordings do not match because events, including collective launches, were lost."""
    if not len(analysis.collectives) or do_recordings_match(analysis):
        return False
    return float((~analysis.collectives.known("launch_start_ns")).mean()) > _MAX_UNLAUNCHED_RATIO


def _find_unmatched_collectives(analysis: RunAnalysis) -> _Sign | None:
    """Detect recordings of all ranks that have few collectives in common."""
    matched = matched_ratio(analysis)
    if matched is None or do_recordings_match(analysis):
        return None
    return _Sign(
        sentence=f"the ranks' recordings do not match: only {format_percent(matched)} of their collectives "
        "were matched, so wait and transfer cannot be separated",
        evidence=(
            make_fact("collectives_matched", matched),
            make_fact("collectives_total", len(analysis.collectives)),
        ),
        severity=Severity.HIGH,
        confidence=Confidence.LOW,
        fix="open the window in the same step on all ranks, after a barrier, and skip its first steps: "
        "zprof.steps(skip=3)",
    )


_SIGNS: tuple[Callable[[RunAnalysis], _Sign | None], ...] = (
    _find_window_mismatch,
    _find_unmatched_collectives,
    _find_clock_uncertainty,
    _find_start_up_skew,
    _find_skew_before_first_step,
)
