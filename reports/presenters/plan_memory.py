"""Build the memory part of a plan: tenants by scheme as bars and tables, and their components."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from zprof.model.job import Assumed, Hardware, Job
from zprof.model.plan import ZERO_STAGES, Plan, PlanRow, Term
from zprof.model.quantities import BOUND_SIGNS, ESTIMATE_SIGN, Bound, Scale, Unit, Value
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.reports.page import Bars, StackedBar
from zprof.reports.presenters.memory import stack_segments
from zprof.reports.presenters.memory_formatting import build_tenant_legend, get_tenant_class, tenant_name
from zprof.reports.presenters.plan_formatting import (
    SCHEMES,
    choose_size_scale,
    format_count,
    format_device_size,
    format_with_unit,
    make_plan_row,
    make_plan_table,
    mark_assumed,
    take_scaled,
)
from zprof.reports.table import UNKNOWN, Column, Row, Table

_ABBREVIATIONS = {
    Tenant.PARAMETERS: "params",
    Tenant.GRADIENTS: "grads",
    Tenant.OPTIMIZER_STATE: "optim.",
    Tenant.ACTIVATIONS: "activ.",
    Tenant.TEMPORARY_BUFFERS: "temp.",
    Tenant.COMMUNICATION_BUFFERS: "comm.",
}
#: Names for narrow terminals.
SHORT: Mapping[str, str] = {
    Tenant.TEMPORARY_BUFFERS: "temp. buffers",
    Tenant.COMMUNICATION_BUFFERS: "comm. buffers",
}


def make_scheme_columns(rows: Sequence[PlanRow]) -> tuple[Column, ...]:
    """Return one column per scheme."""
    return tuple(Column(title=SCHEMES[row.scheme]) for row in rows)


def build_memory_table(plan: Plan) -> Table:
    """Build the table of model states by formula, the tenants at the peak, and what fits."""
    scale = choose_memory_scale(plan)
    sums = tuple(take_state_bytes(row, scale) for row in plan.rows)
    peaks = tuple(take_known_peak(row, scale) for row in plan.rows)
    return make_plan_table(
        title="Memory per device",
        unit=scale.unit,
        note="at the peak of a step",
        columns=make_scheme_columns(plan.rows),
        rows=(
            make_plan_row(name="model states, at rest", short="states at rest", cells=sums),
            *(_build_tenant_row(plan.rows, tenant, scale) for tenant in DISPLAY_ORDER),
            make_plan_row(name="peak", cells=peaks, total=True),
            *_build_fit_rows(plan),
        ),
        notes=tuple(_list_notes(plan)),
    )


def build_term_table(plan: Plan) -> Table:
    """Build the table of the components of each tenant."""
    scale = choose_memory_scale(plan)
    kinds = dict.fromkeys((term.tenant, term.sub) for row in plan.rows for term in row.terms)
    ordered = sorted(kinds, key=lambda kind: DISPLAY_ORDER.index(kind[0]))
    return make_plan_table(
        title="Components of each tenant",
        unit=scale.unit,
        note="per device, at its peak",
        columns=make_scheme_columns(plan.rows),
        rows=tuple(_build_kind_row(plan.rows, tenant, sub, scale) for tenant, sub in ordered),
    )


def choose_memory_scale(plan: Plan) -> Scale:
    """Return a common unit for all sizes of a plan."""
    return choose_size_scale([row.least_bytes for row in plan.rows])


def _build_tenant_row(rows: Sequence[PlanRow], tenant: Tenant, scale: Scale) -> Row:
    return make_plan_row(
        name=tenant_name(tenant),
        short=SHORT.get(tenant, ""),
        cells=tuple(
            _sum_terms(row, [term for term in row.terms if term.tenant is tenant], scale) for row in rows
        ),
    )


def _sum_terms(row: PlanRow, terms: Sequence[Term], scale: Scale) -> Value:
    """Return the sum of terms of a row: unknown if all are unknown, a lower bound if some are."""
    known = [term.bytes for term in terms if term.bytes is not None]
    is_partial, is_assumed = len(known) < len(terms), "peak_bytes" in row.assumed
    return Value(
        None if is_partial and not sum(known) else sum(known),
        Unit.BYTES,
        bound=Bound.AT_LEAST if is_partial else Bound.EXACT,
        scale=scale,
        is_estimate=is_assumed and bool(sum(known)),
    )


def take_state_bytes(row: PlanRow, scale: Scale) -> Value:
    """Return the model states at rest."""
    return take_scaled(row, "state_bytes", scale, assumed="state_bytes" in row.assumed)


def take_known_peak(row: PlanRow, scale: Scale) -> Value:
    """Return the peak, or the known part of it as a lower bound."""
    is_assumed = "peak_bytes" in row.assumed
    if row.peak_bytes is not None:
        return take_scaled(row, "peak_bytes", scale, assumed=is_assumed)
    return replace(take_scaled(row, "least_bytes", scale, assumed=is_assumed), bound=Bound.AT_LEAST)


def _build_fit_rows(plan: Plan) -> Iterator[Row]:
    if plan.job.hardware is None:
        return
    memory = format_memory_size(plan.job.hardware, plan.job)
    yield make_plan_row(
        name=f"fits {memory}", short=f"fits {memory}", cells=tuple(format_fit(row) for row in plan.rows)
    )
    if any(row.largest_parameters is not None for row in plan.rows):
        cells = tuple(format_largest_model(row) for row in plan.rows)
        yield make_plan_row(name="largest model that fits, parameters", short="largest model", cells=cells)


def format_memory_size(hardware: Hardware, job: Job) -> str:
    """Format the memory of the job's device."""
    return mark_assumed(format_device_size(hardware.memory_bytes), Assumed.HARDWARE in job.assumed)


def format_fit(row: PlanRow) -> str:
    """Format if a scheme fits: yes, no, tight or unknown."""
    text = "tight" if row.tight else {True: "yes", False: "no", None: "unknown"}[row.fits]
    return mark_assumed(text, "fits" in row.assumed and row.fits is not None)


def format_largest_model(row: PlanRow) -> str:
    """Format the largest model that fits, as an upper bound if only its states are known."""
    if not row.largest_parameters:
        return UNKNOWN
    bound = Bound.AT_MOST if row.peak_bytes is None else Bound.EXACT
    return mark_assumed(
        f"{BOUND_SIGNS[bound]}{format_count(row.largest_parameters)}", "largest_parameters" in row.assumed
    )


def _list_notes(plan: Plan) -> Iterator[str]:
    yield "States at rest: parameters, gradients and optimizer state by the formula of each scheme."
    if plan.job.assumed:
        yield f"{ESTIMATE_SIGN}: rests on a usual value that was not stated; see the values above."
    peak_times: dict[str, list[str]] = {}
    for row in plan.rows:
        if row.peak_at:
            peak_times.setdefault(row.peak_at, []).append(SCHEMES[row.scheme])
    if len(peak_times) == 1:
        yield f"Peak at: {next(iter(peak_times))}."
    elif peak_times:
        text = "; ".join(f"{', '.join(names)}: {moment}" for moment, names in peak_times.items())
        yield f"Peak at: {text}."
    if any(row.peak_bytes is None for row in plan.rows):
        yield f"{UNKNOWN}: unknown; ≥: lower bound. See Unknown for the reasons."
    if any(row.largest_parameters for row in plan.rows) and plan.job.shape is not None:
        yield (
            "Largest model: the larger of two models that fit with this batch: one with a different number "
            "of layers, one with a different width."
        )
    if any(row.largest_parameters == 0 for row in plan.rows):
        yield f"Largest model {UNKNOWN}: not even the smallest fits with this batch."
    if any(row.largest_parameters and row.peak_bytes is None for row in plan.rows):
        yield "≤: largest model by its states alone; its other memory makes it smaller."
    early_schemes = [SCHEMES[row.scheme] for row in plan.rows if not row.tenants.get(Tenant.GRADIENTS)]
    if early_schemes:
        yield f"{', '.join(early_schemes)}: the peak comes before the first gradient is stored."
    if plan.job.hardware is None:
        yield "To see if it fits, name a device: --hardware NAME."
    sharded = [row for row in plan.rows if row.scheme in ZERO_STAGES]
    if len(sharded) > 1 and all(row.degrees.dp == 1 for row in sharded):
        yield "One data-parallel rank: there is nothing to shard, so DP and ZeRO are the same."
    if any(row.tight for row in plan.rows):
        yield "Tight: it fits, but less than a tenth of the device is left."
    if any(row.fits for row in plan.rows):
        yield (
            "The peak excludes the driver context, NCCL buffers and fragmentation (in the largest runs of "
            "table 2 of the paper, model states were about 82 % of the device)."
        )


def _build_kind_row(rows: Sequence[PlanRow], tenant: Tenant, sub: str, scale: Scale) -> Row:
    cells = []
    for row in rows:
        terms = [term for term in row.terms if term.tenant is tenant and term.sub == sub]
        cells.append(_sum_terms(row, terms, scale) if terms else "")
    suffix = f": {sub.replace('_', ' ')}" if sub else ""
    return make_plan_row(
        name=f"{tenant_name(tenant)}{suffix}", short=f"{_ABBREVIATIONS[tenant]}{suffix}", cells=tuple(cells)
    )


def build_plan_bars(plan: Plan) -> Bars:
    """Build stacked bars of the known peak of each scheme, on a common scale."""
    max_bytes = max(row.least_bytes for row in plan.rows) or 1
    scale = choose_memory_scale(plan)
    used_classes = {
        get_tenant_class(tenant.value) for row in plan.rows for tenant, size in row.tenants.items() if size
    }
    is_partial = any(row.peak_bytes is None for row in plan.rows)
    return Bars(
        title="Memory per device at the peak of a step, by tenant",
        bars=tuple(_build_plan_bar(row, max_bytes, scale) for row in plan.rows),
        legend=tuple(entry for entry in build_tenant_legend() if entry.colour in used_classes),
        notes=("If a peak is partly unknown, its bar shows the known part.",) * is_partial,
    )


def _build_plan_bar(row: PlanRow, max_bytes: int, scale: Scale) -> StackedBar:
    sizes = [(tenant.value, row.tenants.get(tenant, 0)) for tenant in DISPLAY_ORDER]
    parts = [(name, size, format_with_unit(size, scale)) for name, size in sizes]
    return StackedBar(
        name=SCHEMES[row.scheme],
        note=f"{take_known_peak(row, scale).text} {scale.unit}",
        segments=stack_segments(parts, max_bytes),
    )
