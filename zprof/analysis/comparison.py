"""This run against its baseline: where the difference of the step time went, and of the memory.

Ledger: mean over the ranks of each term, b minus a, in whole nanoseconds; what rounding leaves over
goes to ``unexplained_ns``, so that the terms sum exactly to the change of the mean wall time.
Step time: a step's time is the mean over its ranks.  The 95 % interval of mean(b) - mean(a) is a
percentile bootstrap over the steps of each run by itself (runs share no steps, so nothing is paired),
10 000 resamples, seed 0.  Resampled means spread by sqrt((n-1)/n) too little for small n; that factor
is taken out.
Times are put side by side only where they are of the same thing: steps, or recordings of as many steps.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.equal_work import differences, equal_work, equal_work_gap
from zprof.model.gaps import Gap
from zprof.model.memory import RankMemory
from zprof.model.report import Comparison, StepTimeChange
from zprof.model.tenants import Tenant
from zprof.model.time import LEDGER_TERMS, RankTime

#: Fewer steps than this say nothing about how much a step varies.
MIN_STEPS = 3
#: What the gaps are about that keep a verdict from being said.
NOT_COMPARED = "times beside the baseline"
NO_INTERVAL = "step time interval"
_RESAMPLES = 10_000
_SEED = 0


def compare(a: RunAnalysis, b: RunAnalysis) -> Comparison | None:
    """``b`` (this run) minus ``a`` (its baseline); None where they share neither time nor memory."""
    timed = not_compared(a, b) is None
    memory = memory_delta(a.memory.per_rank, b.memory.per_rank)
    if not timed and not memory:
        return None
    steps = (step_times(a.steps), step_times(b.steps))
    return Comparison(
        baseline=a.run.name,
        ledger_delta=ledger_delta(a.time.per_rank, b.time.per_rank) if timed else {},
        memory_delta=memory,
        step_time=_step_time_change(a, b) if timed else None,
        baseline_run=a.run,
        baseline_time=a.time.per_rank,
        baseline_memory=a.memory.per_rank,
        equal_work=equal_work(a, b, steps, bootstrap_interval) if timed else None,
        differences=differences(a, b),
    )


def not_compared(a: RunAnalysis, b: RunAnalysis) -> Gap | None:
    """Why the times of both cannot stand side by side, where they cannot."""
    silent = [run.run.name for run in (a, b) if run.steps.empty or not run.time.per_rank]
    if silent:
        remedy = "record the time window of both, or compare what they hold: --only memory"
        return Gap(what=NOT_COMPARED, reason=f"no step of {' or '.join(silent)} was timed", remedy=remedy)
    whole = [run for run in (a, b) if _is_whole(run)]
    if len(whole) == 1:
        other = b if whole[0] is a else a
        reason = f"all of {whole[0].run.name} was measured as one stretch, and {other.run.name} by its steps"
        return Gap(what=NOT_COMPARED, reason=reason, remedy="mark the steps of both: profiler.step()")
    counts = [len(run.run.steps) for run in whole]
    if whole and all(counts) and len(set(counts)) > 1:
        reason = f"{a.run.name} is one stretch of {_steps(counts[0])}, {b.run.name} of {_steps(counts[1])}"
        return Gap(what=NOT_COMPARED, reason=reason, remedy="compare their steps: --window step")
    return None


def _is_whole(run: RunAnalysis) -> bool:
    return run.time.window is not None and run.time.window.is_whole


def _step_time_change(a: RunAnalysis, b: RunAnalysis) -> StepTimeChange:
    return StepTimeChange(
        a_ns=_mean(a.time.per_rank, "wall_ns"),
        b_ns=_mean(b.time.per_rank, "wall_ns"),
        ci95=bootstrap_interval(step_times(a.steps), step_times(b.steps)),
    )


def comparison_gaps(a: RunAnalysis, b: RunAnalysis) -> tuple[Gap, ...]:
    """What the comparison cannot say, and what the baseline itself could not measure."""
    apart = not_compared(a, b)
    if apart is not None:
        return (apart, *baseline_gaps(a, b))
    few = [_few_steps(run) for run in (a, b) if len(step_times(run.steps)) < MIN_STEPS]
    work = equal_work_gap(a, b)
    return (*few, *([work] if work else []), *baseline_gaps(a, b))


def baseline_gaps(a: RunAnalysis, b: RunAnalysis) -> tuple[Gap, ...]:
    """What the baseline could not measure; what neither run can is said once."""
    return tuple(
        Gap(what=f"baseline: {gap.what}", reason=gap.reason, remedy=gap.remedy, rank=gap.rank)
        for gap in a.gaps
        if gap not in b.gaps
    )


def ledger_delta(a: tuple[RankTime, ...], b: tuple[RankTime, ...]) -> dict[str, int]:
    """Change of each ledger term; the values sum to the change of the mean wall time."""
    delta = {term: _mean(b, term) - _mean(a, term) for term in LEDGER_TERMS}
    wall = _mean(b, "wall_ns") - _mean(a, "wall_ns")
    delta["unexplained_ns"] += wall - sum(delta.values())
    return delta


def memory_delta(a: tuple[RankMemory, ...], b: tuple[RankMemory, ...]) -> dict[str, int]:
    """Change of each tenant, of the untagged rest and of the peak: the largest rank of each side.

    Empty where either side measured no memory.
    """
    if not a or not b:
        return {}
    before, after = _largest(a), _largest(b)
    return {name: after[name] - before[name] for name in after}


def step_times(steps: pd.DataFrame) -> npt.NDArray[np.float64]:
    """The time of each step in nanoseconds, mean over the ranks that ran it."""
    if steps.empty:
        return np.empty(0)
    return steps.groupby("step")["wall_ns"].mean().to_numpy(dtype=np.float64)


def bootstrap_interval(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> tuple[int, int]:
    """95 % interval of mean(b) - mean(a) in nanoseconds; neither may be empty."""
    low, high = difference_interval(a, b, 0.95)
    return (round(low), round(high))


def difference_interval(
    a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], confidence: float
) -> tuple[float, float]:
    """Interval of mean(b) - mean(a), with ``confidence`` in (0, 1); neither may be empty."""
    generator = np.random.default_rng(_SEED)
    difference = _resampled_means(b, generator) - _resampled_means(a, generator)
    beside = 50 * (1 - confidence)
    low, high = np.percentile(difference, [beside, 100 - beside])
    return (float(low), float(high))


def _resampled_means(
    sample: npt.NDArray[np.float64], generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    count = len(sample)
    means = sample[generator.integers(0, count, size=(_RESAMPLES, count))].mean(axis=1)
    stretch = np.sqrt(count / (count - 1)) if count > 1 else 1.0
    return np.asarray(sample.mean() + (means - sample.mean()) * stretch)


def _mean(ranks: Iterable[RankTime], term: str) -> int:
    values = [int(getattr(rank, term)) for rank in ranks]
    return round(sum(values) / len(values))


def _largest(ranks: tuple[RankMemory, ...]) -> Mapping[str, int]:
    largest = {tenant.value: max(rank.tenants.get(tenant, 0) for rank in ranks) for tenant in Tenant}
    largest["untagged_bytes"] = max(rank.untagged_bytes for rank in ranks)
    largest["peak_bytes"] = max(rank.peak_bytes for rank in ranks)
    return largest


def _few_steps(run: RunAnalysis) -> Gap:
    if _is_whole(run):
        reason, remedy = f"all of {run.run.name} was measured as one stretch", "compare steps: --window step"
    else:
        timed = len(step_times(run.steps))
        reason, remedy = f"{run.run.name} has {_steps(timed, 'timed ')}", "record more steps"
    return Gap(what=NO_INTERVAL, reason=f"{reason}, an interval needs {MIN_STEPS}", remedy=remedy)


def _steps(count: int, kind: str = "") -> str:
    return f"{count} {kind}step{'' if count == 1 else 's'}"
