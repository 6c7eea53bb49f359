"""Build the time part of a plan: the ledger of a step, and the bytes a device moves along each axis."""

from collections.abc import Iterator

from zprof.model.plan import PIPELINES, Axis, Plan, PlanRow
from zprof.model.quantities import Scale, Unit, Value
from zprof.model.time import LEDGER_NAMES
from zprof.reports.presenters.plan_formatting import (
    AXES,
    IN_FULL,
    LINKS,
    SCHEMES,
    choose_size_scale,
    choose_time_scale,
    format_integer,
    join_names,
    make_plan_row,
    make_plan_table,
    take_scaled,
)
from zprof.reports.presenters.plan_memory import make_scheme_columns
from zprof.reports.table import UNKNOWN, Cell, Row, Table

#: Terms of the ledger: field, name, short name.
_TERMS = (
    ("compute_ns", LEDGER_NAMES["compute_ns"], ""),
    ("exposed_transfer_ns", LEDGER_NAMES["exposed_transfer_ns"], "exp. transfer"),
    ("exposed_memcpy_ns", LEDGER_NAMES["exposed_memcpy_ns"], ""),
    ("idle_ns", f"{LEDGER_NAMES['idle_ns']} (pipeline bubble)", "idle, bubble"),
)


def build_degree_table(plan: Plan) -> Table:
    """Build the table of devices along each axis, per scheme."""
    axes = (("data parallel", "dp"), ("model parallel", "mp"), ("pipeline", "pp"))
    return make_plan_table(
        title="Devices along each axis",
        note=f"{format_integer(plan.job.degrees.devices)} in total",
        columns=make_scheme_columns(plan.rows),
        rows=(
            *(
                make_plan_row(
                    name=name,
                    cells=tuple(_make_count(row, getattr(row.degrees, leaf), "degrees") for row in plan.rows),
                )
                for name, leaf in axes
            ),
            make_plan_row(
                name="micro-batches per replica",
                short="micro-batches",
                cells=tuple(_make_count(row, row.micro_batches, "degrees") for row in plan.rows),
            ),
        ),
        notes=_list_batch_notes(plan),
    )


def _make_count(row: PlanRow, count: float | None, leaf: str) -> Value:
    return Value(count, Unit.COUNT, scale=IN_FULL, is_estimate=leaf in row.assumed)


def _list_batch_notes(plan: Plan) -> tuple[str, ...]:
    if len({row.micro_batches for row in plan.rows}) < 2:
        return ()
    return (
        "Micro-batches per replica and step: fewer replicas need more of them, so that the global batch is "
        "the same as far as an integer number allows.",
    )


def build_traffic_table(plan: Plan) -> tuple[Table, ...]:
    """Build the table of bytes per step along each axis and link, as in the paper and on a ring."""
    keys = dict.fromkeys((link.axis, link.link) for row in plan.rows for link in row.links)
    if not keys:
        return ()
    all_links = [link for row in plan.rows for link in row.links]
    sizes = choose_size_scale([link.bytes for link in all_links])
    times = choose_time_scale([link.time_ns for link in all_links])
    return (
        make_plan_table(
            title="Bytes per step",
            unit=sizes.unit,
            note="moved per device",
            columns=make_scheme_columns(plan.rows),
            rows=tuple(
                row
                for key in sorted(keys, key=_get_sort_key)
                for row in _build_link_rows(plan, key, sizes, times)
            ),
            notes=(
                "Counted as in the paper: an all-reduce moves twice the tensor. "
                "On the wire: a ring of N ranks moves (N-1)/N of that.",
            ),
        ),
    )


def build_step_table(plan: Plan) -> tuple[Table, ...]:
    """Build the ledger, whose terms add up to the step."""
    if not any(row.step for row in plan.rows):
        return ()
    scale = choose_time_scale([row.step.wall_ns for row in plan.rows if row.step])
    terms = [_build_time_row(plan, leaf, name, short, scale) for leaf, name, short in _TERMS]
    return (
        make_plan_table(
            title="Step time",
            unit=scale.unit,
            note="on one device, assuming no late rank",
            columns=make_scheme_columns(plan.rows),
            rows=(
                *terms,
                _build_time_row(plan, "wall_ns", "step", "", scale, total=True),
                make_plan_row(
                    name="efficiency (compute / step)",
                    short="efficiency",
                    cells=_make_step_cells(plan, "efficiency_ratio", None),
                ),
                *_build_throughput_row(plan),
                _build_time_row(
                    plan, "collective_ns", "collectives, exposed and hidden", "collectives", scale
                ),
                _build_time_row(plan, "overlapped_ns", "collectives, hidden part", "hidden part", scale),
            ),
            notes=tuple(_list_step_notes(plan)),
        ),
    )


def _list_step_notes(plan: Plan) -> Iterator[str]:
    """Yield a note on the pipeline stage that the ledger shows."""
    pipeline_schemes = [
        row.scheme for row in plan.rows if row.step and row.degrees.pp > 1 and row.scheme in PIPELINES
    ]
    if not pipeline_schemes:
        return
    yield (
        f"{join_names(SCHEMES[each] for each in pipeline_schemes)}: compute is of the slowest stage, so "
        "the efficiency does not show an imbalance between stages."
    )


def compute_tokens_per_s(plan: Plan, row: PlanRow) -> float | None:
    """Compute the tokens per second of a device; None if unknown."""
    tokens = plan.job.batch.tokens
    if tokens is None or row.step is None or not row.step.wall_ns:
        return None
    tokens_per_step = tokens * row.micro_batches * row.degrees.dp
    return tokens_per_step / row.degrees.devices / (row.step.wall_ns / 1e9)


def _build_throughput_row(plan: Plan) -> Iterator[Row]:
    if plan.job.batch.tokens is None:
        return
    yield make_plan_row(
        name="tokens per second and device",
        short="tokens/s, device",
        cells=tuple(_make_count(row, compute_tokens_per_s(plan, row), "step") for row in plan.rows),
    )


def _get_sort_key(key: tuple[Axis, str]) -> tuple[int, int]:
    links = list(LINKS)
    return (list(AXES).index(key[0]), links.index(key[1]) if key[1] in links else len(links))


def _build_link_rows(plan: Plan, key: tuple[Axis, str], sizes: Scale, times: Scale) -> Iterator[Row]:
    def cells(leaf: str, field: str, scale: Scale) -> tuple[Cell, ...]:
        return tuple(_make_link_cell(row, key, leaf, field, scale) for row in plan.rows)

    axis, link = AXES[key[0]], LINKS.get(key[1], key[1])
    yield make_plan_row(
        name=f"{axis}, {link}",
        short=f"{key[0].value}, {link}",
        cells=cells("bytes", "bytes", sizes),
    )
    yield make_plan_row(
        name="bytes on the wire",
        short="  on the wire",
        cells=cells("bytes", "ring_bytes", sizes),
    )
    timed = [link.time_ns for row in plan.rows for link in row.links if (link.axis, link.link) == key]
    if any(time is not None for time in timed):
        yield make_plan_row(
            name=f"transfer time, {times.unit}",
            short=f"  time, {times.unit}",
            cells=cells("time_ns", "time_ns", times),
        )


def _make_link_cell(row: PlanRow, key: tuple[Axis, str], leaf: str, field: str, scale: Scale) -> Cell:
    """Return a field of a link; empty if the scheme has no traffic there.  ``leaf``: what may be assumed."""
    traffic = next((link for link in row.links if (link.axis, link.link) == key), None)
    if traffic is None:
        return ""
    return take_scaled(traffic, field, scale, assumed=leaf in traffic.assumed)


def _build_time_row(
    plan: Plan, leaf: str, name: str, short: str, scale: Scale, *, total: bool = False
) -> Row:
    return make_plan_row(name, _make_step_cells(plan, leaf, scale), short=short, total=total)


def _make_step_cells(plan: Plan, leaf: str, scale: Scale | None) -> tuple[Cell, ...]:
    return tuple(
        UNKNOWN if row.step is None else take_scaled(row.step, leaf, scale, assumed="step" in row.assumed)
        for row in plan.rows
    )
