"""Memory of a plan as tables: tenants as rows, schemes as columns, and the terms behind them."""

from collections.abc import Iterator, Mapping, Sequence

from zprof.model.planning.plan import ZERO_STAGES, Plan, PlanRow, Term
from zprof.model.tenants import SHOWN, Tenant
from zprof.reports.plan.grid import Grid, GridColumn, GridRow
from zprof.reports.plan.words import (
    AT_LEAST,
    SCHEMES,
    UNKNOWN,
    Scale,
    count_words,
    round_size,
    scaled,
    size_scale,
)
from zprof.reports.shown.memory_names import tenant_name

_SHORTEST = {
    Tenant.PARAMETERS: "params",
    Tenant.GRADIENTS: "grads",
    Tenant.OPTIMIZER_STATE: "optim.",
    Tenant.ACTIVATIONS: "activ.",
    Tenant.TEMPORARY_BUFFERS: "temp.",
    Tenant.COMMUNICATION_BUFFERS: "comm.",
}
#: Names where there are only 80 columns.
SHORT: Mapping[str, str] = {
    Tenant.TEMPORARY_BUFFERS: "temp. buffers",
    Tenant.COMMUNICATION_BUFFERS: "comm. buffers",
}


def scheme_columns(rows: Sequence[PlanRow]) -> tuple[GridColumn, ...]:
    """A column a scheme."""
    return tuple(GridColumn(title=SCHEMES[row.scheme]) for row in rows)


def memory_grid(plan: Plan) -> Grid:
    """States by the law, the tenants at the peak and their sum, whether that fits, the largest that does."""
    scale = memory_scale(plan)
    sums = tuple(scaled(row.state_bytes, scale) for row in plan.rows)
    peaks = tuple(peak_words(row, scale) for row in plan.rows)
    return Grid(
        title="Memory of a device",
        unit=scale.unit,
        note="at the peak of a step",
        columns=scheme_columns(plan.rows),
        rows=(
            GridRow(name="model states, at rest", short="states at rest", cells=sums),
            *(_tenant(plan.rows, tenant, scale) for tenant in SHOWN),
            GridRow(name="peak", cells=peaks, total=True),
            *_fit(plan),
        ),
        notes=tuple(_notes(plan)),
    )


def term_grid(plan: Plan) -> Grid:
    """Each kind within a tenant, so that every byte has a name."""
    scale = memory_scale(plan)
    kinds = dict.fromkeys((term.tenant, term.sub) for row in plan.rows for term in row.terms)
    ordered = sorted(kinds, key=lambda kind: SHOWN.index(kind[0]))
    return Grid(
        title="What the tenants consist of",
        unit=scale.unit,
        note="of a device, at its peak",
        columns=scheme_columns(plan.rows),
        rows=tuple(_kind(plan.rows, tenant, sub, scale) for tenant, sub in ordered),
    )


def memory_scale(plan: Plan) -> Scale:
    """One unit for all of a plan's sizes."""
    return size_scale([row.least_bytes for row in plan.rows])


def _tenant(rows: Sequence[PlanRow], tenant: Tenant, scale: Scale) -> GridRow:
    return GridRow(
        name=tenant_name(tenant),
        short=SHORT.get(tenant, ""),
        cells=tuple(_sum([term for term in row.terms if term.tenant is tenant], scale) for row in rows),
    )


def _sum(terms: Sequence[Term], scale: Scale) -> str:
    """Of no term 0, of unknown ones unknown, of some that are known at least these."""
    known = [term.bytes for term in terms if term.bytes is not None]
    if terms and not sum(known) and len(known) < len(terms):
        return UNKNOWN
    return f"{AT_LEAST if len(known) < len(terms) else ''}{scaled(sum(known), scale)}"


def peak_words(row: PlanRow, scale: Scale) -> str:
    """The peak, or at least what is known of it."""
    if row.peak_bytes is not None:
        return scaled(row.peak_bytes, scale)
    return f"{AT_LEAST}{scaled(row.least_bytes, scale)}"


def _fit(plan: Plan) -> Iterator[GridRow]:
    if plan.job.hardware is None:
        return
    memory = round_size(plan.job.hardware.memory_bytes)
    yield GridRow(
        name=f"fits {memory}", short=f"fits {memory}", cells=tuple(fit_word(row) for row in plan.rows)
    )
    if any(row.largest_parameters is not None for row in plan.rows):
        cells = tuple(largest(row) for row in plan.rows)
        yield GridRow(name="largest model that fits, parameters", short="largest model", cells=cells)


def fit_word(row: PlanRow) -> str:
    """Whether it fits, in a word."""
    return "tight" if row.tight else {True: "yes", False: "no", None: "unknown"}[row.fits]


def largest(row: PlanRow) -> str:
    """The largest model that fits; an upper bound where only states are known; none is no model of size 0."""
    if not row.largest_parameters:
        return UNKNOWN
    bound = "≤" if row.peak_bytes is None else ""
    return f"{bound}{count_words(row.largest_parameters)}"


def _notes(plan: Plan) -> Iterator[str]:
    yield "states at rest: parameters, gradients and optimizer state by the law of each scheme"
    moments: dict[str, list[str]] = {}
    for row in plan.rows:
        if row.peak_at:
            moments.setdefault(row.peak_at, []).append(SCHEMES[row.scheme])
    if len(moments) == 1:
        yield f"the peak is at: {next(iter(moments))}"
    elif moments:
        said = "; ".join(f"{', '.join(names)}: {moment}" for moment, names in moments.items())
        yield f"the peak is at: {said}"
    if any(row.peak_bytes is None for row in plan.rows):
        yield f"{UNKNOWN} is not known and {AT_LEAST} is what is known of it: why stands under Not known"
    if any(row.largest_parameters for row in plan.rows) and plan.job.shape is not None:
        yield (
            "largest model: the larger of two that fit with this batch, of the job's width with other "
            "layers, of its layers with another width"
        )
    if any(row.largest_parameters == 0 for row in plan.rows):
        yield f"largest model {UNKNOWN}: with this batch not even the smallest fits"
    if any(largest(row).startswith("≤") for row in plan.rows):
        yield "≤: the largest model by its states alone, what else it needs makes it smaller"
    early = [SCHEMES[row.scheme] for row in plan.rows if not row.tenants.get(Tenant.GRADIENTS)]
    if early:
        yield f"{', '.join(early)}: the peak comes before the first gradient is kept"
    if plan.job.hardware is None:
        yield "whether it fits needs a device: --hardware NAME"
    sharded = [row for row in plan.rows if row.scheme in ZERO_STAGES]
    if len(sharded) > 1 and all(row.degrees.dp == 1 for row in sharded):
        yield "one data-parallel rank: ZeRO shards nothing, so that DP and ZeRO are alike"
    if any(row.tight for row in plan.rows):
        yield "tight: it fits, and less than a tenth of the device is left"
    if any(row.fits for row in plan.rows):
        yield (
            "the driver's context, NCCL's buffers and fragmentation are not in the peak (in the largest runs "
            "of the paper's table 2 model states were about 82 % of the device)"
        )


def _kind(rows: Sequence[PlanRow], tenant: Tenant, sub: str, scale: Scale) -> GridRow:
    cells = []
    for row in rows:
        found = [term for term in row.terms if term.tenant is tenant and term.sub == sub]
        cells.append(_sum(found, scale) if found else "")
    what = f": {sub.replace('_', ' ')}" if sub else ""
    return GridRow(
        name=f"{tenant_name(tenant)}{what}", short=f"{_SHORTEST[tenant]}{what}", cells=tuple(cells)
    )
