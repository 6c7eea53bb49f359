"""Memory of a plan as stacked bars: one a scheme, a piece a tenant, on one scale."""

from collections.abc import Iterator

from zprof.model.planning.plan import Plan, PlanRow
from zprof.model.tenants import SHOWN
from zprof.reports.html import words
from zprof.reports.html.blocks import Bars, Segment, StackedBar
from zprof.reports.plan.memory import memory_scale, peak_words
from zprof.reports.plan.words import SCHEMES, Scale, scaled
from zprof.reports.shown.memory_names import tenant_name

_NOTE = "where not all is known a bar ends with what is"


def memory_bars(plan: Plan) -> Bars:
    """What is known of each scheme's peak; the widest bar is the largest."""
    most = max(row.least_bytes for row in plan.rows) or 1
    scale = memory_scale(plan)
    held = {tenant.value for row in plan.rows for tenant, size in row.tenants.items() if size}
    return Bars(
        caption="Memory of a device at the peak of a step, by tenant",
        bars=tuple(
            StackedBar(
                name=SCHEMES[row.scheme],
                note=f"{peak_words(row, scale)} {scale.unit}",
                segments=tuple(_segments(row, most, scale)),
            )
            for row in plan.rows
        ),
        legend=tuple(
            entry for entry in words.LEGEND if entry.kind in {words.tenant_kind(name) for name in held}
        ),
        notes=(_NOTE,) if any(row.peak_bytes is None for row in plan.rows) else (),
    )


def _segments(row: PlanRow, most: int, scale: Scale) -> Iterator[Segment]:
    begin = 0
    for tenant in SHOWN:
        size = row.tenants.get(tenant, 0)
        if size:
            yield Segment(
                kind=words.tenant_kind(tenant.value),
                letter=words.LETTERS[tenant.value],
                text=f"{tenant_name(tenant)} {scaled(size, scale)} {scale.unit}",
                begin=round(100 * begin / most, 2),
                width=round(100 * size / most, 2),
            )
        begin += size
