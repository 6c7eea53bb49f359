"""Explain the metrics behind the verdict: findings, unclaimed time, and the comparison with a baseline."""

from zprof.model.tenants import Tenant
from zprof.model.time import LEDGER_TERMS
from zprof.tui.metric_help.metric import MetricHelp
from zprof.tui.metric_help.time import make_step_rows, select_host_rows

_FINDINGS = (
    MetricHelp(
        leaf="findings[].saving_ns[]",
        title="predicted saving",
        says="Time per step that the fix is expected to save: lower bound [0] to upper bound [1]. A rule can "
        "only save time from the ledger terms that it claims, and time that two findings could claim is "
        "counted once. The interval is then widened by the step-time noise between two recordings, so its "
        "upper end can exceed the terms.",
        formula="lower bound - noise .. upper bound + noise; noise is limited to 1/4 of each bound",
        inputs=("/time.step_noise_ns",),
    ),
    MetricHelp(
        leaf="time.step_noise_ns",
        title="step-time noise",
        says="With 95 % confidence, the mean step times of two recordings of this job differ by no more than "
        "this.",
        formula="1.96 x sqrt(2) x standard deviation of the steps / sqrt(steps)",
        rows=make_step_rows("wall_ns"),
    ),
    MetricHelp(
        leaf="findings[].saving_bytes[]",
        title="predicted memory saving",
        says="Memory that the fix is expected to free on the largest rank: lower bound [0] to upper bound "
        "[1].",
    ),
    MetricHelp(
        leaf="findings[].evidence[].value",
        title="evidence",
        says="A measured value that supports the finding; the finding's page explains how it is measured. "
        "Rules exclude the first collective of each group in the window, because it includes profiler "
        "start-up; their counts and times are therefore slightly smaller than on the communication screen.",
    ),
)
_UNCLAIMED = (
    "Time per step that is lost but not explained by any finding, on the rank that loses the most. Compute "
    "is not counted as lost."
)


def _make_unclaimed_help() -> tuple[MetricHelp, ...]:
    term_help = tuple(
        MetricHelp(
            leaf=f"unclaimed.{term}",
            title="unclaimed",
            says=_UNCLAIMED,
            formula="max(0, term on that rank - the most that findings can save of it)",
            inputs=("/unclaimed_rank", f"/time.per_rank[*].{term}"),
            rows=select_host_rows if term == "idle_ns" else make_step_rows(term),
        )
        for term in LEDGER_TERMS
        if term != "compute_ns"
    )
    total_help = MetricHelp(
        leaf="unclaimed[]",
        title="unclaimed, total",
        says=f"{_UNCLAIMED} Sum of all terms, which belong to the same rank.",
    )
    return (total_help, *term_help)


_STEP_TIMES = (
    "/comparison.step_time.a_ns",
    "/comparison.step_time.b_ns",
)
_BOOTSTRAP = (
    "percentile bootstrap of mean(b) - mean(a), each run's steps resampled separately, 10 000 resamples: "
    "2.5th to 97.5th percentile"
)
_STEP_CHANGE = (
    MetricHelp(
        leaf="comparison.step_time.a_ns",
        title="step time of the baseline",
        says="Mean step time of the baseline over its ranks.",
        inputs=_STEP_TIMES,
    ),
    MetricHelp(
        leaf="comparison.step_time.b_ns",
        title="step time of this run",
        says="Mean step time of this run over its ranks.",
        inputs=_STEP_TIMES,
        rows=make_step_rows("wall_ns"),
    ),
    MetricHelp(
        leaf="comparison.step_time.ci95[]",
        title="change in step time, 95 % interval",
        says="95 % confidence interval of the change in mean step time. If all of it is above 0, this run is "
        "slower.",
        formula=_BOOTSTRAP,
        inputs=_STEP_TIMES,
        rows=make_step_rows("wall_ns"),
    ),
)
_EQUAL_WORK = (
    MetricHelp(
        leaf="comparison.equal_work.a_per_step",
        title="work per step, baseline",
        says="Tokens (or samples, if tokens are unknown) per step, summed over all ranks of the baseline.",
    ),
    MetricHelp(
        leaf="comparison.equal_work.b_per_step",
        title="work per step, this run",
        says="Tokens (or samples, if tokens are unknown) per step, summed over all ranks of this run.",
    ),
    MetricHelp(
        leaf="comparison.equal_work.b_ns",
        title="step time at equal work",
        says="This run's step time, scaled to the baseline's work per rank.",
        formula="b x (work of a / ranks of a) / (work of b / ranks of b); a: baseline, b: this run",
        inputs=("a_per_step", "b_per_step", "/comparison.step_time.b_ns"),
    ),
    MetricHelp(
        leaf="comparison.equal_work.ci95[]",
        title="change at equal work, 95 % interval",
        says="95 % confidence interval of the change in step time at equal work.",
        formula=_BOOTSTRAP,
        inputs=_STEP_TIMES,
    ),
)


def _make_delta_help() -> tuple[MetricHelp, ...]:
    total_help = MetricHelp(
        leaf="comparison.ledger_delta[]",
        title="change in step time",
        says="Sum of the changes of all terms. It equals the change in mean step time to the nanosecond.",
        formula="sum of the terms' changes = step time of this run - step time of the baseline",
        inputs=tuple(f"/comparison.ledger_delta.{term}" for term in LEDGER_TERMS),
    )
    term_help = tuple(
        MetricHelp(
            leaf=f"comparison.ledger_delta.{term}",
            title="change in a ledger term",
            says="This run minus its baseline, each averaged over its ranks. Rounding errors are assigned to "
            "the unexplained term.",
            formula="mean over this run's ranks - mean over the baseline's ranks",
            inputs=(f"/time.per_rank[*].{term}", f"/comparison.baseline_time[*].{term}"),
            rows=select_host_rows if term == "idle_ns" else make_step_rows(term),
        )
        for term in LEDGER_TERMS
    )
    return (total_help, *term_help)


_AT_BASELINE_PEAK = "at the rank's peak in the baseline"


def _make_baseline_memory_help() -> tuple[MetricHelp, ...]:
    stem = "comparison.baseline_memory[]"
    parts = (*(f"tenants.{tenant.value}" for tenant in Tenant), "untagged_bytes")
    peak_help = MetricHelp(
        leaf=f"{stem}.peak_bytes",
        title="peak memory, baseline",
        says="Live bytes at the peak of a rank of the baseline.",
        formula="peak = the six tenants + untagged",
        inputs=parts,
    )
    tenant_help = tuple(
        MetricHelp(
            leaf=f"{stem}.tenants.{tenant.value}",
            title=tenant.value.replace("_", " "),
            says=f"{tenant.value.replace('_', ' ').capitalize()} {_AT_BASELINE_PEAK}.",
        )
        for tenant in Tenant
    )
    other_help = tuple(
        MetricHelp(leaf=f"{stem}.{name}", title=title, says=f"{title.capitalize()} {_AT_BASELINE_PEAK}.")
        for name, title in (
            ("untagged_bytes", "bytes not assigned to any tenant"),
            ("reserved_unused_bytes", "bytes reserved by the allocator but unused"),
            ("non_pytorch_bytes", "device memory of the process outside the allocator"),
        )
    )
    return (peak_help, *tenant_help, *other_help)


def _make_memory_delta_help() -> tuple[MetricHelp, ...]:
    names = (*(tenant.value for tenant in Tenant), "untagged_bytes", "peak_bytes")
    return tuple(
        MetricHelp(
            leaf=f"comparison.memory_delta.{name}",
            title="change in memory",
            says="Rank with the largest peak in this run minus rank with the largest peak in the baseline, "
            "each at its own peak.",
        )
        for name in names
    )


OVERVIEW: tuple[MetricHelp, ...] = (
    *_FINDINGS,
    *_make_unclaimed_help(),
    *_STEP_CHANGE,
    *_EQUAL_WORK,
    *_make_delta_help(),
    *_make_baseline_memory_help(),
    *_make_memory_delta_help(),
)
