"""Traffic and step of a plan as tables: what a device moves along each axis, and the ledger of a step."""

from collections.abc import Callable, Iterator

from zprof.model.planning.plan import PIPELINES, Axis, LinkTraffic, Plan, PlannedStep, PlanRow
from zprof.model.units import format_percent
from zprof.reports.plan.grid import Grid, GridRow
from zprof.reports.plan.memory import scheme_columns
from zprof.reports.plan.words import (
    AXES,
    LINKS,
    SCHEMES,
    UNKNOWN,
    Scale,
    joined,
    scaled,
    size_scale,
    time_scale,
    whole,
)

#: Terms of the ledger: leaf, name, short name.
_TERMS = (
    ("compute_ns", "compute", ""),
    ("exposed_transfer_ns", "exposed transfer", "exp. transfer"),
    ("exposed_memcpy_ns", "exposed copies", ""),
    ("idle_ns", "idle (pipeline bubble)", "idle, bubble"),
)


def degree_grid(plan: Plan) -> Grid:
    """How many devices each scheme spreads along each axis."""
    axes = (("data parallel", "dp"), ("model parallel", "mp"), ("pipeline", "pp"))
    return Grid(
        title="Devices along each axis",
        note=f"{whole(plan.job.degrees.devices)} in all",
        columns=scheme_columns(plan.rows),
        rows=(
            *(
                GridRow(name=name, cells=tuple(whole(getattr(row.degrees, leaf)) for row in plan.rows))
                for name, leaf in axes
            ),
            GridRow(
                name="micro-batches of a replica",
                short="micro-batches",
                cells=tuple(whole(row.micro_batches) for row in plan.rows),
            ),
        ),
        notes=_batch_notes(plan),
    )


def _batch_notes(plan: Plan) -> tuple[str, ...]:
    if len({row.micro_batches for row in plan.rows}) < 2:
        return ()
    return (
        "micro-batches: of one replica in a step; fewer replicas take more of them, so that the global batch "
        "is the same as far as whole micro-batches allow",
    )


def traffic_grid(plan: Plan) -> tuple[Grid, ...]:
    """Bytes of a step along each axis and link: as the paper counts, on the ring, and the time of that."""
    keys = dict.fromkeys((link.axis, link.link) for row in plan.rows for link in row.links)
    if not keys:
        return ()
    every = [link for row in plan.rows for link in row.links]
    sizes = size_scale([link.bytes for link in every])
    times = time_scale([link.time_ns for link in every])
    return (
        Grid(
            title="Bytes a step",
            unit=sizes.unit,
            note="that a device moves",
            columns=scheme_columns(plan.rows),
            rows=tuple(row for key in sorted(keys, key=_place) for row in _link(plan, key, sizes, times)),
            notes=(
                "counted as the paper does (an all-reduce is twice its tensor); "
                "on the wire: what a ring of N puts on the link, (N-1)/N of it",
            ),
        ),
    )


def step_grid(plan: Plan) -> tuple[Grid, ...]:
    """The ledger: its terms sum to the step."""
    if not any(row.step for row in plan.rows):
        return ()
    scale = time_scale([row.step.wall_ns for row in plan.rows if row.step])
    terms = [_time(plan, leaf, name, short, scale) for leaf, name, short in _TERMS]
    total = _time(plan, "wall_ns", "step", "", scale)
    return (
        Grid(
            title="A step",
            unit=scale.unit,
            note="on one device, if no rank is late",
            columns=scheme_columns(plan.rows),
            rows=(
                *terms,
                GridRow(name=total.name, cells=total.cells, total=True),
                GridRow(
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
    """What the ledger of a pipeline is the ledger of."""
    piped = [row.scheme for row in plan.rows if row.step and row.degrees.pp > 1 and row.scheme in PIPELINES]
    if not piped:
        return
    yield (
        f"{joined(SCHEMES[each] for each in piped)}: compute is that of the slowest stage, so that stages of "
        "unequal work do not show in the efficiency"
    )


def tokens_per_s(plan: Plan, row: PlanRow) -> float | None:
    """Tokens that a device gets through."""
    tokens = plan.job.batch.tokens
    if tokens is None or row.step is None or not row.step.wall_ns:
        return None
    a_step = tokens * row.micro_batches * row.degrees.dp
    return a_step / row.degrees.devices / (row.step.wall_ns / 1e9)


def _throughput(plan: Plan) -> Iterator[GridRow]:
    if plan.job.batch.tokens is None:
        return
    rates = tuple(tokens_per_s(plan, row) for row in plan.rows)
    yield GridRow(
        name="tokens a second, a device", short="tokens/s, device", cells=tuple(whole(rate) for rate in rates)
    )


def _place(key: tuple[Axis, str]) -> tuple[int, int]:
    links = list(LINKS)
    return (list(AXES).index(key[0]), links.index(key[1]) if key[1] in links else len(links))


def _link(plan: Plan, key: tuple[Axis, str], sizes: Scale, times: Scale) -> Iterator[GridRow]:
    def cells(show: Callable[[LinkTraffic], str]) -> tuple[str, ...]:
        return tuple(_one(row, key, show) for row in plan.rows)

    axis, link = AXES[key[0]], LINKS.get(key[1], key[1])
    yield GridRow(
        name=f"{axis}, {link}",
        short=f"{key[0].value}, {link}",
        cells=cells(lambda found: scaled(found.bytes, sizes)),
    )
    yield GridRow(
        name="of it on the wire",
        short="  on the wire",
        cells=cells(lambda found: scaled(found.ring_bytes, sizes)),
    )
    timed = [link.time_ns for row in plan.rows for link in row.links if (link.axis, link.link) == key]
    if any(time is not None for time in timed):
        yield GridRow(
            name=f"its time, {times.unit}",
            short=f"  its time, {times.unit}",
            cells=cells(lambda found: scaled(found.time_ns, times)),
        )


def _one(row: PlanRow, key: tuple[Axis, str], show: Callable[[LinkTraffic], str]) -> str:
    """Empty where a scheme moves nothing there."""
    found = next((link for link in row.links if (link.axis, link.link) == key), None)
    return "" if found is None else show(found)


def _time(plan: Plan, leaf: str, name: str, short: str, scale: Scale) -> GridRow:
    return GridRow(
        name=name, short=short, cells=_cells(plan, lambda step: scaled(getattr(step, leaf), scale))
    )


def _cells(plan: Plan, show: Callable[[PlannedStep], str]) -> tuple[str, ...]:
    return tuple(UNKNOWN if row.step is None else show(row.step) for row in plan.rows)
