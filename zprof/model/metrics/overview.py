"""Explain the metrics behind the verdict: findings, unclaimed time, a comparison, the gates of a check."""

from zprof.model.quantities import Better, Metric, Unit
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.model.time import LEDGER_TERMS

_FINDINGS = (
    Metric(
        path="findings[].saving_ns[]",
        title="predicted saving",
        help="Time per step that the fix is expected to save: lower bound [0] to upper bound [1]. A rule can "
        "only save time from the ledger terms that it claims, and time that two findings could claim is "
        "counted once. The interval is then widened by the step-time noise between two recordings, so its "
        "upper end can exceed the terms.",
        formula="lower bound - noise .. upper bound + noise; noise is limited to 1/4 of each bound",
        inputs=("/time.step_noise_ns",),
    ),
    Metric(
        path="time.step_noise_ns",
        title="step-time noise",
        help="With 95 % confidence, the mean step times of two recordings of this job differ by no more than "
        "this.",
        formula="1.96 x sqrt(2) x standard deviation of the steps / sqrt(steps)",
    ),
    Metric(
        path="findings[].saving_bytes[]",
        title="predicted memory saving",
        help="Memory that the fix is expected to free on the largest rank: lower bound [0] to upper bound "
        "[1].",
    ),
    Metric(
        path="findings[].evidence[].value",
        title="evidence",
        help="A measured value that supports the finding; the finding's page explains how it is measured. "
        "Rules exclude the first collective of each group in the window, because it includes profiler "
        "start-up; their counts and times are therefore slightly smaller than on the communication screen.",
    ),
)
_UNCLAIMED = (
    "Time per step that is lost but not explained by any finding, on the rank that loses the most. Compute "
    "is not counted as lost."
)
_PEAK = "on the rank with the highest peak"
GATE_METRICS: tuple[Metric, ...] = (
    Metric(
        path="check.peak_memory",
        title="peak memory",
        help=f"Peak live bytes in the allocator, {_PEAK}.",
        own_unit=Unit.BYTES,
        better=Better.LESS,
    ),
    *(
        Metric(
            path=f"check.peak_memory.{part}",
            title=part.replace("_", " "),
            help="Bytes of this tenant at its own maximum in the memory window, on the rank with most.",
            own_unit=Unit.BYTES,
            better=Better.LESS,
        )
        for part in (*(tenant.value for tenant in DISPLAY_ORDER), "untagged")
    ),
    Metric(
        path="check.untagged_ratio",
        title="untagged share",
        help="Share of the peak that belongs to no tenant, on the rank where it is largest.",
        better=Better.LESS,
    ),
    Metric(
        path="check.exposed_ratio",
        title="exposed share",
        help="Share of the step in which a collective runs and the rank does not compute.",
        better=Better.LESS,
    ),
    Metric(
        path="check.overlap_ratio",
        title="hidden share",
        help="Share of the collective time that is hidden under compute.",
        better=Better.MORE,
    ),
    Metric(
        path="check.collective_bytes",
        title="bytes of collectives",
        help="Bytes of the full tensors in all collectives of a step.",
        better=Better.LESS,
    ),
    Metric(
        path="check.collective_count",
        title="collectives",
        help="Number of collectives per step.",
        better=Better.LESS,
    ),
    Metric(
        path="check.collective_bytes_law",
        title="bytes moved, in parameters",
        help="Bytes that a rank moves per step, as a multiple of the model's parameter bytes.",
        own_unit=Unit.PSI,
        better=Better.LESS,
    ),
    Metric(
        path="check.step_time",
        title="step time",
        help="Mean wall time per step; the interval of its change is checked against the limit.",
        own_unit=Unit.NS,
        better=Better.LESS,
    ),
    Metric(
        path="check.exposed_wait",
        title="exposed wait",
        help="Exposed time per step in which collectives wait for their last rank.",
        own_unit=Unit.NS,
        better=Better.LESS,
    ),
)


def _make_unclaimed_help() -> tuple[Metric, ...]:
    term_help = tuple(
        Metric(
            path=f"unclaimed.{term}",
            title="unclaimed",
            help=_UNCLAIMED,
            formula="max(0, term on that rank - the most that findings can save of it)",
            inputs=("/unclaimed_rank", f"/time.per_rank[*].{term}"),
        )
        for term in LEDGER_TERMS
        if term != "compute_ns"
    )
    total_help = Metric(
        path="unclaimed[]",
        own_unit=Unit.NS,
        title="unclaimed, total",
        help=f"{_UNCLAIMED} Sum of all terms, which belong to the same rank.",
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
    Metric(
        path="comparison.step_time.a_ns",
        title="step time of the baseline",
        help="Mean step time of the baseline over its ranks.",
        inputs=_STEP_TIMES,
    ),
    Metric(
        path="comparison.step_time.b_ns",
        title="step time of this run",
        help="Mean step time of this run over its ranks.",
        inputs=_STEP_TIMES,
    ),
    Metric(
        path="comparison.step_time.ci95[]",
        own_unit=Unit.NS,
        title="change in step time, 95 % interval",
        help="95 % confidence interval of the change in mean step time. If all of it is above 0, this run is "
        "slower.",
        formula=_BOOTSTRAP,
        inputs=_STEP_TIMES,
    ),
)
_EQUAL_WORK = (
    Metric(
        path="comparison.equal_work.a_per_step",
        title="work per step, baseline",
        help="Tokens (or samples, if tokens are unknown) per step, summed over all ranks of the baseline.",
    ),
    Metric(
        path="comparison.equal_work.b_per_step",
        title="work per step, this run",
        help="Tokens (or samples, if tokens are unknown) per step, summed over all ranks of this run.",
    ),
    Metric(
        path="comparison.equal_work.b_ns",
        title="step time at equal work",
        help="This run's step time, scaled to the baseline's work per rank.",
        formula="b x (work of a / ranks of a) / (work of b / ranks of b); a: baseline, b: this run",
        inputs=("a_per_step", "b_per_step", "/comparison.step_time.b_ns"),
    ),
    Metric(
        path="comparison.equal_work.ci95[]",
        own_unit=Unit.NS,
        title="change at equal work, 95 % interval",
        help="95 % confidence interval of the change in step time at equal work.",
        formula=_BOOTSTRAP,
        inputs=_STEP_TIMES,
    ),
)


def _make_delta_help() -> tuple[Metric, ...]:
    total_help = Metric(
        path="comparison.ledger_delta[]",
        own_unit=Unit.NS,
        title="change in step time",
        help="Sum of the changes of all terms. It equals the change in mean step time to the nanosecond.",
        formula="sum of the terms' changes = step time of this run - step time of the baseline",
        inputs=tuple(f"/comparison.ledger_delta.{term}" for term in LEDGER_TERMS),
    )
    term_help = tuple(
        Metric(
            path=f"comparison.ledger_delta.{term}",
            title="change in a ledger term",
            help="This run minus its baseline, each averaged over its ranks. Rounding errors are assigned to "
            "the unexplained term.",
            formula="mean over this run's ranks - mean over the baseline's ranks",
            inputs=(f"/time.per_rank[*].{term}", f"/comparison.baseline_time[*].{term}"),
        )
        for term in LEDGER_TERMS
    )
    return (total_help, *term_help)


_AT_BASELINE_PEAK = "at the rank's peak in the baseline"


def _make_baseline_memory_help() -> tuple[Metric, ...]:
    stem = "comparison.baseline_memory[]"
    parts = (*(f"tenants.{tenant.value}" for tenant in Tenant), "untagged_bytes")
    peak_help = Metric(
        path=f"{stem}.peak_bytes",
        title="peak memory, baseline",
        help="Live bytes at the peak of a rank of the baseline.",
        formula="peak = the six tenants + untagged",
        inputs=parts,
    )
    tenant_help = tuple(
        Metric(
            path=f"{stem}.tenants.{tenant.value}",
            title=tenant.value.replace("_", " "),
            help=f"{tenant.value.replace('_', ' ').capitalize()} {_AT_BASELINE_PEAK}.",
        )
        for tenant in Tenant
    )
    other_help = tuple(
        Metric(path=f"{stem}.{name}", title=title, help=f"{title.capitalize()} {_AT_BASELINE_PEAK}.")
        for name, title in (
            ("untagged_bytes", "bytes not assigned to any tenant"),
            ("reserved_unused_bytes", "bytes reserved by the allocator but unused"),
            ("non_pytorch_bytes", "device memory of the process outside the allocator"),
        )
    )
    return (peak_help, *tenant_help, *other_help)


def _make_memory_delta_help() -> tuple[Metric, ...]:
    names = (*(tenant.value for tenant in Tenant), "untagged_bytes", "peak_bytes")
    return tuple(
        Metric(
            path=f"comparison.memory_delta.{name}",
            title="change in memory",
            help="Rank with the largest peak in this run minus rank with the largest peak in the baseline, "
            "each at its own peak.",
        )
        for name in names
    )


OVERVIEW: tuple[Metric, ...] = (
    *_FINDINGS,
    *_make_unclaimed_help(),
    *_STEP_CHANGE,
    *_EQUAL_WORK,
    *_make_delta_help(),
    *_make_baseline_memory_help(),
    *_make_memory_delta_help(),
)
