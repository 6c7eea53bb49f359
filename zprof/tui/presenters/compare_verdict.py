"""Judge a row of two runs: better, worse, noise, or not judged.

Bytes and counts are exact, so a difference of one byte counts. Times vary from step to step: the step time
has its own interval; any other time must change by more than the uncertainty of the step time (half its
interval, or the noise floor if that is larger). The hidden share has its own bootstrap interval. Fits,
samples, bounds and rates have no interval and are not judged.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.analysis.comparison import MIN_STEPS, compute_bootstrap_interval
from zprof.model.formatting import format_ns
from zprof.model.gaps import GapKind
from zprof.model.report import WORK_SETTINGS, Report
from zprof.model.side_by_side import Row, Section
from zprof.reports.presenters.memory_formatting import get_peak_mark
from zprof.reports.presenters.time_figures import unsplit_ns
from zprof.rules.claims import spoils_times
from zprof.tui.figures import AT_LEAST, AT_MOST, EXACT, Figure, Unit
from zprof.tui.presenters.compare_rows import (
    CompareFigure,
    RowPlace,
    SectionKind,
    classify_section,
    make_interval,
    parse_rank,
)
from zprof.tui.session import LoadedRun
from zprof.tui.tables import Mark, TextCell

Interval = tuple[float, float]


class Judgement(StrEnum):
    """Verdict on a row.

    ``EXACT`` and ``DIFFERS``: the value changed, but neither side is better. ``UNKNOWN``: one side's value is
    unknown. ``UNJUDGED``: both are known, but it is unknown whether the change is significant.
    """

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    EXACT = "exact"
    DIFFERS = "differs"
    NOISE = "noise"
    UNKNOWN = "unknown"
    UNJUDGED = "not judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """Uncertainty of step times: the largest difference that noise explains.

    ``times_ns``: None if unknown, with the reason in ``reason``.
    """

    times_ns: float | None
    reason: str = ""


#: Step times and bytes for which less is better; for other times and counts, neither side is better.
_LESS_IS_BETTER = frozenset({
    "wall_ns", "wall_median_ns", "compute_ns", "exposed_transfer_ns", "exposed_wait_ns", "exposed_memcpy_ns",
    "idle_ns", "unexplained_ns", "exposed_ns", "wait_ns", "transfer_ns", "total_ns", "memcpy_ns", "bytes",
    "seen_bytes", "kernel_ns",
})  # fmt: skip
#: Shares for which more is better.
_MORE_IS_BETTER = frozenset({"overlap_ratio"})
_NEITHER_BYTES = frozenset({"expected_bytes"})
#: Values without an interval: medians of launches, fits, values that depend on clocks, device samples.
_WITHOUT_INTERVAL = frozenset({
    "launch_delay_ns", "latency_ns", "uncertainty_ns", "noise_floor_ns", "first_wait_ns", "unsplit_ns",
    "own_wait_ns", "waiting_ranks", "reserved_unused_bytes", "non_pytorch_bytes",
})  # fmt: skip
_SIGNS = {
    Judgement.BETTER: ("✓", Mark.GOOD),
    Judgement.WORSE: ("✗", Mark.BAD),
    Judgement.SAME: ("=", Mark.MUTED),
    Judgement.EXACT: ("*", Mark.PLAIN),
    Judgement.DIFFERS: ("*", Mark.PLAIN),
    Judgement.NOISE: ("~", Mark.MUTED),
    Judgement.UNKNOWN: ("?", Mark.MUTED),
    Judgement.UNJUDGED: ("", Mark.MUTED),
}


def judge_row(
    row: Row, uncertainty: Uncertainty, *, own: Interval | None = None, is_bound: bool = False
) -> Judgement:
    """Judge a row: b compared with a.

    Args:
        row: The row with both values.
        uncertainty: Uncertainty of the step times.
        own: The 95 % interval of b minus a, if this row has its own.
        is_bound: True if one of the values is a lower or upper bound.
    """
    if row.a is None or row.b is None:
        return Judgement.UNKNOWN
    if isinstance(row.a, str) or isinstance(row.b, str):
        return Judgement.SAME if row.a == row.b else Judgement.DIFFERS
    if own is not None:
        return _judge_by_interval((-own[1], -own[0]) if row.name in _MORE_IS_BETTER else own, uncertainty)
    if row.unit not in ("ns", "bytes", "count") or row.name in _WITHOUT_INTERVAL or is_bound:
        return Judgement.UNJUDGED
    if row.a == row.b:
        return Judgement.SAME
    if row.unit == "ns":
        return _judge_by_uncertainty(row.name, row.b - row.a, uncertainty)
    return _judge_exact(row, row.b - row.a)


def _judge_by_interval(own: Interval, uncertainty: Uncertainty) -> Judgement:
    low, high = own
    if uncertainty.times_ns is None:
        return Judgement.UNJUDGED
    return Judgement.WORSE if low > 0 else Judgement.BETTER if high < 0 else Judgement.NOISE


def _judge_by_uncertainty(name: str, change: float, uncertainty: Uncertainty) -> Judgement:
    if uncertainty.times_ns is None:
        return Judgement.UNJUDGED
    if abs(change) <= uncertainty.times_ns:
        return Judgement.NOISE
    return _judge_less_is_better(change) if name in _LESS_IS_BETTER else Judgement.DIFFERS


def _judge_exact(row: Row, change: float) -> Judgement:
    is_less_better = row.name in _LESS_IS_BETTER or (
        row.name.endswith("_bytes") and row.name not in _NEITHER_BYTES
    )
    return _judge_less_is_better(change) if is_less_better else Judgement.EXACT


def _judge_less_is_better(change: float) -> Judgement:
    return Judgement.WORSE if change > 0 else Judgement.BETTER


def find_uncertainty(report: Report, *, per_token: bool = False) -> Uncertainty:
    """Return the uncertainty of the step times of this report and its baseline.

    ``per_token``: return the uncertainty of times at equal work instead.
    """
    comparison = report.comparison
    if comparison is None or comparison.step_time is None:
        return Uncertainty(times_ns=None, reason="the step times of both runs are not known")
    interval_gap = next((gap for gap in report.gaps if gap.kind is GapKind.NO_INTERVAL), None)
    if interval_gap is not None:
        return Uncertainty(times_ns=None, reason=interval_gap.reason)
    work, times = comparison.equal_work, comparison.step_time
    if work is None and any(entry.key in WORK_SETTINGS for entry in comparison.differences):
        return Uncertainty(times_ns=None, reason="the jobs differ, and their work per step is unknown")
    if work is not None and not per_token and work.b_ns != times.b_ns:
        return Uncertainty(
            times_ns=None,
            reason=f"work per step differs; press n for rank times per {work.unit.value.removesuffix('s')}",
        )
    if any(map(spoils_times, report.findings)):
        return Uncertainty(times_ns=None, reason="the recordings of the ranks are inconsistent")
    low, high = work.ci95 if work is not None and per_token else times.ci95
    noise_ns = [rank.noise_floor_ns for rank in (*report.time.per_rank, *comparison.baseline_time)]
    return Uncertainty(times_ns=max((high - low) / 2, *noise_ns))


def format_judgement(judgement: Judgement) -> TextCell:
    """Format the verdict as a cell: symbol and word."""
    sign, mark = _SIGNS[judgement]
    return TextCell(f"{sign} {judgement.value}".strip(), mark)


def explain_judgement(judgement: Judgement, row: Row, uncertainty: Uncertainty) -> str:
    """Explain the verdict in one line."""
    if judgement is Judgement.UNKNOWN:
        return "unknown  the value of one run is unknown"
    if judgement is Judgement.UNJUDGED:
        return f"not judged: {_explain_unjudged(row, uncertainty)}"
    if row.unit == "ratio":
        return f"{judgement.value:<8} {_explain_share(judgement)}"
    if judgement in (Judgement.SAME, Judgement.DIFFERS) or row.unit != "ns":
        texts = {
            Judgement.SAME: "both are equal",
            Judgement.DIFFERS: "the values differ; neither is better",
            Judgement.EXACT: "counted exactly; neither value is better",
        }
        return f"{judgement.value:<8} {texts.get(judgement, 'counted exactly; less is better')}"
    return f"{judgement.value:<8} {_explain_time(judgement, uncertainty)}"


def _explain_unjudged(row: Row, uncertainty: Uncertainty) -> str:
    is_step_value = row.unit == "ns" or row.name in _MORE_IS_BETTER
    if is_step_value and row.name not in _WITHOUT_INTERVAL and uncertainty.times_ns is None:
        return uncertainty.reason
    return "it has no interval, because it is a rate, a share, a fit, a sample or a bound"


def _explain_share(judgement: Judgement) -> str:
    if judgement is Judgement.NOISE:
        return "the 95 % interval of the change, from the shares of the individual steps, contains 0"
    return (
        "the 95 % interval of the change, from the shares of the individual steps, excludes 0; more is better"
    )


def _explain_time(judgement: Judgement, uncertainty: Uncertainty) -> str:
    limit = format_ns(uncertainty.times_ns or 0)
    if judgement is Judgement.NOISE:
        return f"the change is within the uncertainty of the step time, {limit}"
    return f"the change exceeds the uncertainty of the step time, {limit}; less is better"


_NO_TIME_INTERVAL = Uncertainty(times_ns=None, reason="these times have no interval")
_EXPOSED = frozenset({
    "exposed_wait_ns", "exposed_wait_per_rank_ns", "exposed_transfer_ns", "exposed_memcpy_ns", "exposed_ns",
})  # fmt: skip
#: Wait and transfer of collectives: bounds if a collective was not recorded on all ranks.
_SPLIT = {
    "exposed_wait_ns": AT_LEAST,
    "exposed_wait_per_rank_ns": AT_LEAST,
    "wait_ns": AT_LEAST,
    "wait_per_rank_ns": AT_LEAST,
    "exposed_transfer_ns": AT_MOST,
    "transfer_ns": AT_MOST,
}
#: Sections with fitted times, clocks, or sums over other ranks: the step time's uncertainty does not apply.
_WITHOUT_STEP_INTERVAL = frozenset({SectionKind.LINK, SectionKind.CLOCKS, SectionKind.LATE})


def find_interval(loaded: LoadedRun, place: RowPlace) -> Figure | None:
    """Return the interval of the step time, per step or at equal work, or of the hidden share, else None.

    Runs with too few steps have none.
    """
    comparison = loaded.report.comparison
    has_few_steps = any(gap.kind is GapKind.NO_INTERVAL for gap in loaded.report.gaps)
    if comparison is None or comparison.step_time is None or has_few_steps:
        return None
    if classify_section(place.section) is SectionKind.STEP and place.row.name == "wall_ns":
        return make_interval(loaded.tree, "step_time")
    if (
        classify_section(place.section) is SectionKind.EQUAL_WORK
        and place.row.unit == "ns"
        and comparison.equal_work
    ):
        return make_interval(loaded.tree, "equal_work")
    share = bootstrap_share_interval(loaded, place)
    return make_share_figure(share) if share else None


def find_bound_sign(loaded: LoadedRun, place: RowPlace, *, after: bool) -> str:
    """Return the bound sign of one side's figure; a row of one rank uses that rank's."""
    comparison, name = loaded.report.comparison, place.row.name
    if comparison is None:
        return EXACT
    if classify_section(place.section) is SectionKind.MEMORY:
        memory = loaded.report.memory.per_rank if after else comparison.baseline_memory
        is_peak = bool(memory) and name == "peak_bytes"
        return get_peak_mark(max(memory, key=lambda entry: entry.peak_bytes)) if is_peak else EXACT
    rank = parse_rank(place.section)
    times = loaded.report.time.per_rank if after else comparison.baseline_time
    entries = [entry for entry in times if rank in (None, entry.rank)]
    if name in _SPLIT and unsplit_ns(entries):
        return _SPLIT[name]
    return AT_MOST if name in _EXPOSED and any(entry.upper_bound for entry in entries) else EXACT


def judge_place(loaded: LoadedRun, place: RowPlace, uncertainty: Uncertainty) -> Judgement:
    """Judge a row of the report."""
    comparison, part = loaded.report.comparison, classify_section(place.section)
    own: Interval | None = bootstrap_share_interval(loaded, place)
    is_time = place.row.unit == "ns" and find_interval(loaded, place) is not None
    if is_time and comparison is not None and comparison.step_time:
        work = comparison.equal_work if part is SectionKind.EQUAL_WORK else None
        own = work.ci95 if work else comparison.step_time.ci95
        uncertainty = find_uncertainty(loaded.report, per_token=True) if work else uncertainty
    row = replace(place.row, name="kernel_ns") if part is SectionKind.KERNELS else place.row
    times = _NO_TIME_INTERVAL if part in _WITHOUT_STEP_INTERVAL else uncertainty
    judgement = judge_row(row, times, own=own, is_bound=is_bound(loaded, place))
    is_ranked = judgement in (Judgement.BETTER, Judgement.WORSE, Judgement.NOISE)
    return Judgement.DIFFERS if is_ranked and _is_one_sided(place.section) else judgement


def _is_one_sided(section: Section) -> bool:
    """Return True if only one side uses this collective, so that less of it is not an improvement."""
    if classify_section(section) is not SectionKind.COLLECTIVE:
        return False
    return any(row.name == "count" and (not row.a) != (not row.b) for row in section.rows)


def is_bound(loaded: LoadedRun, place: RowPlace) -> bool:
    """Return True if either side's value is a lower or upper bound."""
    report, comparison = loaded.report, loaded.report.comparison
    before = comparison.baseline_memory if comparison else ()
    if classify_section(place.section) is SectionKind.MEMORY:
        return any(rank.upper_bound or rank.lower_bound for rank in (*report.memory.per_rank, *before))
    sides = (report.time.per_rank, comparison.baseline_time if comparison else ())
    if place.row.name in _SPLIT and any(unsplit_ns(ranks) for ranks in sides):
        return True
    return place.row.name in _EXPOSED and any(rank.upper_bound for ranks in sides for rank in ranks)


HIDDEN_SHARE = "overlap_ratio"
#: `compute_bootstrap_interval` rounds to integers, so shares are scaled to parts per 1e9.
_SHARE_SCALE = 1e9


def bootstrap_share_interval(loaded: LoadedRun, place: RowPlace) -> tuple[float, float] | None:
    """Return the 95 % interval of B's hidden share minus A's, or None.

    The steps of each run are resampled independently, as for the step time. None if this row is not a hidden
    share, shares are upper bounds, or a run has fewer than `MIN_STEPS` steps with collectives.
    """
    comparison, before = loaded.report.comparison, loaded.before
    is_share = place.row.name == HIDDEN_SHARE and classify_section(place.section) in (
        SectionKind.STEP,
        SectionKind.RANK,
    )
    if not is_share or before is None or comparison is None:
        return None
    if any(rank.upper_bound for rank in (*loaded.report.time.per_rank, *comparison.baseline_time)):
        return None
    rank = parse_rank(place.section)
    shares = [_compute_shares(analysis.steps, rank) for analysis in (before, loaded.analysis)]
    if min(map(len, shares)) < MIN_STEPS:
        return None
    low, high = compute_bootstrap_interval(shares[0] * _SHARE_SCALE, shares[1] * _SHARE_SCALE)
    return low / _SHARE_SCALE, high / _SHARE_SCALE


def _compute_shares(steps: pd.DataFrame, rank: int | None) -> npt.NDArray[np.float64]:
    """Compute the hidden share of each step with collectives, for one rank or all ranks."""
    if steps.empty:
        return np.empty(0)
    rank_steps = steps if rank is None else steps[steps["rank"] == rank]
    sums = rank_steps.groupby("step")[["overlapped_ns", "collective_ns"]].sum()
    sums = sums[sums["collective_ns"] > 0]
    return (sums["overlapped_ns"] / sums["collective_ns"]).to_numpy(dtype=np.float64)


def make_share_figure(interval: tuple[float, float]) -> CompareFigure:
    """Format the interval in percentage points, like the change: ``-84..-78 pt``."""
    low, high = (100 * end for end in interval)
    return CompareFigure(value=interval[1], unit=Unit.RATIO, leaves=(), words=f"{low:+.0f}..{high:+.0f} pt")
