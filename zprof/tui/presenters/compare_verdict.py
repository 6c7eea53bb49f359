"""Judge the rows of the compare screen, and explain the verdicts."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.analysis.compare.differences import MIN_STEPS
from zprof.analysis.compare.intervals import (
    Interval,
    compute_bootstrap_interval,
    compute_difference_interval,
)
from zprof.analysis.compare.judgement import (
    Judgement,
    Uncertainty,
    find_uncertainty,
    has_interval,
    judge_row,
)
from zprof.analysis.time.ledger import STEP_COLUMNS
from zprof.model.formatting import format_ns
from zprof.model.gaps import GapKind
from zprof.model.quantities import Bound, Unit, Value
from zprof.model.side_by_side import ComparedRow, ComparedSection
from zprof.model.time import SPLIT_BOUNDS, bound_over_ranks, has_unsplit_wait
from zprof.reports.table import Mark, Marked
from zprof.tui.presenters.compare_rows import (
    RowPlace,
    SectionKind,
    WordedValue,
    classify_section,
    make_interval,
    parse_rank,
)
from zprof.tui.session import LoadedRun

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


def format_judgement(judgement: Judgement) -> Marked:
    """Format the verdict as a cell: symbol and word."""
    sign, mark = _SIGNS[judgement]
    return Marked(f"{sign} {judgement.value}".strip(), mark)


def explain_judgement(
    judgement: Judgement, row: ComparedRow, uncertainty: Uncertainty, *, has_own: bool = False
) -> str:
    """Explain the verdict in one line; ``has_own``: the row is judged by an interval of its own."""
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
    why = _explain_own_time(judgement) if has_own else _explain_time(judgement, uncertainty)
    return f"{judgement.value:<8} {why}"


def _explain_unjudged(row: ComparedRow, uncertainty: Uncertainty) -> str:
    is_step_value = row.unit == "ns" or row.name == HIDDEN_SHARE
    if is_step_value and has_interval(row) and uncertainty.times_ns is None:
        return uncertainty.reason
    return "it has no interval, because it is a rate, a share, a fit, a sample or a bound"


def _explain_share(judgement: Judgement) -> str:
    if judgement is Judgement.NOISE:
        return "the 95 % interval of the change, from the shares of the individual steps, contains 0"
    return (
        "the 95 % interval of the change, from the shares of the individual steps, excludes 0; more is better"
    )


def _explain_own_time(judgement: Judgement) -> str:
    if judgement is Judgement.NOISE:
        return "the 95 % interval of the change, from the times of the single steps, contains 0"
    return "the 95 % interval of the change, from the times of the single steps, excludes 0; less is better"


def _explain_time(judgement: Judgement, uncertainty: Uncertainty) -> str:
    limit = format_ns(uncertainty.times_ns or 0)
    if judgement is Judgement.NOISE:
        return f"the change is within the uncertainty of the step time, {limit}"
    return f"the change exceeds the uncertainty of the step time, {limit}; less is better"


_NO_TIME_INTERVAL = Uncertainty(times_ns=None, reason="these times have no interval")
#: Waits and transfers, exposed or hidden: bounds only if they could not be told apart.
_ALL_WAITS = {"wait_ns": "wait_ns", "wait_per_rank_ns": "wait_ns", "transfer_ns": "transfer_ns"}
#: Terms of the ledger that other exposed times are bounded like.
_EXPOSED_TERMS = {"exposed_wait_per_rank_ns": "exposed_wait_ns", "exposed_ns": "exposed_memcpy_ns"}
#: Sections with fitted times, clocks, or sums over other ranks: the step time's uncertainty does not apply.
_WITHOUT_STEP_INTERVAL = frozenset({SectionKind.LINK, SectionKind.CLOCKS, SectionKind.LATE})


def find_interval(loaded: LoadedRun, place: RowPlace) -> Value | None:
    """Return the interval of the step time, at equal work too, of a term of it, or of the hidden share.

    The result is None for other rows, and if the runs have too few steps.
    """
    comparison = loaded.report.comparison
    has_few_steps = any(gap.kind is GapKind.NO_INTERVAL for gap in loaded.report.gaps)
    if comparison is None or comparison.step_time is None or has_few_steps:
        return None
    if classify_section(place.section) is SectionKind.STEP and place.row.name == "wall_ns":
        return make_interval(loaded.report, "step_time")
    if (
        classify_section(place.section) is SectionKind.EQUAL_WORK
        and place.row.unit == "ns"
        and comparison.equal_work
    ):
        return make_interval(loaded.report, "equal_work")
    if (time := bootstrap_time_interval(loaded, place)) is not None:
        return make_time_figure(time)
    share = bootstrap_share_interval(loaded, place)
    return make_share_figure(share) if share else None


def find_side_bound(loaded: LoadedRun, place: RowPlace, *, after: bool) -> Bound:
    """Return the bound of one side's number; a row of one rank uses that rank's."""
    comparison, name = loaded.report.comparison, place.row.name
    if comparison is None:
        return Bound.EXACT
    if classify_section(place.section) is SectionKind.MEMORY:
        memory = loaded.report.memory.per_rank if after else comparison.baseline_memory
        largest = max(memory, key=lambda entry: entry.peak_bytes, default=None)
        return largest.bounds.get(name, Bound.EXACT) if largest else Bound.EXACT
    rank = parse_rank(place.section)
    times = loaded.report.time.per_rank if after else comparison.baseline_time
    ranks = [entry for entry in times if rank in (None, entry.rank)]
    if name in _ALL_WAITS:
        return SPLIT_BOUNDS[_ALL_WAITS[name]] if has_unsplit_wait(ranks) else Bound.EXACT
    term = _EXPOSED_TERMS.get(name, name)
    return bound_over_ranks(ranks, term)


def judge_place(loaded: LoadedRun, place: RowPlace, uncertainty: Uncertainty) -> Judgement:
    """Judge a row of the report."""
    comparison, part = loaded.report.comparison, classify_section(place.section)
    own: Interval | None = bootstrap_share_interval(loaded, place)
    if own is None:
        own = bootstrap_time_interval(loaded, place)
    is_step_time = own is None and place.row.unit == "ns" and find_interval(loaded, place) is not None
    if is_step_time and comparison is not None and comparison.step_time:
        work = comparison.equal_work if part is SectionKind.EQUAL_WORK else None
        own = work.ci95 if work else comparison.step_time.ci95
        uncertainty = find_uncertainty(loaded.report, per_token=True) if work else uncertainty
    row = place.row
    times = _NO_TIME_INTERVAL if part in _WITHOUT_STEP_INTERVAL else uncertainty
    judgement = judge_row(row, times, own=own, is_bound=is_bound(loaded, place))
    is_ranked = judgement in (Judgement.BETTER, Judgement.WORSE, Judgement.NOISE)
    return Judgement.DIFFERS if is_ranked and _is_one_sided(place.section) else judgement


def _is_one_sided(section: ComparedSection) -> bool:
    """Return True if only one side uses this collective, so that less of it is not an improvement."""
    if classify_section(section) is not SectionKind.COLLECTIVE:
        return False
    return any(row.name == "count" and (not row.a) != (not row.b) for row in section.rows)


def is_bound(loaded: LoadedRun, place: RowPlace) -> bool:
    """Return True if either side's number is a lower or upper bound."""
    comparison = loaded.report.comparison
    if comparison is not None and classify_section(place.section) is SectionKind.MEMORY:
        return any(rank.bounds for rank in (*loaded.report.memory.per_rank, *comparison.baseline_memory))
    return any(find_side_bound(loaded, place, after=after) is not Bound.EXACT for after in (False, True))


#: Shorter intervals are in µs.
_MIN_MS_NS = 1e6
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


def bootstrap_time_interval(
    loaded: LoadedRun, place: RowPlace, scales: tuple[float, float] = (1.0, 1.0)
) -> Interval | None:
    """Return the 95 % interval of B's time of this ledger term minus A's, in ns, from the single steps.

    It is no narrower than the noise floor on either side of the change. None if the row is not a term of a
    step, of all ranks or of one, if it is a bound, or if a run has fewer than `MIN_STEPS` steps. ``scales``:
    what A's and B's times are multiplied by, such as ranks per token.
    """
    comparison, before, row = loaded.report.comparison, loaded.before, place.row
    part = classify_section(place.section)
    is_total = part is SectionKind.STEP and row.name == "wall_ns"
    if part not in (SectionKind.STEP, SectionKind.RANK) or row.name not in STEP_COLUMNS or is_total:
        return None
    if before is None or comparison is None or is_bound(loaded, place):
        return None
    rank = parse_rank(place.section)
    times = [
        scale * _mean_by_step(analysis.steps, row.name, rank)
        for analysis, scale in zip((before, loaded.analysis), scales, strict=True)
    ]
    if min(map(len, times)) < MIN_STEPS:
        return None
    low, high = compute_difference_interval(times[0], times[1], 0.95)
    change = float(times[1].mean() - times[0].mean())
    ranks = (*loaded.report.time.per_rank, *comparison.baseline_time)
    noise_ns = max(scales) * max((each.noise_floor_ns for each in ranks), default=0)
    return min(low, change - noise_ns), max(high, change + noise_ns)


def _mean_by_step(steps: pd.DataFrame, column: str, rank: int | None) -> npt.NDArray[np.float64]:
    """Return the time of each step, of one rank or as the mean over the ranks."""
    chosen = steps if rank is None else steps[steps["rank"] == rank]
    return chosen.groupby("step")[column].mean().to_numpy(dtype=np.float64)


def make_time_figure(interval: Interval) -> WordedValue:
    """Format the interval in ms, or in µs if it is shorter: ``+1.2..+3.4 ms``."""
    unit, scale = ("ms", 1e6) if max(map(abs, interval)) >= _MIN_MS_NS else ("µs", 1e3)
    low, high = (end / scale for end in interval)
    return WordedValue(number=interval[1], unit=Unit.NS, words=f"{low:+.1f}..{high:+.1f} {unit}")


def _compute_shares(steps: pd.DataFrame, rank: int | None) -> npt.NDArray[np.float64]:
    """Compute the hidden share of each step with collectives, for one rank or all ranks."""
    if steps.empty:
        return np.empty(0)
    rank_steps = steps if rank is None else steps[steps["rank"] == rank]
    sums = rank_steps.groupby("step")[["overlapped_ns", "collective_ns"]].sum()
    sums = sums[sums["collective_ns"] > 0]
    return (sums["overlapped_ns"] / sums["collective_ns"]).to_numpy(dtype=np.float64)


def make_share_figure(interval: tuple[float, float]) -> WordedValue:
    """Format the interval in percentage points, like the change: ``-84..-78 pt``."""
    low, high = (100 * end for end in interval)
    return WordedValue(number=interval[1], unit=Unit.RATIO, words=f"{low:+.0f}..{high:+.0f} pt")
