"""Memory of a plan: tenants by scheme as bars and as tables, and the terms that they consist of."""

from collections.abc import Iterator, Mapping, Sequence

from zprof.model.plan import ZERO_STAGES, Plan, PlanRow, Term
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.reports.page import UNKNOWN, Bars, Column, Row, StackedBar, Table
from zprof.reports.presenters.memory import stack_segments
from zprof.reports.presenters.memory_figures import build_tenant_legend, get_tenant_class, tenant_name
from zprof.reports.presenters.plan_words import (
    AT_LEAST,
    SCHEMES,
    Scale,
    choose_size_scale,
    format_count,
    format_device_size,
    format_scaled,
    make_plan_row,
    make_plan_table,
)

_SHORTEST = {
    Tenant.PARAMETERS: "params",
    Tenant.GRADIENTS: "grads",
    Tenant.OPTIMIZER_STATE: "optim.",
    Tenant.ACTIVATIONS: "activ.",
    Tenant.TEMPORARY_BUFFERS: "temp.",
    Tenant.COMMUNICATION_BUFFERS: "comm.",
}
#: Names if there are only 80 columns.
SHORT: Mapping[str, str] = {
    Tenant.TEMPORARY_BUFFERS: "temp. buffers",
    Tenant.COMMUNICATION_BUFFERS: "comm. buffers",
}


def make_scheme_columns(rows: Sequence[PlanRow]) -> tuple[Column, ...]:
    """Return a column per scheme."""
    return tuple(Column(title=SCHEMES[row.scheme]) for row in rows)


def build_memory_table(plan: Plan) -> Table:
    """Return the states by the ZeRO formulas, the tenants at the peak, and what fits."""
    scale = choose_memory_scale(plan)
    sums = tuple(format_scaled(row.state_bytes, scale) for row in plan.rows)
    peaks = tuple(format_known_peak(row, scale) for row in plan.rows)
    return make_plan_table(
        title="Memory of a device",
        unit=scale.unit,
        note="at the peak of a step",
        columns=make_scheme_columns(plan.rows),
        rows=(
            make_plan_row(name="model states, at rest", short="states at rest", cells=sums),
            *(_tenant(plan.rows, tenant, scale) for tenant in DISPLAY_ORDER),
            make_plan_row(name="peak", cells=peaks, total=True),
            *_fit(plan),
        ),
        notes=tuple(_notes(plan)),
    )


def build_term_table(plan: Plan) -> Table:
    """Return each kind within a tenant, so that every byte has a name."""
    scale = choose_memory_scale(plan)
    kinds = dict.fromkeys((term.tenant, term.sub) for row in plan.rows for term in row.terms)
    ordered = sorted(kinds, key=lambda kind: DISPLAY_ORDER.index(kind[0]))
    return make_plan_table(
        title="What the tenants consist of",
        unit=scale.unit,
        note="of a device, at its peak",
        columns=make_scheme_columns(plan.rows),
        rows=tuple(_kind(plan.rows, tenant, sub, scale) for tenant, sub in ordered),
    )


def choose_memory_scale(plan: Plan) -> Scale:
    """Return one unit for all of a plan's sizes."""
    return choose_size_scale([row.least_bytes for row in plan.rows])


def _tenant(rows: Sequence[PlanRow], tenant: Tenant, scale: Scale) -> Row:
    return make_plan_row(
        name=tenant_name(tenant),
        short=SHORT.get(tenant, ""),
        cells=tuple(_sum([term for term in row.terms if term.tenant is tenant], scale) for row in rows),
    )


def _sum(terms: Sequence[Term], scale: Scale) -> str:
    """Return 0 for no term, unknown for unknown ones, at least the known part if some are known."""
    known = [term.bytes for term in terms if term.bytes is not None]
    if terms and not sum(known) and len(known) < len(terms):
        return UNKNOWN
    return f"{AT_LEAST if len(known) < len(terms) else ''}{format_scaled(sum(known), scale)}"


def format_known_peak(row: PlanRow, scale: Scale) -> str:
    """Return the peak, or at least what is known of it."""
    if row.peak_bytes is not None:
        return format_scaled(row.peak_bytes, scale)
    return f"{AT_LEAST}{format_scaled(row.least_bytes, scale)}"


def _fit(plan: Plan) -> Iterator[Row]:
    if plan.job.hardware is None:
        return
    memory = format_device_size(plan.job.hardware.memory_bytes)
    yield make_plan_row(
        name=f"fits {memory}", short=f"fits {memory}", cells=tuple(format_fit(row) for row in plan.rows)
    )
    if any(row.largest_parameters is not None for row in plan.rows):
        cells = tuple(largest(row) for row in plan.rows)
        yield make_plan_row(name="largest model that fits, parameters", short="largest model", cells=cells)


def format_fit(row: PlanRow) -> str:
    """Return in a word if it fits."""
    return "tight" if row.tight else {True: "yes", False: "no", None: "unknown"}[row.fits]


def largest(row: PlanRow) -> str:
    """Return the largest model that fits; an upper bound if only its states are known."""
    if not row.largest_parameters:
        return UNKNOWN
    bound = "≤" if row.peak_bytes is None else ""
    return f"{bound}{format_count(row.largest_parameters)}"


def _notes(plan: Plan) -> Iterator[str]:
    yield "States at rest: parameters, gradients and optimizer state by the formula of each scheme."
    moments: dict[str, list[str]] = {}
    for row in plan.rows:
        if row.peak_at:
            moments.setdefault(row.peak_at, []).append(SCHEMES[row.scheme])
    if len(moments) == 1:
        yield f"The peak is at: {next(iter(moments))}."
    elif moments:
        said = "; ".join(f"{', '.join(names)}: {moment}" for moment, names in moments.items())
        yield f"The peak is at: {said}."
    if any(row.peak_bytes is None for row in plan.rows):
        yield f"{UNKNOWN} is unknown and {AT_LEAST} a lower bound: see Not known for the reasons."
    if any(row.largest_parameters for row in plan.rows) and plan.job.shape is not None:
        yield (
            "Largest model: the larger of two that fit with this batch, one of the job's width with more or "
            "fewer layers, one of its depth with another width."
        )
    if any(row.largest_parameters == 0 for row in plan.rows):
        yield f"Largest model {UNKNOWN}: with this batch not even the smallest fits."
    if any(largest(row).startswith("≤") for row in plan.rows):
        yield "≤: the largest model by its states alone; what else it needs makes it smaller."
    early = [SCHEMES[row.scheme] for row in plan.rows if not row.tenants.get(Tenant.GRADIENTS)]
    if early:
        yield f"{', '.join(early)}: the peak comes before the first gradient is kept."
    if plan.job.hardware is None:
        yield "To see if it fits, name a device: --hardware NAME."
    sharded = [row for row in plan.rows if row.scheme in ZERO_STAGES]
    if len(sharded) > 1 and all(row.degrees.dp == 1 for row in sharded):
        yield "One data-parallel rank: ZeRO shards nothing, so DP and ZeRO are the same."
    if any(row.tight for row in plan.rows):
        yield "Tight: it fits, and less than a tenth of the device is left."
    if any(row.fits for row in plan.rows):
        yield (
            "The driver's context, NCCL's buffers and fragmentation are not in the peak (in the largest runs "
            "of the paper's table 2, model states were about 82 % of the device)."
        )


def _kind(rows: Sequence[PlanRow], tenant: Tenant, sub: str, scale: Scale) -> Row:
    cells = []
    for row in rows:
        found = [term for term in row.terms if term.tenant is tenant and term.sub == sub]
        cells.append(_sum(found, scale) if found else "")
    what = f": {sub.replace('_', ' ')}" if sub else ""
    return make_plan_row(
        name=f"{tenant_name(tenant)}{what}", short=f"{_SHORTEST[tenant]}{what}", cells=tuple(cells)
    )


def build_plan_bars(plan: Plan) -> Bars:
    """Return what is known of each scheme's peak as stacked bars; the widest is the largest."""
    most = max(row.least_bytes for row in plan.rows) or 1
    scale = choose_memory_scale(plan)
    held = {
        get_tenant_class(tenant.value) for row in plan.rows for tenant, size in row.tenants.items() if size
    }
    is_partial = any(row.peak_bytes is None for row in plan.rows)
    return Bars(
        title="Memory of a device at the peak of a step, by tenant",
        bars=tuple(_plan_bar(row, most, scale) for row in plan.rows),
        legend=tuple(entry for entry in build_tenant_legend() if entry.colour in held),
        notes=("A bar ends with what is known, if not all is.",) * is_partial,
    )


def _plan_bar(row: PlanRow, most: int, scale: Scale) -> StackedBar:
    sizes = [(tenant.value, row.tenants.get(tenant, 0)) for tenant in DISPLAY_ORDER]
    parts = [(name, size, f"{format_scaled(size, scale)} {scale.unit}") for name, size in sizes]
    return StackedBar(
        name=SCHEMES[row.scheme],
        note=f"{format_known_peak(row, scale)} {scale.unit}",
        segments=stack_segments(parts, most),
    )
