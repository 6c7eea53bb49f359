"""Find where step time and memory changed between a run and its baseline, as measured and at equal work.

Ledger: each term's mean over ranks, b minus a, in integer nanoseconds; rounding goes to ``unexplained_ns``,
so the terms sum exactly to the change of the mean wall time. Step time: percentile bootstrap over each run's
steps (10 000 resamples, seed 0), 95 % interval of mean(b) - mean(a); the spread is corrected by sqrt(n/(n-1))
for small n. Equal work: b's step times are multiplied by the ratio of tokens (or samples) per rank, a / b.
"""

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups
from zprof.analysis.memory.analyse import compare_groups, find_group_phases
from zprof.base.formatting import name_ranks
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.memory import RankMemory
from zprof.model.report import Comparison, Difference, EqualWork, StepTimeChange, WorkUnit
from zprof.model.tenants import Tenant
from zprof.model.time import LEDGER_TERMS, RankTime, mean_over_ranks

Samples = npt.NDArray[np.float64]
#: The lowest and highest difference that noise explains.
Interval = tuple[float, float]
_RESAMPLES = 10_000
_SEED = 0
#: Minimum number of steps for estimating their variation.
MIN_STEPS = 3
_WORK_FIELDS = ((WorkUnit.TOKENS, "tokens_per_step"), (WorkUnit.SAMPLES, "samples_per_step"))
_UNKNOWN_VALUES = frozenset({"", "none", "unknown", "None"})


def compute_bootstrap_interval(a: Samples, b: Samples) -> tuple[int, int]:
    """Return the 95 % interval of mean(b) - mean(a) in nanoseconds; neither may be empty."""
    low, high = compute_difference_interval(a, b, 0.95)
    return (round(low), round(high))


def compute_difference_interval(a: Samples, b: Samples, confidence: float) -> Interval:
    """Return the interval of mean(b) - mean(a) for a ``confidence`` in (0, 1); neither may be empty.

    A single sample is treated as having no variation.
    """
    generator = np.random.default_rng(_SEED)
    difference = _resample_means(b, generator) - _resample_means(a, generator)
    tail_percent = 50 * (1 - confidence)
    low, high = np.percentile(difference, [tail_percent, 100 - tail_percent])
    return (float(low), float(high))


def _resample_means(sample: Samples, generator: np.random.Generator) -> Samples:
    count = len(sample)
    means = sample[generator.integers(0, count, size=(_RESAMPLES, count))].mean(axis=1)
    correction = np.sqrt(count / (count - 1)) if count > 1 else 1.0
    return np.asarray(sample.mean() + (means - sample.mean()) * correction)


def compute_range(a: Samples, b: Samples) -> Interval:
    """Return the range of b - a over all pairs of steps, widened by the spread of each run's steps.

    For 2 to 4 steps, too few for an interval. For two equal normal distributions, the range lies entirely on
    one side of 0 with a probability of 2 x 3.3 % for two steps each, 2 x 0.1 % for three, 2 x 0.005 % for
    four (simulated).
    """
    widening = float(np.ptp(a) + np.ptp(b))
    return float(b.min() - a.max()) - widening, float(b.max() - a.min()) + widening


def ratio_samples(parts: Samples, wholes: Samples) -> Samples:
    """Return one sample per step, with the mean and the variation of sum(parts) / sum(wholes).

    Linearized: a step shifts the ratio of sums by (part - ratio * whole) / mean(whole).
    """
    ratio = parts.sum() / wholes.sum()
    return np.asarray(ratio + (parts - ratio * wholes) / wholes.mean(), dtype=np.float64)


def find_side(interval: Interval, threshold: float = 0.0) -> int:
    """Return 1 if the entire interval is above the threshold, -1 if it is below, else 0."""
    low, high = interval
    return (low > threshold) - (high < threshold)


def compare(a: RunAnalysis, b: RunAnalysis) -> Comparison | None:
    """Compare ``b`` (this run) with ``a`` (its baseline); None if neither time nor memory is comparable."""
    timed = _find_time_mismatch(a, b) is None
    memory = subtract_memory(a.memory.per_rank, b.memory.per_rank)
    if not timed and not memory:
        return None
    step_time = None
    if timed:
        step_time = StepTimeChange(
            a_ns=mean_over_ranks(a.time.per_rank, "wall_ns"),
            b_ns=mean_over_ranks(b.time.per_rank, "wall_ns"),
            ci95=compute_bootstrap_interval(_mean_step_times(a.steps), _mean_step_times(b.steps)),
        )
    # The settings whose values are known in both runs and differ.
    pairs = zip(_describe_job(a), _describe_job(b), strict=True)
    return Comparison(
        baseline=a.run.name,
        ledger_delta=_subtract_ledgers(a.time.per_rank, b.time.per_rank) if timed else {},
        memory_delta=memory,
        step_time=step_time,
        baseline_run=a.run,
        baseline_time=a.time.per_rank,
        baseline_memory=a.memory.per_rank,
        equal_work=_scale_to_equal_work(a, b) if timed else None,
        differences=tuple(
            Difference(key=key, what=what, a=before, b=after)
            for (key, what, before), (_, _, after) in pairs
            if before != after and not {before, after} & _UNKNOWN_VALUES
        ),
        groups=compare_groups(a.memory, b.memory),
        group_phases=find_group_phases(a.memory, b.memory),
    )


def compute_ledger_delta(comparison: Comparison) -> Mapping[str, float]:
    """Return the change of each ledger term in ns, at equal work if the work of both runs is known."""
    times, work, before = comparison.step_time, comparison.equal_work, comparison.baseline_time
    if times is None or work is None or not before:
        return comparison.ledger_delta
    work_ratio = work.b_ns / max(1, times.b_ns)
    a = {term: mean_over_ranks(before, term) for term in comparison.ledger_delta}
    return {term: work_ratio * (a[term] + delta) - a[term] for term, delta in comparison.ledger_delta.items()}


def find_comparison_gaps(a: RunAnalysis, b: RunAnalysis) -> tuple[Gap, ...]:
    """Return the comparison's gaps, followed by the baseline's."""
    time_mismatch = _find_time_mismatch(a, b)
    if time_mismatch is not None:
        return (time_mismatch, *list_baseline_gaps(a, b))
    few_steps_gaps = [
        make_gap(
            "single_interval" if _is_single_interval(run) else "few_steps",
            run=run.run.name,
            steps=steps,
            min_steps=MIN_STEPS,
        )
        for run in (a, b)
        if (steps := len(_mean_step_times(run.steps))) < MIN_STEPS
    ]
    work_gap = _find_work_gap(a, b)
    return (*few_steps_gaps, *([work_gap] if work_gap else []), *list_baseline_gaps(a, b))


def list_baseline_gaps(a: RunAnalysis, b: RunAnalysis) -> tuple[Gap, ...]:
    """Return the baseline's gaps that this run does not share."""
    return tuple(
        make_gap("baseline_gap", rank=gap.rank, what=gap.what, reason=gap.reason, remedy=gap.remedy)
        for gap in a.gaps
        if gap not in b.gaps
    )


def _find_time_mismatch(a: RunAnalysis, b: RunAnalysis) -> Gap | None:
    """Return a gap if the runs' times cannot be compared, else None."""
    untimed_runs = [run.run.name for run in (a, b) if not len(run.steps) or not run.time.per_rank]
    single_interval_runs = [run for run in (a, b) if _is_single_interval(run)]
    counts = [len(run.run.steps) for run in single_interval_runs]
    if untimed_runs:
        return make_gap("run_without_steps", runs=untimed_runs)
    if len(single_interval_runs) == 1:
        other = b if single_interval_runs[0] is a else a
        return make_gap(
            "one_run_without_marks", unmarked=single_interval_runs[0].run.name, other=other.run.name
        )
    if single_interval_runs and all(counts) and len(set(counts)) > 1:
        return make_gap(
            "intervals_unequal",
            baseline=a.run.name,
            baseline_steps=counts[0],
            run=b.run.name,
            run_steps=counts[1],
        )
    return None


def _is_single_interval(run: RunAnalysis) -> bool:
    return run.time.window is not None and run.time.window.is_whole


def _subtract_ledgers(a: tuple[RankTime, ...], b: tuple[RankTime, ...]) -> dict[str, int]:
    """Return the change of each ledger term; the values sum to the change of the mean wall time."""
    delta = {term: mean_over_ranks(b, term) - mean_over_ranks(a, term) for term in LEDGER_TERMS}
    wall = mean_over_ranks(b, "wall_ns") - mean_over_ranks(a, "wall_ns")
    delta["unexplained_ns"] += wall - sum(delta.values())
    return delta


def subtract_memory(a: tuple[RankMemory, ...], b: tuple[RankMemory, ...]) -> dict[str, int | None]:
    """Return the change of each tenant, the untagged bytes and the peak, from each run's maximum over ranks.

    Empty if either run lacks memory; None for a tenant that is unknown on any rank of either run.
    """
    if not a or not b:
        return {}
    before, after = _max_over_ranks(a), _max_over_ranks(b)
    unknown = {tenant.value for tenant in Tenant if any(rank.is_unknown(tenant) for rank in (*a, *b))}
    return {name: None if name in unknown else after[name] - before[name] for name in after}


def _mean_step_times(steps: Columns) -> Samples:
    """Return each step's duration in nanoseconds: the mean over the ranks that ran it."""
    return Groups(steps.ints("step")).mean(steps.ints("wall_ns")) if len(steps) else np.empty(0)


def _max_over_ranks(ranks: tuple[RankMemory, ...]) -> Mapping[str, int]:
    largest = {tenant.value: max(rank.tenants.get(tenant, 0) for rank in ranks) for tenant in Tenant}
    largest["untagged_bytes"] = max(rank.untagged_bytes for rank in ranks)
    largest["peak_bytes"] = max(rank.peak_bytes for rank in ranks)
    return largest


def _scale_to_equal_work(a: RunAnalysis, b: RunAnalysis) -> EqualWork | None:
    """Return ``b`` scaled to ``a``'s work per rank and step; None if either run's work is unknown."""
    known = _find_common_work(a, b)
    if known is None:
        return None
    unit, before, after = known
    scale = Fraction(before, a.run.world_size) / Fraction(after, b.run.world_size)
    walls = [rank.wall_ns for rank in b.time.per_rank]
    scaled_steps = _mean_step_times(b.steps) * float(scale)
    return EqualWork(
        unit=unit,
        a_per_step=before,
        b_per_step=after,
        b_ns=round(Fraction(sum(walls), len(walls)) * scale),
        ci95=compute_bootstrap_interval(_mean_step_times(a.steps), scaled_steps),
    )


def _find_work_gap(a: RunAnalysis, b: RunAnalysis) -> Gap | None:
    """Return a gap if it is unknown whether both runs do the same work per step."""
    if _find_common_work(a, b) is not None:
        return None
    unknown_runs = [
        run.run.name for run in (a, b) if not any(_read_work(run, field) for _, field in _WORK_FIELDS)
    ]
    return make_gap("work_unknown", runs=unknown_runs) if unknown_runs else make_gap("work_of_one_unknown")


def _describe_job(run: RunAnalysis) -> list[tuple[str, str, str]]:
    """Return key, display name and value of each setting."""
    facts, training = run.run, run.training
    tokens, samples = training.tokens_per_step, training.samples_per_step
    sequence = f"{tokens / samples:g}" if tokens and samples else None
    engine_is_known = training.engine not in _UNKNOWN_VALUES  # without an engine, 1 is only the default
    parallel = training.model_parallel_ranks if engine_is_known else None
    micro_batches = training.micro_batches if engine_is_known else None
    is_complete = len(facts.ranks_loaded) == facts.world_size
    return [
        ("world_size", "ranks", str(facts.world_size)),
        ("ranks_loaded", "loaded", "all" if is_complete else name_ranks(facts.ranks_loaded)),
        ("device", "device", facts.device),
        ("backend", "backend", facts.backend),
        ("parameters", "parameters", str(training.parameters)),
        ("model_parallel_ranks", "model-parallel ranks", str(parallel)),
        ("micro_batches", "micro-batches", str(micro_batches)),
        ("samples_per_step", "samples per step", str(samples)),
        ("tokens_per_step", "tokens per step", str(tokens)),
        ("tokens_per_sample", "tokens per sample", str(sequence)),
        ("modelled", "modelled", "; ".join(facts.modelled) or "nothing"),
    ]


def _find_common_work(a: RunAnalysis, b: RunAnalysis) -> tuple[WorkUnit, int, int] | None:
    for unit, field in _WORK_FIELDS:
        before, after = _read_work(a, field), _read_work(b, field)
        if before and after:
            return unit, before, after
    return None


def _read_work(run: RunAnalysis, field: str) -> int | None:
    value = getattr(run.training, field)
    return value if isinstance(value, int) and value > 0 else None
