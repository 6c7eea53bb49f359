"""Judge the change of one number between two runs: better, worse, noise, or not judged.

A change counts if its whole interval lies on one side of a threshold: 0 in a comparison, the allowed change
for a limit. Bytes and counts are exact, so a difference of one byte counts. Times vary from step to step: the
step time has its own interval; any other time must change by more than the step time's uncertainty (half its
interval, or the noise floor if larger). The hidden share has its own bootstrap interval. Fits, samples,
bounds and rates have no interval and are not judged.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.columns import Columns, Groups
from zprof.analysis.compare.differences import MIN_STEPS, Interval, compute_difference_interval, find_side
from zprof.analysis.time.ledger import STEP_COLUMNS
from zprof.model.comparison import ComparedRow, Figure, JudgedRow, Judgement, RowPlace, SectionKind, Sense
from zprof.model.gaps import Gap, GapKind
from zprof.model.metrics import find_metric
from zprof.model.quantities import Better, Bound, Unit, parse_path
from zprof.model.report import WORK_SETTINGS, Comparison, Report
from zprof.model.time import SPLIT_BOUNDS, RankTime, bound_over_ranks, has_unsplit_wait

#: Minimum relative change of a slower step; its interval must also lie above zero.
MIN_SLOWER_RATIO = 0.02
#: A step is as fast as before if the interval of its relative change stays below this.
MAX_UNCHANGED_RATIO = 0.05


class Uncertainty(Struct, frozen=True, kw_only=True):
    """Uncertainty of step times: the largest difference that noise explains.

    ``times_ns`` is None if unknown; ``reason`` says why.
    """

    times_ns: float | None
    reason: str = ""


def judge_row(
    row: ComparedRow, uncertainty: Uncertainty, *, own: Interval | None = None, is_bound: bool = False
) -> Judgement:
    """Judge a row: b against a.

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
    # A row without a leaf is a kernel's time.
    metric = find_metric(parse_path(row.leaf))
    better = metric.better if metric else Better.NEITHER if row.leaf else Better.LESS
    change = row.b - row.a
    if own is None:
        if row.unit not in (Unit.NS, Unit.BYTES, Unit.COUNT) or not has_interval(row) or is_bound:
            return Judgement.UNJUDGED
        if not change:
            return Judgement.SAME
        if row.unit != Unit.NS:
            return Judgement.EXACT if better is Better.NEITHER else _rank_change(change > 0, better)
    if uncertainty.times_ns is None:
        return Judgement.UNJUDGED
    side = find_side(own or (change - uncertainty.times_ns, change + uncertainty.times_ns))
    return _rank_change(side > 0, better) if side else Judgement.NOISE


def _rank_change(is_more: bool, better: Better) -> Judgement:
    if better is Better.NEITHER:
        return Judgement.DIFFERS
    return Judgement.BETTER if is_more == (better is Better.MORE) else Judgement.WORSE


def has_interval(row: ComparedRow) -> bool:
    """Return False if a change of this number cannot be told from noise."""
    metric = find_metric(parse_path(row.leaf))
    return metric is None or metric.has_interval


class Obstacle(StrEnum):
    """Why the step times of two runs cannot be judged."""

    FEW_STEPS = "few steps"
    UNKNOWN_WORK = "unknown work"


def find_obstacle(comparison: Comparison, gaps: Sequence[Gap]) -> Obstacle | None:
    """Return why the step times cannot be judged, None if they can be."""
    if any(gap.kind is GapKind.NO_INTERVAL for gap in gaps):
        return Obstacle.FEW_STEPS
    if comparison.equal_work is None and any(entry.key in WORK_SETTINGS for entry in comparison.differences):
        return Obstacle.UNKNOWN_WORK
    return None


def find_uncertainty(report: Report, *, per_token: bool = False) -> Uncertainty:
    """Return the uncertainty of the step times in this report and its baseline.

    ``per_token``: return the uncertainty at equal work instead.
    """
    comparison = report.comparison
    if comparison is None or comparison.step_time is None:
        return Uncertainty(times_ns=None, reason="the step times of both runs are not known")
    obstacle = find_obstacle(comparison, report.gaps)
    if obstacle is Obstacle.FEW_STEPS:
        reason = next(gap.reason for gap in report.gaps if gap.kind is GapKind.NO_INTERVAL)
        return Uncertainty(times_ns=None, reason=reason)
    if obstacle is Obstacle.UNKNOWN_WORK:
        return Uncertainty(times_ns=None, reason="the jobs differ, and their work per step is unknown")
    work, times = comparison.equal_work, comparison.step_time
    if work is not None and not per_token and work.b_ns != times.b_ns:
        return Uncertainty(
            times_ns=None,
            reason=f"work per step differs; press n for rank times per {work.unit.value.removesuffix('s')}",
        )
    if any(finding.invalidates_times for finding in report.findings):
        return Uncertainty(times_ns=None, reason="the recordings of the ranks are inconsistent")
    low, high = work.ci95 if work is not None and per_token else times.ci95
    noise_ns = [rank.noise_floor_ns for rank in (*report.time.per_rank, *comparison.baseline_time)]
    return Uncertainty(times_ns=max((high - low) / 2, *noise_ns))


#: Waits and transfers, exposed or hidden: only bounds if the two could not be told apart.
_ALL_WAITS = {"wait_ns": "wait_ns", "wait_per_rank_ns": "wait_ns", "transfer_ns": "transfer_ns"}
#: Ledger terms whose bounds also apply to these exposed times.
_EXPOSED_TERMS = {"exposed_wait_per_rank_ns": "exposed_wait_ns", "exposed_ns": "exposed_memcpy_ns"}
#: Sections with fits, clocks, or sums over other ranks, to which the step time's uncertainty does not apply.
_WITHOUT_STEP_INTERVAL = (SectionKind.LINK, SectionKind.CLOCKS, SectionKind.LATE)
_HIDDEN_SHARE = "overlap_ratio"

#: The timed steps of a and of b, one row per rank and step.
StepTables = tuple[Columns, Columns]


def make_judge(
    report: Report, steps: StepTables | None, *, per_work: bool = False
) -> Callable[[RowPlace], JudgedRow]:
    """Return a function that judges one row; ``report`` is b's report with a as its baseline.

    Without ``steps``, intervals that need single steps are left out. ``per_work``: judge step times per token
    or sample, summed over all ranks; both runs' work must be known.
    """
    uncertainty = find_uncertainty(report, per_token=per_work)
    if steps is not None and (not _has_intervals(report) or not all(map(len, steps))):
        steps = None

    def judge(place: RowPlace) -> JudgedRow:
        if per_work and place.is_step_time:
            return _judge_per_work(report, place, steps, uncertainty)
        comparison, kind, row = report.comparison, place.section.kind, place.row
        bounds = (_find_bound(report, place, after=False), _find_bound(report, place, after=True))
        is_bound = _is_bound(report, place, bounds)
        own = _find_share_interval(report, place, steps)
        is_term = own is None
        if own is None and not is_bound:
            own = _find_term_interval(report, place, steps)
        is_term = is_term and own is not None
        times = Uncertainty(times_ns=None) if kind in _WITHOUT_STEP_INTERVAL else uncertainty
        if own is None and comparison is not None and comparison.step_time and _has_intervals(report):
            if kind is SectionKind.STEP and row.name == "wall_ns":
                own = comparison.step_time.ci95
            elif kind is SectionKind.EQUAL_WORK and row.unit == "ns" and comparison.equal_work is not None:
                own = comparison.equal_work.ci95
                times = find_uncertainty(report, per_token=True)
        judgement = judge_row(row, times, own=own, is_bound=is_bound)
        # Less time in a collective that only one side uses is not an improvement.
        is_one_sided = kind is SectionKind.COLLECTIVE and any(
            each.name == "count" and (not each.a) != (not each.b) for each in place.section.rows
        )
        if is_one_sided and judgement in (Judgement.BETTER, Judgement.WORSE, Judgement.NOISE):
            judgement = Judgement.DIFFERS
        return JudgedRow(
            row=row,
            judgement=judgement,
            interval=own,
            is_term=is_term,
            bounds=bounds,
            noise_ns=uncertainty.times_ns,
            reason=_explain_unjudged(row, uncertainty),
        )

    return judge


def _explain_unjudged(row: ComparedRow, uncertainty: Uncertainty) -> str:
    """Return why a value that varies between steps has no uncertainty, "" if it has one or needs none."""
    varies = (row.unit == "ns" or row.name == _HIDDEN_SHARE) and has_interval(row)
    return uncertainty.reason if varies and uncertainty.times_ns is None else ""


def _has_intervals(report: Report) -> bool:
    """Return True if the step times are comparable, and both runs have enough steps for an interval."""
    has_times = report.comparison is not None and report.comparison.step_time is not None
    return has_times and not any(gap.kind is GapKind.NO_INTERVAL for gap in report.gaps)


def _judge_per_work(
    report: Report, place: RowPlace, steps: StepTables | None, uncertainty: Uncertainty
) -> JudgedRow:
    """Judge a step time per token or sample: step times of all ranks / work of all ranks."""
    comparison = report.comparison
    work = comparison.equal_work if comparison is not None else None
    assert comparison is not None
    assert work is not None
    sides = (comparison.baseline_time, report.time.per_rank)
    amounts = (work.a_per_step, work.b_per_step)
    a, b = (
        sum(values) / amount if (values := _list_known(ranks, place.row.name)) and amount else None
        for ranks, amount in zip(sides, amounts, strict=True)
    )
    row = replace(place.row, a=a, b=b)
    scales = (len(sides[0]) / amounts[0], len(sides[1]) / amounts[1])
    bounds = (_find_bound(report, place, after=False), _find_bound(report, place, after=True))
    is_bound = _is_bound(report, place, bounds)
    is_wall = place.row.name == "wall_ns"
    own: Interval | None = work.ci95
    if not is_wall:
        own = None if is_bound else _find_term_interval(report, place, steps, scales)
    if uncertainty.times_ns is not None:
        uncertainty = replace(uncertainty, times_ns=uncertainty.times_ns * scales[0])
    return JudgedRow(
        row=row,
        judgement=judge_row(row, uncertainty, own=own, is_bound=is_bound),
        interval=own,
        is_term=own is not None and not is_wall,
        bounds=bounds,
        noise_ns=uncertainty.times_ns,
        reason=_explain_unjudged(row, uncertainty),
    )


def _list_known(ranks: Sequence[RankTime], name: str) -> list[float]:
    return [value for rank in ranks if (value := getattr(rank, name)) is not None]


def _find_bound(report: Report, place: RowPlace, *, after: bool) -> Bound:
    """Return the bound of one side's number; a row about one rank uses that rank's bound."""
    comparison, name = report.comparison, place.row.name
    if comparison is None:
        return Bound.EXACT
    if place.section.kind is SectionKind.MEMORY:
        memory = report.memory.per_rank if after else comparison.baseline_memory
        largest = max(memory, key=lambda entry: entry.peak_bytes, default=None)
        return largest.bounds.get(name, Bound.EXACT) if largest else Bound.EXACT
    times = report.time.per_rank if after else comparison.baseline_time
    ranks = [entry for entry in times if place.section.rank in (None, entry.rank)]
    if name in _ALL_WAITS:
        return SPLIT_BOUNDS[_ALL_WAITS[name]] if has_unsplit_wait(ranks) else Bound.EXACT
    return bound_over_ranks(ranks, _EXPOSED_TERMS.get(name, name))


def _is_bound(report: Report, place: RowPlace, bounds: tuple[Bound, Bound]) -> bool:
    """Return True if either side's number is a lower or upper bound; for memory, if any rank's is."""
    comparison = report.comparison
    if comparison is not None and place.section.kind is SectionKind.MEMORY:
        return any(rank.bounds for rank in (*report.memory.per_rank, *comparison.baseline_memory))
    return bounds != (Bound.EXACT, Bound.EXACT)


def _find_share_interval(report: Report, place: RowPlace, steps: StepTables | None) -> Interval | None:
    """Return the 95 % interval of b's hidden share minus a's, or None.

    Each run's steps are resampled independently, as for the step time. None if this row is not a hidden
    share, if shares are upper bounds, or if a run has fewer than `MIN_STEPS` steps with collectives.
    """
    is_share = place.row.name == _HIDDEN_SHARE and place.section.kind in (SectionKind.STEP, SectionKind.RANK)
    comparison = report.comparison
    if not is_share or steps is None or comparison is None:
        return None
    if any(rank.upper_bound for rank in (*report.time.per_rank, *comparison.baseline_time)):
        return None
    shares = []
    for table in steps:
        rows = _select_rank(table, place.section.rank)
        by_step = Groups(rows.ints("step"))
        overlapped, total = (by_step.sum(rows.ints(name)) for name in ("overlapped_ns", "collective_ns"))
        shares.append(overlapped[total > 0] / total[total > 0])
    if min(map(len, shares)) < MIN_STEPS:
        return None
    return compute_difference_interval(shares[0], shares[1], 0.95)


def _find_term_interval(
    report: Report, place: RowPlace, steps: StepTables | None, scales: tuple[float, float] = (1.0, 1.0)
) -> Interval | None:
    """Return the 95 % interval of this ledger term's change from a to b, in ns, from single steps.

    It extends at least the noise floor to either side of the change. None if the row is not a ledger term (of
    one rank or all), or if a run has fewer than `MIN_STEPS` steps. ``scales``: factors for a's and b's times,
    such as ranks per token.
    """
    comparison, name, kind = report.comparison, place.row.name, place.section.kind
    is_total = kind is SectionKind.STEP and name == "wall_ns"
    is_term = kind in (SectionKind.STEP, SectionKind.RANK) and name in STEP_COLUMNS and not is_total
    if not is_term or steps is None or comparison is None:
        return None
    rows = [_select_rank(table, place.section.rank) for table in steps]
    means = (Groups(table.ints("step")).mean(table.ints(name)) for table in rows)
    a, b = (scale * mean for scale, mean in zip(scales, means, strict=True))
    if min(len(a), len(b)) < MIN_STEPS:
        return None
    low, high = compute_difference_interval(a, b, 0.95)
    change = float(b.mean() - a.mean())
    ranks = (*report.time.per_rank, *comparison.baseline_time)
    noise_ns = max(scales) * max((each.noise_floor_ns for each in ranks), default=0)
    return min(low, change - noise_ns), max(high, change + noise_ns)


def _select_rank(steps: Columns, rank: int | None) -> Columns:
    """Return the steps of one rank, or of all ranks if None."""
    return steps if rank is None else steps.at(steps.ints("rank") == rank)


class StepChange(Struct, frozen=True, kw_only=True):
    """Relative change of the step time, as measured or at equal work, and the ends of its interval."""

    ratio: float
    low: float
    high: float


def judge_step_time(comparison: Comparison) -> tuple[Judgement, StepChange]:
    """Judge b's step time, at equal work if the work differs; both runs must be timed.

    ``WORSE``: at least 2 % longer, and the interval lies above zero. ``SAME``: the interval stays below +5 %,
    which includes a shorter step. Else ``NOISE``.
    """
    times, work = comparison.step_time, comparison.equal_work
    assert times is not None
    after = work if work is not None and work.b_ns != times.b_ns else times
    total = max(1, times.a_ns)
    low, high = (end / total for end in after.ci95)
    change = StepChange(ratio=(after.b_ns - times.a_ns) / total, low=low, high=high)
    if change.ratio >= MIN_SLOWER_RATIO and find_side((low, high)) > 0:
        return Judgement.WORSE, change
    is_unchanged = find_side((low, high), MAX_UNCHANGED_RATIO) < 0
    return Judgement.SAME if is_unchanged else Judgement.NOISE, change


def is_beyond(current: Figure, allowed: Figure, sense: Sense) -> bool:
    """Return True if the measured value exceeds the allowed change, ignoring uncertainty."""
    return current.value > allowed.value if sense is Sense.AT_MOST else current.value < allowed.value


def is_within(
    current: Figure,
    allowed: Figure,
    sense: Sense,
    *,
    interval: Interval | None = None,
    allowed_change: float = 0.0,
) -> bool | None:
    """Return True if ``current`` is within the limit, None if a bound leaves it undecided.

    ``interval``: the interval of a sampled change, which exceeds ``allowed_change`` only if the whole
    interval does.
    """
    is_upper = sense is Sense.AT_MOST
    if interval is None:
        beyond = is_beyond(current, allowed, sense)
    else:
        beyond = find_side(interval, allowed_change) == (1 if is_upper else -1)
    if beyond == is_upper:  # above what is allowed
        is_uncertain = current.can_be_lower or allowed.can_be_higher
    else:
        is_uncertain = current.can_be_higher or allowed.can_be_lower
    return None if is_uncertain else not beyond
