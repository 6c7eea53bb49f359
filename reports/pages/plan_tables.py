"""Tables and figure formats of a plan: device memory, step, traffic, devices along each axis.

A GB is 1e9 bytes, as in the ZeRO paper.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from zprof.base.formatting import DECIMAL_SIZES, format_decimal_bytes
from zprof.model.cursor import Cursor, get, get_path, read
from zprof.model.job import Assumed, Job
from zprof.model.machines import Hardware
from zprof.model.plan import PIPELINES, ZERO_STAGES, Axis, Plan, PlanRow, VerifiedStage
from zprof.model.quantities import (
    BOUND_SIGNS,
    ESTIMATE_SIGN,
    Aggregation,
    Bound,
    Scale,
    Unit,
    Value,
    format_scaled,
)
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.model.time import LEDGER_NAMES
from zprof.reports.page import Bars, StackedBar
from zprof.reports.pages.tenants import build_tenant_legend, get_tenant_class, stack_segments, tenant_name
from zprof.reports.table import (
    MAX_ROWS,
    UNKNOWN,
    Cell,
    Column,
    Row,
    Table,
    make_number_columns,
    make_text_column,
)

AXES = {
    Axis.DATA: "data parallel",
    Axis.MODEL: "model parallel",
    Axis.PIPELINE: "pipeline",
    Axis.HOST: "host",
}
_LINKS = {"intra": "in a node", "inter": "between nodes", "pcie": "PCIe"}
#: Terms of the ledger: field, name, short name.
_TERMS = (
    ("compute_ns", LEDGER_NAMES["compute_ns"], ""),
    ("exposed_transfer_ns", LEDGER_NAMES["exposed_transfer_ns"], "exp. transfer"),
    ("exposed_memcpy_ns", LEDGER_NAMES["exposed_memcpy_ns"], ""),
    ("idle_ns", f"{LEDGER_NAMES['idle_ns']} (pipeline bubble)", "idle, bubble"),
)
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
#: Format of counts shown in full, with thousands separators.
IN_FULL = Scale(factor=1, unit="")
_COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


def build_memory_table(plan: Plan) -> Table:
    """Build the table of model states by formula, the tenants at the peak, and what fits."""
    scale, rows = choose_memory_scale(plan), tuple(Cursor(plan).rows)
    tenants = (
        Row(
            cells=(
                tenant_name(tenant),
                *(
                    _sum_terms(row, [term for term in row.terms if get(term).tenant is tenant], scale)
                    for row in rows
                ),
            ),
            short=SHORT.get(tenant, ""),
        )
        for tenant in DISPLAY_ORDER
    )
    return make_plan_table(
        title="Memory per device",
        unit=scale.unit,
        note="at the peak of a step",
        columns=_make_scheme_columns(plan),
        rows=(
            Row(
                cells=("model states, at rest", *(read_state_bytes(row, scale) for row in rows)),
                short="states at rest",
            ),
            *tenants,
            Row(cells=("peak", *(read_known_peak(row, scale) for row in rows)), total=True),
            *_build_fit_rows(plan),
        ),
        notes=tuple(_list_memory_notes(plan)),
    )


def build_component_table(plan: Plan) -> Table:
    """Build the table of the components of each tenant."""
    scale, rows = choose_memory_scale(plan), tuple(Cursor(plan).rows)
    kinds = dict.fromkeys((term.tenant, term.sub) for row in plan.rows for term in row.terms)

    def make_row(tenant: Tenant, sub: str) -> Row:
        cells: list[Cell] = []
        for row in rows:
            terms = [term for term in row.terms if (get(term).tenant, get(term).sub) == (tenant, sub)]
            cells.append(_sum_terms(row, terms, scale) if terms else "")
        suffix = f": {sub.replace('_', ' ')}" if sub else ""
        return Row(
            cells=(f"{tenant_name(tenant)}{suffix}", *cells), short=f"{_ABBREVIATIONS[tenant]}{suffix}"
        )

    return make_plan_table(
        title="Components of each tenant",
        unit=scale.unit,
        note="per device, at its peak",
        columns=_make_scheme_columns(plan),
        rows=[make_row(*kind) for kind in sorted(kinds, key=lambda kind: DISPLAY_ORDER.index(kind[0]))],
    )


def choose_memory_scale(plan: Plan) -> Scale:
    """Return a common unit for all sizes of a plan."""
    return choose_size_scale([row.least_bytes for row in plan.rows])


def _make_scheme_columns(plan: Plan) -> tuple[Column, ...]:
    return tuple(Column(title=row.name) for row in plan.rows)


def _sum_terms(row: Cursor, terms: Sequence[Cursor], scale: Scale) -> Value:
    """Return the sum of a row's terms: unknown if all terms are unknown, a lower bound if some are."""
    sizes = [get(term.bytes) for term in terms]
    known_bytes, is_partial = sum(size for size in sizes if size is not None), None in sizes
    return Value(
        None if is_partial and not known_bytes else known_bytes,
        Unit.BYTES,
        leaves=tuple(get_path(term.bytes) for term in terms),
        how=Aggregation.SUM,
        bound=Bound.AT_LEAST if is_partial else Bound.EXACT,
        scale=scale,
        is_estimate="peak_bytes" in get(row).assumed and bool(known_bytes),
    )


def read_state_bytes(row: Cursor, scale: Scale) -> Value:
    """Return the model states at rest of a plan row."""
    return read_scaled(row.state_bytes, scale, assumed="state_bytes" in get(row).assumed)


def read_known_peak(row: Cursor, scale: Scale) -> Value:
    """Return the peak of a plan row, or its known part as a lower bound."""
    is_assumed = "peak_bytes" in get(row).assumed
    if get(row).peak_bytes is not None:
        return read_scaled(row.peak_bytes, scale, assumed=is_assumed)
    return replace(read_scaled(row.least_bytes, scale, assumed=is_assumed), bound=Bound.AT_LEAST)


def _build_fit_rows(plan: Plan) -> Iterator[Row]:
    if plan.job.hardware is None:
        return
    title = f"fits {format_memory_size(plan.job.hardware, plan.job)}"
    fits = [
        mark_assumed(
            "tight" if row.tight else {True: "yes", False: "no", None: "unknown"}[row.fits],
            "fits" in row.assumed and row.fits is not None,
        )
        for row in plan.rows
    ]
    yield Row(cells=(title, *fits), short=title)
    if any(row.largest_parameters is not None for row in plan.rows):
        name = "largest model that fits, parameters"
        yield Row(cells=(name, *map(_format_largest_model, plan.rows)), short="largest model")


def format_memory_size(hardware: Hardware, job: Job) -> str:
    """Format the memory size of the job's device."""
    return mark_assumed(format_decimal_bytes(hardware.memory_bytes), Assumed.HARDWARE in job.assumed)


def _format_largest_model(row: PlanRow) -> str:
    """Format the largest model that fits; an upper bound if only its states are known."""
    if not row.largest_parameters:
        return UNKNOWN
    bound = Bound.AT_MOST if row.peak_bytes is None else Bound.EXACT
    return mark_assumed(
        f"{BOUND_SIGNS[bound]}{format_count(row.largest_parameters)}", "largest_parameters" in row.assumed
    )


def _list_memory_notes(plan: Plan) -> Iterator[str]:
    yield "States at rest: parameters, gradients and optimizer state by the formula of each scheme."
    if plan.job.assumed:
        yield f"{ESTIMATE_SIGN}: rests on a usual value that was not stated; see the values above."
    peak_times: dict[str, list[str]] = {}
    for row in plan.rows:
        if row.peak_at:
            peak_times.setdefault(row.peak_at, []).append(row.name)
    if len(peak_times) == 1:
        yield f"Peak at: {next(iter(peak_times))}."
    elif peak_times:
        text = "; ".join(f"{', '.join(names)}: {moment}" for moment, names in peak_times.items())
        yield f"Peak at: {text}."
    if any(row.peak_bytes is None for row in plan.rows):
        yield f"{UNKNOWN}: unknown; ≥: lower bound. See Unknown for the reasons."
    reserves = [row.reserve_bytes for row in plan.rows if row.reserve_bytes is not None]
    if any(row.largest_parameters for row in plan.rows) and reserves:
        yield "Largest model: this layout with another number of layers."
    elif any(row.largest_parameters for row in plan.rows) and plan.job.shape is not None:
        yield (
            "Largest model: the larger of two models that fit with this batch: one with a different number "
            "of layers, one with a different width."
        )
    if any(row.largest_parameters == 0 for row in plan.rows):
        yield f"Largest model {UNKNOWN}: not even the smallest fits with this batch."
    if any(row.largest_parameters and row.peak_bytes is None for row in plan.rows):
        yield "≤: largest model by its states alone; its other memory makes it smaller."
    early_schemes = [row.name for row in plan.rows if not row.tenants.get(Tenant.GRADIENTS)]
    if early_schemes:
        yield f"{', '.join(early_schemes)}: the peak comes before the first gradient is stored."
    if plan.job.hardware is None:
        yield "To see if it fits, name a device: --hardware NAME."
    sharded = [row for row in plan.rows if row.scheme in ZERO_STAGES]
    if len(sharded) > 1 and all(row.degrees.dp == 1 for row in sharded):
        yield "One data-parallel rank: there is nothing to shard, so DP and ZeRO are the same."
    yield from _list_reserve_notes(plan, reserves)


def _list_reserve_notes(plan: Plan, reserves: Sequence[int]) -> Iterator[str]:
    """List the notes on what the peak leaves out: the reserve of frameworks, or what the paper leaves out."""
    if reserves:
        least, most = (format_decimal_bytes(size) for size in (min(reserves), max(reserves)))
        size = least if least == most else f"{least} to {most}"
        yield f"The peak excludes the reserve for driver context, NCCL and fragmentation: {size}."
        if any(row.tight for row in plan.rows):
            yield "Tight: it fits only if less than this reserve is needed."
        return
    if any(row.tight for row in plan.rows):
        yield "Tight: it fits, but less than a tenth of the device is left."
    if any(row.fits for row in plan.rows):
        yield (
            "The peak excludes the driver context, NCCL buffers and fragmentation (in the largest runs of "
            "table 2 of the paper, model states were about 82 % of the device)."
        )


def build_plan_bars(plan: Plan) -> Bars:
    """Build stacked bars of each scheme's known peak on a common scale."""
    max_bytes = max(row.least_bytes for row in plan.rows) or 1
    scale = choose_memory_scale(plan)
    used_classes = {
        get_tenant_class(tenant.value) for row in plan.rows for tenant, size in row.tenants.items() if size
    }
    is_partial = any(row.peak_bytes is None for row in plan.rows)

    def make_bar(row: Cursor) -> StackedBar:
        sizes = [(tenant.value, get(row).tenants.get(tenant, 0)) for tenant in DISPLAY_ORDER]
        parts = [(name, size, format_with_unit(size, scale)) for name, size in sizes]
        return StackedBar(
            name=get(row).name,
            note=f"{read_known_peak(row, scale).text} {scale.unit}",
            segments=stack_segments(parts, max_bytes),
        )

    return Bars(
        title="Memory per device at the peak of a step, by tenant",
        bars=tuple(map(make_bar, Cursor(plan).rows)),
        legend=tuple(entry for entry in build_tenant_legend() if entry.colour in used_classes),
        notes=("If a peak is partly unknown, its bar shows the known part.",) * is_partial,
    )


def build_step_table(plan: Plan) -> Table | None:
    """Build the ledger, with terms that add up to the step; None if no step is predicted."""
    if not any(row.step for row in plan.rows):
        return None
    rows = tuple(Cursor(plan).rows)
    scale = choose_time_scale([row.step.wall_ns for row in plan.rows if row.step])

    def make_row(name: str, field: str, short: str = "", scale: Scale | None = scale) -> Row:
        cells = (
            UNKNOWN
            if get(row).step is None
            else read_scaled(row.step[field], scale, assumed="step" in get(row).assumed)
            for row in rows
        )
        return Row(cells=(name, *cells), short=short, total=field == "wall_ns")

    pipelines = [row.name for row in plan.rows if row.step and row.degrees.pp > 1 and row.scheme in PIPELINES]
    return make_plan_table(
        title="Step time",
        unit=scale.unit,
        note="on one device, assuming no late rank",
        columns=_make_scheme_columns(plan),
        rows=(
            *(make_row(name, field, short) for field, name, short in _TERMS),
            make_row("step", "wall_ns"),
            make_row("efficiency (compute / step)", "efficiency_ratio", "efficiency", None),
            *_build_throughput_row(plan),
            *_build_bound_row(plan),
            make_row("collectives, exposed and hidden", "collective_ns", "collectives"),
            make_row("collectives, hidden part", "overlapped_ns", "hidden part"),
        ),
        notes=(f"{join_names(pipelines)}: {_SLOWEST_STAGE}",) if pipelines else (),
    )


def _build_bound_row(plan: Plan) -> tuple[Row, ...]:
    """Build the row that says what each framework's step waits for most; none for the reference engine."""
    bounds = [row.bound for row in plan.rows]
    if all(bound is None for bound in bounds):
        return ()
    cells = ["" if bound is None else bound.value for bound in bounds]
    return (Row(cells=("bound by", *cells), short="bound by"),)


_SLOWEST_STAGE = (
    "compute is of the slowest stage, so the efficiency does not show an imbalance between stages."
)


def compute_tokens_per_s(plan: Plan, row: PlanRow) -> float | None:
    """Compute the tokens per second and device; None if unknown."""
    if row.tokens_per_s is not None:
        return row.tokens_per_s
    tokens = plan.job.batch.tokens
    if tokens is None or row.step is None or not row.step.wall_ns:
        return None
    tokens_per_step = tokens * row.micro_batches * row.degrees.dp
    return tokens_per_step / row.degrees.devices / (row.step.wall_ns / 1e9)


def _build_throughput_row(plan: Plan) -> Iterator[Row]:
    if plan.job.batch.tokens is None:
        return
    rates = (
        Value(compute_tokens_per_s(plan, row), Unit.COUNT, scale=IN_FULL, is_estimate="step" in row.assumed)
        for row in plan.rows
    )
    yield Row(cells=("tokens per second and device", *rates), short="tokens/s, device")


def build_traffic_table(plan: Plan) -> Table | None:
    """Build the table of bytes per step along each axis and link, as in the paper and on a ring."""
    links = [link for row in plan.rows for link in row.links]
    if not links:
        return None
    sizes = choose_size_scale([link.bytes for link in links])
    times = choose_time_scale([link.time_ns for link in links])
    axes, names = list(AXES), list(_LINKS)
    keys = sorted(
        {(link.axis, link.link): None for link in links},
        key=lambda key: (
            axes.index(key[0]),
            names.index(key[1]) if key[1] in names else len(names),
        ),
    )
    return make_plan_table(
        title="Bytes per step",
        unit=sizes.unit,
        note="moved per device",
        columns=_make_scheme_columns(plan),
        rows=[row for key in keys for row in _build_link_rows(plan, key, sizes, times)],
        notes=(
            "Counted as in the paper: an all-reduce moves twice the tensor. "
            "On the wire: a ring of N ranks moves (N-1)/N of that.",
        ),
    )


def _build_link_rows(plan: Plan, key: tuple[Axis, str], sizes: Scale, times: Scale) -> Iterator[Row]:
    """Yield the bytes, the bytes on the wire and the time of an axis and link, if anything moves."""
    traffic = [
        next((link for link in row.links if (get(link).axis, get(link).link) == key), None)
        for row in Cursor(plan).rows
    ]

    def make_cells(field: str, scale: Scale, assumed: str) -> Iterator[Cell]:
        for link in traffic:
            yield (
                "" if link is None else read_scaled(link[field], scale, assumed=assumed in get(link).assumed)
            )

    axis, link = AXES[key[0]], _LINKS.get(key[1], key[1])
    yield Row(
        cells=(f"{axis}, {link}", *make_cells("bytes", sizes, "bytes")), short=f"{key[0].value}, {link}"
    )
    yield Row(cells=("bytes on the wire", *make_cells("ring_bytes", sizes, "bytes")), short="  on the wire")
    if any(link is not None and get(link).time_ns is not None for link in traffic):
        name = f"transfer time, {times.unit}"
        yield Row(cells=(name, *make_cells("time_ns", times, "time_ns")), short=f"  time, {times.unit}")


def build_degree_table(plan: Plan) -> Table:
    """Build the table of devices along each axis, per scheme."""
    schemes = [(row, "degrees" in get(row).assumed) for row in Cursor(plan).rows]
    places: tuple[tuple[str, str, Callable[[Cursor], Cursor]], ...] = (
        ("data parallel", "", lambda row: row.degrees.dp),
        ("model parallel", "", lambda row: row.degrees.mp),
        ("pipeline", "", lambda row: row.degrees.pp),
        ("micro-batches per replica", "micro-batches", lambda row: row.micro_batches),
    )
    several = len({row.micro_batches for row in plan.rows}) > 1
    note = (
        "Micro-batches per replica and step: fewer replicas need more of them, so that the global batch is "
        "the same as far as an integer number allows."
    )
    return make_plan_table(
        title="Devices along each axis",
        note=f"{format_integer(plan.job.degrees.devices)} in total",
        columns=_make_scheme_columns(plan),
        rows=[
            Row(
                cells=(
                    name,
                    *(read_scaled(find(row), IN_FULL, assumed=is_assumed) for row, is_assumed in schemes),
                ),
                short=short,
            )
            for name, short, find in places
        ],
        notes=(note,) * several,
    )


def build_verified_table(stage: Cursor) -> Table:
    """Build the table of one verified stage: tenants and peak, planned and counted."""
    known: VerifiedStage = get(stage)
    scale = choose_size_scale([known.planned_peak_bytes, known.verified_peak_bytes])

    def make_row(name: str, place: Cursor, peak: str) -> Row:
        sizes = (read_scaled(place[f"{kind}{peak}_bytes"], scale) for kind in ("planned", "verified"))
        difference = replace(read(place.difference_ratio), signed=True)
        return Row(cells=(name, *sizes, difference), total=bool(peak))

    return make_plan_table(
        title=f"Stage {known.stage} against a counted rank",
        unit=scale.unit,
        note=f"peak: {known.peak_at}" if known.peak_at else "",
        columns=(
            *make_number_columns("planned", "counted", unit=scale.unit),
            *make_number_columns("difference", unit="%"),
        ),
        rows=(
            *(make_row(tenant_name(get(entry).tenant), entry, "") for entry in stage.tenants),
            make_row("peak", stage, "_peak"),
        ),
    )


def choose_size_scale(sizes: Iterable[int | None]) -> Scale:
    """Choose the decimal unit for the largest size; 1 GB is 1e9 bytes, as in the paper."""
    max_value = max((size for size in sizes if size is not None), default=10**9) or 10**9
    factor, unit = next(entry for entry in DECIMAL_SIZES if max_value >= entry[0])
    return Scale(factor=factor, unit=unit)


def choose_time_scale(times_ns: Iterable[int | None]) -> Scale:
    """Choose the unit for the longest time: seconds from 10 s, microseconds below 1 ms, else milliseconds."""
    max_value = max((time for time in times_ns if time is not None), default=0)
    if max_value >= 10_000_000_000:
        return Scale(factor=1e9, unit="s")
    return Scale(factor=1e3, unit="µs") if 0 < max_value < 1_000_000 else Scale(factor=1e6, unit="ms")


def format_with_unit(value: float | None, scale: Scale) -> str:
    """Format a value with its unit, for sentences."""
    return UNKNOWN if value is None else f"{format_scaled(value, scale)} {scale.unit}"


def format_plan_time(time_ns: int | None) -> str:
    """Format a time in a suitable unit."""
    return format_with_unit(time_ns, choose_time_scale([time_ns]))


def format_count(count: float | None) -> str:
    """Format a count such as ``7642000000`` as ``7.6B``; numbers below a thousand are unchanged."""
    if count is None:
        return UNKNOWN
    for factor, unit in _COUNTS:
        if count >= factor * 0.9995:
            value = count / factor
            return f"{value:.0f}{unit}" if value >= 99.95 else f"{value:.1f}{unit}"
    return f"{count:,.0f}"


def format_integer(count: float | None) -> str:
    """Format an integer in full, with thousands separators."""
    return UNKNOWN if count is None else f"{count:,.0f}"


def join_names(names: Iterable[str]) -> str:
    """Join names as ``a``, ``a and b`` or ``a, b and c``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def read_scaled(place: Cursor, scale: Scale | None, *, assumed: bool = False) -> Value:
    """Return the number at a plan leaf in the unit of its table; a 0 rests on no assumption."""
    value = read(place)
    return replace(value, scale=scale, is_estimate=assumed and bool(value.number))


def mark_assumed(text: str, assumed: bool) -> str:
    """Mark a figure that rests on an assumed value; missing figures and 0 get no mark."""
    return f"{ESTIMATE_SIGN}{text}" if assumed and text not in ("", "0", UNKNOWN) else text


def make_plan_table(
    title: str,
    *,
    columns: Sequence[Column],
    rows: Sequence[Row],
    head: str = "",
    unit: str = "",
    note: str = "",
    notes: Sequence[str] = (),
) -> Table:
    """Make a plan table; the terminal shows all rows. ``head``: header of the name column."""
    return Table(
        title=title,
        columns=(make_text_column(head), *columns),
        rows=tuple(rows[:MAX_ROWS]),
        unit=unit,
        note=note,
        notes=tuple(notes),
        max_text_rows=MAX_ROWS,
        total=len(rows),
    )
