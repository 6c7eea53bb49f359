"""Read the time gates: step time, exposed and overlapped ratio, exposed wait.

    exposed_ratio = sum(exposed) / sum(wall)        overlap_ratio = 1 - sum(exposed) / sum(collective)

over the steps, each the mean over its ranks. A busy machine makes ranks wait, so exposed wait only warns
unless the rule straggler_rank found one rank late in nearly all steps.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from msgspec import Struct

from zprof.analysis.compare.intervals import Samples, ratio_samples
from zprof.checks.gates.reading import (
    GateFigure,
    GateInput,
    Reading,
    format_ranks,
    list_missing_ranks,
    list_newly_missing_ranks,
)
from zprof.model.baseline import TimeBaseline
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.report import Report
from zprof.rules.evidence import STEPS_LATEST_RATIO

_CPU_NOTE = (
    "on CPU ranks (DDP, FSDP2) gloo shares the cores of the ranks, so little is hidden to begin with; "
    "guard collective_bytes and exposed_ratio there, and overlap on a GPU or with a modelled link"
)
_NO_COMMUNICATION = "no collective ran in the timed steps, so there is nothing to overlap"


def read_exposed_ratio(gate_input: GateInput) -> Reading:
    """Read the share of a step that is exposed communication."""
    (current, baseline), missing = select_communication_times(gate_input)
    current_share, baseline_share = _compute_exposed_share(current), _compute_exposed_share(baseline)
    return Reading(
        current=current_share.figure,
        baseline=baseline_share.figure,
        missing=missing,
        remedy=RECORD_HINT,
        report_path=STEPS_PATH,
        value_note=" of a step",
        samples=(current_share.samples, baseline_share.samples),
    )


def read_overlap_ratio(gate_input: GateInput) -> Reading:
    """Read the share of communication that is overlapped by compute."""
    facts = gate_input.report.run
    (current, baseline), missing = select_communication_times(gate_input)
    current_share, baseline_share = _compute_overlap_share(current), _compute_overlap_share(baseline)
    return Reading(
        current=current_share.figure,
        baseline=baseline_share.figure,
        missing=missing or _NO_COMMUNICATION,
        remedy=RECORD_HINT,
        report_path=STEPS_PATH,
        value_note=" of the communication overlapped",
        has_nothing=not missing,
        device_note=_CPU_NOTE if facts.device == "cpu" and not facts.modelled else "",
        samples=(current_share.samples, baseline_share.samples),
    )


class _Share(Struct, frozen=True, kw_only=True):
    """A ratio of sums over the steps, and its samples; None if the total is 0."""

    figure: GateFigure | None = None
    samples: Samples | None = None


def _compute_exposed_share(times: TimeBaseline | None) -> _Share:
    if times is None:
        return _Share()
    return _compute_share(times.exposed_ns, times.wall_ns, can_be_lower=times.upper_bound)


def _compute_overlap_share(times: TimeBaseline | None) -> _Share:
    """Return the overlapped share, a lower bound if the exposed time is an upper bound."""
    if times is None:
        return _Share()
    hidden = [all_ns - ns for all_ns, ns in zip(times.collective_ns, times.exposed_ns, strict=False)]
    return _compute_share(hidden, times.collective_ns, can_be_higher=times.upper_bound)


def _compute_share(
    parts: Sequence[int], wholes: Sequence[int], *, can_be_lower: bool = False, can_be_higher: bool = False
) -> _Share:
    if sum(wholes) <= 0:
        return _Share()
    value = Fraction(sum(parts), sum(wholes))
    return _Share(
        figure=GateFigure(value=value, can_be_lower=can_be_lower, can_be_higher=can_be_higher),
        samples=ratio_samples(np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)),
    )


def read_step_time(gate_input: GateInput) -> Reading:
    """Read the mean step time."""
    (current, baseline), missing = select_times(gate_input)
    return Reading(
        current=_make_mean_figure(current),
        baseline=_make_mean_figure(baseline),
        missing=missing,
        remedy=RECORD_HINT,
        report_path=STEPS_PATH,
        value_note=" per step",
        samples=(_make_samples(current), _make_samples(baseline)),
    )


def _make_mean_figure(times: TimeBaseline | None) -> GateFigure | None:
    return None if times is None else GateFigure(value=Fraction(sum(times.wall_ns), len(times.wall_ns)))


def _make_samples(times: TimeBaseline | None) -> Samples | None:
    return None if times is None else np.asarray(times.wall_ns, dtype=np.float64)


#: Minimum share of the steps in which the rank must arrive last.
_MIN_LATEST_RATIO = 0.8


def read_exposed_wait(gate_input: GateInput) -> Reading:
    """Read the exposed wait per step, the mean over steps and ranks."""
    (current, baseline), missing = select_communication_times(gate_input)
    late = find_late_rank(gate_input.report)
    return Reading(
        current=_make_wait_figure(current),
        baseline=_make_wait_figure(baseline),
        missing=missing,
        remedy=RECORD_HINT,
        report_path=STEPS_PATH,
        subject="" if late is None else f"rank {late}",
        value_note=" per step",
        growth_note="" if late is None else f"rank {late} is late in nearly all steps",
        warn_reason="this only warns because no rank is late in nearly all steps" if late is None else "",
    )


def find_late_rank(report: Report) -> int | None:
    """Return the rank that is late in nearly all steps according to the straggler finding, else None."""
    for finding in report.findings:
        if finding.cause is Cause.STRAGGLER_RANK and finding.confidence is not Confidence.LOW:
            return _rank_if_nearly_always_late(finding)
    return None


def _rank_if_nearly_always_late(finding: Finding) -> int | None:
    share = next((row.value for row in finding.evidence if row.key == STEPS_LATEST_RATIO), 0.0)
    rank = next((row.rank for row in finding.evidence if row.rank is not None), None)
    return rank if share >= _MIN_LATEST_RATIO else None


def _make_wait_figure(times: TimeBaseline | None) -> GateFigure | None:
    if times is None or times.exposed_wait_ns is None:
        return None
    return GateFigure(
        value=Fraction(times.exposed_wait_ns),
        can_be_lower=times.upper_bound,
        can_be_higher=times.wait_lower_bound,
    )


#: Path in the report of the list that the time gates sum over.
STEPS_PATH = "time.steps"
NO_COLLECTIVES = "no collective was recorded"
RECORD_HINT = "record the time window on all ranks (--time-steps 8)"


def select_times(gate_input: GateInput) -> tuple[tuple[TimeBaseline | None, TimeBaseline | None], str]:
    """Return the times of the run and the baseline, None if unknown, and the reason for the run's None.

    The run is unknown if it lacks a rank that the baseline has, and vice versa.
    """
    current, baseline = (
        gate_input.current.time,
        None if gate_input.baseline is None else gate_input.baseline.time,
    )
    if current is None:
        return (None, baseline), "no step was timed"
    ranks = list_missing_ranks(gate_input, current, baseline)
    if ranks:
        return (None, baseline), f"{format_ranks(ranks)} {'was' if len(ranks) == 1 else 'were'} not timed"
    if baseline is not None and list_newly_missing_ranks(baseline.missing_ranks, current.missing_ranks):
        baseline = None
    return (current, baseline), ""


def select_communication_times(
    gate_input: GateInput,
) -> tuple[tuple[TimeBaseline | None, TimeBaseline | None], str]:
    """Like ``select_times``, but None for a run or baseline without any collective."""
    (current, baseline), missing = select_times(gate_input)
    if current is not None and gate_input.current.collectives is None:
        current, missing = None, NO_COLLECTIVES
    if gate_input.baseline is not None and gate_input.baseline.collectives is None:
        baseline = None
    return (current, baseline), missing
