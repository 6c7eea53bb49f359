"""Help on the verdict: findings, time that no finding claims, the comparison with a baseline."""

from zprof.model.tenants import Tenant
from zprof.model.time import LEDGER_TERMS
from zprof.tui.metric_help.metric import MetricHelp
from zprof.tui.metric_help.time import make_step_rows, select_host_rows

_FINDINGS = (
    MetricHelp(
        leaf="findings[].saving_ns[]",
        title="saving of a finding",
        says="What a step gets shorter by when the fix is applied: from the least [0] to the most [1]. It is "
        "taken from the ledger terms that the rule claims, never more than they hold; time that two findings "
        "could claim is given to one. Then both ends are widened by what the steps of two recordings differ "
        "by without any fix: for that the upper end may lie above the terms.",
        formula="least - noise .. most + noise, the noise at most a quarter of the end",
        inputs=("/time.step_noise_ns",),
    ),
    MetricHelp(
        leaf="time.step_noise_ns",
        title="noise of the steps",
        says="The mean steps of two recordings of this job differ by no more than this, 95 times of 100.",
        formula="1.96 x sqrt(2) x deviation of the steps / sqrt(steps)",
        rows=make_step_rows("wall_ns"),
    ),
    MetricHelp(
        leaf="findings[].saving_bytes[]",
        title="memory that a fix frees",
        says="By how much the largest rank's memory shrinks, from the least [0] to the most [1].",
    ),
    MetricHelp(
        leaf="findings[].evidence[].value",
        title="evidence",
        says="A measured fact that the rule's claim rests on; the finding's page says how it is found. Rules "
        "leave out the first collective of each group in the window, which carries the start of the "
        "profiler: their counts and times are a little smaller than those of the communication screen.",
    ),
)
_UNCLAIMED = (
    "What one rank, the one with most of it, loses in a step and no finding explains. Compute is no loss."
)


def _make_unclaimed_help() -> tuple[MetricHelp, ...]:
    each = tuple(
        MetricHelp(
            leaf=f"unclaimed.{term}",
            title="lost and not claimed",
            says=_UNCLAIMED,
            formula="the term on that rank, minus the most that findings save of it, at least 0",
            inputs=("/unclaimed_rank", f"/time.per_rank[*].{term}"),
            rows=select_host_rows if term == "idle_ns" else make_step_rows(term),
        )
        for term in LEDGER_TERMS
        if term != "compute_ns"
    )
    every = MetricHelp(
        leaf="unclaimed[]",
        title="lost and not claimed",
        says=f"{_UNCLAIMED} All terms together: they are of one rank, and add up.",
    )
    return (every, *each)


_SIDES = (
    "/comparison.step_time.a_ns",
    "/comparison.step_time.b_ns",
)
_BOOTSTRAP = (
    "percentile bootstrap over the steps of each run by itself, 10 000 resamples: mean(b) - mean(a), from "
    "the 2.5th to the 97.5th percentile"
)
_TIMES = (
    MetricHelp(
        leaf="comparison.step_time.a_ns",
        title="step of the baseline",
        says="Mean step time of the baseline, over its ranks.",
        inputs=_SIDES,
    ),
    MetricHelp(
        leaf="comparison.step_time.b_ns",
        title="step of this run",
        says="Mean step time of this run, over its ranks.",
        inputs=_SIDES,
        rows=make_step_rows("wall_ns"),
    ),
    MetricHelp(
        leaf="comparison.step_time.ci95[]",
        title="interval of the change",
        says="Where the change of the mean step time lies, 95 times of 100: slower where all is above 0.",
        formula=_BOOTSTRAP,
        inputs=_SIDES,
        rows=make_step_rows("wall_ns"),
    ),
)
_EQUAL = (
    MetricHelp(
        leaf="comparison.equal_work.a_per_step",
        title="work of a step of the baseline",
        says="Tokens (else samples) that all ranks of the baseline work off in a step.",
    ),
    MetricHelp(
        leaf="comparison.equal_work.b_per_step",
        title="work of a step of this run",
        says="Tokens (else samples) that all ranks of this run work off in a step.",
    ),
    MetricHelp(
        leaf="comparison.equal_work.b_ns",
        title="step at equal work",
        says="This run's step for as much work on a rank as the baseline's step does.",
        formula="b x (work of a / ranks of a) / (work of b / ranks of b)",
        inputs=("a_per_step", "b_per_step", "/comparison.step_time.b_ns"),
    ),
    MetricHelp(
        leaf="comparison.equal_work.ci95[]",
        title="interval at equal work",
        says="Where the change of the step time at equal work lies, 95 times of 100.",
        formula=_BOOTSTRAP,
        inputs=_SIDES,
    ),
)


def _make_delta_help() -> tuple[MetricHelp, ...]:
    every = MetricHelp(
        leaf="comparison.ledger_delta[]",
        title="change of the step",
        says="The changes of all terms together: to the nanosecond the change of the mean step time.",
        formula="sum of the terms' changes = step of this run - step of the baseline",
        inputs=tuple(f"/comparison.ledger_delta.{term}" for term in LEDGER_TERMS),
    )
    each = tuple(
        MetricHelp(
            leaf=f"comparison.ledger_delta.{term}",
            title="change of a term",
            says="This run minus its baseline, each the mean over its ranks; what rounding leaves over is in "
            "unexplained.",
            formula="mean of this run's ranks - mean of the baseline's ranks",
            inputs=(f"/time.per_rank[*].{term}", f"/comparison.baseline_time[*].{term}"),
            rows=select_host_rows if term == "idle_ns" else make_step_rows(term),
        )
        for term in LEDGER_TERMS
    )
    return (every, *each)


_PEAK = "at that rank's peak, in the baseline"


def _make_baseline_memory_help() -> tuple[MetricHelp, ...]:
    stem = "comparison.baseline_memory[]"
    parts = (*(f"tenants.{tenant.value}" for tenant in Tenant), "untagged_bytes")
    whole = MetricHelp(
        leaf=f"{stem}.peak_bytes",
        title="peak of the baseline",
        says="Live bytes of a rank of the baseline at its highest point.",
        formula="peak = the six tenants + untagged",
        inputs=parts,
    )
    tenants = tuple(
        MetricHelp(
            leaf=f"{stem}.tenants.{tenant.value}",
            title=tenant.value.replace("_", " "),
            says=f"{tenant.value.replace('_', ' ').capitalize()} {_PEAK}.",
        )
        for tenant in Tenant
    )
    others = tuple(
        MetricHelp(leaf=f"{stem}.{name}", title=title, says=f"{title.capitalize()} {_PEAK}.")
        for name, title in (
            ("untagged_bytes", "bytes that no hook, tag or rule claims"),
            ("reserved_unused_bytes", "bytes that the allocator holds and nobody uses"),
            ("non_pytorch_bytes", "bytes of the process outside the allocator"),
        )
    )
    return (whole, *tenants, *others)


def _make_memory_delta_help() -> tuple[MetricHelp, ...]:
    names = (*(tenant.value for tenant in Tenant), "untagged_bytes", "peak_bytes")
    return tuple(
        MetricHelp(
            leaf=f"comparison.memory_delta.{name}",
            title="change of memory",
            says="The largest rank of this run minus the largest rank of the baseline, each at its own peak.",
        )
        for name in names
    )


OVERVIEW: tuple[MetricHelp, ...] = (
    *_FINDINGS,
    *_make_unclaimed_help(),
    *_TIMES,
    *_EQUAL,
    *_make_delta_help(),
    *_make_baseline_memory_help(),
    *_make_memory_delta_help(),
)
