"""ZP101: the recording itself changed the times that it contains.

There are five signs. A sign that invalidates the times has high severity.

- Waiting for other ranks' profilers to start is more than a fifth of all exposed waiting: profilers start up
  to several milliseconds apart. A rank waits for that in the first collective of the window, in addition to
  its usual wait in the first collective of a step. If compute hides the wait, the rank gets ahead and waits
  in a later collective of the same step. The cost is then the exposed waiting of that step in excess of other
  steps, limited by the wait in the first collective. Any step may be slow by chance: the excess must exceed
  what the spread of the others makes likely. If the window opens with the recorder's pings, every profiler is
  running by the time its rank leaves the last ping, so the spread of those times bounds the cost.
- The same skew occurred before the first step, in the part that the means exclude.
- The clock uncertainty exceeds the measured waits.
- The ranks' windows contain different steps.
- All ranks were recorded, but fewer than half of their collectives could be matched.
"""

from collections.abc import Callable

from msgspec.structs import replace

from zprof.analysis.analysis import (
    RunAnalysis,
    Untested,
    count_steps,
    do_recordings_match,
    get_clock_uncertainty_ns,
    make_fact,
    make_untested,
    max_noise_floor_ns,
    mean_per_step,
    mean_wall_ns,
    measure_matched_ratio,
    measure_start_costs_ns,
    measure_wait_before_steps_ns,
)
from zprof.causes.cause import MIN_GAIN_RATIO, Cause, Signal
from zprof.model.findings import LEVELS, Confidence, Severity
from zprof.model.quantities import Unit

_MIN_FIRST_WAIT_RATIO = 0.20
#: Start-up skew above this share of the step changes the ledger significantly.
_SIGNIFICANT_SKEW_RATIO = 0.05
#: Above this share the finding is listed first: it distorts the means by more than most causes cost.
_DOMINANT_SKEW_RATIO = 0.10
#: A straggler costs a twentieth of a step and must be ten times the clock uncertainty.
_MAX_CLOCK_UNCERTAINTY_RATIO = 0.05 / 10

CAUSE = Cause(
    id="ZP101",
    name="measurement_artifact",
    meaning="The recording itself made part of what it shows.",
    adds="start_cost_per_step",
    is_decisive=True,
    evidence={
        "steps_on_all_ranks": ("steps timed on all ranks", Unit.COUNT),
        "steps_on_any_rank": ("steps timed on any rank", Unit.COUNT),
        "clock_uncertainty": ("clock uncertainty", Unit.NS),
        "wait_per_step": ("waiting in collectives {per_step}", Unit.NS),
        "first_wait_summed": ("exposed wait for other profilers to start, summed over ranks", Unit.NS),
        "exposed_wait_summed": ("exposed wait in all collectives, summed over ranks and steps", Unit.NS),
        "start_cost_per_step": (
            "lost {per_step} by the rank that waits longest for other profilers to start",
            Unit.NS,
        ),
        "wait_before_first_step": ("longest wait for other ranks to start, before the first step", Unit.NS),
        "recorded_before_first_step": ("recorded before the first step", Unit.NS),
        "collectives_matched": ("collectives matched across ranks", Unit.RATIO),
        "collectives_total": ("collectives of all ranks", Unit.COUNT),
    },
    disprove="record again: an artifact differs between recordings, a real cause does not",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return the most severe sign with the facts of all: a note, or that the times cannot be trusted."""
    if not len(analysis.steps):
        if analysis.run.source == "snapshot":
            return None  # a snapshot never has steps
        return make_untested("no_timed_step")
    signs = [sign for find_sign in _SIGNS if (sign := find_sign(analysis))]
    if not signs:
        return None
    worst = max(signs, key=lambda sign: LEVELS.index(sign.severity or Severity.LOW))
    return replace(worst, facts=[fact for sign in signs for fact in sign.facts])


def _find_window_mismatch(analysis: RunAnalysis) -> Signal | None:
    by_rank, step = analysis.steps.group_by("rank"), analysis.steps.ints("step")
    steps = [frozenset(step[rows].tolist()) for rows in by_rank.split()]
    common, timed = len(frozenset.intersection(*steps)), len(frozenset().union(*steps))
    if common == timed:
        return None
    return Signal(
        confidence=Confidence.LOW,
        words={"common": common, "timed": timed},
        facts=[make_fact("steps_on_all_ranks", common), make_fact("steps_on_any_rank", timed)],
        severity=Severity.LOW if common else Severity.HIGH,
        sentence="the ranks' windows differ: {common} of {timed} steps were timed on all ranks",
        fix="use the same zprof.steps(...) on every rank, and call .step() once per step",
    )


def _find_clock_uncertainty(analysis: RunAnalysis) -> Signal | None:
    if not len(analysis.collectives) or analysis.time.alignment is None:
        return None
    uncertainty_ns = get_clock_uncertainty_ns(analysis)
    wait_ns = mean_per_step(analysis, analysis.collectives.ints("wait_ns").sum())
    wall_ns = mean_wall_ns(analysis)
    if uncertainty_ns <= wait_ns or uncertainty_ns <= _MAX_CLOCK_UNCERTAINTY_RATIO * wall_ns:
        return None
    is_significant = uncertainty_ns > _SIGNIFICANT_SKEW_RATIO * wall_ns
    return Signal(
        confidence=Confidence.HIGH if is_significant else Confidence.LOW,
        words={"uncertainty": uncertainty_ns, "wait": wait_ns},
        facts=[make_fact("clock_uncertainty", uncertainty_ns), make_fact("wait_per_step", wait_ns)],
        severity=Severity.HIGH if is_significant else Severity.LOW,
        sentence="the clock uncertainty between ranks is {uncertainty:ns}, more than all waiting in a step "
        "({wait:ns}): wait and transfer cannot be separated",
        fix="record with zprof.record, which pings the ranks at both ends of the window",
    )


def _find_start_up_skew(analysis: RunAnalysis) -> Signal | None:
    if not len(analysis.collectives):
        return None
    total_ns = float(analysis.collectives.ints("exposed_wait_ns").sum())
    costs_ns = measure_start_costs_ns(analysis)
    first_ns = float(costs_ns.sum())
    if first_ns <= _MIN_FIRST_WAIT_RATIO * total_ns or first_ns <= max_noise_floor_ns(analysis):
        return None
    steps, wall_ns = count_steps(analysis), mean_wall_ns(analysis)
    cost_ns = float(costs_ns.max()) / max(1, steps)
    confidence = Confidence.MEDIUM if cost_ns > MIN_GAIN_RATIO * wall_ns else Confidence.LOW
    if cost_ns > _DOMINANT_SKEW_RATIO * wall_ns:
        confidence = Confidence.HIGH
    return Signal(
        # with a single other step the spread is unknown
        confidence=Confidence.LOW if steps <= 2 else confidence,
        words={"share": first_ns / total_ns, "cost": cost_ns},
        facts=[
            make_fact("first_wait_summed", first_ns),
            make_fact("exposed_wait_summed", total_ns),
            make_fact("start_cost_per_step", cost_ns),
        ],
        severity=Severity.MEDIUM if cost_ns > _SIGNIFICANT_SKEW_RATIO * wall_ns else Severity.LOW,
        sentence="{share:percent} of all exposed waiting starts in the window's first collective: the ranks' "
        "profilers started at different times (the rank that waits longest loses {cost:ns} {per_step})",
        fix="skip more steps before the window: zprof.steps(skip=3), or record more steps",
    )


def _find_skew_before_first_step(analysis: RunAnalysis) -> Signal | None:
    """Detect start-up skew before the first step, which the means exclude."""
    if not analysis.tracks:
        return None
    lost_ns, recorded_ns = measure_wait_before_steps_ns(analysis)
    min_lost_ns = MIN_GAIN_RATIO * (count_steps(analysis) + 1) * mean_wall_ns(analysis)
    if lost_ns <= max_noise_floor_ns(analysis) or lost_ns <= min_lost_ns:
        return None
    return Signal(
        confidence=Confidence.MEDIUM,
        words={"lost": lost_ns},
        facts=[
            make_fact("wait_before_first_step", lost_ns),
            make_fact("recorded_before_first_step", recorded_ns),
        ],
        severity=Severity.LOW,
        sentence="the ranks started at different times: before the first step a rank waits {lost:ns} for the "
        "others; the figures here exclude it, means over the entire recording do not",
        fix="call prof.step() at the end of each step, and compare only complete steps",
    )


def _find_unmatched_collectives(analysis: RunAnalysis) -> Signal | None:
    """Detect recordings of all ranks that have few collectives in common."""
    matched_ratio = measure_matched_ratio(analysis)
    if matched_ratio is None or do_recordings_match(analysis):
        return None
    return Signal(
        confidence=Confidence.LOW,
        words={"matched": matched_ratio},
        facts=[
            make_fact("collectives_matched", matched_ratio),
            make_fact("collectives_total", len(analysis.collectives)),
        ],
        severity=Severity.HIGH,
        sentence="the ranks' recordings do not match: only {matched:percent} of their collectives were "
        "matched, so wait and transfer cannot be separated",
        fix="open the window in the same step on all ranks, after a barrier, and skip its first steps: "
        "zprof.steps(skip=3)",
    )


_SIGNS: tuple[Callable[[RunAnalysis], Signal | None], ...] = (
    _find_window_mismatch,
    _find_unmatched_collectives,
    _find_clock_uncertainty,
    _find_start_up_skew,
    _find_skew_before_first_step,
)
