"""Step and traffic of a plan: the ledger of a step, and what a device moves along each axis."""

from collections.abc import Callable, Iterator

from zprof.model.formatting import format_percent
from zprof.model.plan import PIPELINES, Axis, LinkTraffic, Plan, PlannedStep, PlanRow
from zprof.reports.page import UNKNOWN, Row, Table
from zprof.reports.presenters.plan_memory import make_scheme_columns
from zprof.reports.presenters.plan_words import (
    AXES,
    LINKS,
    SCHEMES,
    Scale,
    choose_size_scale,
    choose_time_scale,
    format_integer,
    format_scaled,
    join_names,
    make_plan_row,
    make_plan_table,
)

#: Terms of the ledger: leaf, name, short name.
_TERMS = (
    ("compute_ns", "compute", ""),
    ("exposed_transfer_ns", "exposed transfer", "exp. transfer"),
    ("exposed_memcpy_ns", "exposed copies", ""),
    ("idle_ns", "idle (pipeline bubble)", "idle, bubble"),
)


def build_degree_table(plan: Plan) -> Table:
    """Return how many devices each scheme has along each axis."""
    axes = (("data parallel", "dp"), ("model parallel", "mp"), ("pipeline", "pp"))
    return make_plan_table(
        title="Devices along each axis",
        note=f"{format_integer(plan.job.degrees.devices)} in all",
        columns=make_scheme_columns(plan.rows),
        rows=(
            *(
                make_plan_row(
                    name=name, cells=tuple(format_integer(getattr(row.degrees, leaf)) for row in plan.rows)
                )
                for name, leaf in axes
            ),
            make_plan_row(
                name="micro-batches of a replica",
                short="micro-batches",
                cells=tuple(format_integer(row.micro_batches) for row in plan.rows),
            ),
        ),
        notes=_batch_notes(plan),
    )


def _batch_notes(plan: Plan) -> tuple[str, ...]:
    if len({row.micro_batches for row in plan.rows}) < 2:
        return ()
    return (
        "Micro-batches are those of one replica per step: fewer replicas take more of them, so that the "
        "global batch is the same as far as whole micro-batches allow.",
    )


def build_traffic_table(plan: Plan) -> tuple[Table, ...]:
    """Return the bytes per step along each axis and link, as the paper counts and on the ring."""
    keys = dict.fromkeys((link.axis, link.link) for row in plan.rows for link in row.links)
    if not keys:
        return ()
    every = [link for row in plan.rows for link in row.links]
    sizes = choose_size_scale([link.bytes for link in every])
    times = choose_time_scale([link.time_ns for link in every])
    return (
        make_plan_table(
            title="Bytes per step",
            unit=sizes.unit,
            note="that a device moves",
            columns=make_scheme_columns(plan.rows),
            rows=tuple(row for key in sorted(keys, key=_place) for row in _link(plan, key, sizes, times)),
            notes=(
                "Counted as the paper does: an all-reduce is twice its tensor. "
                "On the wire: what a ring of N puts on the link, (N-1)/N of it.",
            ),
        ),
    )


def build_step_table(plan: Plan) -> tuple[Table, ...]:
    """Return the ledger, whose terms sum to the step."""
    if not any(row.step for row in plan.rows):
        return ()
    scale = choose_time_scale([row.step.wall_ns for row in plan.rows if row.step])
    terms = [_time(plan, leaf, name, short, scale) for leaf, name, short in _TERMS]
    return (
        make_plan_table(
            title="A step",
            unit=scale.unit,
            note="on one device, if no rank is late",
            columns=make_scheme_columns(plan.rows),
            rows=(
                *terms,
                _time(plan, "wall_ns", "step", "", scale, total=True),
                make_plan_row(
                    name="efficiency (compute / step)",
                    short="efficiency",
                    cells=_cells(plan, lambda step: format_percent(step.efficiency_ratio)),
                ),
                *_throughput(plan),
                _time(plan, "collective_ns", "collectives, hidden or not", "collectives", scale),
                _time(plan, "overlapped_ns", "of them hidden", "of them hidden", scale),
            ),
            notes=tuple(_step_notes(plan)),
        ),
    )


def _step_notes(plan: Plan) -> Iterator[str]:
    """Say which stage the ledger of a pipeline is of."""
    piped = [row.scheme for row in plan.rows if row.step and row.degrees.pp > 1 and row.scheme in PIPELINES]
    if not piped:
        return
    yield (
        f"{join_names(SCHEMES[each] for each in piped)}: compute is that of the slowest stage, so "
        "stages of unequal work do not show in the efficiency."
    )


def compute_tokens_per_s(plan: Plan, row: PlanRow) -> float | None:
    """Return the tokens per second of a device; None if unknown."""
    tokens = plan.job.batch.tokens
    if tokens is None or row.step is None or not row.step.wall_ns:
        return None
    a_step = tokens * row.micro_batches * row.degrees.dp
    return a_step / row.degrees.devices / (row.step.wall_ns / 1e9)


def _throughput(plan: Plan) -> Iterator[Row]:
    if plan.job.batch.tokens is None:
        return
    rates = tuple(compute_tokens_per_s(plan, row) for row in plan.rows)
    yield make_plan_row(
        name="tokens per second and device",
        short="tokens/s, device",
        cells=tuple(format_integer(rate) for rate in rates),
    )


def _place(key: tuple[Axis, str]) -> tuple[int, int]:
    links = list(LINKS)
    return (list(AXES).index(key[0]), links.index(key[1]) if key[1] in links else len(links))


def _link(plan: Plan, key: tuple[Axis, str], sizes: Scale, times: Scale) -> Iterator[Row]:
    def cells(show: Callable[[LinkTraffic], str]) -> tuple[str, ...]:
        return tuple(_one(row, key, show) for row in plan.rows)

    axis, link = AXES[key[0]], LINKS.get(key[1], key[1])
    yield make_plan_row(
        name=f"{axis}, {link}",
        short=f"{key[0].value}, {link}",
        cells=cells(lambda found: format_scaled(found.bytes, sizes)),
    )
    yield make_plan_row(
        name="of it on the wire",
        short="  on the wire",
        cells=cells(lambda found: format_scaled(found.ring_bytes, sizes)),
    )
    timed = [link.time_ns for row in plan.rows for link in row.links if (link.axis, link.link) == key]
    if any(time is not None for time in timed):
        yield make_plan_row(
            name=f"its time, {times.unit}",
            short=f"  its time, {times.unit}",
            cells=cells(lambda found: format_scaled(found.time_ns, times)),
        )


def _one(row: PlanRow, key: tuple[Axis, str], show: Callable[[LinkTraffic], str]) -> str:
    """Return a cell; empty if the scheme moves nothing there."""
    found = next((link for link in row.links if (link.axis, link.link) == key), None)
    return "" if found is None else show(found)


def _time(plan: Plan, leaf: str, name: str, short: str, scale: Scale, *, total: bool = False) -> Row:
    cells = _cells(plan, lambda step: format_scaled(getattr(step, leaf), scale))
    return make_plan_row(name, cells, short=short, total=total)


def _cells(plan: Plan, show: Callable[[PlannedStep], str]) -> tuple[str, ...]:
    return tuple(UNKNOWN if row.step is None else show(row.step) for row in plan.rows)
